//! Proxy-wasm statuses (ABI 0.2.1), as the host returns them: plain numbers, because a host may
//! return one that no list has.

pub const OK: u32 = 0;
pub const NOT_FOUND: u32 = 1;
pub const BAD_ARGUMENT: u32 = 2;
pub const SERIALIZATION_FAILURE: u32 = 3;
pub const INVALID_MEMORY_ACCESS: u32 = 6;
pub const EMPTY: u32 = 7;
pub const CAS_MISMATCH: u32 = 8;
pub const INTERNAL_FAILURE: u32 = 10;
pub const UNIMPLEMENTED: u32 = 12;
