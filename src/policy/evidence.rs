//! How many tokens an endpoint could load for a request instead of computing them (DESIGN 5).

use crate::contract::evidence::Evidence;

use super::tiers::{Tier, TierFilter};

/// External reusable tokens: per prompt, then summed (the maximum over summed tiers is wrong for
/// batches). Saturates.
#[must_use]
pub fn external_tokens(evidence: &Evidence, filter: &TierFilter) -> u64 {
    let permitted = |tier: &str| filter.allows(&Tier::named(tier));
    evidence
        .prompts
        .iter()
        .map(|prompt| prompt.external_blocks(&permitted))
        .map(|blocks| blocks.saturating_mul(u64::from(evidence.block_size)))
        .fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::evidence::{Lookup, from_header};
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const ANY: &str = "null";

    fn tokens(evidence: &str, filter: &str) -> u64 {
        let Lookup::Found(evidence) = from_header(evidence.as_bytes()) else {
            panic!("{evidence}");
        };
        external_tokens(&evidence, &TierFilter::from_request(filter.as_bytes()).0)
    }

    #[test]
    fn of_runs() {
        // (runs, kv_load_tiers, external blocks)
        let table = [
            (r#"[]"#, ANY, 0),
            (r#"[[9,[]]]"#, ANY, 0),
            (r#"[[4,["gpu","cpu"]],[16,["cpu"]]]"#, ANY, 16),
            // What llm-d's counts miss: the chain may start after the GPU prefix, and mix tiers.
            (r#"[[4,["gpu"]],[16,["cpu"]]]"#, ANY, 16),
            (r#"[[10,["cpu"]],[21,["storage"]]]"#, ANY, 31),
            (r#"[[10,["cpu"]],[21,["storage"]]]"#, "[]", 10),
            // After a gap nothing counts.
            (r#"[[4,["gpu"]],[2,["cpu"]],[1,[]],[9,["cpu"]]]"#, ANY, 2),
            (r#"[[4,["gpu"]],[1,[]],[9,["cpu"]]]"#, ANY, 0),
            (r#"[[1,[]],[4,["gpu"]],[9,["cpu"]]]"#, ANY, 0),
            // Back in gpu after the prefix: needs an external copy, and has one or not.
            (
                r#"[[4,["gpu"]],[2,["cpu"]],[3,["gpu","cpu"]],[5,["cpu"]]]"#,
                ANY,
                10,
            ),
            (
                r#"[[4,["gpu"]],[2,["cpu"]],[3,["gpu"]],[5,["cpu"]]]"#,
                ANY,
                2,
            ),
            // A filter makes gaps.
            (
                r#"[[2,["cpu","storage"]],[3,["storage"]],[4,["cpu"]]]"#,
                ANY,
                9,
            ),
            (
                r#"[[2,["cpu","storage"]],[3,["storage"]],[4,["cpu"]]]"#,
                "[]",
                2,
            ),
            (
                r#"[[2,["storage@local"]],[3,["p2p"]]]"#,
                r#"[{"locality":"remote"}]"#,
                0,
            ),
            (
                r#"[[2,["p2p"]],[3,["obj@remote"]]]"#,
                r#"[{"locality":"remote"}]"#,
                5,
            ),
            // Speculative blocks are held nowhere.
            (r#"[[4,["speculative"]],[9,["cpu"]]]"#, ANY, 0),
            (r#"[[4,["speculative","cpu"]],[9,["cpu"]]]"#, ANY, 13),
            (r#"[[4,["speculative","gpu"]],[9,["cpu"]]]"#, ANY, 9),
            // Runs of length 0 say nothing; names in any case.
            (
                r#"[[0,[]],[4,["GPU"]],[0,["gpu"]],[9,["Cpu"]],[0,[]],[1,["CPU"]]]"#,
                ANY,
                10,
            ),
            // An exact multiple of the block size: the last block is written without gpu.
            (r#"[[31,["gpu","cpu"]],[1,["cpu"]]]"#, ANY, 1),
        ];
        for (runs, filter, blocks) in table {
            let evidence = format!(r#"{{"block_size":16,"runs":{runs}}}"#);
            assert_eq!(tokens(&evidence, filter), blocks * 16, "{runs} {filter}");
        }
    }

    /// llm-d's own cases (block size 64) and ours.
    #[test]
    fn of_counts() {
        let table = [
            (r#"{"gpu":10,"cpu":20}"#, ANY, 640),
            (r#"{"gpu":4,"cpu":20}"#, ANY, 1024),
            (r#"{"gpu":4,"cpu":12,"storage":24}"#, ANY, 1280),
            (r#"{"gpu":4,"cpu":12,"storage":24}"#, "[]", 512),
            (r#"{}"#, ANY, 0),
            (r#"{"speculative":20}"#, ANY, 0),
            (r#"{"gpu":20,"cpu":10}"#, ANY, 0),
            (r#"{"GPU":4,"Cpu":12,"CPU":20,"cpu":8}"#, ANY, 1024),
            (r#"{"gpu":1,"Gpu":4,"cpu":20}"#, ANY, 1024),
            (r#"{"storage":24}"#, r#"[{"medium":"cpu"}]"#, 0),
            (r#"{"new_tier":24}"#, r#"[{"medium":"cpu"}]"#, 1536),
            (r#"{"new_tier":24}"#, "[]", 0),
        ];
        for (tiers, filter, expected) in table {
            let evidence = format!(r#"{{"block_size":64,"tiers":{tiers}}}"#);
            assert_eq!(tokens(&evidence, filter), expected, "{tiers} {filter}");
        }
    }

    #[test]
    fn prompts_are_counted_one_by_one() {
        // Summed first, this would be max(20, 20) - 10 = 10 blocks.
        let two = r#"{"block_size":1,"prompts":[{"tiers":{"gpu":10,"cpu":20}},{"tiers":{"gpu":0,"storage":20}}]}"#;
        assert_eq!(tokens(two, ANY), 30);
        let both_forms = r#"{"block_size":2,"prompts":[{"runs":[[3,["cpu"]]],"tiers":{"cpu":9}},{"tiers":{"cpu":1}}]}"#;
        assert_eq!(tokens(both_forms, ANY), 8);
    }

    #[test]
    fn sums_saturate() {
        use crate::contract::evidence::Prompt;
        let run = (u64::MAX, vec!["cpu".to_owned()]);
        let runs = [run.clone(), run].into_iter().collect();
        let evidence = Evidence {
            t_ms: None,
            block_size: 2,
            prompts: vec![Prompt::Runs(runs); 2],
            partial: false,
        };
        assert_eq!(external_tokens(&evidence, &TierFilter::ALL), u64::MAX);
    }
}
