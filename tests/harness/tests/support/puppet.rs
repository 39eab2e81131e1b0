//! A toy module: the test writes the callbacks in WAT, and they tell what they saw in the log.
//!
//! Memory: results of host calls at 0, 4 and 8; texts of the test from 1024 on.

use skv_harness::{Harness, Vm};

const PRELUDE: &str = r#"
(import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
(import "env" "proxy_get_current_time_nanoseconds" (func $now (param i32) (result i32)))
(import "env" "proxy_set_tick_period_milliseconds" (func $tick (param i32) (result i32)))
(import "env" "proxy_get_buffer_bytes" (func $get_buffer (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_set_buffer_bytes" (func $set_buffer (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_get_header_map_pairs" (func $get_pairs (param i32 i32 i32) (result i32)))
(import "env" "proxy_get_header_map_value" (func $get_header (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_remove_header_map_value" (func $remove_header (param i32 i32 i32) (result i32)))
(import "env" "proxy_get_property" (func $get_property (param i32 i32 i32 i32) (result i32)))
(import "env" "proxy_set_property" (func $set_property (param i32 i32 i32 i32) (result i32)))
(import "env" "proxy_get_shared_data" (func $get_shared (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_set_shared_data" (func $set_shared (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_define_metric" (func $define_metric (param i32 i32 i32 i32) (result i32)))
(import "env" "proxy_increment_metric" (func $increment (param i32 i64) (result i32)))
(import "env" "proxy_record_metric" (func $record (param i32 i64) (result i32)))
(import "env" "proxy_continue_stream" (func $continue (param i32) (result i32)))
(import "env" "proxy_set_effective_context" (func $effective (param i32) (result i32)))
(import "env" "proxy_send_local_response"
  (func $respond (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_http_call"
  (func $http_call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
(memory (export "memory") 2)
(global $heap (mut i32) (i32.const 8192))
(global $streams (mut i32) (i32.const 0))
(func (export "proxy_abi_version_0_2_1"))
(func (export "malloc") (param $size i32) (result i32)
  (global.get $heap)
  (global.set $heap (i32.add (global.get $heap) (local.get $size))))
;; Logs a number below 1,000,000,000 in decimal.
(func $num (param $n i32) (local $at i32)
  (local.set $at (i32.const 64))
  (loop $digit
    (local.set $at (i32.sub (local.get $at) (i32.const 1)))
    (i32.store8 (local.get $at) (i32.add (i32.const 48) (i32.rem_u (local.get $n) (i32.const 10))))
    (local.set $n (i32.div_u (local.get $n) (i32.const 10)))
    (br_if $digit (local.get $n)))
  (drop (call $log (i32.const 2) (local.get $at) (i32.sub (i32.const 64) (local.get $at)))))
;; Logs the bytes that the last host call gave (pointer at 0, size at 4).
(func $given
  (drop (call $log (i32.const 2) (i32.load (i32.const 0)) (i32.load (i32.const 4)))))
"#;

/// The text that a test refers to as `@name` in its WAT: becomes pointer and size.
pub type Text<'a> = (&'a str, &'a str);

/// A VM of the toy: `texts` are put into memory, `@name` in `body` stands for the pointer and the
/// size of one.
pub fn puppet(env: &Harness, vm_id: &str, texts: &[Text], body: &str) -> Vm {
    env.vm_of(vm_id, wat(texts, body))
}

pub fn wat(texts: &[Text], body: &str) -> String {
    let mut data = String::new();
    let mut body = body.to_owned();
    let mut at = 1024;
    for (name, text) in texts {
        let escaped: String = text.bytes().map(|b| format!("\\{b:02x}")).collect();
        data.push_str(&format!("(data (i32.const {at}) \"{escaped}\")\n"));
        body = body.replace(
            &format!("@{name} "),
            &format!("(i32.const {at}) (i32.const {}) ", text.len()),
        );
        at += text.len();
    }
    assert!(
        !body.contains('@'),
        "a text is missing, or no blank behind it: {body}"
    );
    format!("(module {PRELUDE} {data} {body})")
}

/// What the toy has logged.
pub fn told(vm: &Vm) -> Vec<String> {
    vm.log().into_iter().map(|line| line.text).collect()
}
