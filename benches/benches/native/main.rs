//! What the pure core takes natively: the edit of a body beside other means, and pieces of the
//! decision, of block keys and of the scorer.
//!
//! `scripts/bench --only native`, or `cargo bench -p selective-kv-bench --bench native -- [--quick]
//! [filter]` with criterion's own arguments. Rows go to `target/bench/native.json`.
#![allow(clippy::disallowed_methods)]

mod decision;
mod edit;
mod keys;
mod run;
mod scorer;

use run::Run;

fn main() {
    let mut run = Run::new();
    edit::measure(&mut run);
    decision::measure(&mut run);
    keys::measure(&mut run);
    scorer::measure(&mut run);
    run.finish();
}
