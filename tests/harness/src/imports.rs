//! The `env.proxy_*` imports, each answered from the state of the host.

use crate::call::{Answer, Call, Stop, answer};
use crate::context::Deferred;
use crate::exchange::{LocalResponse, Placement};
use crate::fault::Effect;
use crate::headers::HeaderMap;
use crate::reentry;
use crate::status;
use crate::vm::Host;
use crate::world::{CallRecord, HttpCall, LogLevel, LogLine};
use wasmtime::{Caller, FuncType, Linker, Val, ValType};

fn log(call: &mut Call) -> Answer {
    let level = LogLevel::from_abi(call.word(0)).ok_or(status::BAD_ARGUMENT)?;
    let text = call.text(1)?;
    let host = call.host();
    let vm = host.vm;
    host.world
        .borrow_mut()
        .log
        .push(LogLine { level, vm, text });
    Ok(())
}

fn get_log_level(call: &mut Call) -> Answer {
    call.put(0, LogLevel::Info as u32)
}

fn get_current_time(call: &mut Call) -> Answer {
    let now = call.host().world.borrow().now_ns;
    call.write(call.word(0), &now.to_le_bytes())
}

fn set_tick_period(call: &mut Call) -> Answer {
    let period = call.word(0);
    let now = call.host().world.borrow().now_ms();
    if let Some(root) = call.host().root() {
        root.tick_ms = period;
        root.next_tick_ms = now + u64::from(period);
    }
    Ok(())
}

fn get_buffer_bytes(call: &mut Call) -> Answer {
    let (start, wanted) = (call.word(1) as usize, call.word(2) as usize);
    let buffer = call.buffer()?;
    let end = start.saturating_add(wanted).min(buffer.len());
    match buffer.get(start..end) {
        Some(bytes) if !bytes.is_empty() => call.give(3, bytes),
        // Nothing there: Envoy says Ok and writes no result.
        _ => Ok(()),
    }
}

fn get_buffer_status(call: &mut Call) -> Answer {
    let size = call.buffer()?.len() as u32;
    call.put(1, size)?;
    call.put(2, 0)
}

fn set_buffer_bytes(call: &mut Call) -> Answer {
    let (kind, start, size) = (call.word(0), call.word(1) as usize, call.word(2) as usize);
    call.forbid_body_in_answer()?;
    let data = call.take(3)?;
    let body = match kind {
        0 => call.host().stream().and_then(|s| s.body.as_mut()),
        1..=8 => None,
        _ => return Err(status::BAD_ARGUMENT.into()),
    };
    let body = body.ok_or(status::BAD_ARGUMENT)?;
    if start == 0 {
        body.splice(..size.min(body.len()), data);
    } else if start >= body.len() {
        body.extend(data);
    } else {
        return Err(status::BAD_ARGUMENT.into());
    }
    Ok(())
}

fn get_map_pairs(call: &mut Call) -> Answer {
    let map = call.map()?.unwrap_or_default();
    call.give(1, &map.encode())
}

fn set_map_pairs(call: &mut Call) -> Answer {
    let map = HeaderMap::decode(&call.bytes(1)?).unwrap_or_default();
    call.change_map(|m| *m = map)
}

fn get_map_size(call: &mut Call) -> Answer {
    let map = call.map()?.ok_or(status::BAD_ARGUMENT)?;
    call.put(1, map.byte_size() as u32)
}

fn get_map_value(call: &mut Call) -> Answer {
    let name = call.text(1)?;
    let map = call.map()?.ok_or(status::BAD_ARGUMENT)?;
    let value = map.get(&name).ok_or(status::NOT_FOUND)?;
    call.give(3, value)
}

fn add_map_value(call: &mut Call) -> Answer {
    let (name, value) = (call.text(1)?, call.bytes(3)?);
    call.change_map(|m| m.add(&name, value))
}

fn replace_map_value(call: &mut Call) -> Answer {
    let (name, value) = (call.text(1)?, call.bytes(3)?);
    call.change_map(|m| m.replace(&name, value))
}

fn remove_map_value(call: &mut Call) -> Answer {
    let name = call.text(1)?;
    call.change_map(|m| m.remove(&name))
}

fn get_property(call: &mut Call) -> Answer {
    let path = call.bytes(0)?;
    let host = call.host();
    let vm_id = host.vm_id.clone();
    let root = host
        .root()
        .map(|root| (root.plugin_name.clone(), root.root_id.clone()));
    let value = match (path.strip_suffix(b"\0").unwrap_or(&path), root) {
        (b"plugin_name", Some((name, _))) => name.into_bytes(),
        (b"plugin_root_id", Some((_, root_id))) => root_id.into_bytes(),
        (b"plugin_vm_id", _) => vm_id.into_bytes(),
        (path, _) => {
            let stream = host.stream().ok_or(status::NOT_FOUND)?;
            let exchange = stream.exchange.borrow();
            exchange.property(path, stream.placement, stream.request_headers)?
        }
    };
    call.give(2, &value)
}

fn set_property(call: &mut Call) -> Answer {
    let (path, value) = (call.bytes(0)?, call.bytes(2)?);
    let stream = call.host().stream().ok_or(status::NOT_FOUND)?;
    stream
        .exchange
        .borrow_mut()
        .filter_state
        .insert(path, value);
    Ok(())
}

fn get_shared_data(call: &mut Call) -> Answer {
    let key = call.bytes(0)?;
    let host = call.host();
    let found = host.world.borrow().shared.get(&host.vm_id, &key).cloned();
    let (value, cas) = found.ok_or(status::NOT_FOUND)?;
    call.give(2, &value)?;
    call.put(4, cas)
}

fn set_shared_data(call: &mut Call) -> Answer {
    let (key, value, cas) = (call.bytes(0)?, call.take(2)?, call.word(4));
    let host = call.host();
    let mut world = host.world.borrow_mut();
    answer(world.shared.set(&host.vm_id, &key, &value, cas))
}

fn define_metric(call: &mut Call) -> Answer {
    let (kind, name) = (call.word(0), call.text(1)?);
    let host = call.host();
    let mut world = host.world.borrow_mut();
    let id = world.metrics.define(&mut host.metric_ids, kind, &name)?;
    drop(world);
    call.put(3, id)
}

fn increment_metric(call: &mut Call) -> Answer {
    let (id, offset) = (call.word(0), call.long(1));
    let host = call.host();
    let mut world = host.world.borrow_mut();
    answer(world.metrics.increment(&host.metric_ids, id, offset))
}

fn record_metric(call: &mut Call) -> Answer {
    let (id, value) = (call.word(0), call.long(1) as u64);
    let host = call.host();
    let mut world = host.world.borrow_mut();
    answer(world.metrics.record(&host.metric_ids, id, value))
}

fn get_metric(call: &mut Call) -> Answer {
    let id = call.word(0);
    let host = call.host();
    let value = host.world.borrow_mut().metrics.get(&host.metric_ids, id)?;
    call.write(call.word(1), &value.to_le_bytes())
}

fn continue_stream(call: &mut Call) -> Answer {
    let deferred = match call.word(0) {
        0 => Deferred::ContinueRequest,
        1 => Deferred::ContinueResponse,
        2 | 3 => return Err(status::UNIMPLEMENTED.into()),
        _ => return Err(status::BAD_ARGUMENT.into()),
    };
    if let Some(stream) = call.host().stream() {
        stream.deferred.push(deferred);
        stream.request_headers = false;
        stream.request_trailers = false;
    }
    Ok(())
}

fn close_stream(call: &mut Call) -> Answer {
    if call.word(0) > 3 {
        return Err(status::BAD_ARGUMENT.into());
    }
    if let Some(stream) = call.host().stream() {
        stream.deferred.push(Deferred::Reset);
    }
    Ok(())
}

fn send_local_response(call: &mut Call) -> Answer {
    let response = LocalResponse {
        status: call.word(0),
        details: call.text(1)?,
        body: call.bytes(3)?,
        headers: HeaderMap::decode(&call.bytes(5)?).unwrap_or_default(),
        grpc_status: call.word(7) as i32,
    };
    let host = call.host();
    if let Some(stream) = host.stream() {
        stream.deferred.push(Deferred::LocalResponse(response));
    }
    host.stop = true;
    Ok(())
}

fn http_call(call: &mut Call) -> Answer {
    let (cluster, headers) = (call.text(0)?, call.bytes(2)?);
    let (body, trailers) = (call.take(4)?, call.bytes(6)?);
    let timeout_ms = call.word(8);
    call.put(9, 0)?;
    let host = call.host();
    if host
        .stream()
        .is_some_and(|s| s.placement == Placement::Upstream)
    {
        return Err(status::INTERNAL_FAILURE.into());
    }
    let headers = HeaderMap::decode(&headers).unwrap_or_default();
    let (vm, root, token) = (host.vm, host.root_id(), host.next_token);
    let mut world = host.world.borrow_mut();
    let known = world.clusters.is_empty() || world.clusters.contains(&cluster);
    let whole = [":method", ":path", ":authority"]
        .iter()
        .all(|name| headers.get(name).is_some());
    if !known || !whole {
        return Err(status::BAD_ARGUMENT.into());
    }
    let sent_ms = world.now_ms();
    world.http_calls.push(HttpCall {
        token,
        vm,
        root,
        cluster,
        headers,
        body,
        trailers: HeaderMap::decode(&trailers).unwrap_or_default(),
        timeout_ms,
        sent_ms,
    });
    drop(world);
    host.next_token += 1;
    call.put(9, token)
}

fn set_effective_context(call: &mut Call) -> Answer {
    let id = call.word(0);
    let host = call.host();
    if !host.contexts.contains_key(&id) {
        return Err(status::BAD_ARGUMENT.into());
    }
    host.effective = id;
    Ok(())
}

fn done(_: &mut Call) -> Answer {
    Err(status::NOT_FOUND.into())
}

fn get_status(call: &mut Call) -> Answer {
    call.put(0, 0)?;
    call.give(1, b"")
}

fn unimplemented(_: &mut Call) -> Answer {
    Err(status::UNIMPLEMENTED.into())
}

/// Name, parameters (`i`: i32, `l`: i64), what it does. Every import returns a status.
type Import = (&'static str, &'static str, fn(&mut Call) -> Answer);

const IMPORTS: &[Import] = &[
    ("proxy_log", "iii", log),
    ("proxy_get_log_level", "i", get_log_level),
    ("proxy_get_current_time_nanoseconds", "i", get_current_time),
    ("proxy_set_tick_period_milliseconds", "i", set_tick_period),
    ("proxy_get_buffer_bytes", "iiiii", get_buffer_bytes),
    ("proxy_get_buffer_status", "iii", get_buffer_status),
    ("proxy_set_buffer_bytes", "iiiii", set_buffer_bytes),
    ("proxy_get_header_map_pairs", "iii", get_map_pairs),
    ("proxy_set_header_map_pairs", "iii", set_map_pairs),
    ("proxy_get_header_map_size", "ii", get_map_size),
    ("proxy_get_header_map_value", "iiiii", get_map_value),
    ("proxy_add_header_map_value", "iiiii", add_map_value),
    ("proxy_replace_header_map_value", "iiiii", replace_map_value),
    ("proxy_remove_header_map_value", "iii", remove_map_value),
    ("proxy_get_property", "iiii", get_property),
    ("proxy_set_property", "iiii", set_property),
    ("proxy_get_shared_data", "iiiii", get_shared_data),
    ("proxy_set_shared_data", "iiiii", set_shared_data),
    ("proxy_define_metric", "iiii", define_metric),
    ("proxy_increment_metric", "il", increment_metric),
    ("proxy_record_metric", "il", record_metric),
    ("proxy_get_metric", "ii", get_metric),
    ("proxy_continue_stream", "i", continue_stream),
    ("proxy_close_stream", "i", close_stream),
    ("proxy_send_local_response", "iiiiiiii", send_local_response),
    ("proxy_http_call", "iiiiiiiiii", http_call),
    ("proxy_set_effective_context", "i", set_effective_context),
    ("proxy_done", "", done),
    ("proxy_get_status", "iii", get_status),
    ("proxy_register_shared_queue", "iii", unimplemented),
    ("proxy_resolve_shared_queue", "iiiii", unimplemented),
    ("proxy_dequeue_shared_queue", "iii", unimplemented),
    ("proxy_enqueue_shared_queue", "iii", unimplemented),
    ("proxy_call_foreign_function", "iiiiii", unimplemented),
    ("proxy_grpc_call", "iiiiiiiiiiii", unimplemented),
    ("proxy_grpc_stream", "iiiiiiiii", unimplemented),
    ("proxy_grpc_send", "iiii", unimplemented),
    ("proxy_grpc_cancel", "i", unimplemented),
    ("proxy_grpc_close", "i", unimplemented),
];

pub(crate) fn define(linker: &mut Linker<Host>) {
    for (name, params, body) in IMPORTS {
        let params = params.chars().map(|kind| match kind {
            'l' => ValType::I64,
            _ => ValType::I32,
        });
        let ty = FuncType::new(linker.engine(), params, [ValType::I32]);
        linker
            .func_new("env", name, ty, |caller, args, results| {
                let status = run(caller, args, name, *body)?;
                results[0] = Val::I32(status as i32);
                Ok(())
            })
            .expect("every import is defined once");
    }
}

/// One host call: the module's time stands still.
fn run(
    caller: Caller<'_, Host>,
    args: &[Val],
    import: &'static str,
    body: fn(&mut Call) -> Answer,
) -> wasmtime::Result<u32> {
    let mut call = Call { caller, args };
    call.host().stopwatch.stop();
    call.host().stopwatch.spent.host_calls += 1;
    let status = serve(&mut call, import, body);
    call.host().stopwatch.start();
    status
}

/// Its faults, its effect, its record.
fn serve(
    call: &mut Call,
    import: &'static str,
    body: fn(&mut Call) -> Answer,
) -> wasmtime::Result<u32> {
    let host = call.host();
    let world = host.world.clone();
    let (vm, context, callback) = (host.vm, host.context_id(), host.callback);
    let effect = world.borrow_mut().meet(import);
    let status = match effect {
        Some(Effect::Status(status)) => status,
        other => {
            match other {
                Some(Effect::Destroy) => reentry::destroy_running_stream(&mut call.caller)?,
                Some(Effect::Nest) => reentry::serve_a_request(&mut call.caller)?,
                _ => {}
            }
            match body(call) {
                Ok(()) => status::OK,
                Err(Stop::Status(status)) => status,
                Err(Stop::Trap(trap)) => return Err(trap),
            }
        }
    };
    world.borrow_mut().calls.push(CallRecord {
        import,
        vm,
        context,
        callback,
        status,
    });
    Ok(status)
}
