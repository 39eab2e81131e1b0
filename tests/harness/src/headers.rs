//! A header map as Envoy keeps it: lower-case names, byte values, order kept.

use std::borrow::Cow;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeaderMap(Vec<(String, Vec<u8>)>);

impl HeaderMap {
    /// The first value of that name, as Envoy hands it to a filter.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let name = name.to_ascii_lowercase();
        self.0
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, v)| v.as_slice())
    }

    /// Like [`get`](Self::get), as text for assertions.
    pub fn text(&self, name: &str) -> Option<Cow<'_, str>> {
        self.get(name).map(String::from_utf8_lossy)
    }

    pub fn add(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.0
            .push((name.to_ascii_lowercase(), value.as_ref().to_vec()));
    }

    /// One value for the name, whatever there was.
    pub fn replace(&mut self, name: &str, value: impl AsRef<[u8]>) {
        self.remove(name);
        self.add(name, value);
    }

    pub fn remove(&mut self, name: &str) {
        let name = name.to_ascii_lowercase();
        self.0.retain(|(n, _)| *n != name);
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of all names and values.
    pub fn byte_size(&self) -> usize {
        self.0.iter().map(|(n, v)| n.len() + v.len()).sum()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.0.iter().map(|(n, v)| (n.as_str(), v.as_slice()))
    }

    /// The ABI's form of a map: count, sizes, then every name and value with a NUL behind it.
    pub(crate) fn encode(&self) -> Vec<u8> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let mut out = (self.0.len() as u32).to_le_bytes().to_vec();
        for (name, value) in &self.0 {
            out.extend((name.len() as u32).to_le_bytes());
            out.extend((value.len() as u32).to_le_bytes());
        }
        for (name, value) in &self.0 {
            out.extend(name.as_bytes());
            out.push(0);
            out.extend(value);
            out.push(0);
        }
        out
    }

    /// None if the bytes are no such form.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let word = |at: usize| -> Option<usize> {
            let word: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(word) as usize)
        };
        let count = word(0)?;
        let mut at = 4 + count.checked_mul(8)?;
        let mut map = Self::default();
        for i in 0..count {
            let (name, value) = (word(4 + 8 * i)?, word(8 + 8 * i)?);
            let name_end = at.checked_add(name)?;
            let value_end = name_end.checked_add(1)?.checked_add(value)?;
            map.add(
                &String::from_utf8_lossy(bytes.get(at..name_end)?),
                bytes.get(name_end + 1..value_end)?,
            );
            at = value_end + 1;
        }
        Some(map)
    }
}

impl<N: AsRef<str>, V: AsRef<[u8]>> FromIterator<(N, V)> for HeaderMap {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut map = Self::default();
        for (name, value) in pairs {
            map.add(name.as_ref(), value);
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_survives_the_abi_form() {
        let map: HeaderMap = [("A", b"1".as_slice()), ("b", b"\xff\0x"), ("a", b"")]
            .into_iter()
            .collect();
        assert_eq!(HeaderMap::decode(&map.encode()), Some(map.clone()));
        assert_eq!(map.get("a"), Some(b"1".as_slice()));
        assert_eq!(HeaderMap::decode(&[]), Some(HeaderMap::default()));
        assert_eq!(HeaderMap::decode(&[1, 0, 0, 0, 9]), None);
    }
}
