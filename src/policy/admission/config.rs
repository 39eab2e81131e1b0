//! `admission` in the configuration, and the registry of types.

use super::loads::Limits;
use super::{
    AdmissionPolicy, AlwaysAdmit, CascadeBackpressure, Composite, MetricDef, PolicyType,
    PromotionConcurrency,
};
use crate::config::{ConfigError, Field, Json, Place, duration, object};

/// An admission policy with its configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    AlwaysAdmit(AlwaysAdmit),
    PromotionConcurrency(PromotionConcurrency),
    CascadeBackpressure(CascadeBackpressure),
    Composite(Composite),
}

/// Reads the members of a policy of one type but `type`; `place` is the object.
type Parse = fn(&Place, &Members, usize) -> Result<Admission, ConfigError>;
type Members = [(String, Json)];

/// Every type there is: its name, its keys, and who reads them.
const REGISTRY: [(&str, &[&str], Parse); 4] = [
    ("always_admit", &[], always_admit),
    (
        "promotion_concurrency",
        &[
            "maxInflightPromotions",
            "maxInflightTokens",
            "maxPromotionTime",
        ],
        promotion_concurrency,
    ),
    (
        "cascade_backpressure",
        &["highWater", "lowWater", "alpha", "warmupCompletions"],
        cascade_backpressure,
    ),
    ("composite", &["policies"], composite),
];

/// Parts of one composite.
const MAX_PARTS: usize = 16;
/// Composites in composites.
const MAX_DEPTH: usize = 8;
/// Completions that only warm up.
const MAX_WARMUP: u64 = 1_000;
/// Seconds per MiB: past any store that ends.
const MAX_WATER: f64 = 1_000.0;

impl Default for Admission {
    fn default() -> Self {
        Self::AlwaysAdmit(AlwaysAdmit)
    }
}

impl Admission {
    /// Reads the value of `field`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn parse(field: &Field<'_>) -> Result<Self, ConfigError> {
        let place = field.place.inside(field.key);
        parse(&place, field.value, 0)
    }

    /// Reads an object as text, as it stands at `admission`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_json(text: &[u8]) -> Result<Self, ConfigError> {
        let value = crate::json_value::read(text).map_err(|why| ConfigError::not_json(&why))?;
        let place = Place::default();
        Self::parse(&Field {
            place: &place,
            key: "admission",
            value: &value,
        })
    }

    pub fn policy(&self) -> &dyn AdmissionPolicy {
        match self {
            Self::AlwaysAdmit(policy) => policy,
            Self::PromotionConcurrency(policy) => policy,
            Self::CascadeBackpressure(policy) => policy,
            Self::Composite(policy) => policy,
        }
    }

    /// Whether a policy of this type is it, or in it.
    pub fn has(&self, policy: PolicyType) -> bool {
        match (self, policy) {
            (Self::PromotionConcurrency(_), PolicyType::PromotionConcurrency)
            | (Self::CascadeBackpressure(_), PolicyType::CascadeBackpressure) => true,
            (Self::Composite(Composite(parts)), _) => parts.iter().any(|part| part.has(policy)),
            _ => false,
        }
    }

    /// Every metric that a policy of any type defines.
    pub fn all_metrics() -> Vec<MetricDef> {
        let policies: [&dyn AdmissionPolicy; 2] = [
            &PromotionConcurrency {
                limits: Limits {
                    max_loads: 1,
                    max_tokens: None,
                },
                max_promotion_ms: 1,
            },
            &CascadeBackpressure {
                high_water: None,
                low_water: None,
                alpha: 1.0,
                warmup: 1,
            },
        ];
        let mut all: Vec<MetricDef> = Vec::new();
        for metric in policies.iter().flat_map(|policy| policy.metrics()) {
            if !all.contains(metric) {
                all.push(*metric);
            }
        }
        all
    }
}

fn parse(place: &Place, value: &Json, depth: usize) -> Result<Admission, ConfigError> {
    let members = match value {
        Json::Object(_) => object(place, place.itself(), value.clone())?,
        other => {
            let allowed = format!("an object with a type: {}", types());
            return Err(ConfigError::value(place.itself(), other, &allowed));
        }
    };
    let Some((_, name)) = members.iter().find(|(key, _)| key == "type") else {
        let rule = format!("it must be {}", types());
        return Err(ConfigError::missing(place.member("type"), &rule));
    };
    let found = match name {
        Json::Text(text) => REGISTRY.iter().find(|(known, _, _)| known == text),
        _ => None,
    };
    let Some((_, keys, parse)) = found else {
        return Err(ConfigError::value(place.member("type"), name, &types()));
    };
    if let Some((key, _)) = members
        .iter()
        .find(|(key, _)| key != "type" && !keys.contains(&key.as_str()))
    {
        let allowed = [&["type"], *keys].concat();
        return Err(ConfigError::unknown(place.member(key), &allowed));
    }
    parse(place, &members, depth)
}

fn types() -> String {
    let names: Vec<(&'static str, ())> = REGISTRY.iter().map(|(name, _, _)| (*name, ())).collect();
    crate::config::listed(&names)
}

fn member<'a>(place: &'a Place, members: &'a Members, key: &'a str) -> Option<Field<'a>> {
    let (_, value) = members.iter().find(|(name, _)| name == key)?;
    Some(Field { place, key, value })
}

fn always_admit(_: &Place, _: &Members, _: usize) -> Result<Admission, ConfigError> {
    Ok(Admission::default())
}

fn promotion_concurrency(
    place: &Place,
    members: &Members,
    _: usize,
) -> Result<Admission, ConfigError> {
    let max_loads = match member(place, members, "maxInflightPromotions") {
        Some(field) => {
            let max = field.whole(1..=u64::from(u32::MAX))?;
            u32::try_from(max).unwrap_or(u32::MAX)
        }
        None => PromotionConcurrency::DEFAULT_MAX_LOADS,
    };
    let max_tokens = match member(place, members, "maxInflightTokens") {
        Some(field) => Some(field.whole(1..=u64::MAX)?),
        None => None,
    };
    let max_promotion_ms = match member(place, members, "maxPromotionTime") {
        Some(field) => field.duration_ms(duration::RANGE_MS, duration::ALLOWED)?,
        None => PromotionConcurrency::DEFAULT_MAX_PROMOTION_MS,
    };
    Ok(Admission::PromotionConcurrency(PromotionConcurrency {
        limits: Limits {
            max_loads,
            max_tokens,
        },
        max_promotion_ms,
    }))
}

fn cascade_backpressure(
    place: &Place,
    members: &Members,
    _: usize,
) -> Result<Admission, ConfigError> {
    let water = |key| match member(place, members, key) {
        None => Ok(None),
        Some(field) => match field.value.as_f64() {
            Some(x) if x > 0.0 && x <= MAX_WATER => Ok(Some(x)),
            _ => Err(field.wrong("seconds per MiB, a number greater than 0 and at most 1000")),
        },
    };
    let (high_water, low_water) = (water("highWater")?, water("lowWater")?);
    if let (Some(high), Some(low)) = (high_water, low_water)
        && low > high
    {
        let field = place.member("lowWater");
        let rule = "it must not be above highWater";
        return Err(ConfigError::conflict(field, &Json::Float(low), rule));
    }
    let alpha = match member(place, members, "alpha") {
        None => CascadeBackpressure::DEFAULT_ALPHA,
        Some(field) => match field.value.as_f64() {
            Some(alpha) if alpha > 0.0 && alpha <= 1.0 => alpha,
            _ => return Err(field.wrong("a number greater than 0 and at most 1")),
        },
    };
    let warmup = match member(place, members, "warmupCompletions") {
        None => CascadeBackpressure::DEFAULT_WARMUP,
        Some(field) => u32::try_from(field.whole(1..=MAX_WARMUP)?).unwrap_or(u32::MAX),
    };
    Ok(Admission::CascadeBackpressure(CascadeBackpressure {
        high_water,
        low_water,
        alpha,
        warmup,
    }))
}

fn composite(place: &Place, members: &Members, depth: usize) -> Result<Admission, ConfigError> {
    let Some(field) = member(place, members, "policies") else {
        let rule = "composite needs it, a list of admission policies";
        return Err(ConfigError::missing(place.member("policies"), rule));
    };
    let items = field.list(1..=MAX_PARTS, "admission policies")?;
    let inside = depth.saturating_add(1);
    if inside > MAX_DEPTH {
        let allowed = format!("nested at most {MAX_DEPTH} deep");
        return Err(field.wrong(&allowed));
    }
    let parts = items.iter().enumerate();
    let parts = parts.map(|(i, item)| parse(&place.element("policies", i), item, inside));
    Ok(Admission::Composite(Composite(
        parts.collect::<Result<_, _>>()?,
    )))
}
