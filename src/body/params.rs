//! One complete `kv_transfer_params` value: what it says, and the edits of DESIGN 3 in its bytes.
//!
//! Two passes over the slice, first to read, then to write, so that neither needs memory for
//! members, however many there are.

use super::text::Text;
use super::{Cap, Edited, Edits, ParamsFacts};
use crate::json::key;

const LOAD_KEY: &str = "max_load_tokens";
const OFFLOAD_KEY: &str = "max_offload_tokens";
const TIERS_KEY: &str = "kv_load_tiers";

/// Names that matter, the rest being peers: keys of a request that another engine takes part in
/// (DESIGN 4).
const NAMES: &[&str] = &[
    LOAD_KEY,
    OFFLOAD_KEY,
    TIERS_KEY,
    "do_remote_prefill",
    "do_remote_decode",
    "remote_prefiller",
    "remote_decoder",
    "remote_kv_source",
    "disagg_spec",
];

/// The one spelling that is written, and that is left as it is: engines honour only integers.
const ZERO: &[u8] = b"0";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Name {
    Load,
    Offload,
    LoadTiers,
    Peer,
    Other,
}

impl Name {
    fn of(key: &[u8]) -> Self {
        match key::find(key, NAMES) {
            Some(0) => Name::Load,
            Some(1) => Name::Offload,
            Some(2) => Name::LoadTiers,
            Some(_) => Name::Peer,
            None => Name::Other,
        }
    }
}

/// A params value that may be edited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Params<'a> {
    pub facts: ParamsFacts<'a>,
    /// The object's text; None for `null`.
    object: Option<&'a [u8]>,
    load: Copies,
    offload: Copies,
}

/// What there is of one cap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Copies {
    present: bool,
    /// A copy is spelled other than `0`.
    other_than_zero: bool,
}

impl Copies {
    fn see(&mut self, value: &[u8]) {
        self.present = true;
        self.other_than_zero |= value != ZERO;
    }

    /// Whether the cap calls for a change.
    fn changed_by(self, cap: Cap) -> bool {
        match cap {
            Cap::Keep => false,
            Cap::SetZero => !self.present || self.other_than_zero,
            Cap::Remove => self.present,
        }
    }
}

/// Of `kv_load_tiers`, which the engine takes for absent.
const NULL: &[u8] = b"null";

impl<'a> Params<'a> {
    /// `null`, or no member at all.
    pub const ABSENT: Params<'static> = Params {
        facts: ParamsFacts::ABSENT,
        object: None,
        load: Copies {
            present: false,
            other_than_zero: false,
        },
        offload: Copies {
            present: false,
            other_than_zero: false,
        },
    };

    /// Reads an object, from its opening to its closing brace. None if it is not valid: structure,
    /// numbers and literals (`NaN` and the infinities are vLLM's too); not the inside of strings.
    pub fn read(object: &'a [u8]) -> Option<Self> {
        let mut params = Params {
            object: Some(object),
            ..Params::ABSENT
        };
        let mut members = Members::new(object)?;
        while let Some(member) = members.advance()? {
            let value = object.get(member.value..member.end)?;
            match member.name {
                Name::Load => {
                    params.load.see(value);
                    params.facts.loads_nothing = value == ZERO;
                }
                Name::Offload => params.offload.see(value),
                Name::LoadTiers => params.facts.load_tiers = Some(value),
                Name::Peer => {
                    params.facts.disaggregated |= value != b"null" && value != b"false";
                }
                Name::Other => {}
            }
        }
        Some(params)
    }

    /// What [`Self::write`] would change.
    pub fn changed_by(&self, edits: Edits) -> Edited {
        Edited {
            load: self.load.changed_by(edits.load),
            offload: self.offload.changed_by(edits.offload),
            load_tiers: edits.load_tiers.is_some() && self.has_no_tiers(),
        }
    }

    /// The last copy counts.
    fn has_no_tiers(&self) -> bool {
        self.facts.load_tiers.is_none_or(|tiers| tiers == NULL)
    }

    /// Appends the edited value to `out`.
    pub fn write(&self, edits: Edits, out: &mut Vec<u8>) {
        let length = out.len();
        match self.object {
            None => {
                out.push(b'{');
                self.write_missing(edits, false, out);
                out.push(b'}');
            }
            Some(object) => {
                if self.write_object(object, edits, out).is_none() {
                    // Cannot happen to an object that was read; as it was, then.
                    out.truncate(length);
                    out.extend_from_slice(object);
                }
            }
        }
    }

    fn write_object(&self, object: &[u8], edits: Edits, out: &mut Vec<u8>) -> Option<()> {
        let mut members = Members::new(object)?;
        // Everything before is in `out`, or taken out.
        let mut done = 0_usize;
        // The first of the removed members directly before the current one.
        let mut removed: Option<Member> = None;
        let mut last_end = 0_usize;
        let mut kept_any = false;
        while let Some(member) = members.advance()? {
            let cap = match member.name {
                Name::Load => edits.load,
                Name::Offload => edits.offload,
                Name::LoadTiers | Name::Peer | Name::Other => Cap::Keep,
            };
            last_end = member.end;
            if cap == Cap::Remove {
                removed = removed.or(Some(member));
                continue;
            }
            if let Some(first) = removed.take() {
                // With the comma after it and the white space up to the next key.
                out.extend_from_slice(object.get(done..first.key)?);
                done = member.key;
            }
            kept_any = true;
            let value = object.get(member.value..member.end)?;
            let tiers = edits
                .load_tiers
                .filter(|_| member.name == Name::LoadTiers && value == NULL && self.has_no_tiers());
            if tiers.is_some() || (cap == Cap::SetZero && value != ZERO) {
                out.extend_from_slice(object.get(done..member.value)?);
                match tiers {
                    Some(tiers) => tiers.write_json(out),
                    None => out.extend_from_slice(ZERO),
                }
                done = member.end;
            }
        }
        if let Some(first) = removed {
            // Last members: with the comma before them and the white space between.
            out.extend_from_slice(object.get(done..first.comma.unwrap_or(first.key))?);
            done = last_end;
        }
        let brace = object.len().checked_sub(1)?;
        out.extend_from_slice(object.get(done..brace)?);
        self.write_missing(edits, kept_any, out);
        out.push(b'}');
        Some(())
    }

    /// Members to be added: load, offload, tiers.
    fn write_missing(&self, edits: Edits, mut comma: bool, out: &mut Vec<u8>) {
        let zero = |copies: Copies, cap| cap == Cap::SetZero && !copies.present;
        let tiers = edits.load_tiers.filter(|_| self.facts.load_tiers.is_none());
        for (name, missing) in [
            (LOAD_KEY, zero(self.load, edits.load)),
            (OFFLOAD_KEY, zero(self.offload, edits.offload)),
            (TIERS_KEY, tiers.is_some()),
        ] {
            if !missing {
                continue;
            }
            if comma {
                out.push(b',');
            }
            comma = true;
            out.push(b'"');
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(b"\":");
            match tiers {
                Some(tiers) if name == TIERS_KEY => tiers.write_json(out),
                _ => out.extend_from_slice(ZERO),
            }
        }
    }
}

/// One member of an object, by indices.
#[derive(Clone, Copy, Debug)]
struct Member {
    name: Name,
    /// Of the comma before it.
    comma: Option<usize>,
    /// Of the key's opening quote.
    key: usize,
    /// Of the value's first byte.
    value: usize,
    /// Past the value.
    end: usize,
}

/// Walks over an object's members, checking everything on the way. The outer Option of
/// [`Members::advance`] is None if the text is invalid.
struct Members<'a> {
    text: Text<'a>,
    first: bool,
}

impl<'a> Members<'a> {
    fn new(object: &'a [u8]) -> Option<Self> {
        let mut text = Text::new(object);
        text.expect(b'{')?;
        Some(Members { text, first: true })
    }

    fn advance(&mut self) -> Option<Option<Member>> {
        let text = &mut self.text;
        text.space();
        if text.eat(b'}') {
            // Nothing may follow.
            return text.peek().is_none().then_some(None);
        }
        let comma = if self.first {
            None
        } else {
            let comma = text.at();
            text.expect(b',')?;
            text.space();
            Some(comma)
        };
        self.first = false;
        let key = text.at();
        let name = Name::of(text.string()?);
        text.space();
        text.expect(b':')?;
        text.space();
        let value = text.at();
        text.value()?;
        let end = text.at();
        Some(Some(Member {
            name,
            comma,
            key,
            value,
            end,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn reads_exactly_one_object() {
        for (text, valid) in [
            ("{}", true),
            (r#"{ "a" : 1 , "b" : [ { } ] }"#, true),
            (r#"{"a":NaN,"b":-Infinity}"#, true),
            ("{} ", false),
            ("{}{}", false),
            (" {}", false),
            ("[]", false),
            ("null", false),
            ("", false),
            ("{", false),
            (r#"{"a":1,}"#, false),
            (r#"{,"a":1}"#, false),
            (r#"{"a":1 "b":2}"#, false),
            (r#"{"a" 1}"#, false),
            (r#"{a:1}"#, false),
            (r#"{"a":01}"#, false),
            (r#"{"a":{"b":]}}"#, false),
        ] {
            assert_eq!(Params::read(text.as_bytes()).is_some(), valid, "{text}");
        }
    }

    #[test]
    fn a_client_that_wants_no_load_is_known_by_the_last_cap() {
        for (text, expected) in [
            ("{}", false),
            (r#"{"max_load_tokens":0}"#, true),
            (r#"{"max_load_tokens": 0 ,"a":1}"#, true),
            (r#"{"max_load_tokens":1}"#, false),
            // The engine ignores what is no integer.
            (r#"{"max_load_tokens":0.0}"#, false),
            (r#"{"max_load_tokens":"0"}"#, false),
            (r#"{"max_load_tokens":null}"#, false),
            (r#"{"max_load_tokens":0,"max_load_tokens":1}"#, false),
            (r#"{"max_load_tokens":1,"max_load_tokens":0}"#, true),
            (r#"{"max_offload_tokens":0}"#, false),
            (r#"{"a":{"max_load_tokens":0}}"#, false),
        ] {
            let params = Params::read(text.as_bytes()).expect("valid");
            assert_eq!(params.facts.loads_nothing, expected, "{text}");
        }
    }

    #[test]
    fn knows_beforehand_what_would_change() {
        let both = Edits::caps(Cap::SetZero, Cap::SetZero);
        let none = Edits::caps(Cap::Remove, Cap::Remove);
        for (text, edits, load, offload) in [
            ("{}", Edits::KEEP, false, false),
            ("{}", both, true, true),
            ("{}", none, false, false),
            (r#"{"max_load_tokens":0}"#, both, false, true),
            (r#"{"max_load_tokens":0}"#, none, true, false),
            (
                r#"{"max_offload_tokens":1,"max_offload_tokens":0}"#,
                both,
                true,
                true,
            ),
            (
                r#"{"max_offload_tokens":0,"max_offload_tokens":0}"#,
                both,
                true,
                false,
            ),
        ] {
            let params = Params::read(text.as_bytes()).expect("valid");
            let changed = params.changed_by(edits);
            let expected = Edited {
                load,
                offload,
                load_tiers: false,
            };
            assert_eq!(changed, expected, "{text}");
            let mut out = Vec::new();
            params.write(edits, &mut out);
            assert_eq!(changed.any(), out != text.as_bytes(), "{text}");
        }
    }
}
