//! Keys of the shared data. It has no delete, so names are folded into a fixed number of buckets.

use std::hash::Hasher;

use crate::decimal;

/// Buckets of `selective-kv/1/queue/…`.
pub const QUEUE_BUCKETS: u64 = 256;
/// Buckets of `selective-kv/1/evidence/…`.
pub const EVIDENCE_BUCKETS: u64 = 4096;
/// Buckets of the policy's private `selective-kv/1/gate/…`.
pub const GATE_BUCKETS: u64 = 256;
/// Buckets of the policy's private `selective-kv/1/loads/…`.
pub const LOADS_BUCKETS: u64 = 256;
/// Counts the VMs that ever had a load in flight; decimal text.
pub const LOADS_VMS_KEY: &str = "selective-kv/1/loads/vms";
/// The one key of the members record.
pub const MEMBERS_KEY: &str = "selective-kv/1/members";

const QUEUE_PREFIX: &str = "selective-kv/1/queue/";
const EVIDENCE_PREFIX: &str = "selective-kv/1/evidence/";
const GATE_PREFIX: &str = "selective-kv/1/gate/";
const LOADS_PREFIX: &str = "selective-kv/1/loads/";

/// FNV-1a, 64 bit.
#[must_use]
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

/// FNV-1a-64 of the name's UTF-8 bytes modulo `buckets` (0 buckets: bucket 0).
#[must_use]
pub fn bucket(name: &str, buckets: u64) -> u64 {
    fnv1a64(name.as_bytes()).checked_rem(buckets).unwrap_or(0)
}

/// Key of the queue record that holds `endpoint` (`ip:port`).
#[must_use]
pub fn queue_key(endpoint: &str) -> String {
    queue_bucket_key(bucket(endpoint, QUEUE_BUCKETS))
}

/// Key of one queue bucket by number, for a reader that visits all of them.
#[must_use]
pub fn queue_bucket_key(bucket: u64) -> String {
    numbered(QUEUE_PREFIX, bucket)
}

/// Key of the evidence record that may hold `request_id` (`x-request-id`).
#[must_use]
pub fn evidence_key(request_id: &str) -> String {
    numbered(EVIDENCE_PREFIX, bucket(request_id, EVIDENCE_BUCKETS))
}

/// Key of the policy's private gate record that holds `endpoint`.
#[must_use]
pub fn gate_key(endpoint: &str) -> String {
    gate_bucket_key(bucket(endpoint, GATE_BUCKETS))
}

/// Key of one gate bucket by number.
#[must_use]
pub fn gate_bucket_key(bucket: u64) -> String {
    numbered(GATE_PREFIX, bucket)
}

/// Key of one bucket of loads in flight by number.
#[must_use]
pub fn loads_bucket_key(bucket: u64) -> String {
    numbered(LOADS_PREFIX, bucket)
}

/// Without the formatter, which takes longer than the look-up of some hosts.
fn numbered(prefix: &str, number: u64) -> String {
    let mut key = String::with_capacity(prefix.len().saturating_add(decimal::MOST));
    key.push_str(prefix);
    decimal::push(&mut key, number);
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn hash_is_fnv_1a_64() {
        // Vectors of the FNV reference suite, and llm-d's ("42").
        assert_eq!(fnv1a64(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a64(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(fnv1a64(b"foobar"), 0x8594_4171_f739_67e8);
        assert_eq!(fnv1a64(b"42"), 571_532_774_284_038_691);
    }

    #[test]
    fn keys_name_the_bucket_in_decimal() {
        assert_eq!(queue_key(""), "selective-kv/1/queue/37"); // 0x25
        assert_eq!(queue_key("a"), "selective-kv/1/queue/140"); // 0x8c
        assert_eq!(evidence_key("foobar"), "selective-kv/1/evidence/2024"); // 0x7e8
        assert_eq!(gate_key("a"), "selective-kv/1/gate/140");
        assert_eq!(bucket("a", 0), 0);
    }
}
