//! `/metrics`: the page of a real vLLM 0.32.0 server, with this engine's figures in place of its.

use std::collections::BTreeMap;
use std::fmt::Write;

const RECORDED: &str = include_str!("../../../testdata/metrics_full_0.32.0.txt");
const RECORDED_MODEL: &str = "model_name=\"tiny\"";
/// prometheus_client writes figures of more digits before the point in exponent form.
const PLAIN_DIGITS: usize = 6;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Engine label to the text of `vllm:num_requests_waiting`, which may be nonsense on purpose.
    pub waiting: BTreeMap<String, String>,
    pub running: usize,
    pub prompt_tokens: u64,
    pub gpu_hit_tokens: u64,
    pub external_hit_tokens: u64,
    pub loaded_bytes: u64,
    pub stored_bytes: u64,
    pub finished: u64,
    /// By the label `tier`, or `cpu`; in place of the engine's own. Tiers not named have no series.
    pub stores: Option<BTreeMap<String, Stored>>,
}

/// What was stored into one tier since the engine started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stored {
    pub bytes: f64,
    pub seconds: f64,
}

/// The primary tier, whose series have no label of it.
const CPU: &str = "cpu";
/// Store counters of the primary tier, and of the others.
const STORE: [&str; 2] = [
    "vllm:kv_offload_store_bytes_total",
    "vllm:kv_offload_store_time_total",
];
const TIERING: [&str; 2] = [
    "vllm:kv_offload_tiering_write_bytes_total",
    "vllm:kv_offload_tiering_write_time_total",
];
const TIERING_LABEL: &str = "tier=\"1:fs\"";
/// The same of the primary tier by its older names.
const OLDER: [&str; 2] = [
    "vllm:kv_offload_total_bytes_total",
    "vllm:kv_offload_total_time_total",
];

/// Labels of `vllm:cache_config_info`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CacheConfig {
    pub block_size: usize,
    pub hash_algorithm: &'static str,
    /// `None` leaves the recorded number.
    pub gpu_blocks: Option<usize>,
}

pub fn page(model: &str, config: &CacheConfig, figures: &Figures) -> String {
    let mut page = String::with_capacity(RECORDED.len() + 1024);
    for line in RECORDED.lines() {
        if line.starts_with('#') {
            page.push_str(line);
            page.push('\n');
            continue;
        }
        let (series, recorded) = line.rsplit_once(' ').unwrap_or((line, ""));
        let series = series.replace(
            RECORDED_MODEL,
            &format!("model_name=\"{}\"", escaped(model)),
        );
        let name = series.split('{').next().unwrap_or_default();
        if name == "vllm:cache_config_info" {
            let _ = writeln!(page, "{} {recorded}", config.labelled(&series));
            continue;
        }
        if let Some(stores) = &figures.stores
            && stored(&series, name, stores, &mut page)
        {
            continue;
        }
        if name == "vllm:num_requests_waiting" || name == "vllm:num_requests_waiting_by_reason" {
            for (engine, waiting) in &figures.waiting {
                let series =
                    series.replace("engine=\"0\"", &format!("engine=\"{}\"", escaped(engine)));
                let deferred = series.contains("reason=\"deferred\"");
                let _ = writeln!(page, "{series} {}", if deferred { "0.0" } else { waiting });
            }
            continue;
        }
        let figure = match name {
            "vllm:num_requests_running" => figures.running as u64,
            "vllm:prefix_cache_queries_total" | "vllm:external_prefix_cache_queries_total" => {
                figures.prompt_tokens
            }
            "vllm:prefix_cache_hits_total" => figures.gpu_hit_tokens,
            "vllm:external_prefix_cache_hits_total" => figures.external_hit_tokens,
            "vllm:kv_offload_load_bytes_total" => figures.loaded_bytes,
            "vllm:kv_offload_store_bytes_total" => figures.stored_bytes,
            "vllm:request_success_total" if series.contains("\"length\"") => figures.finished,
            _ => {
                let _ = writeln!(page, "{series} {recorded}");
                continue;
            }
        };
        let _ = writeln!(page, "{series} {}", sample(figure as f64));
    }
    page
}

/// Writes what was set in the place of a series. False: it is none of store counters.
fn stored(series: &str, name: &str, stores: &BTreeMap<String, Stored>, page: &mut String) -> bool {
    let figure = |names: [&str; 2], stored: &Stored| {
        sample(if names[0] == name {
            stored.bytes
        } else {
            stored.seconds
        })
    };
    if STORE.contains(&name) {
        if let Some(cpu) = stores.get(CPU) {
            let _ = writeln!(page, "{series} {}", figure(STORE, cpu));
        }
        return true;
    }
    if TIERING.contains(&name) {
        for (tier, stored) in stores.iter().filter(|(tier, _)| *tier != CPU) {
            let series = series.replace(TIERING_LABEL, &format!("tier=\"{}\"", escaped(tier)));
            let _ = writeln!(page, "{series} {}", figure(TIERING, stored));
        }
        return true;
    }
    OLDER.contains(&name) && series.contains("GPU_to_CPU")
}

impl CacheConfig {
    fn labelled(&self, recorded: &str) -> String {
        let mut series = recorded
            .replace(
                ",block_size=\"32\"",
                &format!(",block_size=\"{}\"", self.block_size),
            )
            .replace("=\"sha256_cbor\"", &format!("=\"{}\"", self.hash_algorithm));
        if let Some(blocks) = self.gpu_blocks {
            series = series.replace("=\"160\"", &format!("=\"{blocks}\""));
        }
        series
    }
}

fn escaped(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// A number as prometheus_client writes it: `16.0`, `4.194304e+06`.
pub fn sample(number: f64) -> String {
    if number.is_nan() {
        return "NaN".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "+Inf" } else { "-Inf" }.into();
    }
    let plain = format!("{number:?}");
    let Some((whole, fraction)) = plain
        .split_once('.')
        .filter(|(whole, _)| number > 0.0 && whole.len() > PLAIN_DIGITS)
    else {
        return plain;
    };
    let (first, rest) = whole.split_at(1);
    let mantissa = format!("{first}.{rest}{fraction}");
    format!(
        "{}e+{:02}",
        mantissa.trim_end_matches('0').trim_end_matches('.'),
        whole.len() - 1
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelled_as_prometheus_client_does() {
        for (number, expected) in [
            (16.0, "16.0"),
            (0.0, "0.0"),
            (4194304.0, "4.194304e+06"),
            (37748736.0, "3.7748736e+07"),
            (999999.0, "999999.0"),
            (1e6, "1e+06"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(sample(number), expected);
        }
    }

    #[test]
    fn store_counters_are_as_they_were_set() {
        let of = |stores: &[(&str, f64, f64)]| {
            let stores = stores.iter().map(|(tier, bytes, seconds)| {
                let stored = Stored {
                    bytes: *bytes,
                    seconds: *seconds,
                };
                ((*tier).to_owned(), stored)
            });
            let figures = Figures {
                stores: Some(stores.collect()),
                ..Figures::default()
            };
            let page = page("tiny", &CacheConfig::default(), &figures);
            let counters = [STORE, TIERING, OLDER].concat();
            let is_counter = |line: &&str| counters.iter().any(|name| line.starts_with(name));
            page.lines()
                .filter(is_counter)
                .filter(|line| !line.contains("CPU_to_GPU"))
                .map(|line| line.trim_start_matches("vllm:kv_offload_").to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [""; 0]);
        assert_eq!(
            of(&[
                ("1:fs", 2_097_152.0, 0.5),
                ("2:obj", 1.0, 4.0),
                ("cpu", 3.0, 0.25)
            ]),
            [
                "tiering_write_bytes_total{engine=\"0\",model_name=\"tiny\",tier=\"1:fs\"} 2.097152e+06",
                "tiering_write_bytes_total{engine=\"0\",model_name=\"tiny\",tier=\"2:obj\"} 1.0",
                "tiering_write_time_total{engine=\"0\",model_name=\"tiny\",tier=\"1:fs\"} 0.5",
                "tiering_write_time_total{engine=\"0\",model_name=\"tiny\",tier=\"2:obj\"} 4.0",
                "store_bytes_total{engine=\"0\",model_name=\"tiny\"} 3.0",
                "store_time_total{engine=\"0\",model_name=\"tiny\"} 0.25",
            ]
        );
    }

    #[test]
    fn the_page_is_the_recorded_one_with_our_figures() {
        let waiting = [("0", "16.0"), ("1", "NaN")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        let page = page(
            "m\"1",
            &CacheConfig {
                block_size: 16,
                hash_algorithm: "sha256",
                gpu_blocks: Some(7),
            },
            &Figures {
                waiting: waiting.into(),
                loaded_bytes: 4194304,
                ..Figures::default()
            },
        );
        assert!(
            page.contains("\nvllm:num_requests_waiting{engine=\"0\",model_name=\"m\\\"1\"} 16.0\n")
        );
        assert!(
            page.contains("\nvllm:num_requests_waiting{engine=\"1\",model_name=\"m\\\"1\"} NaN\n")
        );
        assert!(page.contains(
            "\nvllm:kv_offload_load_bytes_total{engine=\"0\",model_name=\"m\\\"1\"} 4.194304e+06\n"
        ));
        let config = page
            .lines()
            .find(|l| l.starts_with("vllm:cache_config_info{"));
        let config = config.unwrap();
        for label in [
            "True\",block_size=\"16\",",
            ",num_gpu_blocks=\"7\",",
            ",prefix_caching_hash_algo=\"sha256\",",
        ] {
            assert!(config.contains(label), "{label} in {config}");
        }
        assert_eq!(
            page.lines().filter(|l| l.starts_with('#')).count(),
            RECORDED.lines().filter(|l| l.starts_with('#')).count()
        );
        assert!(page.len() > 80_000);
    }
}
