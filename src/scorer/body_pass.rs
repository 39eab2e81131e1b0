//! One request body on its way past the scorer: which bytes are new, and whether the stream waits
//! so that the whole body can be asked about.

use crate::prompt::{Progress, Request, Scanner};

/// Follows one body through its callbacks.
///
/// The host shows a callback everything since the last one that let the stream go on: sizes grow
/// while the stream waits, and begin again when it goes on.
#[derive(Debug)]
pub struct BodyPass {
    /// None once the body is over.
    scanner: Option<Scanner>,
    /// Bytes of what the host shows that the scanner has seen.
    seen: usize,
    /// Bytes up to which the stream may wait for the whole body; None: it never does.
    max_whole: Option<usize>,
    whole: Whole,
    /// No callback has come yet.
    untouched: bool,
}

/// Whether the body is there from its first byte on when its end has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Whole {
    Yes,
    /// It is longer than may be waited for, or a part of it has gone on.
    TooLong,
    /// Its length is not declared. Envoy adds each chunk to what it buffers, and answers 413 to too
    /// much, before the module is asked: waiting would be a bet on what comes next.
    NoLength,
}

/// What a callback brings.
#[derive(Debug)]
pub enum Step {
    /// More is to come. Whether the stream waits for it.
    More { wait: bool },
    /// The closing brace has come.
    Complete { request: Request, whole: Whole },
    /// There is nothing to learn from it.
    Over(Unread),
}

/// Why nothing is known of a request's prompt; label `result` of
/// `selective_kv_scorer_evidence_total`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unread {
    /// The path is configured, and is none whose bodies are known.
    Path,
    /// Without `x-request-id` nobody would find its evidence: the body is not read.
    NoRequestId,
    NotJson,
    /// The body ended inside its JSON, or there was none.
    Cut,
    /// The host did not give the body.
    Host,
}

impl Unread {
    pub const ALL: [Self; 5] = [
        Self::Path,
        Self::NoRequestId,
        Self::NotJson,
        Self::Cut,
        Self::Host,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Path => "unknown_path",
            Self::NoRequestId => "no_request_id",
            Self::NotJson => "not_json",
            Self::Cut => "cut_body",
            Self::Host => "unreadable",
        }
    }
}

impl BodyPass {
    /// `max_whole`: bytes up to which the stream may wait for the whole body of a text request;
    /// None: it never waits. `declared`: the request's content-length, which the host holds it to.
    pub fn new(scanner: Scanner, max_whole: Option<usize>, declared: Option<u64>) -> Self {
        let whole = match (max_whole, declared) {
            (_, None) => Whole::NoLength,
            (Some(max), Some(declared)) if usize::try_from(declared).is_ok_and(|n| n <= max) => {
                Whole::Yes
            }
            (_, Some(_)) => Whole::TooLong,
        };
        BodyPass {
            scanner: Some(scanner),
            seen: 0,
            max_whole,
            whole,
            untouched: true,
        }
    }

    /// From which byte on what the host shows is new; None if it shows less than before.
    pub fn unseen(&self, size: usize) -> Option<usize> {
        (self.seen <= size).then_some(self.seen)
    }

    /// One callback: the host shows `size` bytes, of which `new` are those from
    /// [`Self::unseen`] on. `end`: of the stream.
    pub fn feed(&mut self, size: usize, new: &[u8], end: bool) -> Step {
        let untouched = std::mem::take(&mut self.untouched);
        let fits = self.max_whole.is_some_and(|max| size <= max);
        match self.whole {
            Whole::Yes if !fits => self.whole = Whole::TooLong,
            // All in one piece: nothing can follow.
            Whole::NoLength if untouched && end && fits => self.whole = Whole::Yes,
            _ => {}
        }
        let Some(scanner) = &mut self.scanner else {
            return Step::More { wait: false };
        };
        let over = match scanner.feed(new) {
            Progress::More if !end => {
                let wait = self.whole == Whole::Yes && scanner.may_be_text();
                if !wait && self.whole == Whole::Yes {
                    self.whole = Whole::TooLong;
                }
                self.seen = if wait { size } else { 0 };
                return Step::More { wait };
            }
            Progress::More | Progress::Complete => Unread::Cut,
            Progress::NotJson => Unread::NotJson,
        };
        match self.scanner.take().and_then(Scanner::finish) {
            Some(request) => Step::Complete {
                request,
                whole: self.whole,
            },
            None => Step::Over(over),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::HeldBudget;
    use crate::prompt::{Endpoint, Limits, Prompt};
    use std::rc::Rc;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const MAX: usize = 100;

    fn pass(endpoint: Endpoint, declared: Option<u64>) -> BodyPass {
        let limits = Limits {
            max_prompt_tokens: 1_000,
            budget: Rc::new(HeldBudget::new(1 << 20)),
        };
        BodyPass::new(Scanner::new(endpoint, limits), Some(MAX), declared)
    }

    /// What each callback brings, of chunks as a host would show them.
    fn run(mut pass: BodyPass, chunks: &[&str]) -> Vec<String> {
        let (mut said, mut shown) = (Vec::new(), String::new());
        for (i, chunk) in chunks.iter().enumerate() {
            shown.push_str(chunk);
            let new = shown.get(pass.unseen(shown.len()).unwrap()..).unwrap();
            assert_eq!(new, *chunk);
            let end = i + 1 == chunks.len();
            let step = pass.feed(shown.len(), new.as_bytes(), end);
            said.push(match step {
                Step::More { wait } => format!("wait {wait}"),
                Step::Over(unread) => unread.as_str().to_owned(),
                Step::Complete { request, whole } => {
                    let whole = whole == Whole::Yes;
                    let prompt = match request.prompt {
                        Prompt::Tokens(_) => "tokens",
                        Prompt::Text(text) => text.as_str(),
                        Prompt::Unknown(unknown) => unknown.as_str(),
                    };
                    format!("{prompt} {whole}")
                }
            });
            match said.last().unwrap().as_str() {
                "wait true" => {}
                "wait false" => shown.clear(),
                _ => break,
            }
        }
        said
    }

    #[test]
    fn a_stream_waits_only_while_its_prompt_may_be_text() {
        use Endpoint::{Batch, Chat, Completions, Generate, Invocations, Messages, Responses};
        let (long, fits) = ("x".repeat(MAX), "x".repeat(MAX - 12));
        let table: &[(Endpoint, &[&str], &[&str])] = &[
            (
                Completions,
                &["{", "\"prompt\":\"a", "\"}", ""],
                &["wait true", "wait true", "text true"],
            ),
            (Completions, &["{\"prompt\":\"a\"}"], &["text true"]),
            (
                Completions,
                &["{\"model\":\"m", "\",\"prompt\":\"a\"}"],
                &["wait true", "text true"],
            ),
            (
                Completions,
                &["{\"prompt\":nu", "ll,\"prompt\":\"a\"}"],
                &["wait true", "text true"],
            ),
            (
                Completions,
                &["{\"prompt\":[", "1,2]}"],
                &["wait false", "tokens false"],
            ),
            (
                Completions,
                &["{\"prompt\":[1,2]", "}"],
                &["wait false", "tokens false"],
            ),
            (
                Completions,
                &["{\"prompt\":[1]", ",\"prompt\":\"a\"}"],
                &["wait false", "text false"],
            ),
            (
                Completions,
                &["{\"prompt\":\"a\"", ",\"prompt\":[1]}"],
                &["wait true", "tokens true"],
            ),
            (
                Completions,
                &["{\"prompt\":\"", &long, "\"}"],
                &["wait true", "wait false", "text false"],
            ),
            (
                Completions,
                &["{\"prompt\":\"", &fits, "\"}"],
                &["wait true", "wait true", "text false"],
            ),
            (
                Chat,
                &["{\"messages\":[", "]}"],
                &["wait true", "messages true"],
            ),
            (
                Chat,
                &["{\"messages\":[{\"type\":\"image_url\"}]", "}"],
                &["wait false", "multimodal false"],
            ),
            (
                Chat,
                &[
                    "{\"kv_transfer_params\":{\"prompt_token_ids\":[1]}",
                    ",\"messages\":[]}",
                ],
                &["wait false", "tokens false"],
            ),
            (
                Chat,
                &[
                    "{\"kv_transfer_params\":{\"max_load_tokens\":1}",
                    ",\"messages\":[]}",
                ],
                &["wait true", "messages true"],
            ),
            (
                Invocations,
                &["{\"messages\":[]", "}"],
                &["wait true", "messages true"],
            ),
            (
                Invocations,
                &["{\"prompt\":[1]", "}"],
                &["wait false", "tokens false"],
            ),
            (
                Batch,
                &["{\"messages\":[]", "}"],
                &["wait false", "batch false"],
            ),
            (
                Responses,
                &["{\"input\":\"a\"", "}"],
                &["wait false", "input false"],
            ),
            (
                Messages,
                &["{\"messages\":[]", "}"],
                &["wait false", "anthropic false"],
            ),
            (
                Generate,
                &["{\"token_ids\":[1]", "}"],
                &["wait false", "tokens false"],
            ),
            (Completions, &["[1]", ""], &["not_json"]),
            (
                Completions,
                &["{\"prompt\":\"a", ""],
                &["wait true", "cut_body"],
            ),
            (Completions, &[""], &["cut_body"]),
        ];
        for (endpoint, chunks, expected) in table {
            let declared = chunks
                .iter()
                .map(|c| c.len() as u64)
                .sum::<u64>()
                .min(MAX as u64);
            let said = run(pass(*endpoint, Some(declared)), chunks);
            assert_eq!(said, *expected, "{endpoint:?} {chunks:?}");
        }
    }

    #[test]
    fn a_body_without_length_or_too_long_is_never_waited_for() {
        let whole = |declared, chunks: &[&str]| {
            let mut pass = pass(Endpoint::Chat, declared);
            let (last, before) = chunks.split_last().unwrap();
            for chunk in before {
                let step = pass.feed(chunk.len(), chunk.as_bytes(), false);
                assert!(matches!(step, Step::More { wait: false }), "{step:?}");
            }
            match pass.feed(last.len(), last.as_bytes(), true) {
                Step::Complete { whole, .. } => whole,
                other => panic!("{other:?}"),
            }
        };
        let pieces: &[&str] = &["{", "\"messages\":[]}"];
        let long = format!("{{\"messages\":[]}}{}", " ".repeat(MAX));
        for (declared, chunks, expected) in [
            (Some(MAX as u64 + 1), pieces, Whole::TooLong),
            (Some(u64::MAX), pieces, Whole::TooLong),
            (None, pieces, Whole::NoLength),
            // In one piece, with its end.
            (None, &["{\"messages\":[]}"], Whole::Yes),
            (None, &[&long], Whole::NoLength),
        ] {
            assert_eq!(whole(declared, chunks), expected, "{declared:?} {chunks:?}");
        }
        // More could follow.
        let step = pass(Endpoint::Chat, None).feed(15, b"{\"messages\":[]}", false);
        assert!(
            matches!(
                step,
                Step::Complete {
                    whole: Whole::NoLength,
                    ..
                }
            ),
            "{step:?}"
        );
    }

    #[test]
    fn less_than_before_is_noticed() {
        let mut pass = pass(Endpoint::Chat, Some(50));
        assert!(matches!(
            pass.feed(3, b"{ \"", false),
            Step::More { wait: true }
        ));
        assert_eq!(
            [pass.unseen(2), pass.unseen(3), pass.unseen(9)],
            [None, Some(3), Some(3)]
        );
    }
}
