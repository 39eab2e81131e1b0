//! A filter that writes selective-kv's shared data, by somebody else: made from `docs/shared-data.md`
//! alone, and linked with nothing of the product. It writes on request, so that a test can say what
//! the policy finds. The README beside it says how.

pub mod cbor;
pub mod control;
pub mod evidence;
pub mod external;
pub mod hex;
pub mod json;
pub mod members;
pub mod queue;
pub mod record;
pub mod store;

// It needs a host, and a test program has none.
#[cfg(not(test))]
#[allow(clippy::disallowed_methods)]
// An example in the SDK's own terms; its README says what that costs.
mod filter;

/// Under this name the filter writes, unless it is told another.
pub const NAME: &str = "foreign-scorer";

/// Why nothing was written, for the person who asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String);
