//! One complete `kv_transfer_params` value: what it says, and the edits of DESIGN 3 in its bytes.
//!
//! It is read once: where its caps and its tiers stand is kept for the writing, of as many as clients
//! send. A text that repeats them is read again to write it, so that memory does not grow with members.

use std::num::NonZeroUsize;

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

/// Of `kv_load_tiers`, which the engine takes for absent.
const NULL: &[u8] = b"null";

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

/// A params value that may be edited. Indices are those of its text, which is to be given again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Params {
    /// False: `null`.
    object: bool,
    load: Copies,
    offload: Copies,
    /// The last `kv_load_tiers`.
    tiers: Option<Tiers>,
    disaggregated: bool,
    loads_nothing: bool,
    /// All members.
    members: usize,
    /// Those that edits may change.
    editable: usize,
    /// The first of these, in order.
    kept: [Member; Params::KEPT],
}

/// What there is of one cap.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Copies {
    present: bool,
    /// A copy is spelled other than `0`.
    other_than_zero: bool,
}

impl Copies {
    const NONE: Self = Copies {
        present: false,
        other_than_zero: false,
    };

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

/// A value of `kv_load_tiers`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Tiers {
    start: usize,
    end: usize,
    null: bool,
}

impl Params {
    /// Each cap and the tiers, once.
    const KEPT: usize = 3;

    /// `null`, or no member at all.
    pub const ABSENT: Params = Params {
        object: false,
        load: Copies::NONE,
        offload: Copies::NONE,
        tiers: None,
        disaggregated: false,
        loads_nothing: false,
        members: 0,
        editable: 0,
        kept: [Member::NONE; Params::KEPT],
    };

    /// Reads a complete value: `null`, or an object from its opening to its closing brace. None if it
    /// is neither, or not valid: structure, numbers and literals (`NaN` and the infinities are vLLM's
    /// too); not the inside of strings.
    pub fn read(text: &[u8]) -> Option<Self> {
        if text == NULL {
            return Some(Params::ABSENT);
        }
        let mut params = Params {
            object: true,
            ..Params::ABSENT
        };
        let mut members = Members::new(text)?;
        while let Some(member) = members.advance()? {
            let value = text.get(member.value..member.end)?;
            params.members = params.members.saturating_add(1);
            match member.name {
                Name::Load => {
                    params.load.see(value);
                    params.loads_nothing = value == ZERO;
                }
                Name::Offload => params.offload.see(value),
                Name::LoadTiers => {
                    params.tiers = Some(Tiers {
                        start: member.value,
                        end: member.end,
                        null: value == NULL,
                    });
                }
                Name::Peer => {
                    params.disaggregated |= value != NULL && value != b"false";
                    continue;
                }
                Name::Other => continue,
            }
            if let Some(kept) = params.kept.get_mut(params.editable) {
                *kept = member;
            }
            params.editable = params.editable.saturating_add(1);
        }
        Some(params)
    }

    /// What it says, by the text that it was read from.
    pub fn facts<'a>(&self, text: &'a [u8]) -> ParamsFacts<'a> {
        ParamsFacts {
            load_tiers: self
                .tiers
                .and_then(|tiers| text.get(tiers.start..tiers.end)),
            disaggregated: self.disaggregated,
            loads_nothing: self.loads_nothing,
        }
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
        self.tiers.is_none_or(|tiers| tiers.null)
    }

    /// Appends the value that was read from `text`, edited, to `out`.
    pub fn write(&self, text: &[u8], edits: Edits, out: &mut Vec<u8>) {
        if !self.object {
            out.push(b'{');
            self.write_missing(edits, false, out);
            out.push(b'}');
            return;
        }
        let length = out.len();
        if self.write_object(text, edits, out).is_none() {
            // Cannot happen to the text that was read; as it was, then.
            out.truncate(length);
            out.extend_from_slice(text);
        }
    }

    fn write_object(&self, object: &[u8], edits: Edits, out: &mut Vec<u8>) -> Option<()> {
        let mut splice = Splice {
            object,
            edits,
            fills_tiers: self.has_no_tiers(),
            out,
            done: 0,
            run: None,
            removed: 0,
        };
        match self.kept.get(..self.editable) {
            Some(kept) => kept.iter().try_for_each(|member| splice.member(*member))?,
            None => {
                let mut members = Members::new(object)?;
                while let Some(member) = members.advance()? {
                    splice.member(member)?;
                }
            }
        }
        splice.end_run()?;
        splice.copy_to(object.len().checked_sub(1)?)?;
        let any = self.members > splice.removed;
        self.write_missing(edits, any, out);
        out.push(b'}');
        Some(())
    }

    /// Members to be added: load, offload, tiers.
    fn write_missing(&self, edits: Edits, mut comma: bool, out: &mut Vec<u8>) {
        let zero = |copies: Copies, cap| cap == Cap::SetZero && !copies.present;
        let tiers = edits.load_tiers.filter(|_| self.tiers.is_none());
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

/// The members of one object on their way to `out`, in order; others may be left out.
struct Splice<'a> {
    object: &'a [u8],
    edits: Edits,
    /// A `null` for `kv_load_tiers` becomes the edits' list.
    fills_tiers: bool,
    out: &'a mut Vec<u8>,
    /// Everything before is in `out`, or taken out.
    done: usize,
    /// The first and the last of members to be removed with none that stays between them.
    run: Option<(Member, Member)>,
    removed: usize,
}

impl Splice<'_> {
    #[inline(never)] // It stands in two loops.
    fn member(&mut self, member: Member) -> Option<()> {
        let cap = match member.name {
            Name::Load => self.edits.load,
            Name::Offload => self.edits.offload,
            Name::LoadTiers | Name::Peer | Name::Other => Cap::Keep,
        };
        if cap == Cap::Remove {
            self.removed = self.removed.saturating_add(1);
            match &mut self.run {
                Some((_, last)) if last.next.is_some_and(|next| next.get() == member.key) => {
                    *last = member
                }
                _ => {
                    self.end_run()?;
                    self.run = Some((member, member));
                }
            }
            return Some(());
        }
        let value = self.object.get(member.value..member.end)?;
        let tiers = self
            .edits
            .load_tiers
            .filter(|_| self.fills_tiers && member.name == Name::LoadTiers && value == NULL);
        if tiers.is_some() || (cap == Cap::SetZero && value != ZERO) {
            self.end_run()?;
            self.copy_to(member.value)?;
            match tiers {
                Some(tiers) => tiers.write_json(self.out),
                None => self.out.extend_from_slice(ZERO),
            }
            self.done = member.end;
        }
        Some(())
    }

    /// Takes out what is to be removed.
    #[inline(never)]
    fn end_run(&mut self) -> Option<()> {
        let Some((first, last)) = self.run.take() else {
            return Some(());
        };
        let (from, to) = match last.next {
            // With the comma after it and the white space up to the next key.
            Some(next) => (first.key, next.get()),
            // Last members: with the comma before them and the white space between.
            None => (first.comma.map_or(first.key, NonZeroUsize::get), last.end),
        };
        self.copy_to(from)?;
        self.done = to;
        Some(())
    }

    fn copy_to(&mut self, at: usize) -> Option<()> {
        self.out.extend_from_slice(self.object.get(self.done..at)?);
        Some(())
    }
}

/// One member of an object, by indices, of which the first is the opening brace's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Member {
    name: Name,
    /// Of the comma before it.
    comma: Option<NonZeroUsize>,
    /// Of the key's opening quote.
    key: usize,
    /// Of the value's first byte.
    value: usize,
    /// Past the value.
    end: usize,
    /// Of the next member's key.
    next: Option<NonZeroUsize>,
}

impl Member {
    const NONE: Self = Member {
        name: Name::Other,
        comma: None,
        key: 0,
        value: 0,
        end: 0,
        next: None,
    };
}

/// Walks over an object's members, checking everything on the way. The outer Option of
/// [`Members::advance`] is None if the text is invalid.
struct Members<'a> {
    text: Text<'a>,
    /// Of the comma just read.
    comma: Option<NonZeroUsize>,
    /// A member has to follow.
    more: bool,
}

impl<'a> Members<'a> {
    fn new(object: &'a [u8]) -> Option<Self> {
        let mut text = Text::new(object);
        text.expect(b'{')?;
        text.space();
        let more = !text.eat(b'}');
        Some(Members {
            text,
            comma: None,
            more,
        })
    }

    #[inline(never)]
    fn advance(&mut self) -> Option<Option<Member>> {
        let text = &mut self.text;
        if !self.more {
            // Nothing may follow.
            return text.peek().is_none().then_some(None);
        }
        let comma = self.comma;
        let key = text.at();
        let name = Name::of(text.string()?);
        text.space();
        text.expect(b':')?;
        text.space();
        let value = text.at();
        text.value()?;
        let end = text.at();
        text.space();
        let behind = text.at();
        self.more = text.eat(b',');
        if self.more {
            self.comma = NonZeroUsize::new(behind);
            text.space();
        } else {
            text.expect(b'}')?;
        }
        Some(Some(Member {
            name,
            comma,
            key,
            value,
            end,
            next: NonZeroUsize::new(text.at()).filter(|_| self.more),
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
            ("nul", false),
            ("nulls", false),
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
            assert_eq!(params.loads_nothing, expected, "{text}");
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
            params.write(text.as_bytes(), edits, &mut out);
            assert_eq!(changed.any(), out != text.as_bytes(), "{text}");
        }
    }

    #[test]
    fn members_are_edited_however_many_there_are() {
        let zero = Edits::caps(Cap::SetZero, Cap::SetZero);
        let no_load = Edits::caps(Cap::Remove, Cap::SetZero);
        let none = Edits::caps(Cap::Remove, Cap::Remove);
        let (load, offload) = ("\"max_load_tokens\"", "\"max_offload_tokens\"");
        // `L` and `O` stand for the caps' keys. Up to three of them are kept from the reading.
        for (text, edits, expected) in [
            ("{L:1}", zero, "{L:0,O:0}"),
            ("{L:1}", none, "{}"),
            ("{ L:1 , O:2 }", none, "{  }"),
            ("{L:1,\"a\":2,O:3}", none, "{\"a\":2}"),
            ("{L:1 ,O:2}", no_load, "{O:0}"),
            ("{O:2, L:1 }", no_load, "{O:0 }"),
            ("{L:1,L:2,O:3}", no_load, "{O:0}"),
            ("{L:1,L:2,O:3,L:4}", no_load, "{O:0}"),
            ("{L:1,L:2,O:3,L:4,\"a\":5,L:6}", no_load, "{O:0,\"a\":5}"),
            ("{L:1,L:2,L:3,L:4}", none, "{}"),
            ("{L:1,L:2,L:3,L:4}", no_load, "{O:0}"),
            ("{L:1,L:2,L:3,L:4,\"a\":5}", none, "{\"a\":5}"),
            ("{L:0,O:1,L:2,O:0,L:3}", zero, "{L:0,O:0,L:0,O:0,L:0}"),
        ] {
            let with_keys = |text: &str| text.replace('L', load).replace('O', offload);
            let (text, expected) = (with_keys(text), with_keys(expected));
            let params = Params::read(text.as_bytes()).expect("valid");
            let mut out = b"x".to_vec();
            params.write(text.as_bytes(), edits, &mut out);
            assert_eq!(String::from_utf8(out), Ok(format!("x{expected}")), "{text}");
        }
    }
}
