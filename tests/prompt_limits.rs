//! What hostile bodies cost: memory stays within the limits, and goes back.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing
)]

mod prompt;

use std::rc::Rc;

use prompt::{ENDPOINTS, said, say};
use selective_kv::body::HeldBudget;
use selective_kv::prompt::{Endpoint, Limits, Progress, Scanner};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

const MIB: usize = 1 << 20;

fn scanner(max_prompt_tokens: usize, budget: &Rc<HeldBudget>) -> Scanner {
    scanner_of(Endpoint::Completions, max_prompt_tokens, budget)
}

fn scanner_of(endpoint: Endpoint, max_prompt_tokens: usize, budget: &Rc<HeldBudget>) -> Scanner {
    let limits = Limits {
        max_prompt_tokens,
        budget: Rc::clone(budget),
    };
    Scanner::new(endpoint, limits)
}

fn ids(count: usize) -> String {
    vec!["7"; count].join(",")
}

#[test]
fn as_many_tokens_as_are_allowed_over_all_prompts() {
    for (max, body, fits) in [
        (3, "[1,2,3]", true),
        (3, "[1,2,3,4]", false),
        (3, "[[1,2],[3]]", true),
        (3, "[[1,2],[3,4]]", false),
        (0, "[1]", false),
        (5_000, &*format!("[{}]", ids(5_000)), true),
        (5_000, &*format!("[{}]", ids(5_001)), false),
    ] {
        let budget = Rc::new(HeldBudget::new(MIB));
        let mut scanner = scanner(max, &budget);
        scanner.feed(format!(r#"{{"prompt":{body}}}"#).as_bytes());
        assert!(budget.held() <= max * 4, "{max}");
        let said = say(scanner.finish().as_ref());
        assert_eq!(said == "!prompt_too_large", !fits, "{said:.80}");
        assert_eq!(budget.held(), 0);
    }
}

#[test]
fn a_duplicate_begins_to_count_afresh() {
    let budget = Rc::new(HeldBudget::new(MIB));
    let mut scanner = scanner(3, &budget);
    scanner.feed(br#"{"prompt":[1,2,3],"prompt":[1,2,3,4],"prompt":[4,5,6]}"#);
    assert_eq!(say(scanner.finish().as_ref()), "[4, 5, 6]");
}

#[test]
fn requests_share_the_budget_and_give_back() {
    let body = format!(r#"{{"prompt":[{}]"#, ids(2_000));
    // Room grows from 1,024 tokens to 2,048.
    let each = 2_048 * 4;
    let budget = Rc::new(HeldBudget::new(2 * each));
    let mut scanners: Vec<Scanner> = (0..3).map(|_| scanner(1 << 20, &budget)).collect();
    for (scanner, held) in scanners.iter_mut().zip([each, 2 * each, 2 * each]) {
        assert_eq!(scanner.feed(body.as_bytes()), Progress::More);
        assert_eq!(budget.held(), held);
    }
    for scanner in &mut scanners {
        scanner.feed(b"}");
    }
    let said: Vec<String> = scanners
        .into_iter()
        .map(|scanner| say(scanner.finish().as_ref()))
        .collect();
    assert!(said[0].starts_with("[7, 7,") && said[1] == said[0]);
    assert_eq!(said[2], "!prompt_too_large");
    assert_eq!(budget.held(), 0);

    let mut cut = scanner(1 << 20, &budget);
    cut.feed(body.as_bytes());
    assert_eq!(budget.held(), each);
    drop(cut);
    assert_eq!(budget.held(), 0);

    let mut broken = scanner(1 << 20, &budget);
    broken.feed(body.as_bytes());
    assert_eq!(broken.feed(b"]"), Progress::NotJson);
    assert_eq!(budget.held(), 0);

    let mut stand_in = scanner_of(Endpoint::Chat, 1 << 20, &budget);
    let list = ids(2_000);
    stand_in.feed(format!(r#"{{"kv_transfer_params":{{"prompt_token_ids":[{list}]}}"#).as_bytes());
    assert_eq!(budget.held(), each);
    stand_in.feed(br#","kv_transfer_params":{}"#);
    assert_eq!(budget.held(), 0);
}

#[test]
fn a_hundred_megabytes_of_tokens() {
    let budget = Rc::new(HeldBudget::new(64 * MIB));
    let mut scanner = scanner(Limits::MAX_PROMPT_TOKENS, &budget);
    scanner.feed(br#"{"prompt":[1"#);
    let chunk = ",123456".repeat(MIB / 7);
    let mut most = 0;
    for _ in 0..100 {
        assert_eq!(scanner.feed(chunk.as_bytes()), Progress::More);
        most = most.max(budget.held());
    }
    assert!(most <= Limits::MAX_PROMPT_TOKENS * 4, "{most}");
    assert_eq!(budget.held(), 0, "nothing is kept of what is too large");
    scanner.feed(b"]}");
    assert_eq!(say(scanner.finish().as_ref()), "!prompt_too_large");
}

#[test]
fn a_million_tokens_are_a_prompt() {
    let budget = Rc::new(HeldBudget::new(64 * MIB));
    let mut scanner = scanner(Limits::MAX_PROMPT_TOKENS, &budget);
    let body = format!(r#"{{"prompt":[{}]}}"#, ids(Limits::MAX_PROMPT_TOKENS));
    for chunk in body.as_bytes().chunks(16 * 1_024) {
        scanner.feed(chunk);
    }
    assert_eq!(budget.held(), Limits::MAX_PROMPT_TOKENS * 4);
    let said = say(scanner.finish().as_ref());
    assert_eq!(said.matches('7').count(), Limits::MAX_PROMPT_TOKENS);
}

#[test]
fn deep_nesting_long_texts_and_huge_numbers() {
    let deep = 20_000;
    let long = 50_000;
    let texts = [
        ("[".repeat(deep) + &"]".repeat(deep), "nested lists"),
        (
            r#"{"type":[{"a":"#.repeat(deep) + "1" + &"}]}".repeat(deep),
            "nested objects",
        ),
        ("9".repeat(long), "a number"),
        (format!("[{}]", "9".repeat(long)), "a token"),
        (format!("[-{}]", "0".repeat(long)), "zeros"),
        (format!("\"{}\"", "x".repeat(long)), "a text"),
        (format!("\"{}\"", "\\u0061".repeat(long)), "escapes"),
        (format!("\"{}\"", "\\\\\\\"".repeat(long)), "backslashes"),
        (format!("[{}1]", "[1],".repeat(long)), "prompts"),
        (format!("[{}1]", "{},".repeat(long)), "objects"),
        (format!("{{\"{}\":1}}", "type".repeat(long)), "a key"),
    ];
    let members = [
        "prompt",
        "token_ids",
        "messages",
        "input",
        "model",
        "cache_salt",
        "echo",
        "n",
        "prompt_logprobs",
        "kv_transfer_params",
        "sampling_params",
    ];
    for (text, what) in &texts {
        for member in members {
            let mut body = format!(r#"{{"{member}":{text}}}"#);
            if member == "kv_transfer_params" {
                body = format!(r#"{{"{member}":{{"prompt_token_ids":{text}}}}}"#);
            }
            for endpoint in ENDPOINTS {
                let budget = Rc::new(HeldBudget::new(64 * MIB));
                let mut scanner = scanner_of(endpoint, 1_000, &budget);
                for chunk in body.as_bytes().chunks(5_000) {
                    scanner.feed(chunk);
                    assert!(budget.held() <= 8_000, "{what} {member} {endpoint:?}");
                }
            }
        }
    }
}

#[test]
fn members_without_end() {
    let many = r#""prompt":[1,2],"n":3,"model":"m","#.repeat(100_000);
    let body = format!(r#"{{{many}"prompt":[5]}}"#);
    assert_eq!(
        said(Endpoint::Completions, body.as_bytes()),
        "[5] model=m n=3"
    );
}
