//! One host call in progress: its arguments, the module's memory, and the maps and buffers it may
//! name.

use crate::headers::HeaderMap;
use crate::status;
use crate::vm::Host;
use wasmtime::{Caller, Extern, Memory, TypedFunc, Val};

/// Why a call does not succeed.
pub(crate) enum Stop {
    Status(u32),
    /// The module trapped in its allocator.
    Trap(wasmtime::Error),
}

impl From<u32> for Stop {
    fn from(status: u32) -> Self {
        Self::Status(status)
    }
}

pub(crate) type Answer = Result<(), Stop>;

pub(crate) fn answer(status: u32) -> Answer {
    match status {
        status::OK => Ok(()),
        other => Err(other.into()),
    }
}

/// One call in progress.
pub(crate) struct Call<'a, 'b> {
    pub caller: Caller<'a, Host>,
    pub args: &'b [Val],
}

impl Call<'_, '_> {
    pub fn word(&self, i: usize) -> u32 {
        self.args[i].unwrap_i32() as u32
    }

    pub fn long(&self, i: usize) -> i64 {
        self.args[i].unwrap_i64()
    }

    pub fn host(&mut self) -> &mut Host {
        self.caller.data_mut()
    }

    fn memory(&mut self) -> Result<Memory, Stop> {
        match self.caller.get_export("memory") {
            Some(Extern::Memory(memory)) => Ok(memory),
            _ => Err(status::INVALID_MEMORY_ACCESS.into()),
        }
    }

    /// The bytes at the pointer in argument `i`, their size in the next one.
    pub fn bytes(&mut self, i: usize) -> Result<Vec<u8>, Stop> {
        let (start, size) = (self.word(i) as usize, self.word(i + 1) as usize);
        let memory = self.memory()?;
        start
            .checked_add(size)
            .and_then(|end| memory.data(&self.caller).get(start..end))
            .map(<[u8]>::to_vec)
            .ok_or(status::INVALID_MEMORY_ACCESS.into())
    }

    /// The same of bytes that may be many: copying them is part of what the module costs.
    pub fn take(&mut self, i: usize) -> Result<Vec<u8>, Stop> {
        self.host().stopwatch.start();
        let bytes = self.bytes(i);
        self.host().stopwatch.stop();
        bytes
    }

    pub fn text(&mut self, i: usize) -> Result<String, Stop> {
        Ok(String::from_utf8_lossy(&self.bytes(i)?).into_owned())
    }

    pub fn write(&mut self, at: u32, bytes: &[u8]) -> Answer {
        let memory = self.memory()?;
        memory
            .write(&mut self.caller, at as usize, bytes)
            .map_err(|_| status::INVALID_MEMORY_ACCESS.into())
    }

    pub fn put(&mut self, i: usize, value: u32) -> Answer {
        self.write(self.word(i), &value.to_le_bytes())
    }

    /// Bytes into memory that the module allocates; nothing is allocated for none. The pointer
    /// goes where argument `i` says, the size where the next one says. Allocating and copying are
    /// part of what the module costs.
    pub fn give(&mut self, i: usize, bytes: &[u8]) -> Answer {
        let mut at = 0;
        if !bytes.is_empty() {
            let (memory, allocator) = (self.memory()?, self.allocator()?);
            let stopwatch = &mut self.host().stopwatch;
            stopwatch.spent.copies += 1;
            stopwatch.spent.bytes += bytes.len() as u64;
            stopwatch.start();
            at = allocator
                .call(&mut self.caller, bytes.len() as u32)
                .map_err(Stop::Trap)?;
            let written = at != 0 && memory.write(&mut self.caller, at as usize, bytes).is_ok();
            self.host().stopwatch.stop();
            if !written {
                return Err(status::INVALID_MEMORY_ACCESS.into());
            }
        }
        self.put(i, at)?;
        self.put(i + 1, bytes.len() as u32)
    }

    fn allocator(&mut self) -> Result<TypedFunc<u32, u32>, Stop> {
        let function = ["malloc", "proxy_on_memory_allocate"]
            .iter()
            .find_map(|name| self.caller.get_export(name)?.into_func())
            .ok_or(status::INVALID_MEMORY_ACCESS)?;
        function.typed(&self.caller).map_err(Stop::Trap)
    }

    /// The map that argument 0 names; None while it cannot be read (the answer then is BadArgument
    /// for a value, and an empty map for all pairs).
    pub fn map(&mut self) -> Result<Option<HeaderMap>, Stop> {
        let kind = self.word(0);
        let host = self.host();
        if kind == 6 || kind == 7 {
            return Ok(host.root().and_then(|root| {
                root.answer.as_ref().map(|answer| match kind {
                    6 => answer.headers.clone(),
                    _ => answer.trailers.clone(),
                })
            }));
        }
        if kind > 7 {
            return Err(status::BAD_ARGUMENT.into());
        }
        Ok(host.stream().and_then(|stream| {
            let exchange = stream.exchange.borrow();
            match kind {
                0 if stream.request_headers => Some(exchange.request_headers.clone()),
                1 if stream.request_trailers => Some(exchange.request_trailers.clone()),
                2 if stream.response_headers => Some(exchange.response_headers.clone()),
                _ => None,
            }
        }))
    }

    pub fn change_map(&mut self, change: impl FnOnce(&mut HeaderMap)) -> Answer {
        let kind = self.word(0);
        let stream = self.host().stream().ok_or(status::BAD_ARGUMENT)?;
        let mut exchange = stream.exchange.borrow_mut();
        let map = match kind {
            0 if stream.request_headers => &mut exchange.request_headers,
            1 if stream.request_trailers => &mut exchange.request_trailers,
            2 if stream.response_headers => &mut exchange.response_headers,
            _ => return Err(status::BAD_ARGUMENT.into()),
        };
        change(map);
        Ok(())
    }

    /// Real Envoy crashes if the request body is touched while an HTTP call is answered
    ///: here it is a trap.
    pub fn forbid_body_in_answer(&mut self) -> Answer {
        if self.word(0) == 0 && self.host().callback == "proxy_on_http_call_response" {
            return Err(Stop::Trap(wasmtime::Error::msg(
                "the request body is touched in proxy_on_http_call_response: Envoy crashes there",
            )));
        }
        Ok(())
    }

    /// The buffer that argument 0 names, for reading. A body that is not there reads as empty.
    pub fn buffer(&mut self) -> Result<Vec<u8>, Stop> {
        self.forbid_body_in_answer()?;
        let kind = self.word(0);
        let host = self.host();
        match kind {
            0 => Ok(host
                .stream()
                .and_then(|stream| stream.body.clone())
                .unwrap_or_default()),
            1 => Ok(host
                .stream()
                .and_then(|stream| stream.response_body.clone())
                .unwrap_or_default()),
            4 => host
                .root()
                .and_then(|root| root.answer.as_ref())
                .map(|answer| answer.body.clone())
                .ok_or(status::NOT_FOUND.into()),
            6 => Ok(host.vm_configuration.clone()),
            7 => host
                .root()
                .filter(|root| root.configuring)
                .map(|root| root.configuration.clone())
                .ok_or(status::NOT_FOUND.into()),
            2 | 3 | 5 | 8 => Err(status::NOT_FOUND.into()),
            _ => Err(status::BAD_ARGUMENT.into()),
        }
    }
}
