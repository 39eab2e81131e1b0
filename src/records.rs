//! What runs for every request, page and batch of events beside the stream: the records of shared
//! data and the maps they are read into, headers, the engines' pages and events, the index of blocks.
//!
//! A package of its own (`records/Cargo.toml`) because cargo has one opt-level a package: what is
//! left of selective-kv runs seldom, and is compiled for size alone.

// Its tests are selective-kv's.
#![cfg(not(test))]

pub mod contract;
pub mod decimal;
pub mod json_value;
pub mod sorted;

pub mod policy {
    pub mod header_pairs;
}

pub mod scorer {
    pub mod facts {
        pub mod page;
    }
    pub mod index;
    pub mod kv_events;
    pub mod metric_spec;
    pub mod metrics_text;
    pub mod runs;
    pub mod stores;
}

use selective_kv_streaming::cbor;
