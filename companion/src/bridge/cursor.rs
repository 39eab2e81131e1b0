//! Where a reader is: the run of the bridge and the position in its log, as text for a URL.

use std::fmt;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cursor {
    pub epoch: u64,
    pub position: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:x}", self.epoch, self.position)
    }
}

impl Cursor {
    pub fn parse(text: &str) -> Option<Self> {
        let (epoch, position) = text.split_once('-')?;
        let hex = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_hexdigit())
                .then(|| u64::from_str_radix(text, 16).ok())
                .flatten()
        };
        (epoch.len() == 16).then_some(())?;
        Some(Self {
            epoch: hex(epoch)?,
            position: hex(position)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back() {
        let cursor = Cursor {
            epoch: 0xab,
            position: 300,
        };
        assert_eq!(cursor.to_string(), "00000000000000ab-12c");
        assert_eq!(Cursor::parse(&cursor.to_string()), Some(cursor));
        for text in [
            "",
            "-",
            "00000000000000ab",
            "ab-1",
            "00000000000000ab-",
            "00000000000000ab-+1",
            "00000000000000ag-1",
            "00000000000000ab-1-1",
        ] {
            assert_eq!(Cursor::parse(text), None, "{text}");
        }
    }
}
