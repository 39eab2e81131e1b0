//! Looks through `messages` or `input` for anything but text.
//!
//! By the names vLLM gives content parts (`chat_utils`), and OpenAI's and Anthropic's. A name of
//! tomorrow is not found; a tool call that happens to have such a member is taken for one, which
//! costs no more than its evidence.

use super::token_list::Read;
use crate::json::is_space;
use crate::json::key::KeyMatcher;
use crate::json::nest::{Nest, Stop};
use crate::json::skip;

/// First the key `type`, then keys that only a part that is no text has, then what its `type` may
/// say beside those.
const NAMES: &[&str] = &[
    "type",
    "image_url",
    "image_pil",
    "image_embeds",
    "audio_url",
    "audio_embeds",
    "input_audio",
    "video_url",
    "image",
    "input_image",
    "audio",
    "video",
    "input_video",
    "file",
    "input_file",
    "document",
];
const TYPE: usize = 0;
const LAST_KEY: usize = 7;

/// Follows an array from behind its opening bracket.
#[derive(Debug)]
pub(super) struct Parts {
    nest: Nest,
    state: State,
    /// The key read last is `type`.
    of_type: bool,
}

#[derive(Debug)]
enum State {
    /// Outside strings.
    Between,
    Text(KeyMatcher),
    /// Behind a string; which name it is.
    Behind(Option<usize>),
    /// Found: the rest does not matter.
    Found,
}

impl Parts {
    pub fn new() -> Self {
        Parts {
            nest: Nest::new(true),
            state: State::Between,
            of_type: false,
        }
    }

    /// Reads on from `*at`, which moves, to behind the closing bracket. True: not only text.
    pub fn feed(&mut self, chunk: &[u8], at: &mut usize) -> Read<bool> {
        while let Some(&byte) = chunk.get(*at) {
            let rest = chunk.get(*at..).unwrap_or_default();
            match &mut self.state {
                State::Found => {
                    return match self.nest.skip(rest) {
                        None => {
                            *at = chunk.len();
                            Read::More
                        }
                        Some(Stop::End(end)) => {
                            *at = at.saturating_add(end);
                            Read::End(true)
                        }
                        Some(Stop::Broken(_)) => Read::Broken,
                    };
                }
                State::Between => {
                    let Some((found, byte)) = skip::find_structural(rest) else {
                        *at = chunk.len();
                        break;
                    };
                    *at = at.saturating_add(found).saturating_add(1);
                    if byte == b'"' {
                        self.state = State::Text(KeyMatcher::new(NAMES));
                    } else {
                        self.of_type = false;
                        match self.nest.bracket(byte) {
                            None => return Read::Broken,
                            Some(0) => return Read::End(false),
                            Some(_) => {}
                        }
                    }
                }
                State::Text(matcher) => match matcher.feed(rest) {
                    None => *at = chunk.len(),
                    Some(end) => {
                        *at = at.saturating_add(end).saturating_add(1);
                        self.state = State::Behind(matcher.matched());
                    }
                },
                State::Behind(_) if is_space(byte) => *at = at.saturating_add(1),
                State::Behind(name) => {
                    let name = *name;
                    let key = byte == b':';
                    let found = match name {
                        Some(name) if key => (TYPE < name) && name <= LAST_KEY,
                        Some(name) => self.of_type && name != TYPE,
                        None => false,
                    };
                    self.of_type = key && name == Some(TYPE);
                    self.state = if found { State::Found } else { State::Between };
                }
            }
        }
        Read::More
    }
}
