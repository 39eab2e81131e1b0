//! Every call to the proxy-wasm host, as a `Result` with the raw status.
//!
//! The imports are declared here and not taken from the SDK, whose wrappers panic on any status
//! that they do not expect. No other file may declare or call an `env` import.

#![allow(unsafe_code)] // The ABI is raw pointers; each block says why it holds.

use std::fmt;
use std::ptr::null_mut;

use crate::contract::store::{Store, StoreError, Versioned};
use crate::policy::header_pairs::HeaderPairs;

/// A status other than `Ok`, as the host gave it (proxy-wasm ABI 0.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostError(pub u32);

impl HostError {
    pub const NOT_FOUND: Self = Self(1);
    pub const CAS_MISMATCH: Self = Self(8);
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host status {}", self.0)
    }
}

pub type HostResult<T> = Result<T, HostError>;

#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Buffer {
    RequestBody = 0,
    ResponseBody = 1,
    HttpCallResponseBody = 4,
    PluginConfiguration = 7,
}

#[derive(Clone, Copy)]
#[repr(u32)]
#[allow(clippy::enum_variant_names)] // They are all header maps.
pub enum Map {
    RequestHeaders = 0,
    ResponseHeaders = 2,
    HttpCallResponseHeaders = 6,
}

#[derive(Clone, Copy)]
#[repr(u32)]
pub enum MetricKind {
    Counter = 0,
    Gauge = 1,
}

mod env {
    #[link(wasm_import_module = "env")]
    unsafe extern "C" {
        pub fn proxy_log(level: u32, message: *const u8, message_len: usize) -> u32;
        pub fn proxy_get_current_time_nanoseconds(time: *mut u64) -> u32;
        pub fn proxy_set_tick_period_milliseconds(period: u32) -> u32;
        pub fn proxy_get_buffer_bytes(
            buffer: u32,
            start: usize,
            max_len: usize,
            data: *mut *mut u8,
            len: *mut usize,
        ) -> u32;
        pub fn proxy_set_buffer_bytes(
            buffer: u32,
            start: usize,
            len: usize,
            data: *const u8,
            data_len: usize,
        ) -> u32;
        pub fn proxy_get_header_map_value(
            map: u32,
            key: *const u8,
            key_len: usize,
            value: *mut *mut u8,
            len: *mut usize,
        ) -> u32;
        pub fn proxy_get_header_map_pairs(map: u32, data: *mut *mut u8, len: *mut usize) -> u32;
        pub fn proxy_remove_header_map_value(map: u32, key: *const u8, key_len: usize) -> u32;
        pub fn proxy_get_property(
            path: *const u8,
            path_len: usize,
            value: *mut *mut u8,
            len: *mut usize,
        ) -> u32;
        pub fn proxy_set_property(
            path: *const u8,
            path_len: usize,
            value: *const u8,
            value_len: usize,
        ) -> u32;
        pub fn proxy_get_shared_data(
            key: *const u8,
            key_len: usize,
            value: *mut *mut u8,
            len: *mut usize,
            cas: *mut u32,
        ) -> u32;
        pub fn proxy_set_shared_data(
            key: *const u8,
            key_len: usize,
            value: *const u8,
            value_len: usize,
            cas: u32,
        ) -> u32;
        pub fn proxy_send_local_response(
            status_code: u32,
            details: *const u8,
            details_len: usize,
            body: *const u8,
            body_len: usize,
            headers: *const u8,
            headers_len: usize,
            grpc_status: i32,
        ) -> u32;
        pub fn proxy_set_effective_context(context_id: u32) -> u32;
        pub fn proxy_continue_stream(stream: u32) -> u32;
        pub fn proxy_close_stream(stream: u32) -> u32;
        pub fn proxy_http_call(
            cluster: *const u8,
            cluster_len: usize,
            headers: *const u8,
            headers_len: usize,
            body: *const u8,
            body_len: usize,
            trailers: *const u8,
            trailers_len: usize,
            timeout_ms: u32,
            token: *mut u32,
        ) -> u32;
        pub fn proxy_define_metric(
            kind: u32,
            name: *const u8,
            name_len: usize,
            id: *mut u32,
        ) -> u32;
        pub fn proxy_increment_metric(id: u32, offset: i64) -> u32;
        pub fn proxy_record_metric(id: u32, value: u64) -> u32;
    }
}

fn check(status: u32) -> HostResult<()> {
    match status {
        0 => Ok(()),
        status => Err(HostError(status)),
    }
}

/// Takes over what the host allocated with our `malloc` (abi.rs).
///
/// # Safety
/// `data` is null, or `len` bytes from `malloc(len)` that nobody else owns.
unsafe fn take(data: *mut u8, len: usize) -> Vec<u8> {
    if data.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: see above; `malloc` allocates exactly so many bytes of alignment 1.
    unsafe { Vec::from_raw_parts(data, len, room(len)) }
}

/// What is allocated for `len` bytes of the host: a large chunk has room for an edit in its place.
pub fn room(len: usize) -> usize {
    match len {
        0..1024 => len,
        _ => len.saturating_add(256),
    }
}

/// Runs a call that returns bytes through out pointers.
fn read(call: impl FnOnce(*mut *mut u8, *mut usize) -> u32) -> HostResult<Vec<u8>> {
    let mut data = null_mut();
    let mut len = 0;
    let status = call(&mut data, &mut len);
    // SAFETY: the host writes both or neither; taken whatever the status, so that nothing leaks.
    let bytes = unsafe { take(data, len) };
    check(status).map(|()| bytes)
}

#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Level {
    Info = 2,
    Warn = 3,
    Error = 4,
    Critical = 5,
}

/// A log line that cannot be written is dropped: there is no place left to say so.
pub fn log(level: Level, message: &str) {
    // SAFETY: pointer and length of a live slice.
    let _ = unsafe { env::proxy_log(level as u32, message.as_ptr(), message.len()) };
}

/// The host's wall clock, in ns since the Unix epoch. It may step back.
pub fn now_ns() -> HostResult<u64> {
    let mut time = 0;
    // SAFETY: out pointer to a live local.
    check(unsafe { env::proxy_get_current_time_nanoseconds(&mut time) }).map(|()| time)
}

/// The host's wall clock, in ms since the Unix epoch. It may step back.
pub fn now_ms() -> HostResult<u64> {
    now_ns().map(|ns| ns / 1_000_000)
}

pub fn set_tick_period_ms(period: u32) -> HostResult<()> {
    // SAFETY: no pointers.
    check(unsafe { env::proxy_set_tick_period_milliseconds(period) })
}

pub fn buffer(buffer: Buffer, start: usize, max_len: usize) -> HostResult<Vec<u8>> {
    read(|data, len| {
        // SAFETY: out pointers to live locals.
        unsafe { env::proxy_get_buffer_bytes(buffer as u32, start, max_len, data, len) }
    })
}

/// Replaces `len` bytes at `start` (0 and the whole length: replace; 0 and 0: prepend).
pub fn set_buffer(buffer: Buffer, start: usize, len: usize, data: &[u8]) -> HostResult<()> {
    // SAFETY: pointer and length of a live slice.
    check(unsafe {
        env::proxy_set_buffer_bytes(buffer as u32, start, len, data.as_ptr(), data.len())
    })
}

/// The value of a header, as bytes: header values need not be UTF-8. Absent is `Ok(None)`.
pub fn header(map: Map, name: &str) -> HostResult<Option<Vec<u8>>> {
    optional(read(|data, len| {
        // SAFETY: pointer and length of a live slice; out pointers to live locals.
        unsafe { env::proxy_get_header_map_value(map as u32, name.as_ptr(), name.len(), data, len) }
    }))
}

/// All headers in one call. Envoy calls back for the memory of each value that it hands over, which
/// takes longer than anything else in such a call.
pub fn headers(map: Map) -> HostResult<HeaderPairs> {
    read(|data, len| {
        // SAFETY: out pointers to live locals.
        unsafe { env::proxy_get_header_map_pairs(map as u32, data, len) }
    })
    .map(HeaderPairs::new)
}

pub fn remove_header(map: Map, name: &str) -> HostResult<()> {
    // SAFETY: pointer and length of a live slice.
    check(unsafe { env::proxy_remove_header_map_value(map as u32, name.as_ptr(), name.len()) })
}

/// The host that the request goes to: `ip:port`.
pub const UPSTREAM_ADDRESS: &str = "upstream\0address";

/// A property by its path, a NUL between its parts. Absent is `Ok(None)`.
pub fn property(path: &str) -> HostResult<Option<Vec<u8>>> {
    optional(read(|data, len| {
        // SAFETY: pointer and length of a live slice; out pointers to live locals.
        unsafe { env::proxy_get_property(path.as_ptr(), path.len(), data, len) }
    }))
}

/// Sets filter state `wasm.<name>`.
pub fn set_property(name: &str, value: &[u8]) -> HostResult<()> {
    // SAFETY: pointers and lengths of live slices.
    check(unsafe {
        env::proxy_set_property(name.as_ptr(), name.len(), value.as_ptr(), value.len())
    })
}

/// Answers the client in the engine's place.
pub fn send_local_response(status_code: u32, details: &str, body: &str) -> HostResult<()> {
    const NO_GRPC_STATUS: i32 = -1;
    let headers = serialize_pairs(&[("content-type", "text/plain")]);
    // SAFETY: pointers and lengths of live slices.
    check(unsafe {
        env::proxy_send_local_response(
            status_code,
            details.as_ptr(),
            details.len(),
            body.as_ptr(),
            body.len(),
            headers.as_ptr(),
            headers.len(),
            NO_GRPC_STATUS,
        )
    })
}

/// Lets the request of another context go on that answered Pause. For the rest of the callback the
/// host takes calls as that context's.
pub fn continue_request(context_id: u32) -> HostResult<()> {
    const HTTP_REQUEST: u32 = 0;
    // SAFETY: no pointers.
    check(unsafe { env::proxy_set_effective_context(context_id) })?;
    // SAFETY: no pointers.
    check(unsafe { env::proxy_continue_stream(HTTP_REQUEST) })
}

/// Resets the request's stream: the last resort when not even a local reply goes out.
pub fn reset_request() -> HostResult<()> {
    const HTTP_REQUEST: u32 = 0;
    // SAFETY: no pointers.
    check(unsafe { env::proxy_close_stream(HTTP_REQUEST) })
}

/// Sends a request to `cluster`, without a body if that is empty. The answer comes to the root
/// context with the token, also if a stream has called.
pub fn http_call(
    cluster: &str,
    headers: &[(&str, &str)],
    body: &[u8],
    timeout_ms: u32,
) -> HostResult<u32> {
    let headers = serialize_pairs(headers);
    let trailers = serialize_pairs(&[]);
    let mut token = 0;
    // SAFETY: pointers and lengths of live slices; out pointer to a live local.
    check(unsafe {
        env::proxy_http_call(
            cluster.as_ptr(),
            cluster.len(),
            headers.as_ptr(),
            headers.len(),
            body.as_ptr(),
            body.len(),
            trailers.as_ptr(),
            trailers.len(),
            timeout_ms,
            &mut token,
        )
    })
    .map(|()| token)
}

pub fn define_metric(kind: MetricKind, name: &str) -> HostResult<u32> {
    let mut id = 0;
    // SAFETY: pointer and length of a live slice; out pointer to a live local.
    check(unsafe { env::proxy_define_metric(kind as u32, name.as_ptr(), name.len(), &mut id) })
        .map(|()| id)
}

/// Adds to a counter, or to a gauge (which may also fall).
pub fn increment_metric(id: u32, offset: i64) -> HostResult<()> {
    // SAFETY: no pointers.
    check(unsafe { env::proxy_increment_metric(id, offset) })
}

/// Sets a gauge.
pub fn record_metric(id: u32, value: u64) -> HostResult<()> {
    // SAFETY: no pointers.
    check(unsafe { env::proxy_record_metric(id, value) })
}

/// Envoy's shared data of this VM's `vm_id`.
pub struct SharedData;

impl Store for SharedData {
    fn get(&self, key: &str) -> Result<Option<Versioned>, StoreError> {
        let mut cas = 0;
        let value = read(|data, len| {
            // SAFETY: pointer and length of a live slice; out pointers to live locals.
            unsafe { env::proxy_get_shared_data(key.as_ptr(), key.len(), data, len, &mut cas) }
        });
        match optional(value) {
            Ok(value) => Ok(value.map(|value| Versioned { value, cas })),
            Err(HostError(status)) => Err(StoreError::Host(status)),
        }
    }

    fn set(&self, key: &str, value: &[u8], cas: u32) -> Result<(), StoreError> {
        // SAFETY: pointers and lengths of live slices.
        let status = unsafe {
            env::proxy_set_shared_data(key.as_ptr(), key.len(), value.as_ptr(), value.len(), cas)
        };
        match check(status) {
            Ok(()) => Ok(()),
            Err(HostError::CAS_MISMATCH) => Err(StoreError::CasMismatch),
            Err(HostError(status)) => Err(StoreError::Host(status)),
        }
    }
}

fn optional(result: HostResult<Vec<u8>>) -> HostResult<Option<Vec<u8>>> {
    match result {
        Ok(bytes) => Ok(Some(bytes)),
        Err(HostError::NOT_FOUND) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The ABI's form of a header list: count, then key and value lengths, then NUL-ended bytes.
fn serialize_pairs(pairs: &[(&str, &str)]) -> Vec<u8> {
    let length = |text: &str| u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes();
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&u32::try_from(pairs.len()).unwrap_or(u32::MAX).to_le_bytes());
    for (name, value) in pairs {
        bytes.extend_from_slice(&length(name));
        bytes.extend_from_slice(&length(value));
    }
    for (name, value) in pairs {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(value.as_bytes());
        bytes.push(0);
    }
    bytes
}
