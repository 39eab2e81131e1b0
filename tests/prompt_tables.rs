//! What a body says about its prompts: every form, member and corner, cut everywhere.
#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing
)]

mod prompt;

use prompt::{ENDPOINTS, is_no_json, said, say, scan};
use selective_kv::prompt::Endpoint::{
    self, Batch, Chat, Completions, Generate, Invocations, Messages, Responses,
};
use selective_kv::prompt::{MAX_PROMPTS, MAX_TEXT_BYTES};
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// Endpoint, body, what it says: whole, cut at every place, and byte by byte.
fn check(table: &[(Endpoint, &str, &str)]) {
    for &(endpoint, body, expected) in table {
        let body = body.as_bytes();
        let text = String::from_utf8_lossy(body);
        for cut in 0..=body.len() {
            let found = say(scan(endpoint, body, &[cut]).as_ref());
            assert_eq!(found, expected, "{endpoint:?} {text} cut at {cut}");
        }
        let all: Vec<usize> = (0..body.len()).collect();
        let found = say(scan(endpoint, body, &all).as_ref());
        assert_eq!(found, expected, "{endpoint:?} {text} byte by byte");
    }
}

/// The same for values of `prompt`.
fn check_prompts(table: &[(&str, &str)]) {
    for (value, expected) in table {
        check(&[(Completions, &format!(r#"{{"prompt":{value}}}"#), expected)]);
    }
}

#[test]
fn forms_of_a_prompt() {
    check_prompts(&[
        ("[1,2,3]", "[1, 2, 3]"),
        (" [ 1 ,\t2\n, 3\r] ", "[1, 2, 3]"),
        ("[0]", "[0]"),
        ("[[1,2],[3]]", "[1, 2] [3]"),
        ("[ [ 1 ] , [ 2 , 3 ] ]", "[1] [2, 3]"),
        ("[true,false]", "[1, 0]"),
        ("[[true],[7,false]]", "[1] [7, 0]"),
        ("[4294967295]", "[4294967295]"),
        ("[-0]", "[0]"),
        (r#""text""#, "text"),
        (r#""[1,2]""#, "text"),
        (r#""say \"[1]\"""#, "text"),
        (r#"["a","b"]"#, "texts"),
        (r#"[ "]" , "\\" ]"#, "texts"),
        ("null", "!no_prompt"),
    ]);
}

#[test]
fn what_no_engine_takes_as_ids() {
    check_prompts(&[
        ("[]", "!malformed_prompt"),
        ("[ ]", "!malformed_prompt"),
        ("[[]]", "!malformed_prompt"),
        ("[[1],[]]", "!malformed_prompt"),
        ("[[],[1]]", "!malformed_prompt"),
        ("5", "!malformed_prompt"),
        ("true", "!malformed_prompt"),
        ("nulls", "!malformed_prompt"),
        ("{}", "!malformed_prompt"),
        (r#"{"a":[1]}"#, "!malformed_prompt"),
        ("[1.5]", "!malformed_prompt"),
        ("[1.0]", "!malformed_prompt"),
        ("[1,2e3]", "!malformed_prompt"),
        ("[1E0]", "!malformed_prompt"),
        ("[-1]", "!malformed_prompt"),
        ("[1,-2,3]", "!malformed_prompt"),
        ("[4294967296]", "!malformed_prompt"),
        ("[18446744073709551617]", "!malformed_prompt"),
        ("[null]", "!malformed_prompt"),
        ("[NaN]", "!malformed_prompt"),
        ("[-Infinity]", "!malformed_prompt"),
        ("[Infinity,1]", "!malformed_prompt"),
        (r#"[1,"a"]"#, "!malformed_prompt"),
        (r#"["a",1]"#, "!malformed_prompt"),
        (r#"["a",["]"]]"#, "!malformed_prompt"),
        ("[[1],2]", "!malformed_prompt"),
        ("[1,[2]]", "!malformed_prompt"),
        ("[[[1]]]", "!malformed_prompt"),
        (r#"[["a"]]"#, "!malformed_prompt"),
        (r#"[{"a":"]"},1]"#, "!malformed_prompt"),
        ("[[1,{}],[2]]", "!malformed_prompt"),
        ("[[1],[2],null]", "!malformed_prompt"),
    ]);
}

#[test]
fn a_list_that_is_no_json() {
    for value in [
        "[1 2]",
        "[1,]",
        "[,1]",
        "[1,,2]",
        "[01]",
        "[00]",
        "[-01]",
        "[-]",
        "[+1]",
        "[1a]",
        "[1-]",
        "[tru]",
        "[truee]",
        "[falsetrue]",
        "[true false]",
        "[1:2]",
        "[1}",
        "[[1}",
        "[[1]2]",
        "[[1,]]",
        "[\"a\" \"b\"]",
        "[1\"a\"]",
        "[1[2]]",
        "[1.5}",
        "[:1]",
    ] {
        let body = format!(r#"{{"prompt":{value}}}"#);
        // A plus sign and the like are found by the engine: all that counts is that no ids come out.
        let found = said(Completions, body.as_bytes());
        assert!(
            found == "not complete" || found == "!malformed_prompt",
            "{body}: {found}"
        );
    }
}

#[test]
fn endpoints_have_their_own_members() {
    let text = "x";
    for (endpoint, body, expected) in [
        (Completions, r#"{"prompt":[1]}"#, "[1]"),
        (Completions, r#"{"token_ids":[1]}"#, "!no_prompt"),
        (Completions, r#"{"messages":[]}"#, "!no_prompt"),
        (
            Completions,
            r#"{"prompt":"x","kv_transfer_params":{"prompt_token_ids":[1]}}"#,
            "text",
        ),
        (Generate, r#"{"token_ids":[1,2]}"#, "[1, 2]"),
        (Generate, r#"{"token_ids":[[1],[2]]}"#, "!malformed_prompt"),
        (Generate, r#"{"token_ids":["a"]}"#, "!malformed_prompt"),
        (Generate, r#"{"token_ids":"a"}"#, "!malformed_prompt"),
        (Generate, r#"{"token_ids":null,"prompt":[1]}"#, "!no_prompt"),
        (
            Chat,
            r#"{"messages":[{"role":"user","content":"x"}]}"#,
            "messages",
        ),
        (Chat, r#"{"messages":"x"}"#, "!malformed_prompt"),
        (Chat, r#"{"messages":null}"#, "!no_prompt"),
        (Chat, r#"{"prompt":[1]}"#, "!no_prompt"),
        (
            Batch,
            r#"{"messages":[[{"role":"user","content":"x"}]]}"#,
            "batch",
        ),
        (
            Batch,
            r#"{"messages":[[]],"kv_transfer_params":{"prompt_token_ids":[1]}}"#,
            "!malformed_prompt",
        ),
        (Responses, r#"{"input":"x"}"#, "input"),
        (
            Responses,
            r#"{"input":[{"role":"user","content":"x"}]}"#,
            "input",
        ),
        (Responses, r#"{"messages":[]}"#, "!no_prompt"),
        (
            Messages,
            r#"{"messages":[{"role":"user","content":"x"}]}"#,
            "anthropic",
        ),
        (
            Messages,
            r#"{"messages":[],"kv_transfer_params":{"prompt_token_ids":[1]}}"#,
            "!malformed_prompt",
        ),
        (Invocations, r#"{"prompt":[[1],[2]]}"#, "[1] [2]"),
        (Invocations, r#"{"messages":[]}"#, "messages"),
        (
            Invocations,
            r#"{"messages":[],"kv_transfer_params":{"prompt_token_ids":[1]}}"#,
            "[1]",
        ),
        (
            Invocations,
            r#"{"prompt":[1],"kv_transfer_params":{"prompt_token_ids":[2]}}"#,
            "[1]",
        ),
        (
            Invocations,
            r#"{"messages":[],"prompt":[1]}"#,
            "!ambiguous_body",
        ),
        (
            Invocations,
            r#"{"prompt":[1],"messages":[]}"#,
            "!ambiguous_body",
        ),
        (Invocations, r#"{"prompt":[1],"messages":null}"#, "[1]"),
        (Invocations, r#"{"prompt":null,"messages":[]}"#, "messages"),
    ] {
        check(&[(endpoint, body, expected)]);
    }
    for endpoint in ENDPOINTS {
        check(&[(endpoint, "{}", "!no_prompt")]);
        let body = format!(r#"{{"unknown":[{{"prompt":[1],"token_ids":[1]}}],"{text}":0}}"#);
        check(&[(endpoint, &body, "!no_prompt")]);
    }
}

#[test]
fn ids_that_stand_in_for_a_chat() {
    let with = |params: &str| {
        format!(r#"{{"kv_transfer_params":{params},"messages":[{{"content":"x"}}]}}"#)
    };
    for (params, expected) in [
        (r#"{"prompt_token_ids":[1,2]}"#, "[1, 2]"),
        (
            r#"{"a":{"prompt_token_ids":[9]},"prompt_token_ids":[1],"b":[]}"#,
            "[1]",
        ),
        (r#"{"prompt\u005ftoken_ids":[1]}"#, "[1]"),
        (
            r#"{"prompt_token_ids":[1],"prompt_token_ids":[2,3]}"#,
            "[2, 3]",
        ),
        (
            r#"{"prompt_token_ids":[1],"prompt_token_ids":null}"#,
            "messages",
        ),
        (
            r#"{"prompt_token_ids":[1]},"kv_transfer_params":{}"#,
            "messages",
        ),
        (
            r#"{"prompt_token_ids":[1]},"kv_transfer_params":null"#,
            "messages",
        ),
        (r#"{},"kv_transfer_params":{"prompt_token_ids":[1]}"#, "[1]"),
        (r#"{"prompt_token_ids":null}"#, "messages"),
        (r#"{"prompt_token_ids":[]}"#, "!malformed_prompt"),
        (r#"{"prompt_token_ids":[[1]]}"#, "!malformed_prompt"),
        (r#"{"prompt_token_ids":"1"}"#, "!malformed_prompt"),
        (r#"{}"#, "messages"),
        (r#"[{"prompt_token_ids":[1]}]"#, "messages"),
    ] {
        check(&[(Chat, &with(params), expected)]);
    }
    check(&[
        (
            Chat,
            r#"{"kv_transfer_params":{"prompt_token_ids":[3]}}"#,
            "[3]",
        ),
        (
            Chat,
            r#"{"prompt_token_ids":[3],"messages":[]}"#,
            "messages",
        ),
    ]);
}

#[test]
fn what_comes_last_counts() {
    check(&[
        (
            Completions,
            r#"{"prompt":[1],"model":"a","cache_salt":"s","prompt":[2],"model":"b","cache_salt":"t"}"#,
            "[2] model=b salt=t",
        ),
        (Completions, r#"{"prompt":[1,2,3],"prompt":"x"}"#, "text"),
        (
            Completions,
            r#"{"prompt":"x","prompt":[[1],[2]]}"#,
            "[1] [2]",
        ),
        (Completions, r#"{"prompt":[1.5],"prompt":[2]}"#, "[2]"),
        (
            Completions,
            r#"{"prompt":[2],"prompt":[1.5]}"#,
            "!malformed_prompt",
        ),
        (Completions, r#"{"prompt":[2],"prompt":null}"#, "!no_prompt"),
        (Completions, r#"{"prompt":[2],"prom\u0070t":[3]}"#, "[3]"),
        (
            Completions,
            r#"{"prompt":[2],"cache_salt":"s","cache_salt":null}"#,
            "[2]",
        ),
        (
            Completions,
            r#"{"prompt":[2],"cache_salt":null,"cache_salt":"s"}"#,
            "[2] salt=s",
        ),
        (Completions, r#"{"prompt":[2],"n":2,"n":null}"#, "[2]"),
        (
            Completions,
            r#"{"prompt":[2],"echo":true,"logprobs":1,"echo":false}"#,
            "[2]",
        ),
        (
            Completions,
            r#"{"prompt":[2],"prompt_embeds":"x","prompt_embeds":null}"#,
            "[2]",
        ),
        (
            Chat,
            r#"{"messages":[{"type":"image"}],"messages":[]}"#,
            "messages",
        ),
        (
            Generate,
            r#"{"token_ids":[1],"sampling_params":{"n":2,"prompt_logprobs":0},"sampling_params":{}}"#,
            "[1]",
        ),
        (
            Generate,
            r#"{"token_ids":[1],"sampling_params":{"n":2,"prompt_logprobs":0},"sampling_params":null}"#,
            "[1]",
        ),
    ]);
}

#[test]
fn every_order_of_members_says_the_same() {
    let members = [
        r#""prompt":[[5,6],[7]]"#,
        r#""model":"m""#,
        r#""cache_salt":"s""#,
        r#""n":2"#,
        r#""stream":{"prompt":[1]}"#,
    ];
    let mut orders = vec![vec![]];
    for length in 0..members.len() {
        orders = orders
            .into_iter()
            .flat_map(|order: Vec<usize>| {
                (0..=length).map(move |place| {
                    let mut order = order.clone();
                    order.insert(place, length);
                    order
                })
            })
            .collect();
    }
    assert_eq!(orders.len(), 120);
    for order in orders {
        let body: Vec<&str> = order.iter().map(|&index| members[index]).collect();
        let body = format!("{{{}}}", body.join(","));
        check(&[(Completions, &body, "[5, 6] [7] model=m salt=s n=2")]);
    }
}

#[test]
fn texts_are_decoded() {
    for (text, expected) in [
        (r#"plain"#, "plain"),
        (r#"a\"b\\c\/d"#, "a\"b\\c/d"),
        (r#"\b\f\n\r\t"#, "\u{8}\u{c}\n\r\t"),
        (r#"s\u00e4lt-\u2713"#, "sält-✓"),
        ("sält-✓", "sält-✓"),
        (r#"\ud83d\ude00"#, "\u{1f600}"),
        (r#"\uD83D\uDE00!"#, "\u{1f600}!"),
        (r#"\u0000"#, "\0"),
    ] {
        let body = format!(r#"{{"prompt":[1],"cache_salt":"{text}"}}"#);
        check(&[(Completions, &body, &format!("[1] salt={expected}"))]);
        let body = format!(r#"{{"model":"{text}","prompt":[1]}}"#);
        check(&[(Completions, &body, &format!("[1] model={expected}"))]);
    }
}

#[test]
fn texts_that_are_none() {
    for text in [
        r#""""#,
        r#""\ud83d""#,
        r#""\ud83dx""#,
        r#""\ud83d\n""#,
        r#""\ud83d\ud83d""#,
        r#""\ude00""#,
        r#""\x""#,
        r#""\u12""#,
        r#""\u12\"x""#,
        r#""\u12g4\\""#,
        "\"a\u{1}b\"",
        "5",
        "true",
        "[\"s\"]",
        "{}",
    ] {
        let body = format!(r#"{{"prompt":[1],"cache_salt":{text},"n":1}}"#);
        check(&[(Completions, &body, "!invalid_cache_salt n=1")].map(
            |(endpoint, body, expected): (_, &String, _)| (endpoint, body.as_str(), expected),
        ));
        if text != r#""""# {
            let body = format!(r#"{{"prompt":[1],"model":{text},"n":1}}"#);
            check(&[(Completions, &body, "!invalid_model n=1")]);
        }
    }
    let invalid = b"{\"prompt\":[1],\"cache_salt\":\"\xff\"}";
    assert_eq!(said(Completions, invalid), "!invalid_cache_salt");
    // Up to the limit, and one byte more; the byte past it may be an escape.
    for (last, length) in [("x", 1), (r#"\""#, 1), ("é", 2), (r#"\\"#, 1)] {
        for over in [0, 1] {
            let head = "s".repeat(MAX_TEXT_BYTES - length + over);
            let body = format!(r#"{{"cache_salt":"{head}{last}","prompt":[1]}}"#);
            let found = said(Completions, body.as_bytes());
            assert_eq!(found == "!invalid_cache_salt", over == 1, "{last} {found}");
            assert_eq!(
                found.starts_with("[1] salt=sss"),
                over == 0,
                "{last} {found}"
            );
        }
    }
}

#[test]
fn requests_that_read_no_cache() {
    let completion = |members: &str| (Completions, format!(r#"{{"prompt":[1],{members}}}"#));
    let chat = |members: &str| {
        let ids = r#""kv_transfer_params":{"prompt_token_ids":[1]}"#;
        (Chat, format!(r#"{{{ids},{members}}}"#))
    };
    let generate = |members: &str| {
        let params = format!(r#""sampling_params":{{{members}}}"#);
        (Generate, format!(r#"{{"token_ids":[1],{params}}}"#))
    };
    for ((endpoint, body), expected) in [
        (completion(r#""echo":true"#), "[1]"),
        (completion(r#""logprobs":5"#), "[1]"),
        (
            completion(r#""echo":true,"logprobs":0"#),
            "[1] reads nothing",
        ),
        (
            completion(r#""logprobs":2,"echo":true"#),
            "[1] reads nothing",
        ),
        (completion(r#""logprobs":null,"echo":true"#), "[1]"),
        (completion(r#""logprobs":2,"echo":false"#), "[1]"),
        (completion(r#""logprobs":2,"echo":null"#), "[1]"),
        (completion(r#""top_logprobs":2,"echo":true"#), "[1]"),
        (completion(r#""prompt_logprobs":0"#), "[1] reads nothing"),
        (completion(r#""prompt_logprobs":null"#), "[1]"),
        (completion(r#""echo":1"#), "!unclear_flag"),
        (completion(r#""echo":"true""#), "!unclear_flag"),
        (completion(r#""echo":[true]"#), "!unclear_flag"),
        (chat(r#""echo":true"#), "[1] reads nothing"),
        (chat(r#""echo":true,"top_logprobs":null"#), "[1]"),
        (chat(r#""echo":true,"top_logprobs":3"#), "[1] reads nothing"),
        (chat(r#""echo":false,"logprobs":true"#), "[1]"),
        (chat(r#""prompt_logprobs":1"#), "[1] reads nothing"),
        (generate(r#""prompt_logprobs":1"#), "[1] reads nothing"),
        (generate(r#""prompt_logprobs":null"#), "[1]"),
        (
            generate(r#""skip_reading_prefix_cache":true"#),
            "[1] reads nothing",
        ),
        (
            generate(r#""skip_reading_prefix_cache":false,"prompt_logprobs":1"#),
            "[1]",
        ),
        (
            generate(r#""skip_reading_prefix_cache":"no""#),
            "!unclear_flag",
        ),
        (generate(r#""extra_args":{"prompt_logprobs":1}"#), "[1]"),
        (
            (
                Generate,
                r#"{"token_ids":[1],"prompt_logprobs":1,"echo":true,"n":3}"#.into(),
            ),
            "[1]",
        ),
    ] {
        check(&[(endpoint, &body, expected)]);
    }
}

#[test]
fn counts_of_answers() {
    for (n, expected) in [
        ("1", "[1] n=1"),
        ("128", "[1] n=128"),
        ("18446744073709551615", "[1] n=18446744073709551615"),
        ("18446744073709551616", "[1]"),
        ("2.0", "[1]"),
        ("-1", "[1]"),
        ("+1", "[1]"),
        ("true", "[1]"),
        ("\"2\"", "[1]"),
        ("null", "[1]"),
        ("[2]", "[1]"),
    ] {
        check(&[
            (
                Completions,
                &format!(r#"{{"prompt":[1],"n":{n}}}"#),
                expected,
            ),
            (
                Completions,
                &format!(r#"{{"n":{n} ,"prompt":[1]}}"#),
                expected,
            ),
            (
                Generate,
                &format!(r#"{{"sampling_params":{{"n":{n}}},"token_ids":[1]}}"#),
                expected,
            ),
        ]);
    }
}

#[test]
fn what_only_the_engine_can_look_up() {
    check(&[
        (
            Completions,
            r#"{"prompt":[1],"prompt_embeds":"AAAA"}"#,
            "!prompt_embeds",
        ),
        (
            Completions,
            r#"{"prompt_embeds":["AAAA"]}"#,
            "!prompt_embeds",
        ),
        (Completions, r#"{"prompt_embeds":null}"#, "!no_prompt"),
        (
            Completions,
            r#"{"prompt":[1],"truncate_prompt_tokens":-1}"#,
            "!truncated_prompt",
        ),
        (
            Completions,
            r#"{"truncate_prompt_tokens":null,"prompt":[1]}"#,
            "[1]",
        ),
        (
            Generate,
            r#"{"token_ids":[1],"sampling_params":{"truncate_prompt_tokens":5}}"#,
            "!truncated_prompt",
        ),
        (
            Generate,
            r#"{"token_ids":[1],"features":{"mm_hashes":{}}}"#,
            "!multimodal",
        ),
        (Generate, r#"{"features":null,"token_ids":[1]}"#, "[1]"),
    ]);
}

#[test]
fn messages_with_more_than_text() {
    for (message, multimodal) in [
        (r#"{"role":"user","content":"image_url"}"#, false),
        (
            r#"{"role":"user","content":"see: {\"type\":\"image\"}"}"#,
            false,
        ),
        (r#"{"content":[{"type":"text","text":"image"}]}"#, false),
        (
            r#"{"content":[{"type":"text","text":"type"},"image"]}"#,
            false,
        ),
        (r#"{"content":["type","image_url"]}"#, false),
        (r#"{"content":["image_url"]}"#, false),
        (
            r#"{"tool_calls":[{"type":"function","function":{"name":"file"}}]}"#,
            false,
        ),
        (r#"{"input":{"file":"a","image":"b","document":[]}}"#, false),
        (r#"{"type":5,"text":"image"}"#, false),
        (r#"{"type":["image"]}"#, false),
        (r#"{"type":"images"}"#, false),
        (
            r#"{"content":[{"type":"image_url","image_url":{"url":"data:"}}]}"#,
            true,
        ),
        (r#"{"content":[{"image_url":"x"}]}"#, true),
        (r#"{"content":[{"image\u005furl" : "x"}]}"#, true),
        (r#"{"content":[{"type" : "image","source":{}}]}"#, true),
        (r#"{"content":[{"type":"im\u0061ge"}]}"#, true),
        (
            r#"{"content":[{"type":"input_audio","input_audio":{}}]}"#,
            true,
        ),
        (r#"{"content":[{"audio_url":{}}]}"#, true),
        (r#"{"content":[{"video_url":{}}]}"#, true),
        (r#"{"content":[{"image_embeds":null}]}"#, true),
        (r#"{"content":[{"type":"input_image"}]}"#, true),
        (r#"{"content":[{"type":"file","file":{}}]}"#, true),
        (r#"{"content":[{"type":"document"}]}"#, true),
        (
            r#"{"content":[{"text":"\\"},{"type":"audio"},{"]":"[}"}]}"#,
            true,
        ),
    ] {
        for (endpoint, member, text) in [
            (Chat, "messages", "messages"),
            (Responses, "input", "input"),
            (Messages, "messages", "anthropic"),
            (Batch, "messages", "batch"),
        ] {
            let list = match endpoint {
                Batch => format!("[[{message}]]"),
                _ => format!("[{message}]"),
            };
            let body = format!(r#"{{"{member}":{list},"model":"m"}}"#);
            let expected = if multimodal { "!multimodal" } else { text };
            check(&[(endpoint, &body, &format!("{expected} model=m"))]);
        }
        // An image counts whatever stands in for the text beside it.
        let ids = r#""kv_transfer_params":{"prompt_token_ids":[1]}"#;
        let body = format!(r#"{{{ids},"messages":[{message}]}}"#);
        check(&[(Chat, &body, if multimodal { "!multimodal" } else { "[1]" })]);
    }
}

#[test]
fn the_first_reason_counts() {
    check(&[
        (
            Completions,
            r#"{"prompt":5,"echo":2,"model":5,"cache_salt":5,"truncate_prompt_tokens":1,"prompt_embeds":""}"#,
            "!prompt_embeds",
        ),
        (
            Completions,
            r#"{"prompt":5,"echo":2,"model":5,"cache_salt":5,"truncate_prompt_tokens":1}"#,
            "!truncated_prompt",
        ),
        (
            Completions,
            r#"{"prompt":5,"echo":2,"model":5,"cache_salt":5}"#,
            "!invalid_cache_salt",
        ),
        (
            Completions,
            r#"{"prompt":5,"echo":2,"model":5}"#,
            "!invalid_model",
        ),
        (Completions, r#"{"prompt":5,"echo":2}"#, "!unclear_flag"),
        (
            Invocations,
            r#"{"prompt":5,"echo":2,"messages":5}"#,
            "!ambiguous_body",
        ),
        (Completions, r#"{"prompt":5}"#, "!malformed_prompt"),
    ]);
}

#[test]
fn more_prompts_than_evidence_has_room_for() {
    for (prompts, expected) in [(MAX_PROMPTS, MAX_PROMPTS), (MAX_PROMPTS + 1, 0)] {
        let body = format!(r#"{{"prompt":[{}[1]]}}"#, "[1],".repeat(prompts - 1));
        let found = said(Completions, body.as_bytes());
        assert_eq!(found.matches("[1]").count(), expected);
        assert_eq!(found == "!prompt_too_large", expected == 0);
    }
}

#[test]
fn bodies_that_are_no_object_say_nothing() {
    for body in [
        "[]",
        "1",
        "x",
        "{",
        "{]",
        r#"{"prompt"}"#,
        r#"{"prompt":}"#,
        r#"{"prompt":[1]"#,
        r#"{"prompt":[1],}"#,
        r#"{"prompt":[1]]"#,
        r#"{"prompt":[1] "n":1}"#,
        r#"{'prompt':[1]}"#,
        r#"{"messages":[}"#,
        r#"{"model":"x"#,
    ] {
        for endpoint in ENDPOINTS {
            assert_eq!(said(endpoint, body.as_bytes()), "not complete", "{body}");
        }
    }
    assert!(is_no_json(Completions, b"[]"));
    assert!(is_no_json(Chat, br#"{"messages":[{"type":"image"}}"#));
    assert!(is_no_json(Chat, br#"{"messages":[}"#));
    assert!(is_no_json(Completions, br#"{"prompt":[1 2]}"#));
}

#[test]
fn nothing_is_told_before_the_closing_brace() {
    let body = br#"{"prompt":[1,2],"model":"m" }"#;
    for cut in 0..body.len() {
        assert!(scan(Completions, &body[..cut], &[]).is_none(), "{cut}");
    }
    check(&[
        (Completions, "\u{feff} {\"prompt\":[1]} ", "[1]"),
        (Completions, "{\"prompt\":[1]}]trailing{", "[1]"),
        (Completions, "{\"a\":NaN,\"prompt\":[1]}", "[1]"),
    ]);
}
