//! `GET /kv_event_sources` of vLLM 0.31 and later: where each rank publishes.

use super::hub::Hub;
use crate::common::address::Address;
use crate::common::{add, client};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io;

const MAX_ANSWER: usize = 256 * 1024;
/// Ranks of one engine that are followed.
pub const MAX_RANKS: u32 = 64;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    pub publisher: Address,
    pub replay: Option<Address>,
    pub topic: String,
}

/// What the engine's HTTP server at `api` says.
pub async fn sources(hub: &Hub, api: &Address) -> io::Result<BTreeMap<u32, Found>> {
    let found = match client::fetch(api, "/kv_event_sources", MAX_ANSWER).await {
        Ok(body) => read(&body, api).map_err(io::Error::other),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("{error} (/kv_event_sources exists from vLLM 0.31 on)"),
        )),
    };
    add(
        if found.is_ok() {
            &hub.http.discoveries_ok
        } else {
            &hub.http.discoveries_failed
        },
        1,
    );
    found
}

/// An object by rank; some builds answer with an array that names the rank inside.
fn read(body: &[u8], api: &Address) -> Result<BTreeMap<u32, Found>, String> {
    let value: Value =
        serde_json::from_slice(body).map_err(|error| format!("the answer is not JSON: {error}"))?;
    let listed: Vec<(u32, &Value)> = match &value {
        Value::Object(ranks) => ranks
            .iter()
            .filter_map(|(rank, source)| Some((rank.parse().ok()?, source)))
            .collect(),
        Value::Array(sources) => sources
            .iter()
            .filter_map(|source| {
                Some((
                    u32::try_from(source.get("data_parallel_rank")?.as_u64()?).ok()?,
                    source,
                ))
            })
            .collect(),
        _ => return Err("the answer is neither an object nor an array".into()),
    };
    let mut found = BTreeMap::new();
    for (rank, source) in listed {
        if rank >= MAX_RANKS {
            return Err(format!(
                "rank {rank} is listed; ranks 0 to {} are followed",
                MAX_RANKS - 1
            ));
        }
        if source.get("enable_kv_cache_events") == Some(&Value::Bool(false)) {
            return Err("enable_kv_cache_events is false".into());
        }
        if source
            .get("publisher")
            .is_some_and(|publisher| publisher != "zmq")
        {
            return Err("the publisher is not zmq".into());
        }
        let text = source
            .get("endpoint")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let publisher = locate(text, api).ok_or_else(|| {
            format!("rank {rank} publishes at {text:?}; only tcp:// that the engine binds can be dialled (one that connects out needs `bind`)")
        })?;
        let replay = source
            .get("replay_endpoint")
            .and_then(Value::as_str)
            .and_then(|text| locate(text, api));
        let topic = source
            .get("topic")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        found.insert(
            rank,
            Found {
                publisher,
                replay,
                topic,
            },
        );
    }
    if found.is_empty() {
        return Err("no source is listed: start vLLM with --kv-events-config".into());
    }
    Ok(found)
}

/// A wildcard is where the engine's HTTP server is.
fn locate(text: &str, api: &Address) -> Option<Address> {
    let address = Address::parse(text)?;
    Some(if address.is_wildcard() {
        Address {
            host: api.host.clone(),
            port: address.port,
        }
    } else {
        address
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api() -> Address {
        Address {
            host: "10.0.0.7".into(),
            port: 8000,
        }
    }

    fn found(publisher: u16, replay: Option<u16>, topic: &str) -> Found {
        let at = |port| Address {
            host: "10.0.0.7".into(),
            port,
        };
        Found {
            publisher: at(publisher),
            replay: replay.map(at),
            topic: topic.into(),
        }
    }

    #[test]
    fn by_rank_as_vllm_0_32_answers() {
        let body = br#"{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558","topic":"kv@a"},
                        "1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://0.0.0.0:5560","replay_endpoint":null,"topic":""}}"#;
        let ranks = read(body, &api()).unwrap();
        assert_eq!(
            ranks,
            BTreeMap::from([
                (0, found(5557, Some(5558), "kv@a")),
                (1, found(5560, None, ""))
            ])
        );
    }

    #[test]
    fn as_an_array() {
        let body = br#"[{"data_parallel_rank":3,"endpoint":"tcp://10.0.0.7:5557","replay_endpoint":null,"topic":""}]"#;
        assert_eq!(
            read(body, &api()).unwrap(),
            BTreeMap::from([(3, found(5557, None, ""))])
        );
    }

    #[test]
    fn answers_that_do_not_help() {
        for (body, says) in [
            (&b"<html>"[..], "not JSON"),
            (b"3", "neither"),
            (b"{}", "no source"),
            (
                br#"{"0":{"enable_kv_cache_events":false}}"#,
                "enable_kv_cache_events",
            ),
            (br#"{"0":{"publisher":"null"}}"#, "not zmq"),
            (br#"{"0":{"endpoint":"ipc:///x"}}"#, "ipc:///x"),
            (br#"{"4000000":{"endpoint":"tcp://*:1"}}"#, "4000000"),
        ] {
            let error = read(body, &api()).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }
}
