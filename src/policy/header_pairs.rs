//! A header map as the host hands it over in one piece (proxy-wasm ABI 0.2.1): how many there are, each
//! one's length of name and value, then the names and values, each with a NUL behind it. Little endian.

/// All headers of a message.
#[derive(Debug, Default)]
pub struct HeaderPairs(Vec<u8>);

impl HeaderPairs {
    /// Of bytes in another form what can be read.
    pub const fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Of each of the names, which are in lower case, the first value.
    pub fn pick<const N: usize>(&self, names: [&str; N]) -> [Option<&[u8]>; N] {
        let mut values = [None; N];
        self.fill(&names, &mut values);
        values
    }

    /// [`Self::pick`], compiled once for any number of names.
    fn fill<'a>(&'a self, names: &[&str], values: &mut [Option<&'a [u8]>]) {
        for (name, value) in self.iter() {
            let place = names.iter().position(|wanted| wanted.as_bytes() == name);
            if let Some(place) = place.and_then(|place| values.get_mut(place)) {
                place.get_or_insert(value);
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let (count, rest) = self.0.split_first_chunk().unwrap_or((&[0; 4], &[]));
        let lengths = usize::try_from(u32::from_le_bytes(*count)).unwrap_or(0);
        let at = lengths.saturating_mul(8);
        let (lengths, mut rest) = rest.split_at_checked(at).unwrap_or_default();
        let (words, _) = lengths.as_chunks::<4>();
        let (pairs, _) = words.as_chunks::<2>();
        pairs.iter().map_while(move |[name, value]| {
            let name = text(&mut rest, *name)?;
            let value = text(&mut rest, *value)?;
            Some((name, value))
        })
    }
}

/// Takes a text of that length and its NUL.
fn text<'a>(rest: &mut &'a [u8], length: [u8; 4]) -> Option<&'a [u8]> {
    let length = usize::try_from(u32::from_le_bytes(length)).ok()?;
    let (text, after) = rest.split_at_checked(length)?;
    *rest = after.get(1..)?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn pairs(of: &[(&str, &[u8])]) -> Vec<u8> {
        let mut bytes = (of.len() as u32).to_le_bytes().to_vec();
        for (name, value) in of {
            bytes.extend((name.len() as u32).to_le_bytes());
            bytes.extend((value.len() as u32).to_le_bytes());
        }
        for (name, value) in of {
            bytes.extend([name.as_bytes(), b"\0", value, b"\0"].concat());
        }
        bytes
    }

    #[test]
    fn the_first_value_of_a_name() {
        let headers: [(&str, &[u8]); 5] = [
            (":path", b"/v1/completions"),
            ("x-odd", b"\xff\0"),
            ("x-twice", b"1"),
            ("x-twice", b"2"),
            ("x-empty", b""),
        ];
        let headers = HeaderPairs::new(pairs(&headers));
        let get = |name| headers.pick([name])[0];
        for (name, expected) in [
            (":path", Some(&b"/v1/completions"[..])),
            ("x-odd", Some(b"\xff\0")),
            ("x-twice", Some(b"1")),
            ("x-empty", Some(b"")),
            ("x", None),
            ("", None),
            (":pathx", None),
        ] {
            assert_eq!(get(name), expected, "{name}");
        }
        assert_eq!(
            headers.pick(["x-empty", "x", "x-twice"]),
            [Some(&b""[..]), None, Some(b"1")]
        );
    }

    #[test]
    fn what_is_cut_ends_there() {
        let whole = pairs(&[("a", b"1"), ("b", b"2")]);
        for cut in 0..whole.len() {
            let headers = HeaderPairs::new(whole[..cut].to_vec());
            let a_ends = 4 + 16 + 4;
            let [a, b] = headers.pick(["a", "b"]);
            assert_eq!((a.is_some(), b), (cut >= a_ends, None), "{cut}");
        }
        // Lengths beyond all bytes.
        for at in (0..20).step_by(4) {
            let mut bytes = whole.clone();
            bytes[at..at + 4].copy_from_slice(&[0xff; 4]);
            assert_eq!(HeaderPairs::new(bytes).pick(["b"]), [None], "{at}");
        }
        assert_eq!(HeaderPairs::default().pick(["a"]), [None]);
    }
}
