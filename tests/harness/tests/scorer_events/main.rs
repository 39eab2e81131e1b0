//! KV events through the built module: what the bridge answers to the scorer's callouts becomes the
//! evidence of requests, on every VM; and what reading them costs.

mod cost;
mod pages;
mod rig;
