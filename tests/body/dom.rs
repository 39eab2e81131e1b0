//! The oracle: the same edits, done the naive way on a whole body. A small JSON tree keeps every
//! spelling and all white space; the edits move its parts, and printing gives the bytes back.
//!
//! It knows the rules of DESIGN 3 from the outside (members, commas, white space, which place the
//! engine will use), and shares no code with the editor.

use selective_kv::body::{Cap, Edits, Places};

#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Object(Object),
    /// Anything else, as it was spelled.
    Leaf(Vec<u8>),
}

#[derive(Clone, Debug, PartialEq, Default)]
pub struct Object {
    pub members: Vec<Member>,
    /// White space of an object without members.
    inside: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// White space before the key.
    before: Vec<u8>,
    /// With its quotes.
    key: Vec<u8>,
    /// White space and the colon.
    colon: Vec<u8>,
    pub value: Node,
    /// White space behind the value.
    behind: Vec<u8>,
}

impl Member {
    pub fn name(&self) -> Option<String> {
        serde_json::from_slice(&self.key).ok()
    }
}

/// A body: what stands before its object, the object, and what follows.
#[derive(Clone, Debug)]
pub struct Body {
    before: Vec<u8>,
    pub object: Object,
    behind: Vec<u8>,
}

impl Body {
    /// None if it does not begin with one valid JSON object.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut parser = Parser { bytes, at: 0 };
        if bytes.starts_with("\u{feff}".as_bytes()) {
            parser.at = 3;
        }
        parser.space();
        let before = bytes[..parser.at].to_vec();
        if parser.peek() != Some(b'{') {
            return None;
        }
        match parser.value(0)? {
            Node::Object(object) => Some(Body {
                before,
                object,
                behind: bytes[parser.at..].to_vec(),
            }),
            _ => None,
        }
    }

    pub fn print(&self) -> Vec<u8> {
        let mut out = self.before.clone();
        print_object(&self.object, &mut out);
        out.extend_from_slice(&self.behind);
        out
    }

    /// The body's object alone.
    pub fn object_text(&self) -> Vec<u8> {
        let mut out = Vec::new();
        print_object(&self.object, &mut out);
        out
    }
}

/// The edited body, or None if it is not valid JSON.
pub fn edited(places: Places, bytes: &[u8], edits: Edits) -> Option<Vec<u8>> {
    let mut body = Body::parse(bytes)?;
    edit(places, &mut body.object, edits);
    Some(body.print())
}

const PARAMS: &str = "kv_transfer_params";

fn edit(places: Places, top: &mut Object, edits: Edits) {
    let tops = named(top, PARAMS);
    // Objects at the top level, always.
    for &index in &tops {
        if is_object(&top.members[index].value) {
            edit_params(&mut top.members[index].value, edits);
        }
    }
    // For generate, a null counts behind the last value that is none, and only if no nested value
    // is in effect.
    let nulls: Vec<usize> = match places {
        Places::TopLevel => tops.clone(),
        Places::TopLevelOrNested => {
            let behind = tops
                .iter()
                .rposition(|&index| !is_null(&top.members[index].value))
                .map_or(0, |last| last + 1);
            let absent = behind < tops.len() || tops.is_empty();
            if absent && nested_in_effect(top, &tops, edits) {
                return;
            }
            tops[behind..].to_vec()
        }
    };
    for index in nulls {
        if is_null(&top.members[index].value) {
            edit_params(&mut top.members[index].value, edits);
        }
    }
    if tops.is_empty() {
        insert(top, edits);
    }
}

/// With nothing at the top level: whether the engine finds a value in `sampling_params`. An object
/// is edited, unless the editor had to let it go when it saw a top-level value.
fn nested_in_effect(top: &mut Object, tops: &[usize], edits: Edits) -> bool {
    let Some(&sampling) = named(top, "sampling_params").last() else {
        return false;
    };
    let has_value = |index: &usize| !is_null(&top.members[*index].value);
    let before = tops.iter().rfind(|index| **index < sampling);
    let let_go = before.is_some_and(has_value)
        || tops
            .iter()
            .any(|index| *index > sampling && has_value(index));

    let Some(extra) = last_object(&mut top.members[sampling].value, "extra_args") else {
        return false;
    };
    let copies = named(extra, PARAMS);
    let Some(&last) = copies.last() else {
        return false;
    };
    if is_object(&extra.members[last].value) && !let_go {
        for index in copies {
            if is_object(&extra.members[index].value) {
                edit_params(&mut extra.members[index].value, edits);
            }
        }
    }
    !is_null(&extra.members[last].value)
}

fn is_null(value: &Node) -> bool {
    *value == Node::Leaf(b"null".to_vec())
}

fn is_object(value: &Node) -> bool {
    matches!(value, Node::Object(_))
}

fn named(object: &Object, name: &str) -> Vec<usize> {
    (0..object.members.len())
        .filter(|&index| object.members[index].name().as_deref() == Some(name))
        .collect()
}

/// The last member of this name, if it and the value around it are objects.
fn last_object<'n>(value: &'n mut Node, name: &str) -> Option<&'n mut Object> {
    let Node::Object(object) = value else {
        return None;
    };
    let index = *named(object, name).last()?;
    match &mut object.members[index].value {
        Node::Object(inner) => Some(inner),
        _ => None,
    }
}

const PEERS: [&str; 6] = [
    "do_remote_prefill",
    "do_remote_decode",
    "remote_prefiller",
    "remote_decoder",
    "remote_kv_source",
    "disagg_spec",
];

/// Whether the test's decider leaves this params object alone.
fn disaggregated(params: &Object) -> bool {
    params.members.iter().any(|member| {
        let peer = member
            .name()
            .is_some_and(|name| PEERS.contains(&name.as_str()));
        peer && !matches!(&member.value, Node::Leaf(text) if text == b"null" || text == b"false")
    })
}

fn edit_params(value: &mut Node, edits: Edits) {
    let caps = [
        ("max_load_tokens", edits.load),
        ("max_offload_tokens", edits.offload),
    ];
    let tiers = || Node::Leaf(super::DEFAULT_TIERS.as_bytes().to_vec());
    let Node::Object(params) = value else {
        // Null: the object, if there is something to say.
        let mut fresh = Object::default();
        for (name, cap) in caps {
            if cap == Cap::SetZero {
                append(&mut fresh, name, Node::Leaf(b"0".to_vec()));
            }
        }
        if edits.load_tiers.is_some() {
            append(&mut fresh, "kv_load_tiers", tiers());
        }
        if !fresh.members.is_empty() {
            *value = Node::Object(fresh);
        }
        return;
    };
    if disaggregated(params) {
        return;
    }
    for (name, cap) in caps {
        if cap == Cap::SetZero {
            for index in named(params, name) {
                params.members[index].value = Node::Leaf(b"0".to_vec());
            }
        }
    }
    let removed = |member: &Member| {
        caps.iter()
            .any(|&(name, cap)| cap == Cap::Remove && member.name().as_deref() == Some(name))
    };
    while let Some(index) = params.members.iter().position(removed) {
        remove(params, index);
    }
    for (name, cap) in caps {
        if cap == Cap::SetZero && named(params, name).is_empty() {
            append(params, name, Node::Leaf(b"0".to_vec()));
        }
    }
    if edits.load_tiers.is_none() {
        return;
    }
    let copies = named(params, "kv_load_tiers");
    match copies.last() {
        None => append(params, "kv_load_tiers", tiers()),
        Some(&last) if is_null(&params.members[last].value) => {
            for index in copies {
                if is_null(&params.members[index].value) {
                    params.members[index].value = tiers();
                }
            }
        }
        Some(_) => {}
    }
}

/// One member out, by DESIGN 3's rule for its comma and white space.
fn remove(object: &mut Object, index: usize) {
    let gone = object.members.remove(index);
    if let Some(next) = object.members.get_mut(index) {
        next.before = gone.before;
    } else if let Some(last) = object.members.last_mut() {
        last.behind.extend(gone.behind);
    } else {
        object.inside = [gone.before, gone.behind].concat();
    }
}

/// One member directly before the closing brace.
fn append(object: &mut Object, name: &str, value: Node) {
    object.members.push(Member {
        before: std::mem::take(&mut object.inside),
        key: format!("\"{name}\"").into_bytes(),
        colon: b":".to_vec(),
        value,
        behind: Vec::new(),
    });
}

fn insert(top: &mut Object, edits: Edits) {
    let mut value = Node::Leaf(b"null".to_vec());
    edit_params(&mut value, edits);
    if matches!(value, Node::Object(_)) {
        append(top, PARAMS, value);
    }
}

fn print_object(object: &Object, out: &mut Vec<u8>) {
    out.push(b'{');
    out.extend_from_slice(&object.inside);
    for (index, member) in object.members.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&member.before);
        out.extend_from_slice(&member.key);
        out.extend_from_slice(&member.colon);
        match &member.value {
            Node::Object(object) => print_object(object, out),
            Node::Leaf(text) => out.extend_from_slice(text),
        }
        out.extend_from_slice(&member.behind);
    }
    out.push(b'}');
}

struct Parser<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn space(&mut self) -> Vec<u8> {
        let from = self.at;
        while self.peek().is_some_and(|byte| b" \t\r\n".contains(&byte)) {
            self.at += 1;
        }
        self.bytes[from..self.at].to_vec()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn value(&mut self, depth: usize) -> Option<Node> {
        assert!(depth < 1000, "the oracle is recursive");
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => {
                let from = self.at;
                self.at += 1;
                self.space();
                if self.peek()? != b']' {
                    loop {
                        self.space();
                        self.value(depth + 1)?;
                        self.space();
                        if self.expect(b',').is_none() {
                            break;
                        }
                    }
                }
                self.expect(b']')?;
                Some(Node::Leaf(self.bytes[from..self.at].to_vec()))
            }
            b'"' => self.string().map(Node::Leaf),
            _ => {
                let from = self.at;
                while self
                    .peek()
                    .is_some_and(|byte| !b" \t\r\n,:{}[]\"".contains(&byte))
                {
                    self.at += 1;
                }
                let text = &self.bytes[from..self.at];
                let other = matches!(text, b"NaN" | b"Infinity" | b"-Infinity");
                let known = other || serde_json::from_slice::<serde::de::IgnoredAny>(text).is_ok();
                known.then(|| Node::Leaf(text.to_vec()))
            }
        }
    }

    fn object(&mut self, depth: usize) -> Option<Node> {
        self.expect(b'{')?;
        let mut object = Object::default();
        let mut before = self.space();
        if self.expect(b'}').is_some() {
            object.inside = before;
            return Some(Node::Object(object));
        }
        loop {
            let key = self.string()?;
            let from = self.at;
            self.space();
            self.expect(b':')?;
            self.space();
            let colon = self.bytes[from..self.at].to_vec();
            let value = self.value(depth + 1)?;
            let behind = self.space();
            object.members.push(Member {
                before,
                key,
                colon,
                value,
                behind,
            });
            if self.expect(b',').is_none() {
                self.expect(b'}')?;
                return Some(Node::Object(object));
            }
            before = self.space();
        }
    }

    /// A string with its quotes.
    fn string(&mut self) -> Option<Vec<u8>> {
        let from = self.at;
        self.expect(b'"')?;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(self.bytes[from..self.at].to_vec())
    }
}
