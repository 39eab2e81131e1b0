//! What is sent, how, and how often.

use selective_kv_bench::report::Row;
use selective_kv_bench::shapes::{self, Params, SIZES, Shape};

use crate::client::request;
use crate::evidence;
use crate::variants::{EVIDENCE_IDS, Variant};

pub const MIB: usize = 1 << 20;
pub const SMALL: usize = 4 << 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Case {
    pub shape: Shape,
    pub bytes: usize,
    pub params: Params,
}

/// `quick`: enough to see whether something has changed.
pub fn cases(quick: bool) -> Vec<Case> {
    let shapes: &[Shape] = if quick {
        &[Shape::Chat, Shape::TokenIds, Shape::Messages]
    } else {
        &Shape::ALL
    };
    let mut cases = Vec::new();
    for &bytes in SIZES.iter().filter(|bytes| !quick || **bytes <= MIB) {
        for &shape in shapes {
            for params in [Params::Last, Params::Absent, Params::First] {
                // One shape tells what their place costs.
                if params == Params::Last || (shape == Shape::Chat && !quick) {
                    cases.push(Case {
                        shape,
                        bytes,
                        params,
                    });
                }
            }
        }
    }
    cases
}

impl Case {
    /// Of a round, one connection. The time of a round is short, so that what else the machine does
    /// hits all variants alike.
    pub fn requests_of_round(self) -> usize {
        match self.bytes {
            SMALL => 120,
            ..MIB => 40,
            MIB => 6,
            _ => 2,
        }
    }

    /// Whole requests, to be sent in turn: one, or as many as there is evidence for.
    pub fn requests(self, variant: Variant, padding: usize) -> Vec<Vec<u8>> {
        let body = shapes::body(self.shape, self.bytes, self.params);
        let path = match variant {
            Variant::OursPath => "/v1/embeddings",
            _ => self.shape.path(),
        };
        let count = match variant {
            Variant::OursThreshold => EVIDENCE_IDS,
            _ => 1,
        };
        (0..count)
            .map(|number| request(path, &evidence::id(number), padding, &body))
            .collect()
    }

    pub fn variants(self) -> Vec<Variant> {
        let applies = |variant: &Variant| match variant {
            Variant::OursThreshold => self.bytes == SMALL,
            Variant::OursPath | Variant::OursPreserve => {
                self.bytes == SMALL && self.shape == Shape::Chat && self.params == Params::Last
            }
            _ => true,
        };
        Variant::ALL.into_iter().filter(applies).collect()
    }

    pub fn row(self, bench: &str, variant: Variant, unit: &str, value: f64) -> Row {
        Row {
            bench: bench.to_owned(),
            variant: variant.name().to_owned(),
            shape: Some(self.shape.name().to_owned()),
            bytes: Some(self.bytes),
            chunk: None,
            params: Some(self.params.name().to_owned()),
            unit: unit.to_owned(),
            value,
            spread: None,
            ratio_to: None,
        }
    }
}
