//! One request of the policy role: its headers decide whether it is looked at, its body is
//! scanned and edited chunk by chunk and never paused, its outcome is counted once a direction.

use std::rc::Rc;

use super::context::{Action as FilterAction, Stream};
use super::deciding::Deciding;
use super::host::{self, Buffer, Map};
use super::loading::Loading;
use super::metrics::{self, Metric};
use super::policy_shared::Shared;
use super::request_headers::{RequestHeaders, text};
use crate::body::{Editor, HeldBudget, Outcome};
use crate::policy::config::LoadPolicy;
use crate::policy::reason::{Direction, Reason};
use crate::policy::request;

/// Response code details of the answer to a request whose bytes could not be given back.
const UNRETURNED: &str = "selective_kv_unreturned_bytes";

pub struct PolicyHttp {
    shared: Rc<Shared>,
    state: State,
    /// The load that the request has in flight, once the body is done with.
    loading: Option<Loading>,
}

enum State {
    /// Not looked at, or finished: chunks are not even read.
    Passing,
    Scanning(Box<Scanning>),
    /// Answered in the engine's place: nothing may go on.
    Answered,
}

struct Scanning {
    editor: Editor,
    deciding: Deciding,
    /// Decide and count, but leave every byte alone.
    dry_run: bool,
    /// What this request has added to the counter of held bytes.
    held_total: u64,
}

impl PolicyHttp {
    pub fn new(shared: Rc<Shared>) -> Self {
        Self {
            shared,
            state: State::Passing,
            loading: None,
        }
    }

    /// `None`: the body is not looked at.
    fn look(&self, end_of_stream: bool) -> Option<Scanning> {
        let (policy, valid) = match self.shared.effective() {
            Ok(policy) => (policy, true),
            Err(error) => (Rc::clone(error.below()), false),
        };
        let mut headers = RequestHeaders::new(|| metrics::count(Metric::HostFailure("get_header")));
        let evidence_header = take_evidence_header(&headers, policy.evidence_header.as_deref());
        // A route that reads another header, or none, does not open the way for this one.
        let base = self.shared.policies.base();
        if base.evidence_header != policy.evidence_header {
            take_evidence_header(&headers, base.evidence_header.as_deref());
        }
        let looked_at = match valid {
            true => request::look_at(&policy, &mut headers),
            // An invalid route may have meant to be active.
            false => request::fit(&policy.paths, &mut headers),
        };
        let seen = match looked_at {
            Ok(seen) => seen,
            Err(reason) => {
                metrics::count(Metric::Skipped(reason));
                return None;
            }
        };
        let mut deciding = Deciding::new(&self.shared, &policy);
        deciding.destination = seen.destination.map(<[u8]>::to_vec);
        // What evidence in shared data is found by: nothing else asks for it.
        if matches!(policy.load, LoadPolicy::Threshold { .. }) {
            deciding.request_id = text(seen.request_id);
        }
        if !valid {
            deciding.report_request_wide(Reason::InvalidRouteConfig);
            return None;
        }
        if seen.disaggregated {
            deciding.report_request_wide(Reason::Disaggregated);
            return None;
        }
        if end_of_stream {
            deciding.report_request_wide(Reason::NotJson);
            return None;
        }
        // A grown body behind the old length would be cut, a shrunk one would hang the engine.
        if !policy.dry_run && host::remove_header(Map::RequestHeaders, "content-length").is_err() {
            metrics::count(Metric::HostFailure("remove_content_length"));
            deciding.report_request_wide(Reason::HostFailure);
            return None;
        }
        deciding.evidence_header = evidence_header;
        let budget = HeldBudget::sharing(
            Rc::clone(&self.shared.vm.held),
            policy.max_held_bytes_per_vm,
        );
        let places = request::places(seen.path);
        Some(Scanning {
            editor: Editor::new(places, policy.max_held_bytes, Rc::new(budget)),
            deciding,
            dry_run: policy.dry_run,
            held_total: 0,
        })
    }
}

impl Stream for PolicyHttp {
    fn request_headers(&mut self, end_of_stream: bool) -> FilterAction {
        if let Some(scanning) = self.look(end_of_stream) {
            self.state = State::Scanning(Box::new(scanning));
        }
        FilterAction::Continue
    }

    fn request_body(&mut self, size: usize, end_of_stream: bool) -> FilterAction {
        match &mut self.state {
            State::Passing => {}
            State::Answered => return FilterAction::Pause,
            State::Scanning(scanning) => {
                if let Some(next) = scanning.chunk(size, end_of_stream) {
                    self.loading = scanning.deciding.loading().take();
                    self.state = next;
                }
                self.shared.vm.show_held();
            }
        }
        if end_of_stream && let Some(loading) = self.loading() {
            loading.sent();
        }
        self.action()
    }

    fn request_trailers(&mut self) -> FilterAction {
        // The closing brace did not come, so the body is cut. What is held has no way back unless
        // something is buffered by somebody else; no engine accepts such a body.
        self.request_body(0, true)
    }

    fn response_headers(&mut self, end_of_stream: bool) {
        if let Some(loading) = self.loading()
            && !loading.response_headers(end_of_stream)
        {
            self.forget_loading();
        }
    }

    fn response_body(&mut self, size: usize) {
        if let Some(loading) = self.loading()
            && !loading.response_body(size)
        {
            self.forget_loading();
        }
    }

    fn done(&mut self) {
        if let State::Scanning(scanning) = &mut self.state {
            // Reset or answered by somebody else in mid-body: what was decided is counted.
            scanning.finish();
        }
        self.state = State::Passing;
        self.loading = None;
        self.shared.vm.show_held();
    }
}

/// Deleted inside one of its own callbacks it was not told that it is done.
impl Drop for PolicyHttp {
    fn drop(&mut self) {
        self.state = State::Passing;
        self.shared.vm.show_held();
    }
}

impl PolicyHttp {
    fn loading(&mut self) -> Option<&mut Loading> {
        match &mut self.state {
            State::Scanning(scanning) => scanning.deciding.loading().as_mut(),
            State::Passing | State::Answered => self.loading.as_mut(),
        }
    }

    fn forget_loading(&mut self) {
        match &mut self.state {
            State::Scanning(scanning) => *scanning.deciding.loading() = None,
            State::Passing | State::Answered => self.loading = None,
        }
    }

    fn action(&self) -> FilterAction {
        match self.state {
            State::Answered => FilterAction::Pause,
            State::Passing | State::Scanning(_) => FilterAction::Continue,
        }
    }
}

impl Scanning {
    /// Scans one chunk. `Some`: the next state, there is nothing more to scan.
    fn chunk(&mut self, size: usize, end_of_stream: bool) -> Option<State> {
        let chunk = match size {
            0 => Vec::new(),
            size => match host::buffer(Buffer::RequestBody, 0, size) {
                Ok(chunk) if chunk.len() == size => chunk,
                _ => {
                    metrics::count(Metric::HostFailure("get_body"));
                    return Some(self.abandon());
                }
            },
        };
        let output = self.editor.feed(&chunk, end_of_stream, &mut self.deciding);
        if !self.dry_run
            && let Some(bytes) = output.apply(chunk)
            && host::set_buffer(Buffer::RequestBody, 0, size, &bytes).is_err()
        {
            metrics::count(Metric::HostFailure("set_body"));
            let held_before = self.editor.refused();
            return Some(self.give_back(&held_before));
        }
        self.editor.accepted();
        self.count_held();
        if self.editor.outcome() == Outcome::Pending {
            return None;
        }
        self.finish();
        Some(State::Passing)
    }

    /// The scan cannot go on: gives all held bytes back, unchanged.
    fn abandon(&mut self) -> State {
        let held = self.editor.abandon();
        self.give_back(&held)
    }

    /// Puts `held` before what the stream has now, or answers in the engine's place: a request is
    /// never forwarded with bytes missing.
    fn give_back(&mut self, held: &[u8]) -> State {
        self.count_held();
        self.finish();
        if self.dry_run
            || held.is_empty()
            || host::set_buffer(Buffer::RequestBody, 0, 0, held).is_ok()
        {
            return State::Passing;
        }
        metrics::count(Metric::HostFailure("prepend_body"));
        metrics::count(Metric::UnreturnedBytes);
        let answered = host::send_local_response(
            503,
            UNRETURNED,
            "selective-kv: a part of the request body could not be given back\n",
        );
        if answered.is_err() {
            metrics::count(Metric::HostFailure("send_local_response"));
            let _ = host::reset_request();
        }
        State::Answered
    }

    /// Counts the outcome, once.
    fn finish(&mut self) {
        // Under `dryRun` what would have been edited: it is reported as a real run would.
        let edited = self.editor.edited();
        let wide = match self.editor.outcome() {
            Outcome::Pending | Outcome::Complete => None,
            Outcome::HeldLimit => Some(Reason::HeldLimit),
            Outcome::NotJson | Outcome::Cut => Some(Reason::NotJson),
            Outcome::Refused => Some(Reason::HostFailure),
        };
        self.deciding.report(wide, edited.load, edited.offload);
        for (direction, edited) in [
            (Direction::Load, edited.load),
            (Direction::Offload, edited.offload),
        ] {
            if edited && !self.dry_run {
                metrics::count(Metric::Edits(direction));
            }
        }
        if edited.load_tiers && !self.dry_run {
            metrics::count(Metric::TierEdits);
        }
    }

    fn count_held(&mut self) {
        let total = self.editor.held_total();
        let more = total.saturating_sub(self.held_total);
        metrics::add(
            Metric::HeldBytesTotal,
            i64::try_from(more).unwrap_or(i64::MAX),
        );
        self.held_total = total;
    }
}

/// The evidence header is for this filter alone: the engine never sees it.
fn take_evidence_header(headers: &RequestHeaders, name: Option<&str>) -> Option<Vec<u8>> {
    let name = name?;
    let value = headers.alone(name);
    // Also if it could not be read.
    if host::remove_header(Map::RequestHeaders, name).is_err() {
        metrics::count(Metric::HostFailure("remove_evidence_header"));
    }
    value
}
