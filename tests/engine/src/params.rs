//! `kv_transfer_params`: where it counts, and what the engine makes of it.

use crate::json::Value;
use crate::refusal::Refusal;
use crate::tiers::TierFilter;
use crate::version::Release;

/// What one request asks of the offloading connector.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Params {
    /// The object in effect; `None` if there is none, or an empty one.
    pub in_effect: Option<Value>,
    /// Tokens; `None` is no cap.
    pub max_load_tokens: Option<u128>,
    /// Tokens; `None` is no cap.
    pub max_offload_tokens: Option<u128>,
    pub load_tiers: TierFilter,
    /// What the engine would log.
    pub warnings: Vec<String>,
}

impl Params {
    /// `in_effect` is the object of the place that counts. An empty one is an absent one.
    pub fn of(in_effect: Option<&Value>, release: Release) -> Self {
        let Some(object) = in_effect.filter(|v| v.as_object().is_some_and(|m| !m.is_empty()))
        else {
            return Self::default();
        };
        let mut params = Self {
            in_effect: Some(object.clone()),
            ..Self::default()
        };
        if release >= Release::MAX_LOAD_TOKENS {
            params.max_load_tokens = params.cap(object, "max_load_tokens");
        }
        if release >= Release::MAX_OFFLOAD_TOKENS {
            params.max_offload_tokens = params.cap(object, "max_offload_tokens");
        }
        if release >= Release::KV_LOAD_TIERS
            && let Some(raw) = object.given("kv_load_tiers")
        {
            params.load_tiers = TierFilter::parse(raw, &mut params.warnings);
        }
        params
    }

    /// A cap is an integer of exactly that type, zero or more (offloading scheduler, 0.23+).
    fn cap(&mut self, object: &Value, name: &str) -> Option<u128> {
        let value = object.given(name)?;
        let cap = value
            .as_int()
            .and_then(|number| u128::try_from(number).ok());
        if cap.is_none() {
            self.warnings.push(format!(
                "{name} must be a non-negative int, got {}; ignoring",
                value.repr()
            ));
        }
        cap
    }
}

/// The object at the top level: absent, or checked. A value of another type is refused.
pub fn top_level(body: &Value) -> Result<Option<&Value>, Refusal> {
    checked(body.given("kv_transfer_params"), "body.kv_transfer_params")
}

/// For `/inference/v1/generate`: the top level if it is there and not null, even if empty; else
/// `sampling_params.extra_args.kv_transfer_params`.
pub fn top_level_or_nested(body: &Value) -> Result<Option<&Value>, Refusal> {
    let nested = body
        .get("sampling_params")
        .and_then(|v| v.get("extra_args"))
        .and_then(|v| v.given("kv_transfer_params"));
    let nested = checked(nested, "body.sampling_params.extra_args.kv_transfer_params")?;
    Ok(top_level(body)?.or(nested))
}

fn checked<'v>(value: Option<&'v Value>, loc: &str) -> Result<Option<&'v Value>, Refusal> {
    let Some(value) = value else { return Ok(None) };
    if value.as_object().is_none() {
        let message = "Input should be a valid dictionary";
        return Err(Refusal::schema("dict_type", loc, message, value));
    }
    if !integers_fit(value) {
        let message = "extra_args integers must be between -2**63 and 2**64 - 1.";
        return Err(Refusal::bad_request(message));
    }
    Ok(Some(value))
}

fn integers_fit(value: &Value) -> bool {
    match value {
        Value::Int(number) => (i128::from(i64::MIN)..=i128::from(u64::MAX)).contains(number),
        Value::Array(items) => items.iter().all(integers_fit),
        Value::Object(members) => members.iter().all(|(_, value)| integers_fit(value)),
        _ => true,
    }
}
