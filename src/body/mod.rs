//! The streaming edit of `kv_transfer_params` (DESIGN 3).
