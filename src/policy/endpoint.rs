//! The identity of an endpoint: `ip:port`, IPv6 as `[::1]:8000` (DESIGN 2).

use std::net::SocketAddr;

/// Header and dynamic metadata key of endpoint pickers: `ip:port[,ip:port…]`, the first is chosen.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";

/// The canonical text of an address. `None`: not an IP address with a port (a name, a pipe, an
/// internal listener), which no evidence can be about.
pub fn canonical(address: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(address).ok()?;
    text.trim()
        .parse::<SocketAddr>()
        .ok()
        .map(|address| address.to_string())
}

/// The first entry of a destination list.
pub fn first_destination(list: &[u8]) -> Option<String> {
    canonical(list.split(|byte| *byte == b',').next()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn addresses() {
        for (given, expected) in [
            ("10.0.0.7:8000", Some("10.0.0.7:8000")),
            (" 10.0.0.7:8000 ", Some("10.0.0.7:8000")),
            ("[::1]:8000", Some("[::1]:8000")),
            ("[0:0:0:0:0:0:0:1]:8000", Some("[::1]:8000")),
            ("[2001:DB8::7]:80", Some("[2001:db8::7]:80")),
            ("10.0.0.7", None),
            ("::1:8000", None),
            ("engine-0:8000", None),
            ("/run/engine.sock", None),
            ("envoy://internal/", None),
            ("10.0.0.7:70000", None),
            ("", None),
        ] {
            assert_eq!(
                canonical(given.as_bytes()).as_deref(),
                expected,
                "{given:?}"
            );
        }
        assert_eq!(canonical(b"10.0.0.7:8000\xff"), None);
    }

    #[test]
    fn the_first_destination_is_the_chosen_one() {
        for (given, expected) in [
            ("10.0.0.7:8000", Some("10.0.0.7:8000")),
            ("10.0.0.7:8000,10.0.0.8:8000", Some("10.0.0.7:8000")),
            (" [::1]:8000 , 10.0.0.8:8000", Some("[::1]:8000")),
            (",10.0.0.8:8000", None),
            ("bad,10.0.0.8:8000", None),
        ] {
            assert_eq!(
                first_destination(given.as_bytes()).as_deref(),
                expected,
                "{given:?}"
            );
        }
    }
}
