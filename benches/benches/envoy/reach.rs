//! What is to be reached, out of what was measured.

use selective_kv_bench::report::Reach;
use selective_kv_bench::shapes::{Params, Shape};

use crate::cases::{Case, MIB, SMALL};
use crate::cpu::Measured;
use crate::memory::{self, Peak};
use crate::variants::Variant;

pub fn cpu(all: &[Measured]) -> Vec<Reach> {
    let large = || edits(all).filter(|m| m.case.bytes > SMALL);
    let small = all.iter().filter(|m| m.variant == Variant::OursThreshold);
    let mut reach = vec![
        worst(
            "an edit, 64 KiB and more, added CPU over the copy's",
            "×",
            3.0,
            large().map(|m| (m.case, m.cpu_us() / of(all, Variant::Copy, m.case))),
        ),
        worst(
            "an edit, 64 KiB and more, added CPU over Lua's",
            "×",
            1.0,
            large().map(|m| (m.case, m.cpu_us() / of(all, Variant::Lua, m.case))),
        ),
        worst(
            "an edit by evidence and gate, 4 KiB, added CPU over the copy's",
            "µs",
            10.0,
            small.map(|m| (m.case, m.cpu_us() - of(all, Variant::Copy, m.case))),
        ),
    ];
    for variant in [Variant::OursPath, Variant::OursPreserve] {
        let mine = all.iter().filter(|m| m.variant == variant);
        reach.push(worst(
            &format!(
                "not editable ({}), added CPU over the no-op's",
                variant.name()
            ),
            "×",
            1.1,
            mine.map(|m| (m.case, m.cpu_us() / of(all, Variant::Noop, m.case))),
        ));
    }
    reach.push(worst(
        "an edit, added CPU of 8 MiB over that of 1 MiB",
        "×",
        8.5,
        edits(all).filter(|m| m.case.bytes == 8 * MIB).map(|m| {
            let smaller = Case {
                bytes: MIB,
                ..m.case
            };
            (m.case, m.cpu_us() / of(all, Variant::Ours, smaller))
        }),
    ));
    // A quick run lacks some.
    reach.retain(|reach| reach.measured.is_finite());
    reach
}

/// Of the whole process, in which the larger module counts, and of what the bodies alone took.
pub fn memory(peaks: &[Peak]) -> Vec<Reach> {
    let mut reach = Vec::new();
    for params in Params::ALL {
        let held = match params {
            Params::First => memory::HELD_MIB,
            Params::Absent | Params::Last => 0.0,
        };
        for (what, mib) in [
            ("peak memory", Peak::mib as fn(&Peak) -> f64),
            ("peak memory over idle", Peak::grown_mib),
        ] {
            let of = |variant| {
                let fits = |peak: &&Peak| peak.variant == variant && peak.case.params == params;
                peaks.iter().find(fits).map_or(f64::NAN, mib)
            };
            reach.push(Reach {
                what: format!("{what}, more than the copy's, params {}", params.name()),
                unit: "MiB".to_owned(),
                measured: of(Variant::Ours) - of(Variant::Copy),
                limit: held + 2.0,
            });
        }
    }
    reach
}

fn edits(all: &[Measured]) -> impl Iterator<Item = &Measured> {
    all.iter().filter(|m| m.variant == Variant::Ours)
}

/// NaN where it was not measured.
fn of(all: &[Measured], variant: Variant, case: Case) -> f64 {
    let mut fit = all
        .iter()
        .filter(|m| m.variant == variant && m.case == case);
    fit.next().map_or(f64::NAN, Measured::cpu_us)
}

/// The largest of the cases, which it names.
fn worst(what: &str, unit: &str, limit: f64, cases: impl Iterator<Item = (Case, f64)>) -> Reach {
    let worst = cases.max_by(|a, b| a.1.total_cmp(&b.1));
    let (case, measured) = worst.unwrap_or((
        Case {
            shape: Shape::Chat,
            bytes: 0,
            params: Params::Absent,
        },
        f64::NAN,
    ));
    let (shape, params) = (case.shape.name(), case.params.name());
    Reach {
        what: format!(
            "{what} (worst: {shape}, {} KiB, params {params})",
            case.bytes >> 10
        ),
        unit: unit.to_owned(),
        measured,
        limit,
    }
}
