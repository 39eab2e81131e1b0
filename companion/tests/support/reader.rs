//! Pulls as an Envoy does, and keeps what it was told.

use super::PATIENCE;
use super::http::get;
use ciborium::Value;
use hyper::StatusCode;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use tokio::time::timeout;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    Start(bool),
    Batch(u64, Vec<u8>),
    Gap(u64),
}

pub fn batch(seq: u64, payload: impl AsRef<[u8]>) -> Item {
    Item::Batch(seq, payload.as_ref().to_vec())
}

#[derive(Clone, Debug)]
pub struct Section {
    pub state: String,
    pub silent_ms: Option<u64>,
    pub topic: Option<String>,
    pub items: Vec<Item>,
}

#[derive(Clone, Debug)]
pub struct Page {
    pub bytes: usize,
    pub cursor: String,
    pub reset: bool,
    pub more: bool,
    pub endpoints: BTreeMap<(String, u64), Section>,
}

impl Page {
    pub fn decode(bytes: &[u8]) -> Self {
        let value: Value = ciborium::from_reader(bytes).unwrap();
        let page = Map::of(&value);
        assert_eq!(page.uint("v"), Some(1));
        let endpoints = page
            .get("endpoints")
            .unwrap()
            .as_array()
            .unwrap()
            .iter()
            .map(|section| {
                let section = Map::of(section);
                let name = (
                    section.text("endpoint").unwrap(),
                    section.uint("rank").unwrap(),
                );
                let items = section
                    .get("items")
                    .unwrap()
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(item)
                    .collect();
                let section = Section {
                    state: section.text("state").unwrap(),
                    silent_ms: section.uint("silent_ms"),
                    topic: section.text("topic"),
                    items,
                };
                (name, section)
            });
        Self {
            bytes: bytes.len(),
            cursor: page.text("cursor").unwrap(),
            reset: page.get("reset").unwrap().as_bool().unwrap(),
            more: page.get("more").unwrap().as_bool().unwrap(),
            endpoints: endpoints.collect(),
        }
    }
}

fn item(value: &Value) -> Item {
    let parts = value.as_array().unwrap();
    let uint = |index: usize| u64::try_from(parts[index].as_integer().unwrap()).unwrap();
    match (parts[0].as_text().unwrap(), parts.len()) {
        ("start", 2) => Item::Start(parts[1].as_bool().unwrap()),
        ("batch", 3) => Item::Batch(uint(1), parts[2].as_bytes().unwrap().clone()),
        ("gap", 2) => Item::Gap(uint(1)),
        other => panic!("an item {other:?}"),
    }
}

struct Map<'a>(&'a [(Value, Value)]);

impl<'a> Map<'a> {
    fn of(value: &'a Value) -> Self {
        Self(value.as_map().unwrap())
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.0
            .iter()
            .find(|(name, _)| name.as_text() == Some(key))
            .map(|(_, value)| value)
    }

    fn text(&self, key: &str) -> Option<String> {
        self.get(key)
            .map(|value| value.as_text().unwrap().to_owned())
    }

    fn uint(&self, key: &str) -> Option<u64> {
        self.get(key)
            .map(|value| value.as_integer().unwrap().try_into().unwrap())
    }
}

pub struct Reader {
    pub address: SocketAddr,
    pub cursor: String,
    pub items: BTreeMap<(String, u64), Vec<Item>>,
    pub last: Option<Page>,
}

impl Reader {
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            cursor: String::new(),
            items: BTreeMap::new(),
            last: None,
        }
    }

    pub async fn poll(&mut self, timeout_ms: u64) -> Page {
        let target = format!("/events?after={}&timeout_ms={timeout_ms}", self.cursor);
        let (status, headers, body) = get(self.address, &target, None).await;
        assert_eq!(status, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
        assert_eq!(headers["content-type"], "application/cbor");
        let page = Page::decode(&body);
        if page.reset {
            self.items.clear();
        }
        for (name, section) in &page.endpoints {
            self.items
                .entry(name.clone())
                .or_default()
                .extend(section.items.clone());
        }
        self.cursor = page.cursor.clone();
        self.last = Some(page.clone());
        page
    }

    /// Everything said of an endpoint's rank so far.
    pub fn of(&self, endpoint: &str, rank: u64) -> &[Item] {
        self.items
            .get(&(endpoint.to_owned(), rank))
            .map_or(&[], Vec::as_slice)
    }

    /// Pulls until it is so.
    pub async fn until(&mut self, what: impl Fn(&Self) -> bool) {
        let waited = timeout(PATIENCE, async {
            while !what(self) {
                self.poll(1000).await;
            }
        });
        if waited.await.is_err() {
            panic!("it never came to it: {:?}", self.items);
        }
    }

    pub async fn until_state(&mut self, endpoint: &str, rank: u64, state: &str) {
        let name = (endpoint.to_owned(), rank);
        let waited = timeout(PATIENCE, async {
            while self
                .poll(20)
                .await
                .endpoints
                .get(&name)
                .is_none_or(|section| section.state != state)
            {}
        });
        assert!(
            waited.await.is_ok(),
            "{endpoint} is never {state}: {:?}",
            self.last
        );
    }

    /// Pulls until an endpoint's rank 0 has said exactly this.
    pub async fn expect(&mut self, endpoint: &str, items: &[Item]) {
        let waited = timeout(PATIENCE, async {
            while self.of(endpoint, 0).len() < items.len() {
                self.poll(1000).await;
            }
        });
        let _ = waited.await;
        assert_eq!(self.of(endpoint, 0), items);
    }
}
