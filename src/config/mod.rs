//! Strict JSON configuration, for both roles: what every parser needs, and no role's keys.

pub(crate) mod duration;
mod error;
mod field;

pub(crate) use crate::json_value::Json;
pub use error::ConfigError;
pub(crate) use error::Place;
pub(crate) use field::{Field, is_header_name, is_path, listed, members, object};
