//! JSON as Python's `json.loads` reads it, which is what vLLM's HTTP front end uses: a UTF-8
//! byte-order mark, `NaN` and `Infinity` are accepted, integers have no width, and of duplicate
//! keys the last one counts. Written for this program alone, so that what it says about a body is
//! a second opinion and not the module's own.

use std::fmt;

/// Python's C scanner gives up near its recursion limit of 1,000.
const MAX_DEPTH: usize = 990;
/// Python's limit on the digits of an integer.
const MAX_DIGITS: usize = 4300;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    /// Saturates at the ends of `i128`, far outside what any field accepts.
    Int(i128),
    Float(f64),
    Str(String),
    Array(Vec<Value>),
    /// In order of first appearance; a duplicate key has its last value.
    Object(Vec<(String, Value)>),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Error {
    /// Python's JSONDecodeError: the position counts characters.
    Syntax { position: usize, message: String },
    /// What makes the parser itself fail: not UTF-8, nested too deep, too many digits.
    Unreadable,
}

impl Value {
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        let text = std::str::from_utf8(bytes).map_err(|_| Error::Unreadable)?;
        let mut parser = Parser { text, at: 0 };
        parser.space();
        let value = parser.value(0)?;
        parser.space();
        if parser.at < text.len() {
            return Err(parser.error(parser.at, "Extra data"));
        }
        Ok(value)
    }

    /// A member of an object; `None` too if this is no object.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.as_object()?
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value)
    }

    /// A member that is there and not `null`.
    pub fn given(&self, key: &str) -> Option<&Value> {
        self.get(key).filter(|value| **value != Value::Null)
    }

    pub fn as_object(&self) -> Option<&[(String, Value)]> {
        match self {
            Self::Object(members) => Some(members),
            _ => None,
        }
    }

    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Self::Array(items) => Some(items),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Str(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_int(&self) -> Option<i128> {
        match self {
            Self::Int(number) => Some(*number),
            _ => None,
        }
    }

    pub fn is_true(&self) -> bool {
        *self == Value::Bool(true)
    }

    /// As Python's `repr` shows it, which is how vLLM's messages quote a value.
    pub fn repr(&self) -> String {
        match self {
            Self::Null => "None".into(),
            Self::Bool(true) => "True".into(),
            Self::Bool(false) => "False".into(),
            Self::Int(number) => number.to_string(),
            Self::Float(number) if number.is_nan() => "nan".into(),
            Self::Float(number) if number.is_infinite() => {
                if *number > 0.0 { "inf" } else { "-inf" }.into()
            }
            Self::Float(number) => format!("{number:?}"),
            Self::Str(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'")),
            Self::Array(items) => {
                let items: Vec<_> = items.iter().map(Value::repr).collect();
                format!("[{}]", items.join(", "))
            }
            Self::Object(members) => {
                let members: Vec<_> = members
                    .iter()
                    .map(|(key, value)| {
                        format!("{}: {}", Value::Str(key.clone()).repr(), value.repr())
                    })
                    .collect();
                format!("{{{}}}", members.join(", "))
            }
        }
    }

    /// For reports. Numbers that JSON cannot say become strings.
    pub fn to_report(&self) -> serde_json::Value {
        match self {
            Self::Null => serde_json::Value::Null,
            Self::Bool(value) => (*value).into(),
            Self::Int(number) => match (i64::try_from(*number), u64::try_from(*number)) {
                (Ok(number), _) => number.into(),
                (_, Ok(number)) => number.into(),
                _ => number.to_string().into(),
            },
            Self::Float(number) => serde_json::Number::from_f64(*number)
                .map_or_else(|| self.repr().into(), serde_json::Value::Number),
            Self::Str(text) => text.clone().into(),
            Self::Array(items) => items.iter().map(Value::to_report).collect(),
            Self::Object(members) => members
                .iter()
                .map(|(key, value)| (key.clone(), value.to_report()))
                .collect::<serde_json::Map<_, _>>()
                .into(),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax { position, message } => write!(f, "{message} (char {position})"),
            Self::Unreadable => write!(f, "not readable as JSON"),
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    /// In bytes, always at a character's start.
    at: usize,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.rest().starts_with(word);
        if found {
            self.at += word.len();
        }
        found
    }

    fn error(&self, at: usize, message: &str) -> Error {
        Error::Syntax {
            position: self.text[..at].chars().count(),
            message: message.into(),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value, Error> {
        if depth > MAX_DEPTH {
            return Err(Error::Unreadable);
        }
        match self.peek() {
            Some(b'"') => self.string().map(Value::Str),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            _ => self.scalar(),
        }
    }

    fn scalar(&mut self) -> Result<Value, Error> {
        const WORDS: [(&str, Value); 6] = [
            ("null", Value::Null),
            ("true", Value::Bool(true)),
            ("false", Value::Bool(false)),
            ("NaN", Value::Float(f64::NAN)),
            ("Infinity", Value::Float(f64::INFINITY)),
            ("-Infinity", Value::Float(f64::NEG_INFINITY)),
        ];
        for (word, value) in WORDS {
            if self.take(word) {
                return Ok(value);
            }
        }
        self.number()
    }

    /// The longest number that starts here; what follows is the caller's to judge.
    fn number(&mut self) -> Result<Value, Error> {
        let bytes = self.rest().as_bytes();
        let digits = |from: usize| {
            bytes
                .get(from..)
                .unwrap_or_default()
                .iter()
                .take_while(|b| b.is_ascii_digit())
                .count()
        };
        let sign = usize::from(bytes.first() == Some(&b'-'));
        let whole = match bytes.get(sign) {
            Some(b'0') => 1,
            Some(b'1'..=b'9') => digits(sign),
            _ => return Err(self.error(self.at, "Expecting value")),
        };
        let mut end = sign + whole;
        let mut float = false;
        if bytes.get(end) == Some(&b'.') && digits(end + 1) > 0 {
            end += 1 + digits(end + 1);
            float = true;
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            let exponent = digits(end + 1 + sign);
            if exponent > 0 {
                end += 1 + sign + exponent;
                float = true;
            }
        }
        let literal = &self.rest()[..end];
        self.at += end;
        if float {
            return Ok(Value::Float(literal.parse().unwrap_or(f64::NAN)));
        }
        if whole > MAX_DIGITS {
            return Err(Error::Unreadable);
        }
        let limit = if sign == 1 { i128::MIN } else { i128::MAX };
        Ok(Value::Int(literal.parse().unwrap_or(limit)))
    }

    fn string(&mut self) -> Result<String, Error> {
        let start = self.at;
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = self.rest();
            let run = rest
                .bytes()
                .position(|b| b == b'"' || b == b'\\' || b < 0x20)
                .ok_or_else(|| self.error(start, "Unterminated string starting at"))?;
            out.push_str(&rest[..run]);
            self.at += run;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => out.push(self.escape(start)?),
                _ => return Err(self.error(self.at, "Invalid control character at")),
            }
        }
    }

    fn escape(&mut self, string: usize) -> Result<char, Error> {
        let at = self.at;
        self.at += 1;
        let Some(kind) = self.rest().chars().next() else {
            return Err(self.error(string, "Unterminated string starting at"));
        };
        self.at += kind.len_utf8();
        Ok(match kind {
            '"' | '\\' | '/' => kind,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => return self.unicode(at),
            _ => return Err(self.error(at, "Invalid \\escape")),
        })
    }

    /// After `\u`. A lone surrogate, which Python keeps, becomes U+FFFD.
    fn unicode(&mut self, at: usize) -> Result<char, Error> {
        let high = self
            .hex4()
            .ok_or_else(|| self.error(at + 1, "Invalid \\uXXXX escape"))?;
        if (0xd800..0xdc00).contains(&high) && self.rest().starts_with("\\u") {
            let resume = self.at;
            self.at += 2;
            let low = self
                .hex4()
                .ok_or_else(|| self.error(resume + 1, "Invalid \\uXXXX escape"))?;
            if (0xdc00..0xe000).contains(&low) {
                let code = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or('\u{fffd}'));
            }
            self.at = resume;
        }
        Ok(char::from_u32(high).unwrap_or('\u{fffd}'))
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        self.at += 4;
        u32::from_str_radix(digits, 16).ok()
    }

    fn array(&mut self, depth: usize) -> Result<Value, Error> {
        self.at += 1;
        let mut items = Vec::new();
        self.space();
        if self.take("]") {
            return Ok(Value::Array(items));
        }
        loop {
            self.space();
            items.push(self.value(depth + 1)?);
            self.space();
            if self.take("]") {
                return Ok(Value::Array(items));
            }
            if !self.take(",") {
                return Err(self.error(self.at, "Expecting ',' delimiter"));
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Value, Error> {
        self.at += 1;
        let mut members = Vec::new();
        let mut places = std::collections::HashMap::new();
        self.space();
        if self.take("}") {
            return Ok(Value::Object(members));
        }
        loop {
            self.space();
            if self.peek() != Some(b'"') {
                let message = "Expecting property name enclosed in double quotes";
                return Err(self.error(self.at, message));
            }
            let key = self.string()?;
            self.space();
            if !self.take(":") {
                return Err(self.error(self.at, "Expecting ':' delimiter"));
            }
            self.space();
            let value = self.value(depth + 1)?;
            let next = members.len();
            let place = *places.entry(key.clone()).or_insert(next);
            if place == next {
                members.push((key, value));
            } else {
                members[place].1 = value;
            }
            self.space();
            if self.take("}") {
                return Ok(Value::Object(members));
            }
            if !self.take(",") {
                return Err(self.error(self.at, "Expecting ',' delimiter"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> String {
        match Value::parse(text.as_bytes()) {
            Ok(value) => value.repr(),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn reads_what_python_reads() {
        for (body, expected) in [
            ("\u{feff}{\"a\":1}", "{'a': 1}"),
            (
                "[NaN, Infinity, -Infinity, 1e9, 0.0, -0, 1E+2]",
                "[nan, inf, -inf, 1000000000.0, 0.0, 0, 100.0]",
            ),
            (r#"{"a":1,"b":2,"\u0061":3}"#, "{'a': 3, 'b': 2}"),
            ("18446744073709551616", "18446744073709551616"),
            (r#""\ud83d\ude00\ud800x\u00e9\/""#, "'\u{1f600}\u{fffd}xé/'"),
            (" \t\r\n{ } ", "{}"),
            ("[ ]", "[]"),
        ] {
            assert_eq!(parsed(body), expected, "{body}");
        }
        assert_eq!(
            Value::parse(&[b"9".repeat(4300)].concat()),
            Ok(Value::Int(i128::MAX))
        );
    }

    #[test]
    fn refuses_what_python_refuses() {
        for (body, expected) in [
            ("", "Expecting value (char 0)"),
            ("é", "Expecting value (char 0)"),
            ("[1,]", "Expecting value (char 3)"),
            ("01", "Extra data (char 1)"),
            ("[1.]", "Expecting ',' delimiter (char 2)"),
            ("-", "Expecting value (char 0)"),
            (
                "{\"a\":1,}",
                "Expecting property name enclosed in double quotes (char 7)",
            ),
            ("{\"a\" 1}", "Expecting ':' delimiter (char 5)"),
            ("\"a\u{1}\"", "Invalid control character at (char 2)"),
            ("\"é\\x\"", "Invalid \\escape (char 2)"),
            ("\"\\u12\"", "Invalid \\uXXXX escape (char 2)"),
            (" \"abc", "Unterminated string starting at (char 1)"),
            ("{}x", "Extra data (char 2)"),
        ] {
            assert_eq!(parsed(body), format!("error: {expected}"), "{body}");
        }
        for unreadable in [
            b"{\"a\":\"\xff\"}".to_vec(),
            b"[".repeat(5000),
            b"9".repeat(4301),
            b"\x1f\x8b\x08\x00".to_vec(),
        ] {
            assert_eq!(Value::parse(&unreadable), Err(Error::Unreadable));
        }
    }
}
