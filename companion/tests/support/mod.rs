//! Engines that publish as vLLM does, over an implementation of ZeroMQ that is not the bridge's, and
//! a reader that decodes pages with a CBOR library that is not the bridge's.
#![allow(dead_code)]

pub mod http;
pub mod reader;
pub mod tree;

/// The stand-in engine's publisher.
pub mod engine {
    #[allow(unused_imports)]
    pub use stand_in_engine::publisher::{FORMATS, Format, Publisher as Engine};
}

use selective_kv_companion::bridge::Bridge;
use selective_kv_companion::bridge::config::Config;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Only a test that hangs ever waits as long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A bridge with these engines (YAML of the list) and further keys of the file.
pub async fn bridge(engines: &str, more: &str) -> Bridge {
    let text = format!("listen: 127.0.0.1:0\nheartbeat: 100ms\n{more}\nengines:\n{engines}\n");
    Bridge::start(Config::parse(&text).unwrap()).await.unwrap()
}

/// Ports `n`, `n + 1`, … that were free a moment ago.
pub async fn ports(count: u16) -> u16 {
    loop {
        let probe = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let first = probe.local_addr().unwrap().port();
        let mut all = true;
        for offset in 1..count {
            let port = first.checked_add(offset);
            all &= match port {
                Some(port) => TcpListener::bind(("127.0.0.1", port)).await.is_ok(),
                None => false,
            };
        }
        if all {
            return first;
        }
    }
}

/// Forwards a port, and cuts every connection on command.
pub struct Proxy {
    pub port: u16,
    cut: watch::Sender<u64>,
}

impl Proxy {
    pub async fn to(target: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = watch::Sender::new(0);
        let cuts = cut.subscribe();
        tokio::spawn(async move {
            while let Ok((mut here, _)) = listener.accept().await {
                let mut cuts = cuts.clone();
                cuts.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(mut there) = TcpStream::connect(("127.0.0.1", target)).await else {
                        return;
                    };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut here, &mut there) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Self { port, cut }
    }

    pub fn cut(&self) {
        self.cut.send_modify(|count| *count += 1);
    }
}
