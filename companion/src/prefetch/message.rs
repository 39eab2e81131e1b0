//! The body of `POST /prefetch`: `{"v":1,"blocks":[[7,"7235f8…"],…]}`. Each pair is a block's place
//! in its prompt, counted from 0, and its digest.

use super::digest::{Digest, HEX_DIGITS};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// From the prompt's first block, which is 0: it decides whether the block ends a file.
    pub index: u32,
    pub digest: Digest,
}

/// Says what is wrong, and where.
pub fn decode(body: &[u8], max_blocks: usize) -> Result<Vec<Block>, String> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let blocks = Message { max_blocks }
        .deserialize(&mut json)
        .and_then(|blocks| json.end().map(|()| blocks));
    blocks.map_err(|error| error.to_string())
}

struct Message {
    max_blocks: usize,
}

impl<'de> DeserializeSeed<'de> for Message {
    type Value = Vec<Block>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Vec<Block>, D::Error> {
        json.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Message {
    type Value = Vec<Block>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with v and blocks")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<Block>, A::Error> {
        let mut version = false;
        let mut blocks = None;
        while let Some(key) = map.next_key::<Key>()? {
            match key {
                Key::Version => {
                    let found: u64 = map.next_value()?;
                    if found != 1 {
                        return Err(A::Error::custom(format!("v: {found}: must be 1")));
                    }
                    version = true;
                }
                Key::Blocks if blocks.is_some() => {
                    return Err(A::Error::custom("blocks: given twice"));
                }
                Key::Blocks => blocks = Some(map.next_value_seed(Blocks(self.max_blocks))?),
                Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        match blocks {
            Some(blocks) if version => Ok(blocks),
            Some(_) => Err(A::Error::custom("v: missing: must be 1")),
            None => Err(A::Error::custom(
                "blocks: missing: must be [[index, digest], …]",
            )),
        }
    }
}

/// A later version may say more: what is not known is passed over.
#[derive(Deserialize)]
enum Key {
    #[serde(rename = "v")]
    Version,
    #[serde(rename = "blocks")]
    Blocks,
    #[serde(other)]
    Other,
}

struct Blocks(usize);

impl<'de> DeserializeSeed<'de> for Blocks {
    type Value = Vec<Block>;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Vec<Block>, D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Blocks {
    type Value = Vec<Block>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("blocks to be [[index, digest], …]")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Block>, A::Error> {
        let mut blocks = Vec::new();
        while let Some((index, Hex(digest))) = seq.next_element()? {
            if blocks.len() >= self.0 {
                return Err(A::Error::custom(format!(
                    "blocks: more than limits.maxDigests, which is {}",
                    self.0
                )));
            }
            blocks.push(Block { index, digest });
        }
        Ok(blocks)
    }
}

struct Hex(Digest);

impl<'de> Deserialize<'de> for Hex {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Hex;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(
                    f,
                    "a digest of {HEX_DIGITS} lower-case hexadecimal digits (SHA-256)"
                )
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Hex, E> {
                Digest::parse(text).map(Hex).ok_or_else(|| {
                    // What a stranger sent is not repeated at length.
                    let start: String = text.chars().take(HEX_DIGITS + 1).collect();
                    E::invalid_value(serde::de::Unexpected::Str(&start), &self)
                })
            }
        }
        json.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "7235f837d217eb40003197e4e27040edecc66c7d7fe49f86f5b600d19aef97ac";
    const B: &str = "5407663a080a249dd6f87d30920d6a50ec3a64f7c75ada41b96a1b8db8d40bf9";

    fn block(index: u32, digest: &str) -> Block {
        Block {
            index,
            digest: Digest::parse(digest).unwrap(),
        }
    }

    #[test]
    fn what_is_taken() {
        for (text, blocks) in [
            (
                format!(r#"{{"v":1,"blocks":[[0,"{A}"],[7,"{B}"]]}}"#),
                vec![block(0, A), block(7, B)],
            ),
            (r#"{"v":1,"blocks":[]}"#.into(), vec![]),
            (
                format!(r#" {{"more":{{"x":[1]}}, "blocks": [[4294967295,"{A}"]], "v": 1}} "#),
                vec![block(u32::MAX, A)],
            ),
        ] {
            assert_eq!(decode(text.as_bytes(), 2), Ok(blocks), "{text}");
        }
    }

    #[test]
    fn what_is_refused_is_said() {
        let with = |pair: &str| format!(r#"{{"v":1,"blocks":[{pair}]}}"#);
        let deep = "[".repeat(100_000);
        for (text, says) in [
            (String::new(), "EOF"),
            ("[]".into(), "an object with v and blocks"),
            (r#"{"v":1}"#.into(), "blocks: missing"),
            (r#"{"blocks":[]}"#.into(), "v: missing: must be 1"),
            (
                r#"{"v":2,"blocks":[[1]]}"#.into(),
                "v: 2: must be 1 at line 1",
            ),
            (r#"{"v":1,"blocks":{}}"#.into(), "[[index, digest], …]"),
            (
                r#"{"v":1,"blocks":[],"blocks":[]}"#.into(),
                "blocks: given twice",
            ),
            (r#"{"v":1,"blocks":[]}x"#.into(), "trailing characters"),
            (with(&format!(r#""{A}""#)), "invalid type"),
            (with(&format!(r#"[-1,"{A}"]"#)), "expected u32"),
            (with(&format!(r#"[4294967296,"{A}"]"#)), "expected u32"),
            (with(&format!(r#"[0,"{A}",0]"#)), "trailing characters"),
            (with("[0]"), "invalid length 1"),
            (with("[0,null]"), "64 lower-case hexadecimal digits"),
            (
                with(r#"[0,"../../etc/passwd"]"#),
                r#"invalid value: string "../../etc/passwd", expected a digest of 64"#,
            ),
            (
                with(&format!(r#"[0,"{}"]"#, A.to_uppercase())),
                "64 lower-case hexadecimal digits",
            ),
            (with(&format!(r#"[0,"{}"]"#, "é".repeat(32))), "64 lower"),
            (
                with(&[format!(r#"[0,"{A}"]"#).as_str(); 3].join(",")),
                "blocks: more than limits.maxDigests, which is 2",
            ),
            (format!(r#"{{"x":{deep}"#), "EOF"),
        ] {
            let error = decode(text.as_bytes(), 2).unwrap_err();
            assert!(error.contains(says), "{error}\n  not: {says}");
            assert!(error.len() < 300, "{error}");
        }
        assert!(decode(b"{\"v\":1,\"blocks\":[[0,\"\xff\"]]}", 2).is_err());
    }
}
