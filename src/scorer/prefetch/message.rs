//! The body of `POST /prefetch` (docs/kv-prefetch-agent.md): `{"v":1,"blocks":[[index,"digest"],…]}`.

use crate::prefix::Digest;

const START: &str = r#"{"v":1,"blocks":["#;
const END: &str = "]}";
/// Bytes of most blocks: brackets, comma, quotes, 64 digits, an index of four digits.
const BLOCK_BYTES: usize = 74;

pub struct Message {
    text: Vec<u8>,
    blocks: usize,
}

impl Message {
    /// For so many blocks.
    pub fn new(blocks: usize) -> Self {
        let length = blocks
            .saturating_mul(BLOCK_BYTES)
            .saturating_add(START.len())
            .saturating_add(END.len());
        let mut text = Vec::with_capacity(length);
        text.extend_from_slice(START.as_bytes());
        Self { text, blocks: 0 }
    }

    pub fn push(&mut self, index: u32, digest: &Digest) {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0');
        if self.blocks > 0 {
            self.text.push(b',');
        }
        self.text.push(b'[');
        self.text.extend_from_slice(index.to_string().as_bytes());
        self.text.extend_from_slice(b",\"");
        for byte in digest {
            self.text.extend([digit(byte >> 4), digit(byte & 15)]);
        }
        self.text.extend_from_slice(b"\"]");
        self.blocks = self.blocks.saturating_add(1);
    }

    pub fn blocks(&self) -> usize {
        self.blocks
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.text.extend_from_slice(END.as_bytes());
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn as_the_agent_reads_it() {
        let text = |message: Message| String::from_utf8(message.finish()).unwrap();
        assert_eq!(text(Message::new(0)), r#"{"v":1,"blocks":[]}"#);
        let mut message = Message::new(2);
        let mut digest = [0; 32];
        (digest[0], digest[1], digest[31]) = (0x72, 0x0f, 0xac);
        message.push(7, &digest);
        message.push(u32::MAX, &[0xff; 32]);
        assert_eq!(message.blocks(), 2);
        assert_eq!(
            text(message),
            format!(
                r#"{{"v":1,"blocks":[[7,"720f{}ac"],[4294967295,"{}"]]}}"#,
                "0".repeat(58),
                "f".repeat(64)
            )
        );
    }
}
