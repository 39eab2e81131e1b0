//! `kv_load_tiers` as vLLM reads it (`_parse_tier_filter`, 0.27 to 0.33), on the JSON text.
//!
//! Not by `serde_json`: Python's decoder accepts more (`NaN`, lone surrogates, any depth up to its
//! own limit), and one such value anywhere in an entry must not change what the others say. The
//! walk takes no memory and does not recurse, whatever a client sends.

use super::{Locality, Matcher, Medium, TierFilter};

pub(super) fn parse(raw: &[u8]) -> (TierFilter, u32) {
    // Not JSON: the engine answers 400, so nothing depends on what we say here.
    list(&mut Text { rest: raw }).unwrap_or((TierFilter::ALL, 0))
}

fn list(text: &mut Text<'_>) -> Option<(TierFilter, u32)> {
    text.space();
    if !text.eat(b'[') {
        return match text.value()? {
            Scalar::Null => Some((TierFilter::ALL, 0)),
            Scalar::Text(_) | Scalar::Other => Some((TierFilter::ALL, 1)),
        };
    }
    text.space();
    if text.eat(b']') {
        return Some((TierFilter::PRIMARY_ONLY, 0));
    }
    let mut filter = TierFilter::PRIMARY_ONLY;
    let mut skipped = 0u32;
    loop {
        text.space();
        match entry(text)? {
            Some(matcher) => filter = filter.with(matcher),
            None => skipped = skipped.saturating_add(1),
        }
        text.space();
        if text.eat(b']') {
            break;
        }
        text.expect(b',')?;
    }
    // Only `[]` itself means "no secondary tier".
    let nothing_valid = filter == TierFilter::PRIMARY_ONLY;
    Some((
        if nothing_valid {
            TierFilter::ALL
        } else {
            filter
        },
        skipped,
    ))
}

/// One entry: `Some(None)` if the engine skips it, `None` if the text is no JSON.
fn entry(text: &mut Text<'_>) -> Option<Option<Matcher>> {
    if !text.eat(b'{') {
        text.value()?;
        return Some(None);
    }
    let mut medium = Scalar::Null;
    let mut locality = Scalar::Null;
    text.space();
    if !text.eat(b'}') {
        loop {
            text.space();
            text.expect(b'"')?;
            let key = text.string()?;
            text.space();
            text.expect(b':')?;
            text.space();
            let value = text.value()?;
            match key.as_str() {
                "medium" => medium = value,
                "locality" => locality = value,
                _ => {}
            }
            text.space();
            if text.eat(b'}') {
                break;
            }
            text.expect(b',')?;
        }
    }
    let medium = medium.field(|name| match name {
        "CPU" => Some(Medium::Cpu),
        "STORAGE" => Some(Medium::Storage),
        _ => None,
    });
    let locality = locality.field(|name| match name {
        "LOCAL" => Some(Locality::Local),
        "REMOTE" => Some(Locality::Remote),
        _ => None,
    });
    Some(match (medium, locality) {
        (Some(medium), Some(locality)) => Some(Matcher { medium, locality }),
        _ => None,
    })
}

/// A value, as far as the rules tell values apart.
enum Scalar {
    Null,
    Text(String),
    Other,
}

impl Scalar {
    /// `Some(None)` = any; `None` = the engine skips the entry. Names are compared as by Python's
    /// `.upper()`, not trimmed.
    fn field<T>(&self, named: impl FnOnce(&str) -> Option<T>) -> Option<Option<T>> {
        match self {
            Self::Null => Some(None),
            Self::Text(name) => named(&upper(name)).map(Some),
            Self::Other => None,
        }
    }
}

/// In upper case, as far as it can become one of our names: of all that is not ASCII these alone
/// have a part of one as upper case. The standard library's way is 4 kB of code, and Unicode's tables.
fn upper(name: &str) -> String {
    let mut upper = String::with_capacity(name.len());
    for c in name.chars() {
        match c {
            'ſ' => upper.push('S'),
            'ﬅ' | 'ﬆ' => upper.push_str("ST"),
            _ => upper.push(c.to_ascii_uppercase()),
        }
    }
    upper
}

/// Decoded bytes of a string that are kept. The longest word that matters is `locality`.
const KEPT_BYTES: usize = 32;

struct Text<'a> {
    rest: &'a [u8],
}

impl Text<'_> {
    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn eat(&mut self, byte: u8) -> bool {
        let there = self.peek() == Some(byte);
        if there {
            self.next();
        }
        there
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.eat(byte).then_some(())
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.next();
        }
    }

    /// Takes one value.
    fn value(&mut self) -> Option<Scalar> {
        match self.peek()? {
            b'"' => {
                self.next();
                Some(Scalar::Text(self.string()?))
            }
            b'[' | b'{' => {
                self.nested()?;
                Some(Scalar::Other)
            }
            _ => self.word(),
        }
    }

    /// A number or a literal, whatever its spelling.
    fn word(&mut self) -> Option<Scalar> {
        let is_end = |b: &u8| matches!(b, b',' | b']' | b'}' | b':' | b' ' | b'\t' | b'\n' | b'\r');
        let len = self.rest.iter().position(is_end).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        match word {
            b"" => None,
            b"null" => Some(Scalar::Null),
            _ => Some(Scalar::Other),
        }
    }

    /// An array or object, to its closing bracket.
    fn nested(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.next()? {
                b'[' | b'{' => depth = depth.saturating_add(1),
                b']' | b'}' => depth = depth.saturating_sub(1),
                b'"' => {
                    self.string()?;
                }
                _ => {}
            }
            if depth == 0 {
                return Some(());
            }
        }
    }

    /// A string after its opening quote, decoded. What no name can contain (surrogates, invalid
    /// UTF-8) becomes U+FFFD, and a long string is cut.
    fn string(&mut self) -> Option<String> {
        let mut out = Vec::new();
        let mut keep = |bytes: &[u8]| {
            if out.len() < KEPT_BYTES {
                out.extend_from_slice(bytes);
            }
        };
        loop {
            match self.next()? {
                b'"' => return Some(String::from_utf8_lossy(&out).into_owned()),
                b'\\' => keep(self.escape()?.encode_utf8(&mut [0; 4]).as_bytes()),
                byte => keep(&[byte]),
            }
        }
    }

    /// What follows a backslash.
    fn escape(&mut self) -> Option<char> {
        Some(match self.next()? {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let (digits, rest) = self.rest.split_at_checked(4)?;
                self.rest = rest;
                let code = u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            other => char::from(other), // `"`, `\`, `/`; anything else is no JSON
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tier;
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const ALL: TierFilter = TierFilter::ALL;
    const PRIMARY_ONLY: TierFilter = TierFilter::PRIMARY_ONLY;

    fn only(medium: Option<Medium>, locality: Option<Locality>) -> TierFilter {
        PRIMARY_ONLY.with(Matcher { medium, locality })
    }

    /// Seen on vLLM 0.32.0 with KV only in an fs tier configured `locality: LOCAL`.
    /// What a character becomes is the same, or neither is a part of a name.
    #[cfg(not(target_arch = "wasm32"))]
    #[test]
    fn no_other_character_becomes_a_part_of_a_name() {
        let names = ["CPU", "STORAGE", "LOCAL", "REMOTE"];
        let of_names = |text: &str| names.iter().any(|name| name.contains(text));
        for c in char::MIN..=char::MAX {
            let (ours, unicode) = (upper(&c.to_string()), c.to_uppercase().to_string());
            let same = ours == unicode || !(of_names(&ours) || of_names(&unicode));
            assert!(same, "{c} becomes {unicode}");
        }
    }

    #[test]
    fn live_table_of_vllm_0_32_0() {
        let no_load = [
            r#"[]"#,
            r#"[{"medium":"cpu"}]"#,
            r#"[{"medium":"CPU"},{"medium":"nvme"}]"#,
            r#"[{"locality":"remote"}]"#,
            r#"[{"medium":"storage","locality":"remote"}]"#,
        ];
        let full_load = [
            r#"null"#,
            r#"{}"#,
            r#""cpu""#,
            r#"["cpu"]"#,
            r#"[null]"#,
            r#"[{}]"#,
            r#"[{"medium":null}]"#,
            r#"[{"tier":"cpu"}]"#,
            r#"[{"medium":"gpu"}]"#,
            r#"[{"medium":5}]"#,
            r#"[{"medium":["cpu"]}]"#,
            r#"[{"medium":"cpu","locality":"global"}]"#,
            r#"[{"medium":"Storage","locality":"Local"}]"#,
            r#"[{"locality":"local"}]"#,
        ];
        let allows = |raw: &str, tier| {
            TierFilter::from_request(raw.as_bytes())
                .0
                .allows(&Tier::named(tier))
        };
        for raw in no_load {
            assert!(!allows(raw, "storage@local"), "{raw}");
        }
        for raw in full_load {
            assert!(allows(raw, "storage@local"), "{raw}");
        }
        // With KV in the CPU tier, nothing stops the load.
        for raw in no_load.iter().chain(&full_load) {
            assert!(allows(raw, "cpu"), "{raw}");
        }
    }

    #[test]
    fn what_a_list_says() {
        use Locality::{Local, Remote};
        use Medium::{Cpu, Storage};
        let cpu_or_remote = only(Some(Cpu), None).with(Matcher {
            medium: None,
            locality: Some(Remote),
        });
        // (raw, filter, entries skipped)
        let table: &[(&str, TierFilter, u32)] = &[
            ("[]", PRIMARY_ONLY, 0),
            (" [\t\r\n] ", PRIMARY_ONLY, 0),
            ("null", ALL, 0),
            // Neither a list nor null.
            ("{}", ALL, 1),
            (r#"{"medium":"cpu"}"#, ALL, 1),
            (r#""cpu""#, ALL, 1),
            ("0", ALL, 1),
            ("NaN", ALL, 1),
            ("true", ALL, 1),
            // Fields.
            ("[{}]", ALL, 0),
            (r#"[{"medium":null,"locality":null}]"#, ALL, 0),
            (r#"[{"medium":"cpu"}]"#, only(Some(Cpu), None), 0),
            (
                r#"[{"medium":"STORAGE","locality":"ReMoTe"}]"#,
                only(Some(Storage), Some(Remote)),
                0,
            ),
            (r#"[{"locality":"local"}]"#, only(None, Some(Local)), 0),
            (
                r#"[{"medium":"CPU"},{"locality":"REMOTE"}]"#,
                cpu_or_remote,
                0,
            ),
            (
                r#"[ { "medium" : "cpu" } , { "locality" : "remote" } ]"#,
                cpu_or_remote,
                0,
            ),
            // Skipped entries.
            (
                r#"[{"medium":"cpu"},{"medium":"nvme"},7,null,"cpu",[],[{"medium":"cpu"}]]"#,
                only(Some(Cpu), None),
                6,
            ),
            (r#"[{"medium":"cpu","locality":"global"}]"#, ALL, 1),
            (r#"[{"locality":"host"},{"medium":"gpu"}]"#, ALL, 2),
            (r#"[{"medium":" cpu"}]"#, ALL, 1),
            (r#"[{"medium":"cpu "}]"#, ALL, 1),
            (r#"[{"medium":""}]"#, ALL, 1),
            (r#"[{"medium":false}]"#, ALL, 1),
            (r#"[{"medium":0}]"#, ALL, 1),
            (r#"[{"medium":{"medium":"cpu"}}]"#, ALL, 1),
            (r#"[{"Medium":"cpu"}]"#, ALL, 0),
            // What Python's decoder takes and serde_json does not.
            (
                r#"[{"medium":"cpu","x":NaN,"y":-Infinity,"z":[Infinity]}]"#,
                only(Some(Cpu), None),
                0,
            ),
            (
                r#"[{"medium":"cpu","x":"\ud800"}]"#,
                only(Some(Cpu), None),
                0,
            ),
            (r#"[{"medium":"\udc00cpu"}]"#, ALL, 1),
            (r#"[{"medium":"cpu","\ud83d":1}]"#, only(Some(Cpu), None), 0),
            (r#"[{"medium":NaN}]"#, ALL, 1),
            (
                r#"[{"x":123456789012345678901234567890,"medium":"cpu"}]"#,
                only(Some(Cpu), None),
                0,
            ),
            // Of duplicate keys the last one counts.
            (
                r#"[{"medium":"nvme","medium":"cpu"}]"#,
                only(Some(Cpu), None),
                0,
            ),
            (r#"[{"medium":"cpu","medium":null}]"#, ALL, 0),
            (r#"[{"medium":"cpu","medium":"nvme"}]"#, ALL, 1),
            // Escapes, in keys too; a quote or bracket in a string is no structure.
            (
                r#"[{"\u006dedium":"\u0063\u0050u"}]"#,
                only(Some(Cpu), None),
                0,
            ),
            (
                r#"[{"x":"}]\"{[","medium":"cpu"}]"#,
                only(Some(Cpu), None),
                0,
            ),
            (
                r#"[{"x":{"a":["}","\\"]},"medium":"cpu"}]"#,
                only(Some(Cpu), None),
                0,
            ),
            // `.upper()` is Unicode's: long s and the st ligature.
            (
                "[{\"medium\":\"\u{17f}torage\"}]",
                only(Some(Storage), None),
                0,
            ),
            (
                "[{\"medium\":\"\u{fb06}orage\"}]",
                only(Some(Storage), None),
                0,
            ),
        ];
        for (raw, filter, skipped) in table {
            assert_eq!(parse(raw.as_bytes()), (*filter, *skipped), "{raw}");
        }
    }

    #[test]
    fn text_that_is_no_json_restricts_nothing() {
        let table: &[&[u8]] = &[
            b"",
            b"[",
            b"[{",
            b"[{\"medium",
            b"[{\"medium\"",
            b"[{\"medium\":",
            b"[{\"medium\":\"cpu\"",
            b"[{\"medium\":\"cpu\"}",
            b"[{\"medium\":\"cpu\"},",
            b"[{\"medium\":\"cpu\"} 5]",
            b"[{\"medium\":\"cpu\",}]",
            b"[{medium:\"cpu\"}]",
            b"[,]",
            b"[{\"medium\":\"\\u12\"}]",
            b"]",
        ];
        for raw in table {
            assert_eq!(parse(raw), (ALL, 0), "{}", String::from_utf8_lossy(raw));
        }
    }

    #[test]
    fn hostile_lists_cost_no_stack_and_little_memory() {
        let deep = [
            br#"[{"medium":"cpu","x":"#.as_slice(),
            &b"[".repeat(1_000_000),
            &b"]".repeat(1_000_000),
            b"}]",
        ];
        assert_eq!(parse(&deep.concat()), (only(Some(Medium::Cpu), None), 0));
        let many = [b"[".as_slice(), &b"{},5,".repeat(500_000), b"{}]"].concat();
        assert_eq!(parse(&many), (ALL, 500_000));
        let long = [
            br#"[{"medium":"cpu"#.as_slice(),
            &b"u".repeat(1_000_000),
            br#""}]"#,
        ]
        .concat();
        assert_eq!(parse(&long), (ALL, 1));
        let not_utf8 = b"[{\"medium\":\"cpu\",\"x\":\"\xff\xfe\"}]";
        assert_eq!(parse(not_utf8), (only(Some(Medium::Cpu), None), 0));
    }
}
