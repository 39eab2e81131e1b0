//! The shell around the pure code: the only part that knows proxy-wasm.
