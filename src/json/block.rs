//! 64 bytes of JSON at a time, as bit masks: bit `i` says something of byte `i`.
//!
//! A block costs the same few instructions whatever is in it, where a search that stops at every
//! quote or bracket pays for each stop. In wasm32 with simd128 a mask is four comparisons of 16
//! bytes; elsewhere, and in a module built without it, eight comparisons of a 64-bit word. Both
//! are tested against the plain definition.

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use simd128::Lanes;
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
use words::Lanes;

/// Bytes in a block.
pub(super) const BLOCK: usize = 64;

/// Bytes in a run: where long texts and lists of numbers are passed by, one test for all of it.
pub(super) const RUN: usize = 256;

/// Whether there is a quote.
#[inline]
pub(super) fn any_quote(run: &[u8; RUN]) -> bool {
    any(run, Lanes::quotes)
}

/// Whether there is a quote or a bracket. May be true without.
#[inline]
pub(super) fn any_structure(run: &[u8; RUN]) -> bool {
    any(run, Lanes::about_structure)
}

/// Whether `test` leaves a bit set in one of the blocks.
#[inline]
fn any(run: &[u8; RUN], test: impl Fn(Lanes) -> Lanes) -> bool {
    let (blocks, _) = run.as_chunks::<BLOCK>();
    let tested = blocks.iter().map(|block| test(Lanes::load(block)));
    tested.reduce(Lanes::or).is_some_and(Lanes::any)
}

#[derive(Clone, Copy)]
pub(super) struct Block(Lanes);

impl Block {
    #[inline]
    pub fn new(bytes: &[u8; BLOCK]) -> Self {
        Block(Lanes::load(bytes))
    }

    /// A piece that is shorter, filled up with spaces: they are in no mask.
    pub fn short(bytes: &[u8]) -> Self {
        let mut block = [b' '; BLOCK];
        for (to, from) in block.iter_mut().zip(bytes) {
            *to = *from;
        }
        Block::new(&block)
    }

    #[inline]
    pub fn quotes(self) -> u64 {
        self.0.quotes().bits()
    }

    #[inline]
    pub fn has_slash(self) -> bool {
        self.0.equal(b'\\').any()
    }

    #[inline]
    pub fn slashes(self) -> u64 {
        self.0.equal(b'\\').bits()
    }

    /// Square and curly ones.
    #[inline]
    pub fn brackets(self) -> u64 {
        self.0.brackets().bits()
    }
}

/// The bytes that stand behind a backslash which is not itself escaped, if every backslash is inside
/// a string. `first`: byte 0 is escaped.
#[inline]
pub(super) fn escaped(slashes: u64, first: bool) -> u64 {
    const EVEN: u64 = 0x5555_5555_5555_5555;
    let first = u64::from(first);
    let slashes = slashes & !first;
    let behind = slashes.wrapping_shl(1) | first;
    // Adding a run of backslashes to its first bit carries to the bit behind the run: whether a
    // run begins and ends on bits of the same parity tells whether its length is even.
    let odd_starts = slashes & !EVEN & !behind;
    let carried = odd_starts.wrapping_add(slashes);
    (EVEN ^ carried.wrapping_shl(1)) & behind
}

/// Bit `i` is the parity of the bits up to and with `i`: between quotes, the opening one counted in.
#[inline]
pub(super) fn parity(mut bits: u64) -> u64 {
    bits ^= bits.wrapping_shl(1);
    bits ^= bits.wrapping_shl(2);
    bits ^= bits.wrapping_shl(4);
    bits ^= bits.wrapping_shl(8);
    bits ^= bits.wrapping_shl(16);
    bits ^ bits.wrapping_shl(32)
}

/// The index of the lowest bit set; None if there is none.
#[inline]
pub(super) fn lowest(bits: u64) -> Option<usize> {
    match bits {
        0 => None,
        bits => usize::try_from(bits.trailing_zeros()).ok(),
    }
}

/// [`lowest`], and takes that bit out.
#[inline]
pub(super) fn take_lowest(bits: &mut u64) -> Option<usize> {
    let index = lowest(*bits);
    *bits &= bits.wrapping_sub(1);
    index
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128 {
    use std::arch::wasm32::{
        i8x16_gt, i8x16_splat, u8x16_bitmask, u8x16_eq, u8x16_splat, u64x2, v128, v128_any_true,
        v128_or,
    };

    use super::BLOCK;

    /// A block; after a test, all bits of the bytes that pass it.
    #[derive(Clone, Copy)]
    pub struct Lanes([v128; 4]);

    impl Lanes {
        /// Compiles to four loads.
        #[inline]
        pub fn load(bytes: &[u8; BLOCK]) -> Self {
            let (words, _) = bytes.as_chunks::<8>();
            let word = |i: usize| words.get(i).map_or(0, |word| u64::from_le_bytes(*word));
            Lanes([0, 2, 4, 6].map(|i: usize| u64x2(word(i), word(i.wrapping_add(1)))))
        }

        #[inline]
        pub fn equal(self, byte: u8) -> Self {
            Lanes(self.0.map(|lane| u8x16_eq(lane, u8x16_splat(byte))))
        }

        #[inline]
        pub fn quotes(self) -> Self {
            self.equal(b'"')
        }

        #[inline]
        pub fn brackets(self) -> Self {
            let curly = self.to_curly();
            curly.equal(b'{').or(curly.equal(b'}'))
        }

        /// Quotes, brackets, and a few bytes that are rare between strings: one comparison finds all
        /// brackets with `|`, `~`, DEL and what becomes one of these.
        #[inline]
        pub fn about_structure(self) -> Self {
            let high = Lanes(
                self.to_curly()
                    .0
                    .map(|lane| i8x16_gt(lane, i8x16_splat(0x7a))),
            );
            high.or(self.quotes())
        }

        /// Square and curly brackets differ only in this bit.
        #[inline]
        fn to_curly(self) -> Self {
            Lanes(self.0.map(|lane| v128_or(lane, u8x16_splat(0x20))))
        }

        #[inline]
        pub fn or(self, other: Self) -> Self {
            let (Lanes([a, b, c, d]), Lanes([e, f, g, h])) = (self, other);
            Lanes([v128_or(a, e), v128_or(b, f), v128_or(c, g), v128_or(d, h)])
        }

        #[inline]
        pub fn any(self) -> bool {
            let [a, b, c, d] = self.0;
            v128_any_true(v128_or(v128_or(a, b), v128_or(c, d)))
        }

        #[inline]
        pub fn bits(self) -> u64 {
            let [a, b, c, d] = self.0.map(|lane| u64::from(u8x16_bitmask(lane)));
            (a | b.wrapping_shl(16)) | (c.wrapping_shl(32) | d.wrapping_shl(48))
        }
    }
}

#[cfg(any(test, not(all(target_arch = "wasm32", target_feature = "simd128"))))]
mod words {
    use super::BLOCK;

    /// A block; after a test, the top bit of each byte that passes it, and no other.
    #[derive(Clone, Copy)]
    pub struct Lanes([u64; BLOCK / 8]);

    const ONES: u64 = 0x0101_0101_0101_0101;
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;

    impl Lanes {
        #[inline]
        pub fn load(bytes: &[u8; BLOCK]) -> Self {
            let mut lanes = [0; BLOCK / 8];
            for (lane, word) in lanes.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *lane = u64::from_le_bytes(*word);
            }
            Lanes(lanes)
        }

        #[inline]
        pub fn equal(self, byte: u8) -> Self {
            Lanes(self.0.map(|word| {
                let zeros = word ^ u64::from(byte).wrapping_mul(ONES);
                !((zeros & LOW).wrapping_add(LOW) | zeros | LOW)
            }))
        }

        #[inline]
        pub fn quotes(self) -> Self {
            self.equal(b'"')
        }

        #[inline]
        pub fn brackets(self) -> Self {
            // Square and curly brackets differ only in this bit.
            let curly = Lanes(self.0.map(|word| word | ONES.wrapping_shl(5)));
            curly.equal(b'{').or(curly.equal(b'}'))
        }

        #[inline]
        pub fn about_structure(self) -> Self {
            self.brackets().or(self.quotes())
        }

        #[inline]
        pub fn or(self, other: Self) -> Self {
            let mut all = self;
            for (lane, other) in all.0.iter_mut().zip(other.0) {
                *lane |= other;
            }
            all
        }

        #[inline]
        pub fn any(self) -> bool {
            self.0.iter().fold(0, |any, lane| any | lane) != 0
        }

        #[inline]
        pub fn bits(self) -> u64 {
            // Gathers the lowest bit of byte `i` at bit 56 + `i`; no two products meet.
            const GATHER: u64 = 0x0102_0408_1020_4080;
            self.0.iter().rev().fold(0, |bits, lane| {
                let gathered = lane.wrapping_shr(7).wrapping_mul(GATHER);
                bits.wrapping_shl(8) | gathered.wrapping_shr(56)
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    /// Bit `i`: the byte passes.
    fn plainly(bytes: &[u8; BLOCK], test: impl Fn(u8) -> bool) -> u64 {
        (0..BLOCK).fold(0, |bits, i| bits | (u64::from(test(bytes[i])) << i))
    }

    /// Blocks with every byte value at every place, and some of mixed bytes.
    fn blocks() -> Vec<[u8; BLOCK]> {
        let mut blocks = Vec::new();
        for shift in 0..=u8::MAX {
            blocks.push(std::array::from_fn(|i| shift.wrapping_add(i as u8)));
            for byte in [shift, b'"', b'\\', b'[', b'}'] {
                blocks.push(std::array::from_fn(
                    |i| if i % 3 == 0 { byte } else { shift },
                ));
            }
            let mut lone = [b'a'; BLOCK];
            lone[usize::from(shift) % BLOCK] = shift;
            blocks.push(lone);
        }
        blocks
    }

    #[test]
    fn masks_are_what_they_say() {
        for bytes in blocks() {
            let quotes = plainly(&bytes, |b| b == b'"');
            let slashes = plainly(&bytes, |b| b == b'\\');
            let brackets = plainly(&bytes, |b| b"[]{}".contains(&b));
            let block = Block::new(&bytes);
            assert_eq!(block.quotes(), quotes, "{bytes:?}");
            assert_eq!(block.slashes(), slashes, "{bytes:?}");
            assert_eq!(block.has_slash(), slashes != 0, "{bytes:?}");
            assert_eq!(block.brackets(), brackets, "{bytes:?}");
            // The build without SIMD, whatever this one is.
            let words = words::Lanes::load(&bytes);
            assert_eq!(words.quotes().bits(), quotes, "{bytes:?}");
            assert_eq!(words.equal(b'\\').bits(), slashes, "{bytes:?}");
            assert_eq!(words.brackets().bits(), brackets, "{bytes:?}");
            assert_eq!(words.quotes().any(), quotes != 0, "{bytes:?}");
            assert_eq!(words.about_structure().bits(), quotes | brackets);
        }
    }

    #[test]
    fn a_run_has_what_one_of_its_bytes_is() {
        for byte in 0..=u8::MAX {
            for at in [0, 17, 63, 64, 100, 191, 254, 255] {
                let mut run = [b'7'; RUN];
                run[at] = byte;
                assert_eq!(any_quote(&run), byte == b'"', "{byte:#x} at {at}");
                let structure = b"\"[]{}".contains(&byte);
                assert!(any_structure(&run) || !structure, "{byte:#x} at {at}");
                let number = b"0123456789+-.eE,: \n\t\r".contains(&byte);
                assert!(!any_structure(&run) || !number, "{byte:#x} at {at}");
            }
        }
    }

    #[test]
    fn a_short_piece_is_followed_by_spaces() {
        let block = Block::short(b"\"[\\");
        assert_eq!(block.quotes(), 0b001);
        assert_eq!(block.brackets(), 0b010);
        assert_eq!(block.slashes(), 0b100);
        let nothing = Block::short(b"");
        assert_eq!(nothing.quotes() | nothing.brackets() | nothing.slashes(), 0);
    }

    #[test]
    fn escapes_are_counted_run_by_run() {
        // Every block whose first 12 bytes are backslashes or not, at both ends of a block.
        for pattern in 0..1_u64 << 12 {
            for shift in [0, 52] {
                for first in [false, true] {
                    let slashes = pattern << shift;
                    let mut expected = 0_u64;
                    let mut next = first;
                    for i in 0..64 {
                        expected |= u64::from(next) << i;
                        next = !next && slashes >> i & 1 == 1;
                    }
                    assert_eq!(escaped(slashes, first), expected, "{slashes:#b} {first}");
                }
            }
        }
    }

    #[test]
    fn parity_is_that_of_the_bits_so_far() {
        assert_eq!(parity(0), 0);
        assert_eq!(parity(1), u64::MAX);
        assert_eq!(parity(1 << 63), 1 << 63);
        assert_eq!(parity(0b1001_0010), !0x7f | 0b1110);
    }

    #[test]
    fn bits_are_taken_from_the_lowest() {
        let mut bits = 1 << 63 | 0b101;
        let taken = [(); 4].map(|()| take_lowest(&mut bits));
        assert_eq!(taken, [Some(0), Some(2), Some(63), None]);
    }
}
