//! Keys of a prompt's blocks.

use std::hint::black_box;
use std::num::NonZeroU32;

use selective_kv::prefix::{Algorithm, Context, ExtraKeyFormat};

use crate::run::{Run, row};

/// vLLM's default.
const BLOCK_SIZE: NonZeroU32 = NonZeroU32::new(16).expect("not 0");

pub fn measure(run: &mut Run) {
    let context = Context {
        model: "meta-llama/Llama-3.1-70B-Instruct",
        ..Context::default()
    };
    for (name, algorithm) in [
        ("fnv64a_cbor", Algorithm::fnv64a_cbor("")),
        (
            "sha256_cbor",
            Algorithm::sha256_cbor(None, ExtraKeyFormat::Tagged),
        ),
    ] {
        for thousands in [1_u32, 8, 32] {
            let tokens: Vec<u32> = (0..thousands << 10)
                .map(|n| n.wrapping_mul(0x9e37_79b9) % 128_256)
                .collect();
            run.measure(row("keys", &format!("{name} {thousands}k tokens")), |b| {
                b.iter(|| {
                    let chain = algorithm.chain(&context).expect("no adapter");
                    chain
                        .keys(black_box(&tokens), BLOCK_SIZE)
                        .fold(0, |all, key| all ^ key)
                });
            });
        }
    }
}
