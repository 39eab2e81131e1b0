//! `dist/selective_kv_policy.wasm`: the policy as in the module with both roles, and no other role.

use crate::records;
use crate::rig::{CAPPED, GATED, Rig, chat, counts};
use skv_harness::{Harness, Vm};

fn vm(env: &Harness) -> Vm {
    let file = "dist/selective_kv_policy.wasm";
    env.vm_from_file("", "SELECTIVE_KV_POLICY_WASM", file)
}

#[test]
fn decides_by_evidence_and_gate_as_the_module_with_both_does() {
    for (waiting, arrives, decided) in [
        (
            1.0,
            CAPPED.replace(r#""max_load_tokens":512,"#, ""),
            "load enable admitted",
        ),
        (
            9.0,
            CAPPED.replace(":512", ":0"),
            "load disable queue_pressure",
        ),
    ] {
        let both = Rig::new(GATED);
        let env = Harness::new();
        let vm = vm(&env);
        let policy = vm.plugin("selective-kv", GATED);
        let alone = Rig { env, vm, policy };
        let outcome = |rig: &Rig| {
            rig.much_evidence();
            rig.queue(&[(rig.env.now_ms(), waiting)]);
            let out = rig.policy.send(chat(), CAPPED);
            assert_eq!(out.text(), arrives);
            (
                out.state("selective_kv.decision").map(str::to_owned),
                rig.decisions(),
                rig.env.metrics(),
            )
        };
        let of_alone = outcome(&alone);
        assert_eq!(
            of_alone.1,
            counts([(decided, 1), ("offload preserve policy", 1)])
        );
        assert_eq!(of_alone, outcome(&both));
    }
}

#[test]
fn the_scorer_is_refused_with_one_line_that_says_where_it_is() {
    let env = Harness::new();
    let vm = vm(&env);
    assert!(vm.try_plugin("kv-scorer", r#"{"discover":true}"#).is_err());
    let log = vm.log();
    assert_eq!(log.len(), 1, "{log:?}");
    assert_eq!(
        log[0].text,
        "kv-scorer: root_id: this module is the policy alone; allowed: selective-kv (selective_kv.wasm has kv-scorer too)"
    );
    assert!(env.shared("", records::MEMBERS_KEY).is_none());
}
