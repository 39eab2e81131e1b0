//! Where one block is.

use super::wire::{In, Out};

/// External tiers that one index tells apart.
pub const MAX_TIERS: usize = 15;

/// The engine's own CPU memory, which it begins with empty.
pub fn is_primary(tier: &str) -> bool {
    tier == "cpu" || tier == "cpu@local"
}

/// What an endpoint holds of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Copies in the GPU. Each one is announced and removed by itself.
    pub gpu: u16,
    /// The external tiers that have it, one bit each, by the index's list of tiers.
    pub external: u16,
}

impl Held {
    pub const NOWHERE: Self = Self {
        gpu: 0,
        external: 0,
    };

    #[must_use]
    pub const fn is_nowhere(self) -> bool {
        self.gpu == 0 && self.external == 0
    }

    /// In one number: mostly less than 128, which is one byte.
    pub(super) fn write(self, out: &mut Out) {
        let external = u64::from(self.external) << 2;
        if self.gpu < 3 {
            out.number(external | u64::from(self.gpu));
        } else {
            out.number(external | 3).number(u64::from(self.gpu));
        }
    }

    pub(super) fn read(rest: &mut In<'_>) -> Option<Self> {
        let n = rest.number()?;
        let external = u16::try_from(n >> 2).ok()?;
        let gpu = match n & 3 {
            3 => u16::try_from(rest.number()?).ok()?,
            gpu => gpu as u16,
        };
        (external < 1 << MAX_TIERS).then_some(Self { gpu, external })
    }

    /// `Some` in 32 bits, 0 for an entry that is gone.
    pub(super) fn pack(held: Option<Self>) -> u32 {
        held.map_or(0, |held| {
            ALIVE | (u32::from(held.external) << 16) | u32::from(held.gpu)
        })
    }

    pub(super) fn unpack(packed: u32) -> Option<Self> {
        (packed & ALIVE != 0).then_some(Self {
            gpu: (packed & 0xffff) as u16,
            external: ((packed & !ALIVE) >> 16) as u16,
        })
    }
}

const ALIVE: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn every_state_survives_both_forms() {
        for gpu in [0, 1, 2, 3, 4, 300, u16::MAX] {
            for external in [0, 1, 2, 0x1f, 0x20, (1 << MAX_TIERS) - 1] {
                let held = Held { gpu, external };
                let mut out = Out::default();
                held.write(&mut out);
                if gpu < 3 && external < 0x20 {
                    assert_eq!(out.bytes.len(), 1);
                }
                let mut rest = In { rest: &out.bytes };
                assert_eq!(Held::read(&mut rest), Some(held));
                assert!(rest.rest.is_empty());
                assert_eq!(Held::unpack(Held::pack(Some(held))), Some(held));
            }
        }
        assert_eq!(Held::unpack(Held::pack(None)), None);
    }
}
