//! KV events in: what the bridge has to say is pulled, page by page, into the index.

pub mod page;
