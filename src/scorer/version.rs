//! The engine's version out of its answer to `GET /version`, `{"version":"0.32.0"}`.

use serde::Deserialize;

/// Longest version that is kept, bytes.
const MAX_VERSION: usize = 64;
/// Longest body that is read, bytes. vLLM's is 20.
pub const MAX_BODY_BYTES: usize = 16 * 1024;

#[derive(Deserialize)]
struct Answer {
    version: String,
}

/// None: not such an answer, or not a printable short text (it is shown to people).
pub fn read(body: &[u8]) -> Option<String> {
    if body.len() > MAX_BODY_BYTES {
        return None;
    }
    let Answer { version } = serde_json::from_slice(body).ok()?;
    let fits = (1..=MAX_VERSION).contains(&version.len())
        && version.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn answers() {
        let long = format!(r#"{{"version":"{}"}}"#, "1".repeat(65));
        let padded = format!(r#"{{"version":"1"}}{}"#, " ".repeat(16 * 1024));
        for (body, version) in [
            (r#"{"version":"0.32.0"}"#, Some("0.32.0")),
            (
                r#"{ "version" : "0.33.0rc1+g1234", "x": [1] }"#,
                Some("0.33.0rc1+g1234"),
            ),
            (r#"{"version":""}"#, None),
            (r#"{"version":"0.32.0\n"}"#, None),
            (r#"{"version":"ü"}"#, None),
            (r#"{"version":32}"#, None),
            (r#"{"Version":"0.32.0"}"#, None),
            (r#""0.32.0""#, None),
            ("0.32.0", None),
            ("", None),
            (&long, None),
            (&padded, None),
        ] {
            assert_eq!(read(body.as_bytes()).as_deref(), version, "{body:.80}");
        }
    }
}
