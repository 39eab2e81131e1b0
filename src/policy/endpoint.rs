//! The identity of an endpoint: `ip:port`, IPv6 as `[::1]:8000` (DESIGN 2).

use std::net::SocketAddr;

/// Header and dynamic metadata key of endpoint pickers: `ip:port[,ip:port…]`, the first is chosen.
pub const DESTINATION: &str = "x-gateway-destination-endpoint";

/// The canonical text of an address. `None`: not an IP address with a port (a name, a pipe, an
/// internal listener), which no evidence can be about.
pub fn canonical(address: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(address).ok()?;
    if is_plain_ipv4(address) {
        return Some(text.to_owned());
    }
    text.trim()
        .parse::<SocketAddr>()
        .ok()
        .map(|address| address.to_string())
}

/// `10.0.0.7:8000` as it is written canonically, which it nearly always is: parsing and printing it
/// takes ten times as long.
fn is_plain_ipv4(address: &[u8]) -> bool {
    let Some(colon) = address.iter().rposition(|byte| *byte == b':') else {
        return false;
    };
    let (ip, port) = address.split_at(colon);
    let mut parts = 0_u32;
    let plain = ip.split(|byte| *byte == b'.').all(|part| {
        parts = parts.saturating_add(1);
        is_number(part, 255)
    });
    plain && parts == 4 && port.get(1..).is_some_and(|port| is_number(port, 65_535))
}

/// Decimal, without leading zeros.
fn is_number(digits: &[u8], most: u32) -> bool {
    if matches!(digits, [] | [b'0', _, ..]) || digits.len() > 5 {
        return false;
    }
    let number = digits.iter().try_fold(0_u32, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u32::from(digit))
    });
    number.is_some_and(|number| number <= most)
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
            ("0.0.0.0:0", Some("0.0.0.0:0")),
            ("255.255.255.255:65535", Some("255.255.255.255:65535")),
            ("10.0.0.256:8000", None),
            ("10.0.0.07:8000", None),
            ("10.0.0.7:08000", Some("10.0.0.7:8000")),
            ("10.0.0.7:65536", None),
            ("10.0.0.7:", None),
            ("10.0.0.7.1:8000", None),
            ("10.0.0:8000", None),
            ("10..0.7:8000", None),
            ("+1.0.0.7:8000", None),
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
