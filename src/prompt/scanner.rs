//! Follows one body and remembers what a look-up needs.

use super::found::{Found, Kept};
use super::members::{
    IN_SAMPLING_PARAMS, IN_TRANSFER_PARAMS, Member, SAMPLING_PARAMS, TOP, TRANSFER_PARAMS,
};
use super::parts::Parts;
use super::scalar::ScalarReader;
use super::text_reader::TextReader;
use super::token_list::{Read, Value};
use super::{Endpoint, Limits, Request, Text, Unknown};
use crate::json::walker::{Step, Walker};

/// How far a [`Scanner`] has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Inside the body, or before it.
    More,
    /// The closing brace was read: [`Scanner::finish`] tells. What follows is not read.
    Complete,
    /// Not one JSON object, or broken. What follows is not read.
    NotJson,
}

/// Scans one body. Dropping it gives back what it keeps.
#[derive(Debug)]
pub struct Scanner {
    endpoint: Endpoint,
    walker: Walker,
    progress: Progress,
    /// The member whose value is being read or skipped.
    member: Member,
    reading: Reading,
    /// Members of the object walked through, if it is not the top-level one.
    inside: &'static [Member],
    found: Found,
}

/// A value that is read here and not skipped.
#[derive(Debug)]
enum Reading {
    Nothing,
    Ids,
    StandIn,
    Parts(Parts),
    Text(TextReader),
    Scalar(ScalarReader),
}

impl Scanner {
    /// Of a request to `endpoint`.
    pub fn new(endpoint: Endpoint, limits: Limits) -> Self {
        Scanner {
            endpoint,
            walker: Walker::new(TOP),
            progress: Progress::More,
            member: Member::Other,
            reading: Reading::Nothing,
            inside: &[],
            found: Found::new(endpoint, limits),
        }
    }

    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// Whether the prompt may turn out to be one text or a chat: nothing says yet that it is
    /// something else. A later duplicate may still turn a no into a yes.
    pub fn may_be_text(&self) -> bool {
        let reads_ids = matches!(self.reading, Reading::Ids | Reading::StandIn);
        self.progress == Progress::More && !reads_ids && self.found.may_be_text(self.endpoint)
    }

    /// One chunk as it came. Once the progress is no longer [`Progress::More`] this does nothing.
    pub fn feed(&mut self, chunk: &[u8]) -> Progress {
        let mut at = 0;
        while self.progress == Progress::More {
            if !matches!(self.reading, Reading::Nothing) {
                match self.read(chunk, &mut at) {
                    Read::More => break,
                    Read::End(()) => {
                        self.reading = Reading::Nothing;
                        self.walker.taken();
                    }
                    Read::Broken => self.stop(Progress::NotJson),
                }
                continue;
            }
            match self.walker.next(chunk, &mut at) {
                None => break,
                Some(Step::Value { byte, name, .. }) => {
                    self.member = self.member_of(name);
                    self.begin(byte);
                }
                Some(Step::End { null, .. }) if null => self.found.set_null(self.member),
                Some(Step::End { .. }) => {}
                Some(Step::Leave) => self.inside = &[],
                Some(Step::Close { .. }) => self.stop(Progress::Complete),
                Some(Step::Broken) => self.stop(Progress::NotJson),
            }
        }
        self.progress
    }

    /// What the body says; None unless it is complete.
    pub fn finish(self) -> Option<Request> {
        (self.progress == Progress::Complete).then(|| self.found.request(self.endpoint))
    }

    fn stop(&mut self, progress: Progress) {
        self.progress = progress;
        if progress == Progress::NotJson {
            self.found.ids.clear();
            self.found.stand_in.clear();
        }
    }

    fn member_of(&self, name: usize) -> Member {
        match self.walker.depth() {
            0 => TOP
                .get(name)
                .map_or(Member::Other, |name| Member::top(name, self.endpoint)),
            _ => self.inside.get(name).copied().unwrap_or(Member::Other),
        }
    }

    /// A value begins: the last of duplicates counts, so an earlier one is forgotten.
    fn begin(&mut self, byte: u8) {
        let member = self.member;
        self.found.begin(member);
        let scalar = !matches!(byte, b'"' | b'[' | b'{');
        match (member, byte) {
            (Member::Model | Member::CacheSalt, b'"') => {
                self.reading = Reading::Text(TextReader::new());
            }
            (Member::Ids, b'[') => self.reading = Reading::Ids,
            (Member::StandIn, b'[') => self.reading = Reading::StandIn,
            (Member::Conversation, b'[') => self.reading = Reading::Parts(Parts::new()),
            (Member::Echo | Member::SkipReading | Member::N, _) if scalar => {
                self.reading = Reading::Scalar(ScalarReader::new(byte));
            }
            (Member::Ids, b'"') if self.endpoint != Endpoint::Generate => {
                self.found.ids_value = Value::Text(Text::One);
            }
            (Member::Conversation, b'"') if self.endpoint == Endpoint::Responses => {
                self.found.conversation = Value::Text(Text::Input);
            }
            (Member::TransferParams, b'{') => {
                self.walker.enter(TRANSFER_PARAMS);
                self.inside = IN_TRANSFER_PARAMS;
            }
            (Member::SamplingParams, b'{') => {
                self.walker.enter(SAMPLING_PARAMS);
                self.inside = IN_SAMPLING_PARAMS;
            }
            _ => {}
        }
        if !matches!(self.reading, Reading::Nothing) {
            self.walker.take();
        }
    }

    /// Reads a value that is not skipped.
    fn read(&mut self, chunk: &[u8], at: &mut usize) -> Read<()> {
        let found = &mut self.found;
        match &mut self.reading {
            Reading::Nothing => Read::End(()),
            Reading::Ids => found
                .ids
                .feed(chunk, at)
                .map(|value| found.ids_value = value),
            Reading::StandIn => found
                .stand_in
                .feed(chunk, at)
                .map(|value| found.stand_in_value = value),
            Reading::Parts(parts) => {
                let text = match self.endpoint {
                    Endpoint::Batch => Text::Batch,
                    Endpoint::Responses => Text::Input,
                    Endpoint::Messages => Text::Anthropic,
                    _ => Text::Messages,
                };
                parts.feed(chunk, at).map(|multimodal| {
                    found.conversation = match multimodal {
                        true => Value::Unknown(Unknown::Multimodal),
                        false => Value::Text(text),
                    };
                })
            }
            Reading::Text(reader) => reader.feed(chunk, at).map(|text| match self.member {
                Member::Model => found.model = Kept::of(text),
                // No engine takes an empty one.
                _ => found.cache_salt = Kept::of(text.filter(|salt| !salt.is_empty())),
            }),
            Reading::Scalar(reader) => reader.feed(chunk, at).map(|scalar| match self.member {
                Member::Echo => found.echo = scalar,
                Member::SkipReading => found.skip_reading = scalar,
                _ => found.n = scalar,
            }),
        }
    }
}
