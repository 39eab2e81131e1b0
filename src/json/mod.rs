//! Reading JSON as it streams by: state survives any split of the text, no recursion, no memory
//! that grows with it; and [`value`] for short texts that are there as a whole.

mod block;
pub(crate) mod key;
pub(crate) mod skip;
pub(crate) mod value;
pub(crate) mod walker;

pub(crate) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Whether a number or literal ends before this byte. Its spelling is the engine's business.
pub(crate) fn ends_scalar(byte: u8) -> bool {
    is_space(byte) || matches!(byte, b',' | b':' | b'"' | b'{' | b'}' | b'[' | b']')
}
