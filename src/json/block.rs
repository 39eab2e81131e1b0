//! 64 bytes of JSON at a time, as bit masks: bit `i` says something of byte `i`.
//!
//! A block costs the same few instructions whatever is in it, where a search that stops at every
//! quote or bracket pays for each stop. In wasm32 with simd128 a mask is four comparisons of 16
//! bytes; elsewhere, and in a module built without it, eight comparisons of a 64-bit word. Both
//! are tested against the plain definition.

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use simd128::{Lanes, Needle, Range};
#[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
use words::{Lanes, Needle, Range};

/// Bytes in a block.
pub(super) const BLOCK: usize = 64;

/// Bytes in a run: where long texts and lists of numbers are passed by, one test for all of it.
pub(super) const RUN: usize = 256;

/// A run and two bytes before it.
pub(super) const CLOSING: usize = RUN + 2;

/// What strings are told by.
#[derive(Clone, Copy)]
pub(super) struct Quoting {
    quote: Needle,
    slash: Needle,
}

impl Quoting {
    #[inline]
    pub fn new() -> Self {
        Quoting {
            quote: Needle::new(b'"'),
            slash: Needle::new(b'\\'),
        }
    }

    /// For a long loop, see [`Needle::kept`].
    #[inline]
    pub fn kept(self) -> Self {
        Quoting {
            quote: self.quote.kept(),
            slash: self.slash.kept(),
        }
    }

    /// Whether there is a quote.
    #[inline]
    pub fn any_quote(&self, run: &[u8; RUN]) -> bool {
        any(run, |lanes| lanes.equal(self.quote))
    }

    /// Whether there may be a quote that is not escaped, behind the first two bytes. True of all that
    /// do not stand behind exactly one backslash.
    #[inline]
    pub fn any_closing(&self, run: &[u8; CLOSING]) -> bool {
        let blocks = |from: usize| {
            let run = run.get(from..).unwrap_or_default();
            run.as_chunks().0.iter().map(Lanes::load)
        };
        let mut all = Lanes::NONE;
        for ((second, first), quotes) in blocks(0).zip(blocks(1)).zip(blocks(2)) {
            let (first, second) = (first.equal(self.slash), second.equal(self.slash));
            all = all.or(quotes.equal(self.quote).and_not(first.and_not(second)));
        }
        all.any()
    }
}

/// What nesting is told by: strings, and brackets outside of them.
#[derive(Clone, Copy)]
pub(super) struct Nesting {
    pub quoting: Quoting,
    /// Square and curly brackets differ only in this bit.
    curly: Needle,
    open: Needle,
    close: Needle,
    below: Needle,
    /// Square brackets, and the backslash between them.
    squares: Range,
}

impl Nesting {
    #[inline]
    pub fn new() -> Self {
        Nesting {
            quoting: Quoting::new(),
            curly: Needle::new(0x20),
            open: Needle::new(b'{'),
            close: Needle::new(b'}'),
            below: Needle::new(b'{' - 1),
            squares: Range::new(b'[', b']'),
        }
    }

    /// For a long loop, see [`Needle::kept`].
    #[inline]
    pub fn kept(self) -> Self {
        Nesting {
            quoting: self.quoting.kept(),
            curly: self.curly.kept(),
            open: self.open.kept(),
            close: self.close.kept(),
            below: self.below.kept(),
            squares: self.squares.kept(),
        }
    }

    /// Whether there is a quote or a bracket. May be true without.
    #[inline]
    pub fn any_structure(&self, run: &[u8; RUN]) -> bool {
        any(run, |lanes| {
            // Finds all brackets and a few bytes that are rare between strings: `|`, `~`, DEL and
            // what the bit makes one of these.
            let high = lanes.with(self.curly).ascii_above(self.below);
            high.or(lanes.equal(self.quoting.quote))
        })
    }
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

    #[inline]
    pub fn quotes(self, quoting: &Quoting) -> u64 {
        self.0.equal(quoting.quote).bits()
    }

    #[inline]
    pub fn slashes(self, quoting: &Quoting) -> u64 {
        self.0.equal(quoting.slash).bits()
    }

    /// The opening and the closing brackets, square and curly.
    #[inline]
    pub fn brackets(self, nesting: &Nesting) -> (u64, u64) {
        let curly = self.0.with(nesting.curly);
        (
            curly.equal(nesting.open).bits(),
            curly.equal(nesting.close).bits(),
        )
    }

    /// The opening and the closing curly brackets.
    #[inline]
    pub fn curly_brackets(self, nesting: &Nesting) -> (u64, u64) {
        (
            self.0.equal(nesting.open).bits(),
            self.0.equal(nesting.close).bits(),
        )
    }

    #[inline]
    pub fn any_square_or_slash(self, nesting: &Nesting) -> bool {
        self.0.within(nesting.squares).any()
    }

    /// Which of the brackets are curly; other bytes may be in it.
    #[inline]
    pub fn curly(self) -> u64 {
        self.0.curly_bits()
    }
}

/// What backslashes do to the bytes of a block, if all of them are inside a string.
#[derive(Clone, Copy)]
pub(super) struct Escapes {
    /// The bytes behind a backslash which is not itself escaped.
    pub escaped: u64,
    /// The first byte behind the block is escaped.
    pub last: bool,
}

impl Escapes {
    pub const NONE: Self = Escapes {
        escaped: 0,
        last: false,
    };

    /// `first`: byte 0 is escaped.
    #[inline]
    pub fn new(slashes: u64, first: bool) -> Self {
        const EVEN: u64 = 0x5555_5555_5555_5555;
        let first = u64::from(first);
        let begun = slashes & !first;
        let behind = begun.wrapping_shl(1) | first;
        // Adding a run of backslashes to its first bit carries to the bit behind the run: whether a
        // run begins and ends on bits of the same parity tells whether its length is even.
        let odd_starts = begun & !EVEN & !behind;
        let carried = odd_starts.wrapping_add(begun);
        let run_at_end = (!slashes).leading_zeros();
        Escapes {
            escaped: (EVEN ^ carried.wrapping_shl(1)) & behind,
            last: if run_at_end == u64::BITS {
                first != 0
            } else {
                run_at_end & 1 != 0
            },
        }
    }

    /// The first byte behind the first `length` ones is escaped; there is no backslash behind them.
    #[inline]
    pub fn behind(&self, length: usize) -> bool {
        match u32::try_from(length) {
            Ok(length @ ..64) => self.escaped.wrapping_shr(length) & 1 != 0,
            _ => self.last,
        }
    }
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
        i8x16_gt, i8x16_lt, i64x2_shl, u8x16_add, u8x16_bitmask, u8x16_eq, u8x16_splat, u64x2,
        v128, v128_andnot, v128_any_true, v128_or,
    };
    use std::hint::black_box;

    use super::BLOCK;

    /// A byte in every lane.
    #[derive(Clone, Copy)]
    pub struct Needle(v128);

    impl Needle {
        #[inline]
        pub fn new(byte: u8) -> Self {
            Needle(u8x16_splat(byte))
        }

        /// Hidden from the compiler: V8 makes a constant anew wherever it is used, in three
        /// instructions.
        #[inline]
        pub fn kept(self) -> Self {
            Needle(black_box(self.0))
        }
    }

    /// Bytes of ASCII from one to another.
    #[derive(Clone, Copy)]
    pub struct Range {
        /// Added to the first, makes it the least of signed bytes.
        shift: Needle,
        end: Needle,
    }

    impl Range {
        #[inline]
        pub fn new(first: u8, last: u8) -> Self {
            let shift = 0x80_u8.wrapping_sub(first);
            Range {
                shift: Needle::new(shift),
                end: Needle::new(last.wrapping_add(1).wrapping_add(shift)),
            }
        }

        #[inline]
        pub fn kept(self) -> Self {
            Range {
                shift: self.shift.kept(),
                end: self.end.kept(),
            }
        }
    }

    /// A block; after a test, all bits of the bytes that pass it.
    #[derive(Clone, Copy)]
    pub struct Lanes([v128; 4]);

    impl Lanes {
        pub const NONE: Self = Lanes([u64x2(0, 0); 4]);

        /// Compiles to four loads.
        #[inline]
        pub fn load(bytes: &[u8; BLOCK]) -> Self {
            let (words, _) = bytes.as_chunks::<8>();
            let word = |i: usize| words.get(i).map_or(0, |word| u64::from_le_bytes(*word));
            Lanes([0, 2, 4, 6].map(|i: usize| u64x2(word(i), word(i.wrapping_add(1)))))
        }

        #[inline]
        pub fn equal(self, needle: Needle) -> Self {
            Lanes(self.0.map(|lane| u8x16_eq(lane, needle.0)))
        }

        #[inline]
        pub fn with(self, bit: Needle) -> Self {
            Lanes(self.0.map(|lane| v128_or(lane, bit.0)))
        }

        /// Bytes of ASCII above that one.
        #[inline]
        pub fn ascii_above(self, byte: Needle) -> Self {
            Lanes(self.0.map(|lane| i8x16_gt(lane, byte.0)))
        }

        #[inline]
        pub fn within(self, range: Range) -> Self {
            let shifted = self.0.map(|lane| u8x16_add(lane, range.shift.0));
            Lanes(shifted.map(|lane| i8x16_lt(lane, range.end.0)))
        }

        #[inline]
        pub fn curly_bits(self) -> u64 {
            Lanes(self.0.map(|lane| i64x2_shl(lane, 2))).bits()
        }

        #[inline]
        pub fn and_not(self, other: Self) -> Self {
            let (Lanes([a, b, c, d]), Lanes([e, f, g, h])) = (self, other);
            Lanes([
                v128_andnot(a, e),
                v128_andnot(b, f),
                v128_andnot(c, g),
                v128_andnot(d, h),
            ])
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

    /// A byte at every place.
    #[derive(Clone, Copy)]
    pub struct Needle(u64);

    impl Needle {
        #[inline]
        pub fn new(byte: u8) -> Self {
            Needle(u64::from(byte).wrapping_mul(ONES))
        }

        #[inline]
        pub fn kept(self) -> Self {
            self
        }
    }

    /// Bytes of ASCII from one to another.
    #[derive(Clone, Copy)]
    pub struct Range {
        below: Needle,
        last: Needle,
    }

    impl Range {
        #[inline]
        pub fn new(first: u8, last: u8) -> Self {
            Range {
                below: Needle::new(first.saturating_sub(1)),
                last: Needle::new(last),
            }
        }

        #[inline]
        pub fn kept(self) -> Self {
            self
        }
    }

    /// A block; after a test, the top bit of each byte that passes it, and no other.
    #[derive(Clone, Copy)]
    pub struct Lanes([u64; BLOCK / 8]);

    const ONES: u64 = 0x0101_0101_0101_0101;
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;

    impl Lanes {
        pub const NONE: Self = Lanes([0; BLOCK / 8]);

        #[inline]
        pub fn load(bytes: &[u8; BLOCK]) -> Self {
            let mut lanes = [0; BLOCK / 8];
            for (lane, word) in lanes.iter_mut().zip(bytes.as_chunks::<8>().0) {
                *lane = u64::from_le_bytes(*word);
            }
            Lanes(lanes)
        }

        #[inline]
        pub fn equal(self, needle: Needle) -> Self {
            Lanes(self.0.map(|word| {
                let zeros = word ^ needle.0;
                !((zeros & LOW).wrapping_add(LOW) | zeros | LOW)
            }))
        }

        #[inline]
        pub fn with(self, bit: Needle) -> Self {
            Lanes(self.0.map(|word| word | bit.0))
        }

        /// Bytes of ASCII above that one.
        #[inline]
        pub fn ascii_above(self, byte: Needle) -> Self {
            let room = LOW.wrapping_sub(byte.0);
            Lanes(
                self.0
                    .map(|word| (word & LOW).wrapping_add(room) & !word & !LOW),
            )
        }

        #[inline]
        pub fn within(self, range: Range) -> Self {
            let above = self.ascii_above(range.below);
            above.and_not(self.ascii_above(range.last))
        }

        #[inline]
        pub fn curly_bits(self) -> u64 {
            Lanes(self.0.map(|word| word.wrapping_shl(2) & !LOW)).bits()
        }

        #[inline]
        pub fn and_not(self, other: Self) -> Self {
            let mut all = self;
            for (lane, other) in all.0.iter_mut().zip(other.0) {
                *lane &= !other;
            }
            all
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
        let (quoting, nesting) = (Quoting::new(), Nesting::new());
        for bytes in blocks() {
            let quotes = plainly(&bytes, |b| b == b'"');
            let slashes = plainly(&bytes, |b| b == b'\\');
            let open = plainly(&bytes, |b| b"[{".contains(&b));
            let close = plainly(&bytes, |b| b"]}".contains(&b));
            let curly = plainly(&bytes, |b| b & 0x20 != 0);
            let high = plainly(&bytes, |b| (b'{'..0x80).contains(&b));
            let block = Block::new(&bytes);
            assert_eq!(block.quotes(&quoting), quotes, "{bytes:?}");
            assert_eq!(block.slashes(&quoting), slashes, "{bytes:?}");
            assert_eq!(block.brackets(&nesting), (open, close), "{bytes:?}");
            assert_eq!(block.curly(), curly, "{bytes:?}");
            // The build without SIMD, whatever this one is.
            let needle = words::Needle::new;
            let words = words::Lanes::load(&bytes);
            let curlies = words.with(needle(0x20));
            assert_eq!(words.equal(needle(b'"')).bits(), quotes, "{bytes:?}");
            assert_eq!(curlies.equal(needle(b'{')).bits(), open, "{bytes:?}");
            assert_eq!(curlies.equal(needle(b'}')).bits(), close, "{bytes:?}");
            assert_eq!(words.curly_bits(), curly, "{bytes:?}");
            assert_eq!(words.ascii_above(needle(b'z')).bits(), high, "{bytes:?}");
            let quote = words.equal(needle(b'"'));
            let slash = words.equal(needle(b'\\'));
            assert_eq!(quote.any(), quotes != 0, "{bytes:?}");
            assert_eq!(quote.or(slash).bits(), quotes | slashes);
            assert_eq!(quote.and_not(slash).bits(), quotes & !slashes);
        }
    }

    #[test]
    fn a_run_has_what_one_of_its_bytes_is() {
        for byte in 0..=u8::MAX {
            for at in [0, 17, 63, 64, 100, 191, 254, 255] {
                let mut run = [b'7'; RUN];
                run[at] = byte;
                assert_eq!(
                    Quoting::new().any_quote(&run),
                    byte == b'"',
                    "{byte:#x} at {at}"
                );
                let any_structure = Nesting::new().any_structure(&run);
                let structure = b"\"[]{}".contains(&byte);
                assert!(any_structure || !structure, "{byte:#x} at {at}");
                let number = b"0123456789+-.eE,: \n\t\r".contains(&byte);
                assert!(!any_structure || !number, "{byte:#x} at {at}");
            }
        }
    }

    #[test]
    fn a_quote_behind_exactly_one_backslash_closes_nothing() {
        for at in 2..CLOSING {
            for before in 0..=at {
                let mut run = [b'x'; CLOSING];
                run[at - before..at].fill(b'\\');
                assert!(!Quoting::new().any_closing(&run));
                run[at] = b'"';
                assert_eq!(
                    Quoting::new().any_closing(&run),
                    before != 1,
                    "{before} backslashes before {at}"
                );
            }
        }
        // The first two bytes are not asked about.
        let mut run = [b'x'; CLOSING];
        run[..2].fill(b'"');
        assert!(!Quoting::new().any_closing(&run));
    }

    #[test]
    fn escapes_are_counted_run_by_run() {
        // Every block whose first 12 bytes are backslashes or not, at both ends of a block; and one
        // of nothing else.
        let patterns = (0..1_u64 << 12).flat_map(|pattern| [pattern, pattern << 52, !pattern]);
        for slashes in patterns {
            for first in [false, true] {
                let mut expected = 0_u64;
                let mut next = first;
                for i in 0..64 {
                    expected |= u64::from(next) << i;
                    next = !next && slashes >> i & 1 == 1;
                }
                let escapes = Escapes::new(slashes, first);
                assert_eq!(escapes.escaped, expected, "{slashes:#b} {first}");
                assert_eq!(escapes.last, next, "{slashes:#b} {first}");
                if slashes == 0 && !first {
                    assert_eq!(Escapes::NONE.escaped, expected);
                    assert_eq!(Escapes::NONE.last, next);
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
