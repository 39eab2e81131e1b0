//! Envoy calls back into the module while one of its callbacks waits for a host call.

use crate::context::{Context, Stream};
use crate::exchange::Placement;
use crate::request::Request;
use crate::vm::Host;
use std::cell::RefCell;
use std::rc::Rc;
use wasmtime::{Caller, Extern, Val};

/// The running stream is torn down: seen with the local reply of an upstream filter.
pub(crate) fn destroy_running_stream(caller: &mut Caller<'_, Host>) -> wasmtime::Result<()> {
    let running = caller.data().running;
    match caller.data_mut().contexts.get_mut(&running) {
        Some(Context::Stream(stream)) if !stream.destroyed => stream.destroyed = true,
        _ => return Ok(()),
    }
    inside(
        caller,
        running,
        &[
            ("proxy_on_log", &[]),
            ("proxy_on_done", &[]),
            ("proxy_on_delete", &[]),
        ],
    )
}

/// Every plugin of the VM serves a whole request: seen with an HTTP call to a cluster that has the
/// module as an upstream filter.
pub(crate) fn serve_a_request(caller: &mut Caller<'_, Host>) -> wasmtime::Result<()> {
    const BODY: &[u8] = br#"{"kv_transfer_params":{"max_load_tokens":5}}"#;
    let contexts = &caller.data().contexts;
    let is_root = |context: &Context| matches!(context, Context::Root(_));
    let roots: Vec<u32> = contexts
        .iter()
        .filter(|(_, context)| is_root(context))
        .map(|(id, _)| *id)
        .collect();
    for root in roots {
        let request = Request::post("/v1/chat/completions").upstream("10.0.0.99:8000");
        let headers = request.exchange.request_headers.len() as u32;
        let id = caller.data_mut().add(Context::Stream(Stream {
            request_headers: true,
            body: Some(BODY.to_vec()),
            ..Stream::new(
                root,
                Rc::new(RefCell::new(request.exchange)),
                Placement::Upstream,
            )
        }));
        inside(
            caller,
            id,
            &[
                ("proxy_on_context_create", &[root]),
                ("proxy_on_request_headers", &[headers, 0]),
                ("proxy_on_request_body", &[BODY.len() as u32, 1]),
                ("proxy_on_log", &[]),
                ("proxy_on_done", &[]),
                ("proxy_on_delete", &[]),
            ],
        )?;
        caller.data_mut().contexts.remove(&id);
    }
    Ok(())
}

/// Calls exports for `context`, then goes on with the callback that was running.
fn inside(
    caller: &mut Caller<'_, Host>,
    context: u32,
    exports: &[(&'static str, &[u32])],
) -> wasmtime::Result<()> {
    let host = caller.data();
    let (running, effective, callback, stop) =
        (host.running, host.effective, host.callback, host.stop);
    for (export, args) in exports {
        let Some(function) = caller.get_export(export).and_then(Extern::into_func) else {
            continue;
        };
        let params: Vec<Val> = std::iter::once(&context)
            .chain(*args)
            .map(|word| Val::I32(*word as i32))
            .collect();
        let mut results = vec![Val::I32(0); function.ty(&*caller).results().len()];
        let host = caller.data_mut();
        (host.running, host.effective, host.callback) = (context, 0, export);
        function.call(&mut *caller, &params, &mut results)?;
    }
    let host = caller.data_mut();
    (host.running, host.effective, host.callback, host.stop) = (running, effective, callback, stop);
    Ok(())
}
