//! What the streams of a scorer root share to read bodies, and the streams that wait for an answer
//! of `/tokenize`.
//!
//! Envoy answers a call in the name of the root context, whoever made it, and also when its stream
//! is gone: the root looks the stream up here, publishes, and lets it go on. Nothing here touches a
//! request's body, which only its own body callbacks may.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::host::{self, SharedData, UPSTREAM_ADDRESS};
use super::metrics::{self, Metric};
use super::scorer_prefetch::{MAX_ANSWER_BYTES, Prefetching};
use super::scorer_shared::{Read, now_ms};
use crate::body::HeldBudget;
use crate::prompt::{Endpoint, Limits, Prompt, Request, Scanner, TokenPrompts};
use crate::scorer::config::{EvidenceConfig, TokenizeConfig};
use crate::scorer::evidence::{Evidence, Published};
use crate::scorer::poller::Answer;
use crate::scorer::tokenize::{Form, Key, Needs, Tokenized, Tokenizer};
use crate::sorted::{SortedMap, SortedSet};

/// Bytes of prompts that all requests of a VM may keep at once.
const MAX_PROMPT_BYTES_PER_VM: usize = 128 * 1024 * 1024;
/// Most streams of one root that wait at once; each has its body in Envoy's memory.
const MAX_WAITING: usize = 1_024;
/// Timer ticks beyond the call's timeout after which an answer will not come.
const SPARE_TICKS: u32 = 4;

/// There only with `evidence`.
pub struct Bodies {
    pub config: Rc<EvidenceConfig>,
    limits: Limits,
    evidence: Rc<RefCell<Evidence>>,
    tokenizing: Option<RefCell<Tokenizing>>,
    prefetching: Option<RefCell<Prefetching>>,
}

struct Tokenizing {
    config: TokenizeConfig,
    tokenizer: Tokenizer,
    /// By the token of the call. Boxed: any of them may be answered next.
    waiting: SortedMap<u32, Box<Waiting>>,
    /// Calls whose streams no longer wait.
    given_up: SortedSet<u32>,
    /// Streams that wait for nothing, and that the host did not let go on yet: by the token.
    stuck: SortedMap<u32, u32>,
}

struct Waiting {
    /// The stream's context id.
    stream: u32,
    request_id: String,
    request: Request,
    chosen: Option<String>,
    key: Key,
    ticks: u32,
}

impl Bodies {
    /// `prompts`: bytes of prompts that the VM keeps; `seed` is a random number.
    pub fn new(
        config: &Rc<EvidenceConfig>,
        evidence: &Rc<RefCell<Evidence>>,
        prompts: Rc<Cell<usize>>,
        seed: u64,
    ) -> Self {
        let limits = Limits {
            max_prompt_tokens: config.max_prompt_tokens,
            budget: Rc::new(HeldBudget::sharing(prompts, MAX_PROMPT_BYTES_PER_VM)),
        };
        let tokenizing = config.tokenize.as_ref().map(|config| {
            RefCell::new(Tokenizing {
                tokenizer: Tokenizer::new(config, limits.clone()),
                config: config.clone(),
                waiting: SortedMap::new(),
                given_up: SortedSet::new(),
                stuck: SortedMap::new(),
            })
        });
        let prefetch = config.prefetch.as_ref();
        Bodies {
            prefetching: prefetch.map(|config| RefCell::new(Prefetching::new(config, seed))),
            config: Rc::clone(config),
            limits,
            evidence: Rc::clone(evidence),
            tokenizing,
        }
    }

    pub fn scanner(&self, endpoint: Endpoint) -> Scanner {
        Scanner::new(endpoint, self.limits.clone())
    }

    /// Bytes up to which a stream may wait for the whole body; None: it never does.
    pub fn max_whole(&self) -> Option<usize> {
        let config = self.config.tokenize.as_ref();
        config.map(|config| config.max_body_bytes)
    }

    /// What the endpoints hold of the request's prompts goes into shared data; whoever brings files
    /// back is told of what `chosen` lacks, the endpoint that the request goes to.
    fn publish(&self, request_id: &str, request: &Request, chosen: Option<&str>) {
        let Some(now_ms) = now_ms() else { return };
        let Ok(mut evidence) = self.evidence.try_borrow_mut() else {
            return;
        };
        let Published {
            result,
            endpoints,
            partial,
            likeliest,
        } = evidence.publish(&SharedData, request_id, request, now_ms);
        metrics::count(Metric::ScorerEvidence(result.as_str()));
        for (result, n) in endpoints {
            metrics::add(
                Metric::ScorerEndpointEvidence(result.as_str()),
                i64::from(n),
            );
        }
        for (reason, n) in partial {
            metrics::add(Metric::ScorerPartial(reason), i64::from(n));
        }
        if let Some(prefetching) = &self.prefetching
            && let Ok(mut prefetching) = prefetching.try_borrow_mut()
        {
            prefetching.tell(&mut evidence, request, chosen, likeliest.as_deref(), now_ms);
        }
    }

    /// Where the running stream's request goes; None: not needed, or nobody has chosen yet.
    fn chosen(&self) -> Option<String> {
        self.prefetching.as_ref()?;
        let address = host::property(UPSTREAM_ADDRESS).ok().flatten()?;
        String::from_utf8(address).ok()
    }

    /// A complete request; `whole` gives its body if all of it is still there. Publishes, unless it
    /// is a text for whose tokens the stream now has to wait: then the token of the call.
    pub fn complete(
        &self,
        stream: u32,
        request_id: &mut String,
        mut request: Request,
        whole: impl FnOnce() -> Result<Vec<u8>, Tokenized>,
    ) -> Option<u32> {
        let chosen = self.chosen();
        let form = match request.prompt {
            Prompt::Text(text) => Form::of(text),
            Prompt::Tokens(_) | Prompt::Unknown(_) => None,
        };
        if let (Some(form), Some(tokenizing), Some(now_ms)) = (form, &self.tokenizing, now_ms())
            && let Ok(mut tokenizing) = tokenizing.try_borrow_mut()
        {
            let asked = request.model.as_deref();
            let model = asked.and_then(|name| self.config.aliases.get(name));
            let model = model.map(String::as_str);
            let needs = match whole() {
                Ok(body) => tokenizing.tokenizer.needs(&body, form, model, now_ms),
                Err(why) => Needs::NoCall(why),
            };
            match needs {
                Needs::Nothing(tokens) => {
                    metrics::count(Metric::ScorerTokenize(Tokenized::Cached));
                    request.prompt = Prompt::Tokens(tokens);
                }
                Needs::NoCall(why) => metrics::count(Metric::ScorerTokenize(why)),
                Needs::Call { body, key } => match tokenizing.call(&body) {
                    Ok(token) => {
                        let waiting = Waiting {
                            stream,
                            request_id: std::mem::take(request_id),
                            request,
                            chosen,
                            key,
                            ticks: 0,
                        };
                        tokenizing.waiting.insert(token, Box::new(waiting));
                        return Some(token);
                    }
                    Err(why) => metrics::count(Metric::ScorerTokenize(why)),
                },
            }
        }
        self.publish(request_id, &request, chosen.as_deref());
        None
    }

    pub fn is_waiting(&self, token: u32) -> bool {
        self.with(|tokenizing| tokenizing.waiting.contains_key(&token))
            .unwrap_or(false)
    }

    /// The stream of this call waits no longer.
    pub fn give_up(&self, token: u32, why: Tokenized) {
        let waiting = self.with(|tokenizing| {
            tokenizing.stuck.remove(&token);
            tokenizing.give_up(token)
        });
        if let Some(waiting) = waiting.flatten() {
            metrics::count(Metric::ScorerTokenize(why));
            if why != Tokenized::Gone {
                let chosen = waiting.chosen.as_deref();
                self.publish(&waiting.request_id, &waiting.request, chosen);
            }
        }
    }

    /// The call with this token ended, if it was a message of [`Prefetching`]: true.
    pub fn prefetch_answered(&self, token: u32, headers: usize, body_size: usize) -> bool {
        let Some(prefetching) = &self.prefetching else {
            return false;
        };
        let Ok(mut prefetching) = prefetching.try_borrow_mut() else {
            return false;
        };
        let is_mine = prefetching.is_mine(token);
        if is_mine {
            let answer = Read::of_running(headers, body_size, MAX_ANSWER_BYTES);
            prefetching.answered(token, &answer);
        }
        is_mine
    }

    /// Whether a call with this token was made here; longest answer to be read of it, bytes.
    pub fn expects(&self, token: u32) -> Option<usize> {
        self.with(|tokenizing| {
            let known =
                tokenizing.waiting.contains_key(&token) || tokenizing.given_up.contains(&token);
            known.then(|| tokenizing.tokenizer.max_answer_bytes())
        })
        .flatten()
    }

    /// The call with this token ended. Afterwards the host speaks of the stream, not of the root.
    pub fn answered(&self, token: u32, answer: &Read) {
        let now_ms = now_ms();
        let answered = self.with(|tokenizing| {
            tokenizing.given_up.remove(&token);
            let waiting = tokenizing.waiting.remove(&token)?;
            let answer = match now_ms {
                Some(_) => answer.answer(),
                None => Answer::Unreadable,
            };
            let now_ms = now_ms.unwrap_or_default();
            let tokens = tokenizing.tokenizer.answered(waiting.key, answer, now_ms);
            Some((waiting, tokens))
        });
        if let Some((waiting, tokens)) = answered.flatten() {
            self.go_on(token, *waiting, tokens);
        }
    }

    fn go_on(&self, token: u32, mut waiting: Waiting, tokens: Result<TokenPrompts, Tokenized>) {
        let result = match tokens {
            Ok(tokens) => {
                waiting.request.prompt = Prompt::Tokens(tokens);
                Tokenized::Ok
            }
            Err(why) => why,
        };
        metrics::count(Metric::ScorerTokenize(result));
        let chosen = waiting.chosen.as_deref();
        self.publish(&waiting.request_id, &waiting.request, chosen);
        self.let_go(token, waiting.stream);
    }

    fn let_go(&self, token: u32, stream: u32) {
        if host::continue_request(stream).is_err() {
            metrics::count(Metric::HostFailure("continue_request"));
            // Tried again with the next tick, as long as there is the stream.
            self.with(|tokenizing| tokenizing.stuck.insert(token, stream));
        }
    }

    /// The timer, every `tick_ms`. The host answers every call; should it ever not, the stream must
    /// not wait for ever.
    pub fn tick(&self, tick_ms: u64) {
        if let Some(prefetching) = &self.prefetching
            && let Ok(mut prefetching) = prefetching.try_borrow_mut()
        {
            prefetching.tick(tick_ms);
        }
        let stuck = self.with(|tokenizing| std::mem::take(&mut tokenizing.stuck));
        for (token, stream) in stuck.unwrap_or_default() {
            self.let_go(token, stream);
        }
        let lost = self.with(|tokenizing| {
            let ticks = tokenizing.config.timeout_ms.div_ceil(tick_ms.max(1));
            let limit = u32::try_from(ticks)
                .unwrap_or(u32::MAX)
                .saturating_add(SPARE_TICKS);
            for waiting in tokenizing.waiting.values_mut() {
                waiting.ticks = waiting.ticks.saturating_add(1);
            }
            tokenizing.take(|waiting| waiting.ticks > limit)
        });
        for (token, waiting) in lost.unwrap_or_default() {
            self.go_on(token, *waiting, Err(Tokenized::Lost));
        }
    }

    /// The root goes away: nobody will hear the answers.
    pub fn release(&self) {
        let all = self.with(|tokenizing| tokenizing.take(|_| true));
        for (token, waiting) in all.unwrap_or_default() {
            self.go_on(token, *waiting, Err(Tokenized::Lost));
        }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Tokenizing) -> R) -> Option<R> {
        let mut tokenizing = self.tokenizing.as_ref()?.try_borrow_mut().ok()?;
        Some(f(&mut tokenizing))
    }
}

impl Tokenizing {
    fn call(&self, body: &[u8]) -> Result<u32, Tokenized> {
        if self.waiting.len() >= MAX_WAITING {
            return Err(Tokenized::Busy);
        }
        let headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", self.config.authority.as_str()),
            (":path", self.config.path.as_str()),
            ("content-type", "application/json"),
        ];
        let timeout_ms = u32::try_from(self.config.timeout_ms).unwrap_or(u32::MAX);
        host::http_call(&self.config.cluster, &headers, body, timeout_ms)
            .map_err(|_| Tokenized::NotSent)
    }

    fn give_up(&mut self, token: u32) -> Option<Box<Waiting>> {
        let waiting = self.waiting.remove(&token)?;
        if self.given_up.len() >= MAX_WAITING {
            // Those never answered; an answer after all counts as late.
            self.given_up.clear();
        }
        self.given_up.insert(token);
        Some(waiting)
    }

    fn take(&mut self, which: impl Fn(&Waiting) -> bool) -> Vec<(u32, Box<Waiting>)> {
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (taken, rest): (Vec<_>, Vec<_>) = all.partition(|(_, waiting)| which(waiting));
        self.waiting = rest.into();
        taken
    }
}
