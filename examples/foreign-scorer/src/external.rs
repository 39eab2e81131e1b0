//! External blocks of evidence, as a reader counts them (section 5): they decide what goes when an entry
//! is too large.

use crate::cbor::Item;

/// What a reader would count with all tiers permitted. What it would not accept counts as nothing.
pub fn external_blocks(endpoint: &Item) -> u64 {
    let prompts = endpoint.get("prompts").and_then(Item::as_array);
    prompts
        .unwrap_or_default()
        .iter()
        .map(external_blocks_of_prompt)
        .fold(0, u64::saturating_add)
}

fn external_blocks_of_prompt(prompt: &Item) -> u64 {
    if let Some(runs) = prompt.get("runs") {
        return external_blocks_of_runs(runs.as_array().unwrap_or_default());
    }
    let (mut gpu, mut external) = (0, 0);
    let tiers = prompt.get("tiers").and_then(Item::as_map);
    for (tier, blocks) in tiers.unwrap_or_default() {
        let blocks = blocks.as_uint().unwrap_or(0);
        match kind_of(tier) {
            Kind::Gpu => gpu = blocks.max(gpu),
            Kind::External => external = blocks.max(external),
            Kind::Ignored => {}
        }
    }
    external.saturating_sub(gpu)
}

fn external_blocks_of_runs(runs: &[Item]) -> u64 {
    let mut in_prefix = true;
    let mut sum = 0u64;
    for run in runs {
        let Some([Item::Uint(blocks), Item::Array(tiers)]) = run.as_array() else {
            return 0;
        };
        let held = |kind| tiers.iter().any(|tier| kind_of(tier) == kind);
        in_prefix &= *blocks == 0 || held(Kind::Gpu);
        if in_prefix || *blocks == 0 {
            continue;
        }
        if !held(Kind::External) {
            break;
        }
        sum = sum.saturating_add(*blocks);
    }
    sum
}

#[derive(PartialEq, Eq)]
enum Kind {
    Gpu,
    External,
    Ignored,
}

fn kind_of(tier: &Item) -> Kind {
    match tier.as_text() {
        Some(name) if name.eq_ignore_ascii_case("gpu") => Kind::Gpu,
        Some(name) if !name.eq_ignore_ascii_case("speculative") => Kind::External,
        _ => Kind::Ignored,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::cbor::decode;
    use crate::hex::from_hex;

    fn item(json: &Value) -> Item {
        match json {
            Value::Number(n) => n.as_u64().map(Item::Uint).expect("a count"),
            Value::String(text) => Item::text(text),
            Value::Array(items) => Item::Array(items.iter().map(item).collect()),
            Value::Object(members) => {
                let entries = members.iter().map(|(k, v)| (Item::text(k), item(v)));
                Item::Map(entries.collect())
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_documents_examples_count_as_it_says() {
        for (hex, blocks) in [
            (include_str!("../testdata/evidence-runs.hex"), 24),
            (include_str!("../testdata/evidence-tiers.hex"), 26),
        ] {
            let value = from_hex(hex).expect("hex");
            let endpoint = decode(&value)
                .and_then(|record| {
                    let request = record.get("requests")?.as_array()?.first()?;
                    request.get("endpoints")?.get("10.0.0.7:8000").cloned()
                })
                .expect("the endpoint");
            assert_eq!(external_blocks(&endpoint), blocks);
        }
    }

    #[test]
    fn external_blocks_of_one_prompt() {
        for (prompt, blocks) in [
            (
                r#"{"runs":[[2,["GPU"]],[0,[]],[3,["cpu","gpu"]],[4,["cpu"]],[0,[]],[5,["x","gpu"]],[1,["gpu"]],[9,["cpu"]]]}"#,
                9,
            ),
            (
                r#"{"runs":[[2,["cpu"]],[3,["speculative"]],[4,["cpu"]]]}"#,
                2,
            ),
            (r#"{"runs":[],"tiers":{"cpu":9}}"#, 0),
            (
                r#"{"tiers":{"cpu":3,"CPU":7,"gpu":2,"Gpu":4,"speculative":50}}"#,
                3,
            ),
            (r#"{"tiers":{"cpu":3,"gpu":4}}"#, 0),
        ] {
            let prompt = item(&serde_json::from_str(prompt).expect("JSON"));
            assert_eq!(external_blocks_of_prompt(&prompt), blocks, "{prompt:?}");
        }
    }
}
