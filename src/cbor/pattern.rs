//! A few bytes, told from others all at once.

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use simd128::Lane;
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
use words::Lane;

/// At most [`Pattern::LONGEST`] bytes.
#[derive(Clone, Copy)]
pub struct Pattern {
    bytes: [Lane; 2],
    /// Set in the bytes that count.
    mask: [Lane; 2],
    len: u8,
}

impl Pattern {
    pub const LONGEST: usize = 32;

    /// `None`: it is longer.
    pub fn new(pattern: &[u8]) -> Option<Self> {
        let (mut bytes, mut mask) = ([0; Self::LONGEST], [0; Self::LONGEST]);
        bytes.get_mut(..pattern.len())?.copy_from_slice(pattern);
        mask.get_mut(..pattern.len())?.fill(0xff);
        Some(Self {
            bytes: lanes(&bytes),
            mask: lanes(&mask),
            len: u8::try_from(pattern.len()).ok()?,
        })
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len.into()
    }

    #[inline]
    pub fn begins(&self, bytes: &[u8; Self::LONGEST]) -> bool {
        let [a, b] = lanes(bytes);
        let ([pa, pb], [ma, mb]) = (self.bytes, self.mask);
        !a.and(ma).xor(pa).or(b.and(mb).xor(pb)).any()
    }
}

#[inline]
fn lanes(bytes: &[u8; Pattern::LONGEST]) -> [Lane; 2] {
    let (halves, _) = bytes.as_chunks();
    match halves {
        [a, b] => [Lane::load(a), Lane::load(b)],
        _ => [Lane::load(&[0; 16]); 2],
    }
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128 {
    use std::arch::wasm32::{u64x2, v128, v128_and, v128_any_true, v128_or, v128_xor};

    #[derive(Clone, Copy)]
    pub struct Lane(v128);

    impl Lane {
        #[inline]
        pub fn load(bytes: &[u8; 16]) -> Self {
            let n = u128::from_le_bytes(*bytes);
            #[allow(clippy::cast_possible_truncation)] // One half each.
            Lane(u64x2(n as u64, (n >> 64) as u64))
        }

        #[inline]
        pub fn and(self, other: Self) -> Self {
            Lane(v128_and(self.0, other.0))
        }

        #[inline]
        pub fn or(self, other: Self) -> Self {
            Lane(v128_or(self.0, other.0))
        }

        #[inline]
        pub fn xor(self, other: Self) -> Self {
            Lane(v128_xor(self.0, other.0))
        }

        #[inline]
        pub fn any(self) -> bool {
            v128_any_true(self.0)
        }
    }
}

#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
mod words {
    #[derive(Clone, Copy)]
    pub struct Lane(u128);

    impl Lane {
        #[inline]
        pub fn load(bytes: &[u8; 16]) -> Self {
            Lane(u128::from_le_bytes(*bytes))
        }

        #[inline]
        pub fn and(self, other: Self) -> Self {
            Lane(self.0 & other.0)
        }

        #[inline]
        pub fn or(self, other: Self) -> Self {
            Lane(self.0 | other.0)
        }

        #[inline]
        pub fn xor(self, other: Self) -> Self {
            Lane(self.0 ^ other.0)
        }

        #[inline]
        pub fn any(self) -> bool {
            self.0 != 0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn every_byte_of_a_pattern_counts_and_none_behind_it() {
        for len in 0..=Pattern::LONGEST {
            let bytes: [u8; Pattern::LONGEST] = std::array::from_fn(|at| at as u8 + 1);
            let pattern = Pattern::new(&bytes[..len]).unwrap();
            assert_eq!(pattern.len(), len);
            assert!(pattern.begins(&bytes));
            for at in 0..Pattern::LONGEST {
                for bit in 0..8 {
                    let mut other = bytes;
                    other[at] ^= 1 << bit;
                    assert_eq!(pattern.begins(&other), at >= len, "{len} {at} {bit}");
                }
            }
        }
        assert!(Pattern::new(&[0; Pattern::LONGEST + 1]).is_none());
    }
}
