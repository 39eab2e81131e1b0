//! The engine's version out of its answer to `GET /version`, `{"version":"0.32.0"}`.

use crate::json_value::{self, Json};

/// Longest version that is kept, bytes.
const MAX_VERSION: usize = 64;
/// Longest body that is read, bytes. vLLM's is 20.
pub const MAX_BODY_BYTES: usize = 16 * 1024;

/// None: not such an answer, or not a printable short text (it is shown to people).
pub fn read(body: &[u8]) -> Option<String> {
    if body.len() > MAX_BODY_BYTES {
        return None;
    }
    let [version] = json_value::read_only(body, &["version"])?.members(["version"])?;
    let Json::Text(version) = version? else {
        return None;
    };
    let fits = (1..=MAX_VERSION).contains(&version.len())
        && version.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then_some(version)
}

/// Major and minor of vLLM's version. None: not known, which builds from a checkout without tags
/// (`0.1.dev1+g1234`) are too.
pub fn release(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next()?, parts.next()?);
    if parts.next().is_some_and(|patch| patch.starts_with("dev")) {
        return None;
    }
    let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse().ok(),
        false => None,
    };
    Some((number(major)?, number(minor)?))
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
            (r#"{"version":"0.32.0","version":"0.32.0"}"#, None),
            // what nobody asks for is hardly looked at
            (r#"{"x":"\ud800","y":1e999,"version":"1"}"#, Some("1")),
            (r#"{"x":tru,"version":"1"}"#, None),
            (r#"["0.32.0"]"#, None),
            (r#"{"version":"1"}}"#, None),
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

    #[test]
    fn releases() {
        for (version, expected) in [
            ("0.32.0", Some((0, 32))),
            ("0.28.1rc1+cpu", Some((0, 28))),
            ("0.31.1.dev5+g1234", Some((0, 31))),
            ("1.0", Some((1, 0))),
            ("0.1.dev1+g1234", None),
            ("0.31rc1", None),
            ("v0.31.0", None),
            ("0.+3.1", None),
            ("0..1", None),
            ("32", None),
            ("", None),
        ] {
            assert_eq!(release(version), expected, "{version}");
        }
    }
}
