//! `tcp://host:port`, as ZeroMQ writes it.

use socket2::{SockRef, TcpKeepalive};
use std::fmt;
use std::io;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that vanished without a word is noticed after about 20 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 2;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Address {
    /// A name, an IPv4 address, an IPv6 address without brackets; `*`: every local address.
    pub host: String,
    pub port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "tcp://[{}]:{}", self.host, self.port)
        } else {
            write!(f, "tcp://{}:{}", self.host, self.port)
        }
    }
}

impl Address {
    pub fn parse(text: &str) -> Option<Self> {
        Self::parse_authority(text.strip_prefix("tcp://")?)
    }

    pub fn parse_authority(text: &str) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        let host = match host.strip_prefix('[') {
            Some(inner) => inner
                .strip_suffix(']')
                .filter(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok())?,
            None => host,
        };
        let named = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let fits =
            host == "*" || host.contains(':') || (!host.is_empty() && host.chars().all(named));
        if !fits || (host.contains(':') && !text.starts_with('[')) {
            return None;
        }
        Some(Self {
            host: host.to_owned(),
            port: port.parse().ok()?,
        })
    }

    /// Stands for every address: a publisher that binds it says nothing about where it is.
    pub fn is_wildcard(&self) -> bool {
        matches!(self.host.as_str(), "*" | "0.0.0.0" | "::")
    }

    /// vLLM's own rule: rank n publishes at port + n; a port that the system chose stays.
    pub fn for_rank(&self, rank: u32) -> Option<Self> {
        let port = if self.port == 0 {
            0
        } else {
            u16::try_from(rank)
                .ok()
                .and_then(|rank| self.port.checked_add(rank))?
        };
        Some(Self {
            host: self.host.clone(),
            port,
        })
    }

    pub async fn dial(&self) -> io::Result<TcpStream> {
        let stream = timeout(
            CONNECT_TIMEOUT,
            TcpStream::connect((self.host.as_str(), self.port)),
        )
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "no connection in time"))??;
        keep_alive(&stream)?;
        Ok(stream)
    }

    pub async fn listen(&self) -> io::Result<TcpListener> {
        let host = if self.host == "*" {
            "::"
        } else {
            self.host.as_str()
        };
        match TcpListener::bind((host, self.port)).await {
            // A machine without IPv6.
            Err(_) if self.host == "*" => TcpListener::bind(("0.0.0.0", self.port)).await,
            bound => bound,
        }
    }
}

pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let parsed = |text: &str| Address::parse(text).map(|address| address.to_string());
        for text in [
            "tcp://10.0.0.7:5557",
            "tcp://*:5557",
            "tcp://[::1]:5557",
            "tcp://vllm-0.vllm:5557",
        ] {
            assert_eq!(parsed(text).as_deref(), Some(text));
        }
        for text in [
            "10.0.0.7:5557",
            "ipc:///tmp/x",
            "tcp://:5557",
            "tcp://a",
            "tcp://a:70000",
            "tcp://::1:5557",
            "tcp://a b:1",
            "tcp://[x]:1",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn a_rank_publishes_at_the_port_plus_its_number() {
        let at = |port, rank| {
            Address {
                host: "h".into(),
                port,
            }
            .for_rank(rank)
            .map(|address| address.port)
        };
        assert_eq!(at(5557, 3), Some(5560));
        assert_eq!(at(65535, 1), None);
        assert_eq!(at(0, 1), Some(0));
    }
}
