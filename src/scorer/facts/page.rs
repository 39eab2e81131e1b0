//! What an engine's metrics page says of it, beside its queue.

use crate::scorer::metric_spec::MetricSpec;
use crate::scorer::metrics_text::{Labels, each_series};
use crate::sorted::SortedSet;

/// Longest name of a model or adapter that is kept, bytes; the configuration takes as long ones.
pub const MAX_NAME_BYTES: usize = 512;

/// How vLLM's prefix cache is set up, in labels.
const CACHE_CONFIG: &[u8] = b"vllm:cache_config_info";
/// Pages that several processes write together lack it.
const START_TIME: &[u8] = b"process_start_time_seconds";
/// The process's own figures are a page's first; vLLM's begins with 3 kB of them.
const START_TIME_WITHIN: usize = 8 * 1024;
const MAX_ALGORITHM_BYTES: usize = 64;
/// Ranks that are counted.
const MAX_RANKS: usize = 1_024;

/// None where the page does not say.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PageFacts {
    /// The `model_name` of the engine's series: its first served name.
    pub model: Option<String>,
    /// Tokens that one block hash covers.
    pub block_size: Option<u32>,
    pub hash_algorithm: Option<String>,
    pub gpu_blocks: Option<u32>,
    /// Data-parallel ranks behind this address, if it is more than one.
    pub ranks: Option<u32>,
    /// When the server's process began, Unix seconds.
    pub started: Option<f64>,
}

impl PageFacts {
    /// `queue` is the metric of the engine's queue, which carries the model's name. Of several
    /// series (data-parallel engines) the first that says it counts.
    pub fn read(page: &[u8], queue: &MetricSpec) -> Self {
        let mut facts = Self {
            started: started(page),
            ..Self::default()
        };
        // Where groups of layers have blocks of several sizes, hashes cover less than a block.
        let mut hash_block_size = None;
        let mut ranks = SortedSet::new();
        let names = [queue.name(), CACHE_CONFIG];
        let wanted = |line: &[u8]| names.iter().any(|name| line.starts_with(name));
        each_series(page, &wanted, &mut |name, labels, _| {
            let found = &mut facts;
            if name == queue.name() {
                if found.model.is_none() {
                    found.model = text(labels, "model_name", MAX_NAME_BYTES);
                }
                if let Some(rank) = labels.get("engine").filter(|_| ranks.len() < MAX_RANKS) {
                    ranks.insert(rank.into_owned());
                }
            } else if name == CACHE_CONFIG {
                hash_block_size = hash_block_size.or_else(|| number(labels, "hash_block_size"));
                found.block_size = found.block_size.or_else(|| number(labels, "block_size"));
                found.gpu_blocks = found
                    .gpu_blocks
                    .or_else(|| number(labels, "num_gpu_blocks"));
                if found.hash_algorithm.is_none() {
                    found.hash_algorithm =
                        text(labels, "prefix_caching_hash_algo", MAX_ALGORITHM_BYTES);
                }
            }
        });
        facts.block_size = hash_block_size.or(facts.block_size);
        facts.ranks = u32::try_from(ranks.len()).ok().filter(|n| *n > 1);
        facts
    }
}

/// When the server's process began, Unix seconds. None: the page does not begin with it.
pub fn started(page: &[u8]) -> Option<f64> {
    let beginning = page.get(..START_TIME_WITHIN).unwrap_or(page);
    let mut started = None;
    let wanted = |line: &[u8]| line.starts_with(START_TIME);
    each_series(beginning, &wanted, &mut |name, _, value| {
        if name == START_TIME {
            started = started.or(Some(value));
        }
    });
    started
}

/// A name that may be shown and compared.
pub fn is_name(text: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// A label's text, unless it is Python's `None`.
fn text(labels: &Labels<'_>, label: &str, max_bytes: usize) -> Option<String> {
    let text = labels.get(label)?;
    let fits = text.len() <= max_bytes && is_name(&text) && text != "None";
    fits.then(|| text.into_owned())
}

/// A whole number, not 0.
fn number(labels: &Labels<'_>, label: &str) -> Option<u32> {
    let text = labels.get(label)?;
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|n| digits && *n > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const QUEUE: &str = "vllm:num_requests_waiting";
    const FULL_PAGE: &[u8] = include_bytes!("../../../testdata/metrics_full_0.32.0.txt");

    fn facts(page: &[u8]) -> PageFacts {
        PageFacts::read(page, &MetricSpec::parse(QUEUE).unwrap())
    }

    #[test]
    fn real_page_of_vllm_0_32_0() {
        assert_eq!(
            facts(FULL_PAGE),
            PageFacts {
                model: Some("tiny".to_owned()),
                block_size: Some(32),
                hash_algorithm: Some("sha256_cbor".to_owned()),
                gpu_blocks: Some(160),
                ranks: None,
                started: Some(1_795_952_129.33),
            }
        );
    }

    #[test]
    fn the_model_is_that_of_the_queue_metric() {
        let model = |page: &str| facts(page.as_bytes()).model;
        let long = format!("{QUEUE}{{model_name=\"{}\"}} 1\n", "m".repeat(513));
        for (page, expected) in [
            (
                "vllm:num_requests_waiting{engine=\"0\",model_name=\"m\"} 0\n",
                Some("m"),
            ),
            (
                "vllm:num_requests_waiting{engine=\"0\"} 0\nvllm:num_requests_waiting{model_name=\"n\"} 0\n",
                Some("n"),
            ),
            (
                "vllm:num_requests_waiting_by_reason{model_name=\"m\"} 1\n",
                None,
            ),
            ("vllm:num_requests_waiting{model_name=\"\"} 1\n", None),
            ("vllm:num_requests_waiting{model_name=\"a\\nb\"} 1\n", None),
            ("vllm:num_requests_waiting 1\n", None),
            (&long, None),
        ] {
            assert_eq!(model(page).as_deref(), expected, "{page:.80}");
        }
    }

    #[test]
    fn ranks_are_the_engines_of_the_queue_metric() {
        let series = |engine: &str| format!("{QUEUE}{{engine=\"{engine}\",model_name=\"m\"}} 0\n");
        let other = "vllm:num_requests_running{engine=\"7\"} 0\n".to_owned();
        for (page, expected) in [
            (vec![], None),
            (vec![format!("{QUEUE} 0\n")], None),
            (vec![series("0"), other], None),
            (vec![series("0"), series("0")], None),
            (vec![series("0"), series("1")], Some(2)),
            (
                vec![series("3"), series("1"), series("2"), series("3")],
                Some(3),
            ),
            (
                (0..2_000).map(|n| series(&n.to_string())).collect(),
                Some(1_024),
            ),
        ] {
            assert_eq!(
                facts(page.concat().as_bytes()).ranks,
                expected,
                "{page:.3?}"
            );
        }
    }

    #[test]
    fn what_hashes_cover() {
        let block_size = |labels: &str| {
            facts(format!("vllm:cache_config_info{{{labels}}} 1.0\n").as_bytes()).block_size
        };
        for (labels, expected) in [
            (r#"block_size="16""#, Some(16)),
            (r#"block_size="16",hash_block_size="None""#, Some(16)),
            (r#"block_size="528",hash_block_size="16""#, Some(16)),
            (r#"hash_block_size="16""#, Some(16)),
            (r#"block_size="None""#, None),
            (r#"block_size="0""#, None),
            (r#"block_size="16.0""#, None),
            (r#"block_size="+16""#, None),
            (r#"block_size="4294967296""#, None),
            (r#"block_size="""#, None),
            (r#"_block_size="16""#, None),
        ] {
            assert_eq!(block_size(labels), expected, "{labels}");
        }
    }

    #[test]
    fn the_start_time_is_looked_for_where_pages_begin() {
        let after = |bytes: usize| {
            let page = format!(
                "{}process_start_time_seconds 1.5\n",
                "#\n".repeat(bytes / 2)
            );
            started(page.as_bytes())
        };
        assert_eq!(after(0), Some(1.5));
        assert_eq!(after(8_160), Some(1.5));
        assert_eq!(after(8_162), None);
    }

    #[test]
    fn what_is_not_said_is_not_known() {
        let none =
            r#"vllm:cache_config_info{prefix_caching_hash_algo="None",num_gpu_blocks="None"} 1"#;
        let half = r#"vllm:cache_config_info{prefix_caching_hash_algo="sha2"#;
        for page in ["", none, half, "process_start_time_seconds NaN\n"] {
            assert_eq!(facts(page.as_bytes()), PageFacts::default(), "{page}");
        }
    }
}
