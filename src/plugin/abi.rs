//! The proxy-wasm ABI 0.2.1: what the host calls, and the contexts it calls it for.
//!
//! Only callbacks that a role needs are exported: the host skips (and copies nothing for) those
//! that are missing. An unknown context, a late answer or a callback inside a running callback of
//! the same context is answered with the neutral value; the SDK's dispatcher panics there.

#![allow(unsafe_code)] // Exported symbols and the allocator.

use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;

use super::context::{Action, Pass, Root, SharedStream, Stream};
use super::host::{self, Buffer, Level};
use super::policy_root::PolicyRoot;
#[cfg(feature = "scorer")]
use super::scorer_root::ScorerRoot;
use crate::sorted::SortedMap;
use selective_kv_streaming::compare;

/// A root before its configuration, or one whose configuration the host did not hand over: it lets
/// everything pass.
struct Inert;

impl Root for Inert {
    fn new_stream(&self, _id: u32) -> SharedStream {
        Rc::new(RefCell::new(Pass))
    }
}

/// Contexts by id; the host counts ids up.
struct Contexts {
    /// `None` while one of its callbacks runs.
    roots: SortedMap<u32, Option<Box<dyn Root>>>,
    streams: SortedMap<u32, SharedStream>,
}

thread_local! {
    static CONTEXTS: RefCell<Contexts> = const {
        RefCell::new(Contexts {
            roots: SortedMap::new(),
            streams: SortedMap::new(),
        })
    };
}

fn contexts<R>(f: impl FnOnce(&mut Contexts) -> R) -> Option<R> {
    CONTEXTS
        .try_with(|contexts| contexts.try_borrow_mut().ok().map(|mut c| f(&mut c)))
        .ok()
        .flatten()
}

/// Runs `f` on a root taken out of the table, so that a callback inside a callback finds the table
/// free and this root absent.
fn with_root<R>(id: u32, neutral: R, f: impl FnOnce(&mut dyn Root) -> R) -> R {
    let taken = contexts(|c| c.roots.get_mut(&id).and_then(Option::take)).flatten();
    let Some(mut root) = taken else {
        return neutral;
    };
    let result = f(root.as_mut());
    contexts(|c| {
        // Deleted meanwhile: dropped here.
        if let Some(slot) = c.roots.get_mut(&id) {
            *slot = Some(root);
        }
    });
    result
}

/// Runs `f` on a stream, outside the table as well. One that is deleted meanwhile is dropped here.
fn with_stream<R>(id: u32, neutral: R, f: impl FnOnce(&mut dyn Stream) -> R) -> R {
    let Some(stream) = contexts(|c| c.streams.get(&id).cloned()).flatten() else {
        return neutral;
    };
    match stream.try_borrow_mut() {
        Ok(mut stream) => f(&mut *stream),
        Err(_) => neutral,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_abi_version_0_2_1() {}

/// A panic would be a bug; its message is the only trace that the trap leaves.
#[unsafe(no_mangle)]
pub extern "C" fn _initialize() {
    std::panic::set_hook(Box::new(|info| {
        host::log(Level::Critical, &format!("selective-kv: {info}"));
    }));
}

/// Memory for bytes that the host returns; `host::take` frees it.
#[unsafe(no_mangle)]
pub extern "C" fn malloc(size: usize) -> *mut u8 {
    let Ok(layout) = std::alloc::Layout::array::<u8>(host::room(size)) else {
        return std::ptr::null_mut();
    };
    if size == 0 {
        return NonNull::<u8>::dangling().as_ptr();
    }
    // SAFETY: the layout is not empty.
    unsafe { std::alloc::alloc(layout) }
}

/// In the place of the standard library's, for all that the module compares.
///
/// # Safety
/// Both point to `len` bytes.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn memcmp(left: *const u8, right: *const u8, len: usize) -> i32 {
    // SAFETY: see above.
    let (left, right) = unsafe {
        (
            std::slice::from_raw_parts(left, len),
            std::slice::from_raw_parts(right, len),
        )
    };
    compare::bytes(left, right) as i32
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_context_create(context_id: u32, root_context_id: u32) {
    if root_context_id == 0 {
        contexts(|c| c.roots.insert(context_id, Some(Box::new(Inert))));
        return;
    }
    let stream = with_root(root_context_id, None, |root| {
        Some(root.new_stream(context_id))
    });
    if let Some(stream) = stream {
        contexts(|c| c.streams.insert(context_id, stream));
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_vm_start(_context_id: u32, _vm_configuration_size: usize) -> u32 {
    1
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_configure(context_id: u32, configuration_size: usize) -> u32 {
    let configuration = if configuration_size == 0 {
        Ok(Vec::new())
    } else {
        host::buffer(Buffer::PluginConfiguration, 0, configuration_size)
    };
    let root_id = host::property("plugin_root_id")
        .and_then(|root_id| root_id.ok_or(host::HostError::NOT_FOUND));
    let (root_id, configuration) = match (root_id, configuration) {
        (Ok(root_id), Ok(configuration)) => (root_id, configuration),
        (Err(error), _) | (_, Err(error)) => {
            // The host's failure, not the operator's: pass everything rather than stop Envoy.
            let message = format!(
                "selective-kv: the configuration could not be read ({error}); every request passes unchanged"
            );
            host::log(Level::Critical, &message);
            return 1;
        }
    };
    let root_id = String::from_utf8_lossy(&root_id);
    let root: Result<Box<dyn Root>, String> = match root_id.as_ref() {
        "selective-kv" => PolicyRoot::new(&configuration).map(|root| Box::new(root) as _),
        #[cfg(feature = "scorer")]
        "kv-scorer" => ScorerRoot::new(&configuration).map(|root| Box::new(root) as _),
        #[cfg(not(feature = "scorer"))]
        "kv-scorer" => Err(
            "root_id: this module is the policy alone; allowed: selective-kv (selective_kv.wasm has kv-scorer too)"
                .to_owned(),
        ),
        _ => Err("root_id: not a role; allowed: selective-kv, kv-scorer".to_owned()),
    };
    match root {
        Ok(root) => {
            contexts(|c| c.roots.insert(context_id, Some(root)));
            1
        }
        Err(message) => {
            host::log(Level::Critical, &format!("{root_id}: {message}"));
            0
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_tick(context_id: u32) {
    with_root(context_id, (), |root| root.tick());
}

/// For the root context, also if one of its streams has called.
#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_http_call_response(
    context_id: u32,
    token: u32,
    headers: usize,
    body_size: usize,
    _trailers: usize,
) {
    with_root(context_id, (), |root| {
        root.http_call_response(token, headers, body_size);
    });
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_request_headers(
    context_id: u32,
    _headers: usize,
    end_of_stream: u32,
) -> u32 {
    with_stream(context_id, Action::Continue, |stream| {
        stream.request_headers(end_of_stream != 0)
    }) as u32
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_request_body(context_id: u32, size: usize, end_of_stream: u32) -> u32 {
    with_stream(context_id, Action::Continue, |stream| {
        stream.request_body(size, end_of_stream != 0)
    }) as u32
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_request_trailers(context_id: u32, _trailers: usize) -> u32 {
    with_stream(context_id, Action::Continue, |stream| {
        stream.request_trailers()
    }) as u32
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_response_headers(
    context_id: u32,
    _headers: usize,
    end_of_stream: u32,
) -> u32 {
    with_stream(context_id, (), |stream| {
        stream.response_headers(end_of_stream != 0);
    });
    Action::Continue as u32
}

#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_response_body(context_id: u32, size: usize, _end_of_stream: u32) -> u32 {
    with_stream(context_id, (), |stream| stream.response_body(size));
    Action::Continue as u32
}

/// Envoy says that a stream is done just before it deletes it: `proxy_on_done` would be one callback
/// more for every request.
#[unsafe(no_mangle)]
pub extern "C" fn proxy_on_delete(context_id: u32) {
    // Outside the table: both call the host.
    if let Some(stream) = contexts(|c| c.streams.remove(&context_id)).flatten() {
        // Inside one of its own callbacks it is not told.
        if let Ok(mut stream) = stream.try_borrow_mut() {
            stream.done();
        }
        return;
    }
    let _root = contexts(|c| c.roots.remove(&context_id));
}
