//! A block's whole `sha256_cbor` digest, which names the block's file.

use std::fmt;

const BYTES: usize = 32;
pub const HEX_DIGITS: usize = 2 * BYTES;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Digest([u8; BYTES]);

impl Digest {
    /// 64 lower-case hexadecimal digits, and nothing else: a path cannot be built from anything more.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != HEX_DIGITS {
            return None;
        }
        let mut digest = [0; BYTES];
        let (pairs, _) = text.as_bytes().as_chunks::<2>();
        for (byte, [high, low]) in digest.iter_mut().zip(pairs) {
            *byte = nibble(*high)? << 4 | nibble(*low)?;
        }
        Some(Self(digest))
    }
}

fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "7235f837d217eb40003197e4e27040edecc66c7d7fe49f86f5b600d19aef97ac";

    #[test]
    fn only_64_lower_case_digits() {
        assert_eq!(Digest::parse(GOOD).unwrap().to_string(), GOOD);
        for bad in [
            String::new(),
            GOOD[..63].into(),
            format!("{GOOD}0"),
            GOOD.to_uppercase(),
            GOOD.replace('7', "G"),
            GOOD.replace("72", "..").replacen("35", "//", 1),
            // 64 bytes, and not 64 digits.
            format!("{}é", &GOOD[..62]),
            // Arabic-Indic and full-width digits are digits, elsewhere.
            format!("{}٣", &GOOD[..62]),
            format!("{}３", &GOOD[..61]),
            format!("{}\0", &GOOD[..63]),
            format!("../../../{}", &GOOD[..55]),
            format!("0x{}", &GOOD[..62]),
            format!(" {}", &GOOD[..63]),
            format!("+{}", &GOOD[..63]),
        ] {
            assert_eq!(Digest::parse(&bad), None, "{bad:?}");
        }
    }
}
