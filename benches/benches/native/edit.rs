//! Disabling loading in a body. Ours and the plain copy take it in chunks; serde_json needs the
//! whole of it.

use std::hint::black_box;
use std::rc::Rc;

use bench_baselines::{raw_value, round_trip};
use criterion::Bencher;
use selective_kv::body::{Cap, Decide, Editor, Edits, HeldBudget, ParamsFacts, Places};
use selective_kv_bench::report::Row;
use selective_kv_bench::shapes::{Params, SIZES, Shape, body, edited};

use crate::run::{Run, row};

const CHUNKS: [usize; 2] = [16 << 10, 64 << 10];
/// Of bytes that the editor may hold back: more than it needs.
const ROOM: usize = 1 << 20;

pub fn measure(run: &mut Run) {
    let [_, small, large, huge] = SIZES;
    for shape in Shape::ALL {
        for bytes in [small, large] {
            case(run, shape, bytes, Params::Last);
        }
    }
    case(run, Shape::Chat, huge, Params::Last);
    for params in [Params::Absent, Params::First] {
        for bytes in [small, large] {
            case(run, Shape::Chat, bytes, params);
        }
    }
}

fn case(run: &mut Run, shape: Shape, bytes: usize, params: Params) {
    let body = body(shape, bytes, params);
    assert!(
        ours(&body, CHUNKS[0]) == edited(shape, bytes, params),
        "the edit of {shape:?} {bytes} {params:?}"
    );
    let row = |variant: &str, chunk: Option<usize>| Row {
        shape: Some(shape.name().to_owned()),
        bytes: Some(bytes),
        params: Some(params.name().to_owned()),
        chunk,
        ratio_to: (variant != "copy").then(|| "copy".to_owned()),
        ..row("edit", variant)
    };
    for chunk in CHUNKS {
        run.measure(row("copy", Some(chunk)), |b: &mut Bencher<'_>| {
            b.iter(|| copy(&body, chunk));
        });
        run.measure(row("ours", Some(chunk)), |b| {
            b.iter(|| pass(&body, chunk, |bytes| drop(black_box(bytes))));
        });
    }
    run.measure(row("copy", None), |b| b.iter(|| copy(&body, bytes)));
    for (name, edit) in [
        (
            "raw_value",
            raw_value::edited as fn(&[u8]) -> Option<Vec<u8>>,
        ),
        ("round_trip", round_trip::edited),
    ] {
        run.measure(row(name, None), |b| {
            b.iter(|| edit(&black_box(&body).clone()));
        });
    }
}

/// As a host hands chunks to a filter, which drops them.
fn copy(body: &[u8], chunk: usize) {
    for chunk in black_box(body).chunks(chunk) {
        drop(black_box(chunk.to_vec()));
    }
}

/// The same through the editor; what goes on is handed out.
fn pass(body: &[u8], chunk: usize, mut go_on: impl FnMut(Vec<u8>)) {
    let mut editor = Editor::new(Places::TopLevel, ROOM, Rc::new(HeldBudget::new(ROOM)));
    let mut left = body.len();
    for chunk in black_box(body).chunks(chunk) {
        let chunk = chunk.to_vec();
        left -= chunk.len();
        match editor.feed(&chunk, left == 0, &mut NoLoads) {
            selective_kv::body::Output::Pass => go_on(chunk),
            output => go_on(output.apply(chunk).unwrap_or_default()),
        }
    }
}

fn ours(body: &[u8], chunk: usize) -> Vec<u8> {
    let mut out = Vec::new();
    pass(body, chunk, |bytes| out.extend_from_slice(&bytes));
    out
}

/// A decision that never loads.
struct NoLoads;

impl Decide for NoLoads {
    fn decide(&mut self, _: &ParamsFacts<'_>, _: bool) -> Option<Edits> {
        Some(Edits::caps(Cap::SetZero, Cap::Keep))
    }
}
