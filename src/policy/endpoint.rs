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

/// [`canonical`], without a copy of what is so already.
pub fn into_canonical(address: Vec<u8>) -> Option<String> {
    match is_plain_ipv4(&address) {
        true => String::from_utf8(address).ok(),
        false => canonical(&address),
    }
}

/// `10.0.0.7:8000` as it is written canonically, which it nearly always is: parsing and printing it
/// takes ten times as long.
fn is_plain_ipv4(address: &[u8]) -> bool {
    let mut rest = address;
    for separator in *b"...:" {
        match behind_number(rest, 255).and_then(<[u8]>::split_first) {
            Some((found, behind)) if *found == separator => rest = behind,
            _ => return false,
        }
    }
    behind_number(rest, 65_535).is_some_and(<[u8]>::is_empty)
}

/// What stands behind a decimal number without leading zeros. None: there is none, or a larger one.
fn behind_number(text: &[u8], most: u32) -> Option<&[u8]> {
    let digit = |byte: &u8| byte.checked_sub(b'0').filter(|digit| *digit < 10);
    let (first, mut rest) = text.split_first()?;
    let mut number = u32::from(digit(first)?);
    while let Some((byte, behind)) = rest.split_first()
        && let Some(digit) = digit(byte)
    {
        if number == 0 {
            return None;
        }
        number = number.checked_mul(10)?.checked_add(u32::from(digit))?;
        rest = behind;
    }
    (number <= most).then_some(rest)
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
            ("10.0.0.7:99999999999", None),
            ("10.0.0.0:0", Some("10.0.0.0:0")),
            ("10.0.0.00:0", None),
            ("10.0.0.7:8000 x", None),
            ("10.0.0.7:8000:", None),
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
            let owned = given.as_bytes().to_vec();
            assert_eq!(into_canonical(owned).as_deref(), expected, "{given:?}");
        }
        assert_eq!(canonical(b"10.0.0.7:8000\xff"), None);
        assert_eq!(into_canonical(b"10.0.0.7:8000\xff".to_vec()), None);
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
