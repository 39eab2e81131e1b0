//! Comparing bytes by words. What the standard library does for wasm32 takes twenty instructions a
//! byte, and names, keys and texts are compared everywhere.

use std::cmp::Ordering;

/// As slices of one length are compared.
pub fn bytes(left: &[u8], right: &[u8]) -> Ordering {
    // Where names of one length are told apart, most differ here.
    if let ([a, ..], [b, ..]) = (left, right)
        && a != b
    {
        return a.cmp(b);
    }
    let (mut a, mut b) = (left, right);
    while let (Some((a_word, a_behind)), Some((b_word, b_behind))) =
        (a.split_first_chunk(), b.split_first_chunk())
    {
        let (a_word, b_word) = (u64::from_le_bytes(*a_word), u64::from_le_bytes(*b_word));
        if a_word != b_word {
            return differing(a_word, b_word);
        }
        (a, b) = (a_behind, b_behind);
    }
    if let (Some((a_word, a_behind)), Some((b_word, b_behind))) =
        (a.split_first_chunk(), b.split_first_chunk())
    {
        let (a_word, b_word) = (u32::from_le_bytes(*a_word), u32::from_le_bytes(*b_word));
        if a_word != b_word {
            return differing(a_word.into(), b_word.into());
        }
        (a, b) = (a_behind, b_behind);
    }
    let differing = a.iter().zip(b).find(|(a, b)| a != b);
    differing.map_or(Ordering::Equal, |(a, b)| a.cmp(b))
}

/// Two words that differ, by the first byte that does: WebAssembly has no instruction that turns a
/// word's bytes around.
fn differing(a: u64, b: u64) -> Ordering {
    let first = (a ^ b).trailing_zeros() & !7;
    let byte = |word: u64| word.wrapping_shr(first) & 0xff;
    byte(a).cmp(&byte(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn as_the_standard_library_compares_them() {
        for length in 0..=40 {
            let left: Vec<u8> = (0..length).map(|i: u8| i.wrapping_mul(37)).collect();
            assert_eq!(bytes(&left, &left), Ordering::Equal, "{length}");
            for at in 0..left.len() {
                for byte in [0, left[at].wrapping_sub(1), left[at].wrapping_add(1), 0xff] {
                    // What follows the first difference counts for nothing.
                    for behind in [0, 0x80, 0xff] {
                        let mut right = left.clone();
                        right[at] = byte;
                        right[at + 1..].fill(behind);
                        let context = format!("{left:?} {right:?}");
                        assert_eq!(bytes(&left, &right), left.cmp(&right), "{context}");
                        assert_eq!(bytes(&right, &left), right.cmp(&left), "{context}");
                    }
                }
            }
        }
    }
}
