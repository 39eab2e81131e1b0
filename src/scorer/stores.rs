//! What storing costs an engine, tier by tier, out of its metrics page (FACTS: vLLM 0.23 to 0.33).
//!
//! | series | tier |
//! |---|---|
//! | `vllm:kv_offload_store_bytes_total`, `…_store_time_total` | `cpu`, the primary tier |
//! | `vllm:kv_offload_total_bytes_total`, `…_total_time_total` with `transfer_type="GPU_to_CPU"` | the same on older engines |
//! | `vllm:kv_offload_tiering_write_bytes_total`, `…_write_time_total` with `tier="1:fs"` | `fs` |
//! | `vllm:kv_offload_tiering_backpressure_store_latency_ema` with `tier="1:fs"` | `fs`, the engine's own average |
//!
//! Data-parallel engines of one address, and tiers of one type, count together; of averages the
//! largest counts.

use crate::sorted::SortedMap;

use super::metrics_text::{Labels, each_series};
use crate::contract::stores::{Counters, MAX_TIER_BYTES, MAX_TIERS};

const PREFIX: &[u8] = b"vllm:kv_offload_";
/// What the series' names go on with; the page has hundreds of others with the prefix.
const NAMES: [&[u8]; 7] = [
    b"store_bytes_total",
    b"store_time_total",
    b"total_bytes_total",
    b"total_time_total",
    b"tiering_write_bytes_total",
    b"tiering_write_time_total",
    b"tiering_backpressure_store_latency_ema",
];
/// The primary tier's name in evidence and records.
const CPU: &str = "cpu";
/// How the engine labels its primary tier among the others: `store_…` speaks of it already.
const PRIMARY: &str = "primary";

#[derive(Default)]
struct Found {
    bytes: Option<f64>,
    seconds: Option<f64>,
    ema: Option<f64>,
}

#[derive(Clone, Copy)]
enum What {
    Bytes,
    Seconds,
    Ema,
}

/// Store counters by tier; empty if the engine offloads nothing, or has not yet. Series that are not
/// well-formed are left out: the page's own metric counts them.
pub fn read(page: &[u8]) -> Vec<(String, Counters)> {
    let mut tiers: SortedMap<String, Found> = SortedMap::new();
    // The older names of the primary tier; the newer ones count if both are there.
    let mut older = Found::default();
    let wanted = |line: &[u8]| {
        line.strip_prefix(PREFIX)
            .is_some_and(|name| NAMES.iter().any(|wanted| name.starts_with(wanted)))
    };
    each_series(page, &wanted, &mut |name, labels, value| {
        let (what, tiering) = match name.strip_prefix(PREFIX).unwrap_or_default() {
            b"store_bytes_total" => (What::Bytes, false),
            b"store_time_total" => (What::Seconds, false),
            b"total_bytes_total" | b"total_time_total" => {
                if labels.get("transfer_type").as_deref() == Some("GPU_to_CPU") {
                    let bytes = name.ends_with(b"bytes_total");
                    let what = if bytes { What::Bytes } else { What::Seconds };
                    older.add(what, value);
                }
                return;
            }
            b"tiering_write_bytes_total" => (What::Bytes, true),
            b"tiering_write_time_total" => (What::Seconds, true),
            b"tiering_backpressure_store_latency_ema" => (What::Ema, true),
            _ => return,
        };
        let tier = if tiering {
            tier_name(labels)
        } else {
            Some(CPU.to_owned())
        };
        let Some(tier) = tier else { return };
        if tiers.len() < MAX_TIERS || tiers.contains_key(&tier) {
            tiers.entry(tier).or_default().add(what, value);
        }
    });
    tiers.entry(CPU.to_owned()).or_insert(older);
    tiers
        .into_iter()
        .filter_map(|(tier, found)| Some((tier, found.counters()?)))
        .collect()
}
impl Found {
    fn add(&mut self, what: What, value: f64) {
        let slot = match what {
            What::Bytes => &mut self.bytes,
            What::Seconds => &mut self.seconds,
            What::Ema => {
                self.ema = Some(self.ema.map_or(value, |ema| ema.max(value)));
                return;
            }
        };
        let sum = slot.unwrap_or(0.0) + value;
        if sum.is_finite() {
            *slot = Some(sum);
        }
    }

    /// Both counters, or the engine's own average.
    fn counters(self) -> Option<Counters> {
        match (self.bytes, self.seconds, self.ema) {
            (Some(bytes), Some(seconds), ema) => Some(Counters {
                bytes,
                seconds,
                ema,
            }),
            (_, _, Some(ema)) => Some(Counters {
                bytes: 0.0,
                seconds: 0.0,
                ema: Some(ema),
            }),
            _ => None,
        }
    }
}

/// `1:fs` is `fs`. None: the primary tier, or no name.
fn tier_name(labels: &Labels<'_>) -> Option<String> {
    let label = labels.get("tier")?;
    let name = label
        .split_once(':')
        .map_or(label.as_ref(), |(_, name)| name);
    let name = name.to_ascii_lowercase();
    ((1..=MAX_TIER_BYTES).contains(&name.len()) && name != PRIMARY).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const FULL_PAGE: &[u8] = include_bytes!("../../testdata/metrics_full_0.32.0.txt");

    fn read(page: &str) -> Vec<(String, f64, f64, Option<f64>)> {
        super::read(page.as_bytes())
            .into_iter()
            .map(|(tier, c)| (tier, c.bytes, c.seconds, c.ema))
            .collect()
    }

    fn row(
        tier: &str,
        bytes: f64,
        seconds: f64,
        ema: Option<f64>,
    ) -> (String, f64, f64, Option<f64>) {
        (tier.to_owned(), bytes, seconds, ema)
    }

    #[test]
    fn real_page_of_vllm_0_32_0() {
        let page = std::str::from_utf8(FULL_PAGE).unwrap();
        let cpu = row("cpu", 37_748_736.0, 0.585_684_735_000_541, None);
        let fs = row("fs", 37_748_736.0, 0.901_968_052_000_029_3, None);
        assert_eq!(read(page), [cpu.clone(), fs.clone()]);
        // An engine that has only the older names of the primary tier's.
        let older: String = page
            .lines()
            .filter(|line| !line.starts_with("vllm:kv_offload_store_"))
            .map(|line| format!("{line}\n"))
            .collect();
        assert_eq!(read(&older), [cpu, fs]);
    }

    #[test]
    fn pages() {
        const P: &str = "vllm:kv_offload_";
        type Rows = Vec<(String, f64, f64, Option<f64>)>;
        let table: Vec<(String, Rows)> = vec![
            (String::new(), vec![]),
            // One of the two counters alone says nothing.
            (format!("{P}store_bytes_total 1\n"), vec![]),
            (
                format!("{P}store_bytes_total 1\n{P}store_time_total 2\n"),
                vec![row("cpu", 1.0, 2.0, None)],
            ),
            // Engines of one address are summed.
            (
                format!(
                    "{P}store_bytes_total{{engine=\"0\"}} 1\n{P}store_bytes_total{{engine=\"1\"}} 4\n\
                     {P}store_time_total{{engine=\"0\"}} 2\n{P}store_time_total{{engine=\"1\"}} 0.5\n"
                ),
                vec![row("cpu", 5.0, 2.5, None)],
            ),
            // Loads are no stores.
            (
                format!(
                    "{P}total_bytes_total{{transfer_type=\"CPU_to_GPU\"}} 1\n\
                     {P}total_time_total{{transfer_type=\"CPU_to_GPU\"}} 1\n"
                ),
                vec![],
            ),
            // Tiers of one type count together, the primary one not again.
            (
                format!(
                    "{P}tiering_write_bytes_total{{tier=\"0:primary\"}} 100\n\
                     {P}tiering_write_bytes_total{{tier=\"1:FS\"}} 1\n{P}tiering_write_bytes_total{{tier=\"2:fs\"}} 2\n\
                     {P}tiering_write_time_total{{tier=\"1:fs\"}} 4\n{P}tiering_write_time_total{{tier=\"3:obj\"}} 4\n\
                     {P}tiering_backpressure_store_latency_ema{{tier=\"1:fs\"}} 0.5\n\
                     {P}tiering_backpressure_store_latency_ema{{tier=\"2:fs\"}} 0.25\n"
                ),
                vec![row("fs", 3.0, 4.0, Some(0.5))],
            ),
            // The engine's average alone.
            (
                format!("{P}tiering_backpressure_store_latency_ema{{tier=\"1:obj\"}} 0.5\n"),
                vec![row("obj", 0.0, 0.0, Some(0.5))],
            ),
            // Not numbers, no tier, other metrics, comments, half a line.
            (
                format!(
                    "{P}store_bytes_total NaN\n{P}store_time_total 1\n\
                     {P}tiering_write_bytes_total 1\n{P}tiering_write_bytes_total{{tier=\"\"}} 1\n\
                     {P}store_bytes 9\n# {P}store_bytes_total 9\nx{P}store_bytes_total 9\n\
                     {P}store_bytes_total 5"
                ),
                vec![],
            ),
        ];
        for (page, expected) in table {
            assert_eq!(read(&page), expected, "{page}");
        }
    }

    #[test]
    fn a_hostile_page_has_few_tiers() {
        let page: String = (0..1_000)
            .map(|i| format!("vllm:kv_offload_tiering_backpressure_store_latency_ema{{tier=\"{i}:t{i}\"}} 1\n"))
            .collect();
        assert_eq!(read(&page).len(), MAX_TIERS);
    }
}
