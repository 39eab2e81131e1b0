//! A whole configuration: the base, its `routes`, and the route metadata met so far, each compiled
//! once.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use super::Policy;
use super::compile::{self, Gates, Refused};
use super::layer::{Layer, POLICY_KEYS};
use super::metadata::{Cache, Kept};
use super::registry::{GateRegistry, Own};
use crate::config::{ConfigError, Json, Place, members, object};
use crate::policy::gate::GateParams;
use crate::policy::route::{RouteFacts, RouteMatch};

const MAX_ROUTES: usize = 1000;

/// Longest route metadata string that is read, in bytes.
pub(super) const MAX_METADATA: usize = 64 * 1024;

/// The policies of one configuration.
#[derive(Debug)]
pub struct PolicySet {
    base: Compiled,
    routes: Vec<(RouteMatch, Compiled)>,
    gates: GateRegistry,
    metadata: RefCell<Cache>,
}

/// A policy, and the keys it was made of for layers above it.
#[derive(Debug)]
struct Compiled {
    layer: Layer,
    policy: Rc<Policy>,
}

impl PolicySet {
    /// A configuration with gates of its own; see [`PolicySet::parse_in`].
    ///
    /// # Errors
    /// As [`PolicySet::parse_in`].
    pub fn parse(text: &[u8]) -> Result<Self, ConfigError> {
        Self::parse_in(text, &GateRegistry::new())
    }

    /// A configuration of a VM with these gates. No bytes are `{}`.
    ///
    /// # Errors
    /// The first thing that is wrong: the base's keys, the base as a whole, then each `routes`
    /// entry in turn, on top of the base.
    pub fn parse_in(text: &[u8], gates: &GateRegistry) -> Result<Self, ConfigError> {
        let place = Place::default();
        let mut layer = Layer::default();
        let mut entries = Vec::new();
        for (key, value) in members(text)? {
            if key == "routes" {
                entries = list(&place, &key, value)?;
            } else if !layer.set(&place, &key, &value)? {
                let allowed = [&POLICY_KEYS[..], &["routes"]].concat();
                return Err(ConfigError::unknown(place.member(&key), &allowed));
            }
        }
        let own = Own::new(gates);
        let of_own = |gate| own.place(gate);
        let policy = compile::policy(layer.clone(), &layer, &place, &of_own)?;
        let base = Compiled {
            layer,
            policy: Rc::new(policy),
        };
        let mut routes = Vec::new();
        for (i, entry) in entries.into_iter().enumerate() {
            routes.push(route(&place.element("routes", i), entry, &base, &of_own)?);
        }
        Ok(Self {
            base,
            routes,
            gates: gates.clone(),
            metadata: RefCell::default(),
        })
    }

    /// The policy of a request that matches no `routes` entry and has no route metadata.
    pub fn base(&self) -> &Rc<Policy> {
        &self.base.policy
    }

    /// Whether the effective policy depends on the route's names.
    pub fn has_routes(&self) -> bool {
        !self.routes.is_empty()
    }

    /// The policy of a route; `metadata` is the JSON string at `filter_metadata["selective-kv"]
    /// ["config"]`. Compiled once and kept, right or wrong.
    ///
    /// # Errors
    /// What is wrong with the metadata. It concerns no other route.
    pub fn effective(
        &self,
        route: &RouteFacts<'_>,
        metadata: Option<&str>,
    ) -> Result<Rc<Policy>, RouteError> {
        let mut entries = self.routes.iter().enumerate();
        let matched = entries.find(|(_, (condition, _))| condition.matches(route));
        let (index, below) = match matched {
            Some((i, (_, compiled))) => (Some(i), compiled),
            None => (None, &self.base),
        };
        let Some(text) = metadata else {
            return Ok(below.policy.clone());
        };
        let mut cache = self.metadata.borrow_mut();
        let known = cache.get(index, text);
        let first = known.is_none();
        let kept = match known {
            Some(kept) if !kept.may_recover(self.gates.freed()) => kept,
            _ => {
                let kept = self.compile(text, below);
                cache.put(index, text, kept.clone());
                kept
            }
        };
        match kept {
            Kept::Policy(policy) => Ok(policy),
            Kept::Invalid { text, .. } => Err(RouteError {
                text,
                first,
                below: below.policy.clone(),
            }),
        }
    }

    fn compile(&self, text: &str, below: &Compiled) -> Kept {
        let freed = self.gates.freed();
        match metadata_policy(text, below, &self.gates) {
            Ok(policy) => Kept::Policy(Rc::new(policy)),
            Err(Refused::Invalid(error)) => Kept::Invalid {
                text: error.to_string().into(),
                no_place_since: None,
            },
            Err(Refused::NoPlace(error)) => Kept::Invalid {
                text: error.to_string().into(),
                no_place_since: Some(freed),
            },
        }
    }

    /// The different gates now in use in this VM, at most [`super::MAX_GATES`].
    pub fn gates(&self) -> Vec<GateParams> {
        self.gates.gates()
    }

    /// Every policy there is now: the base's, the `routes`', those of route metadata.
    pub fn policies(&self) -> Vec<Rc<Policy>> {
        let routes = self.routes.iter().map(|(_, compiled)| &compiled.policy);
        let configured = std::iter::once(&self.base.policy).chain(routes).cloned();
        configured
            .chain(self.metadata.borrow().policies())
            .collect()
    }

    /// For a timer: forgets route metadata that no request brought for ten minutes (a control
    /// plane changes it over time), with the gates it had.
    pub fn tick(&self, now_ms: u64) {
        self.metadata.borrow_mut().tick(now_ms);
    }
}

fn metadata_policy(text: &str, below: &Compiled, gates: &GateRegistry) -> Result<Policy, Refused> {
    let place = Place::default();
    let own = metadata_layer(text, &place).map_err(Refused::Invalid)?;
    let effective = own.clone().over(&below.layer);
    compile::policy(effective, &own, &place, &|gate| gates.place(gate))
}

fn metadata_layer(text: &str, place: &Place) -> Result<Layer, ConfigError> {
    if text.len() > MAX_METADATA {
        return Err(ConfigError::too_long(text.len(), MAX_METADATA));
    }
    let mut own = Layer::default();
    for (key, value) in members(text.as_bytes())? {
        if !own.set(place, &key, &value)? {
            return Err(ConfigError::unknown(place.member(&key), &POLICY_KEYS));
        }
    }
    Ok(own)
}

/// One `routes` entry, judged on top of the base.
fn route(
    place: &Place,
    entry: Json,
    base: &Compiled,
    gates: &Gates<'_>,
) -> Result<(RouteMatch, Compiled), ConfigError> {
    let mut own = Layer::default();
    let mut condition = None;
    for (key, value) in object(place, place.itself(), entry)? {
        if key == "match" {
            condition = Some(route_match(place, value)?);
        } else if !own.set(place, &key, &value)? {
            let allowed = [&["match"], &POLICY_KEYS[..]].concat();
            return Err(ConfigError::unknown(place.member(&key), &allowed));
        }
    }
    let Some(condition) = condition else {
        let rule = format!("it must be {MATCH}");
        return Err(ConfigError::missing(place.member("match"), &rule));
    };
    let layer = own.clone().over(&base.layer);
    let policy = Rc::new(compile::policy(layer.clone(), &own, place, gates)?);
    Ok((condition, Compiled { layer, policy }))
}

const MATCH: &str =
    "an object with exactly one of routeName, routeNamePrefix, virtualHost, cluster";

fn route_match(entry: &Place, value: Json) -> Result<RouteMatch, ConfigError> {
    let field = entry.member("match");
    let place = entry.inside("match");
    let shown = value.clone();
    let mut conditions = object(&place, field.clone(), value)?;
    let mut found = Vec::new();
    for (key, value) in conditions.drain(..) {
        let kind: fn(String) -> RouteMatch = match key.as_str() {
            "routeName" => RouteMatch::RouteName,
            "routeNamePrefix" => RouteMatch::RouteNamePrefix,
            "virtualHost" => RouteMatch::VirtualHost,
            "cluster" => RouteMatch::Cluster,
            _ => {
                let allowed = ["routeName", "routeNamePrefix", "virtualHost", "cluster"];
                return Err(ConfigError::unknown(place.member(&key), &allowed));
            }
        };
        match value {
            Json::Text(name) if !name.is_empty() => found.push(kind(name)),
            other => {
                let field = place.member(&key);
                return Err(ConfigError::value(field, &other, "a string, not empty"));
            }
        }
    }
    match (found.pop(), found.is_empty()) {
        (Some(condition), true) => Ok(condition),
        _ => Err(ConfigError::value(field, &shown, MATCH)),
    }
}

fn list(place: &Place, key: &str, value: Json) -> Result<Vec<Json>, ConfigError> {
    match value {
        Json::Array(items) if items.len() <= MAX_ROUTES => Ok(items),
        other => {
            let allowed = format!("a list of at most {MAX_ROUTES} objects");
            Err(ConfigError::value(place.member(key), &other, &allowed))
        }
    }
}

/// Why a route's metadata gives no policy: the route's requests go on as they are, with reason
/// `invalid_route_config`.
#[derive(Clone, Debug)]
pub struct RouteError {
    text: Rc<str>,
    first: bool,
    below: Rc<Policy>,
}

impl RouteError {
    /// The first time that this metadata is met: the time to log it.
    pub fn is_first(&self) -> bool {
        self.first
    }

    /// The policy without the metadata: which requests it would look at, and nothing else.
    pub fn below(&self) -> &Rc<Policy> {
        &self.below
    }
}

impl fmt::Display for RouteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route metadata: {}", self.text)
    }
}

impl std::error::Error for RouteError {}
