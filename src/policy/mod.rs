//! The decision: configuration, evidence, tiers, gate (DESIGN 4, 5, 6, 8).
