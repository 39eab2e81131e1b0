//! What the benches share: bodies to measure with, and results as rows.

pub mod figures;
pub mod report;
pub mod shapes;
