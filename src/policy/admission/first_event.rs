//! The first event of an event stream (SSE): the first line that begins with `data:`.
//!
//! vLLM sends the headers of a streamed answer before it schedules the request, and may send
//! comments (`: …`) to keep the connection alive, so neither says that loading is over.

use memchr::memchr2;

const DATA: &[u8] = b"data:";
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads a stream chunk by chunk, cut anywhere.
#[derive(Clone, Copy, Debug)]
pub struct FirstEvent(At);

#[derive(Clone, Copy, Debug)]
enum At {
    /// This many bytes of a byte-order mark, at the very beginning.
    Mark(usize),
    /// This many bytes of `data:` since the line began.
    Line(usize),
    /// In a line that begins otherwise.
    Other,
}

impl Default for FirstEvent {
    fn default() -> Self {
        Self(At::Mark(0))
    }
}

impl FirstEvent {
    /// True if the first event begins in this chunk. Not to be asked again then.
    pub fn is_in(&mut self, chunk: &[u8]) -> bool {
        let mut rest = chunk;
        while let Some((byte, after)) = rest.split_first() {
            match self.0 {
                At::Mark(seen) if BYTE_ORDER_MARK.get(seen) == Some(byte) => {
                    self.0 = match seen {
                        2.. => At::Line(0),
                        seen => At::Mark(seen.saturating_add(1)),
                    };
                }
                // Half a mark begins a line like any other byte.
                At::Mark(0) => {
                    self.0 = At::Line(0);
                    continue;
                }
                At::Mark(_) => {
                    self.0 = At::Other;
                    continue;
                }
                At::Line(_) if matches!(byte, b'\n' | b'\r') => self.0 = At::Line(0),
                At::Line(seen) if DATA.get(seen) == Some(byte) => {
                    let seen = seen.saturating_add(1);
                    if seen == DATA.len() {
                        return true;
                    }
                    self.0 = At::Line(seen);
                }
                At::Line(_) => self.0 = At::Other,
                At::Other => {
                    let Some(end) = memchr2(b'\n', b'\r', rest) else {
                        return false;
                    };
                    self.0 = At::Line(0);
                    rest = rest.get(end.saturating_add(1)..).unwrap_or_default();
                    continue;
                }
            }
            rest = after;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn the_first_line_of_data_ends_the_wait_however_it_is_cut() {
        // The bytes before the bar bring no event; the byte behind it does.
        for text in [
            "data|:",
            "data|: {}\n\n",
            "\u{feff}data|:",
            ": keep-alive\n\ndata|: {}",
            ":\r\n\r\nevent: message_start\r\ndata|: {}",
            "event: data: x\rdata|: {}",
            "id: 1\nretry: 5\n\n\ndata|:\n",
            "dat\ndata|:",
            "datadata: 1\nxdata: 2\n data: 3\nDATA: 4\ndata : 5\ndata\ndata|: 6",
            "\n\u{feff}data: 1\ndata|: 2",
            // None at all.
            "",
            "\u{feff}",
            ": data: x\n: data:\n",
            "data",
            "\u{feff}\u{feff}data:",
        ] {
            let (before, after) = text.split_once('|').unwrap_or((text, ""));
            let whole = [before, after].concat();
            let expected = (!after.is_empty()).then_some(before.len());
            for size in 1..=whole.len().max(1) {
                let mut stream = FirstEvent::default();
                let mut found = None;
                for (i, chunk) in whole.as_bytes().chunks(size).enumerate() {
                    if stream.is_in(chunk) {
                        found = Some(i);
                        break;
                    }
                    assert!(!stream.is_in(b""));
                }
                assert_eq!(found, expected.map(|at| at / size), "{text} by {size}");
            }
        }
        let mut half_a_mark = FirstEvent::default();
        assert!(!half_a_mark.is_in(b"\xef\xbbdata: 1"));
        assert!(half_a_mark.is_in(b"\ndata:"));
    }
}
