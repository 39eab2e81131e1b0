//! Reading HTTP/1.1 from a socket: start line, fields, body by its framing.

use std::io::{self, BufRead, Read};

use crate::message::{Field, Framing, lookup};

#[derive(Default)]
pub struct Head {
    pub start: String,
    pub fields: Vec<Field>,
}

/// What a body was: its bytes as the framing delimits them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Body {
    pub bytes: Vec<u8>,
    pub trailers: Vec<Field>,
    /// The framing's end was seen.
    pub complete: bool,
}

/// None: the peer closed before a start line.
pub fn read_head(from: &mut impl BufRead) -> io::Result<Option<Head>> {
    let start = read_line(from)?;
    if start.is_empty() {
        return Ok(None);
    }
    let start = String::from_utf8_lossy(&start).into_owned();
    Ok(Some(Head {
        start,
        fields: read_fields(from)?,
    }))
}

pub fn framing(head: &Head) -> Framing {
    match lookup(&head.fields, "transfer-encoding") {
        Some(coding) if coding.eq_ignore_ascii_case("chunked") => Framing::Chunked,
        _ if lookup(&head.fields, "content-length").is_some() => Framing::Length,
        _ => Framing::None,
    }
}

/// Reads a body; `on_bytes` sees how many are there so far and may stop by `false`.
/// Whatever came before an error is kept: an incomplete body is a result.
pub fn read_body(
    from: &mut impl BufRead,
    head: &Head,
    on_bytes: &mut dyn FnMut(usize) -> bool,
) -> Body {
    let mut body = Body::default();
    let done = match framing(head) {
        Framing::None => Ok(true),
        Framing::Length => {
            let length = lookup(&head.fields, "content-length").and_then(|v| v.parse().ok());
            read_exactly(from, length.unwrap_or(0), &mut body.bytes, on_bytes)
        }
        Framing::Chunked => read_chunks(from, &mut body, on_bytes),
    };
    body.complete = done.unwrap_or(false);
    body
}

fn read_chunks(
    from: &mut impl BufRead,
    body: &mut Body,
    on_bytes: &mut dyn FnMut(usize) -> bool,
) -> io::Result<bool> {
    loop {
        let line = read_line(from)?;
        let text = String::from_utf8_lossy(&line);
        let Ok(size) = usize::from_str_radix(text.trim(), 16) else {
            return Ok(false);
        };
        if size == 0 {
            body.trailers = read_fields(from)?;
            return Ok(true);
        }
        if !read_exactly(from, size, &mut body.bytes, on_bytes)? || !read_line(from)?.is_empty() {
            return Ok(false);
        }
    }
}

fn read_exactly(
    from: &mut impl BufRead,
    size: usize,
    into: &mut Vec<u8>,
    on_bytes: &mut dyn FnMut(usize) -> bool,
) -> io::Result<bool> {
    let end = into.len() + size;
    while into.len() < end {
        let there = from.fill_buf()?;
        let take = there.len().min(end - into.len());
        if take == 0 {
            return Ok(false);
        }
        into.extend_from_slice(&there[..take]);
        from.consume(take);
        if !on_bytes(into.len()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// To the end of the connection, for answers without framing.
pub fn read_rest(from: &mut impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset ends it as well as a close does.
    let _ = from.read_to_end(&mut bytes);
    bytes
}

fn read_fields(from: &mut impl BufRead) -> io::Result<Vec<Field>> {
    let mut fields = Vec::new();
    loop {
        let line = read_line(from)?;
        if line.is_empty() {
            return Ok(fields);
        }
        let colon = line.iter().position(|b| *b == b':').unwrap_or(line.len());
        let name = String::from_utf8_lossy(&line[..colon]).into_owned();
        let value = line.get(colon + 1..).unwrap_or_default();
        fields.push((name, value.trim_ascii().to_vec()));
    }
}

fn read_line(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line)?;
    if line.pop() == Some(b'\n') && line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}
