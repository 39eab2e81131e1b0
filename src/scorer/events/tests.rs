use super::*;
use crate::contract::store::{MemoryStore, Store};
use crate::scorer::config::{EvidenceConfig, ScorerConfig};
use crate::scorer::facts::{EngineFacts, Fleet};
use crate::scorer::index::tests::{
    A, B, Counting, NOW, chain, held, keys, look, params, payload, same_keys, stored, told,
};
use crate::scorer::index::{Index, IndexError, NotReady, Params, Reasons};
use crate::scorer::poller::Answer;
use std::rc::Rc;

mod bridge;
mod client;
mod model;
mod restarts;

use bridge::Bridge;

const NONE: Reasons = Reasons::NONE;
const TICK_MS: u64 = 500;

/// `more` are keys of `evidence`.
fn config(more: &str) -> Rc<EvidenceConfig> {
    let json = format!(
        r#"{{"endpoints":[{{"address":"{A}","cluster":"e"}}],"evidence":{{"events":{{"cluster":"bridge"}}{more}}}}}"#
    );
    let config = ScorerConfig::parse(json.as_bytes()).unwrap();
    config.evidence.unwrap()
}

/// One VM that may hold the lease.
struct Vm {
    index: Index,
    client: Client,
    token: u32,
}

impl Vm {
    fn new(params: Params, config: &Rc<EvidenceConfig>) -> Self {
        Self {
            index: Index::new(params),
            client: Client::new(Rc::clone(config), TICK_MS),
            token: 0,
        }
    }

    fn leader(params: Params, config: &Rc<EvidenceConfig>) -> Self {
        let mut vm = Self::new(params, config);
        vm.client.start();
        vm
    }

    /// Asks; the cursor of the request, once there is a call to send.
    fn ask(&mut self, store: &dyn Store) -> Option<Option<String>> {
        let pull = self.client.due(&mut self.index, store, NOW)?;
        self.token += 1;
        self.client.sent(self.token);
        let query = pull.path.strip_prefix("/events?").unwrap();
        let (after, wait) = query.rsplit_once("timeout_ms=").unwrap();
        assert!(wait.parse::<u64>().unwrap() < pull.timeout_ms);
        let after = after.strip_prefix("after=");
        Some(after.map(|after| after.strip_suffix('&').unwrap().to_owned()))
    }

    fn answer(&mut self, store: &dyn Store, fleet: &Fleet, answer: Answer<'_>) -> Vec<Event> {
        let (index, client) = (&mut self.index, &mut self.client);
        client.answered(self.token, answer, index, store, fleet, &same_keys, NOW);
        client.take_events()
    }

    /// Asks and is answered, up to a page after which there is no more.
    fn read(&mut self, store: &dyn Store, fleet: &Fleet, bridge: &Bridge) -> Vec<Event> {
        let mut events = Vec::new();
        for _ in 0..100 {
            let Some(after) = self.ask(store) else {
                self.client.tick();
                continue;
            };
            let page = bridge.page(after.as_deref());
            let body = &page.bytes;
            let done = self.answer(store, fleet, Answer::Http { status: 200, body });
            let ok = done
                .iter()
                .any(|e| matches!(e, Event::Pull(PullResult::Ok | PullResult::Reset)));
            let again = done.contains(&Event::Problem(Problem::BegunAgain));
            events.extend(done);
            if ok && !again && !page.more {
                return events;
            }
        }
        panic!("it does not come to an end: {events:?}");
    }

    fn look(&mut self, store: &dyn Store, endpoint: &str, keys: &[u64]) -> Seen {
        look(&mut self.index, store, endpoint, keys)
    }
}

type Seen = Result<(Reasons, Vec<crate::scorer::index::Held>), NotReady>;

fn fleet(engines: &[(&str, &str)]) -> Fleet {
    let facts = |model: &str| EngineFacts {
        model: Some(model.to_owned()),
        ..EngineFacts::default()
    };
    let endpoints = engines.iter();
    Fleet {
        block_size: None,
        endpoints: endpoints
            .map(|(endpoint, model)| ((*endpoint).to_owned(), Rc::new(facts(model))))
            .collect(),
    }
}

/// A batch of which block `n` is told.
fn batch(n: u64) -> Vec<u8> {
    payload(1000.0 + n as f64, &[stored(&[n], "GPU")])
}
