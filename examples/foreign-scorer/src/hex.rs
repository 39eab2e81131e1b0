//! Bytes as text, for control requests.

/// Pairs of hexadecimal digits. White space does not count, nor does what follows `#` on a line: the
/// examples of the document can be sent as they stand.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let code = text.lines().filter_map(|line| line.split('#').next());
    let digits: Vec<u8> = code
        .flat_map(str::chars)
        .filter(|c| !c.is_ascii_whitespace())
        .map(|c| c.to_digit(16).and_then(|d| u8::try_from(d).ok()))
        .collect::<Option<_>>()?;
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some(high << 4 | low),
        _ => None,
    });
    pairs.collect()
}

pub fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: [char; 16] = [
        '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
    ];
    let digit = |n: u8| DIGITS.get(usize::from(n)).copied();
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .flatten()
        .collect()
}

/// `%41` as `A`; everything else is itself.
pub fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = text.bytes();
    let mut out = Vec::new();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let pair = [bytes.next()?, bytes.next()?];
            let digits = std::str::from_utf8(&pair).ok()?;
            out.extend(from_hex(digits).filter(|bytes| bytes.len() == 1)?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_with_comments_and_back() {
        assert_eq!(
            from_hex("a2 # map\n  61 76\r\n01FF"),
            Some(vec![0xa2, 0x61, 0x76, 1, 255])
        );
        assert_eq!(from_hex(""), Some(vec![]));
        assert_eq!(from_hex("abc"), None);
        assert_eq!(from_hex("0x12"), None);
        assert_eq!(to_hex(&[0, 0x9f, 0xff]), "009fff");
    }

    #[test]
    fn percent_signs() {
        assert_eq!(percent_decoded("a%2Fb%c3%a9").as_deref(), Some("a/bé"));
        for bad in ["%", "%4", "%zz", "%%41", "%ff", "% 41", "%#41"] {
            assert_eq!(percent_decoded(bad), None, "{bad}");
        }
    }
}
