//! A client as plain as can be.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(10);

pub struct Answer {
    pub status: u16,
    /// In lower case.
    pub head: String,
    pub body: String,
}

pub fn send(address: SocketAddr, head: &str, body: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let head = format!(
        "{head}\r\nhost: engine\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // A refusal may come before the body was read.
    let _ = stream.write_all(body);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer {
        status,
        head: head.to_lowercase(),
        body: body.into(),
    })
}

pub fn get(address: SocketAddr, path: &str) -> Answer {
    send(address, &format!("GET {path} HTTP/1.1"), b"").unwrap()
}

pub fn post(address: SocketAddr, path: &str, body: &str) -> Answer {
    post_as(address, path, "application/json", body.as_bytes())
}

pub fn post_as(address: SocketAddr, path: &str, media_type: &str, body: &[u8]) -> Answer {
    send(
        address,
        &format!("POST {path} HTTP/1.1\r\ncontent-type: {media_type}"),
        body,
    )
    .unwrap()
}
