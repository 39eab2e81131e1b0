//! Reading JSON as it streams by: state survives any split of the text, no recursion, no memory
//! that grows with it.

mod block;
pub mod key;
pub mod nest;
pub mod skip;
pub mod walker;

pub fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Whether a number or literal ends before this byte. Its spelling is the engine's business.
pub fn ends_scalar(byte: u8) -> bool {
    is_space(byte) || matches!(byte, b',' | b':' | b'"' | b'{' | b'}' | b'[' | b']')
}
