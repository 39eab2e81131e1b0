//! Generated bodies that are hard on a scanner of 64-byte blocks and 256-byte runs: long and short
//! stretches of one kind that end around their borders, odd and even numbers of backslashes, brackets
//! and whole members inside strings, nesting past the depth to which kinds are checked, keys
//! spelled with escapes, keys that are nearly the one that counts.
//!
//! A number makes a body: the same one everywhere, in the native tests and in those of the module.

/// SplitMix64.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0xD1B5_4A32_D192_ED03))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// 0 to `n` - 1.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

/// A valid body, seldom over 10 kB.
pub fn body(random: &mut Random) -> Vec<u8> {
    let room = 200 + random.below(3_000);
    let mut writer = Writer {
        random,
        out: Vec::new(),
        room,
    };
    writer.body();
    writer.out
}

/// Ascending positions, in one of several manners; with empty pieces.
pub fn cuts(random: &mut Random, length: usize) -> Vec<usize> {
    let step = match random.below(5) {
        0 => return Vec::new(),
        1 => {
            let mut cuts: Vec<usize> = (0..6).map(|_| random.below(length + 1)).collect();
            cuts.sort_unstable();
            return cuts;
        }
        2 => 1 + random.below(9),
        3 => random.of(&[16, 63, 64, 65, 255, 256, 257]),
        _ => 1 + random.below(700),
    };
    let mut cuts: Vec<usize> = (random.below(step)..length).step_by(step).collect();
    cuts.extend(cuts.last().copied());
    cuts
}

/// A body with one to three faults in it.
pub fn damaged(random: &mut Random, mut body: Vec<u8>) -> Vec<u8> {
    for _ in 0..1 + random.below(3) {
        let at = random.below(body.len() + 1);
        let byte = random.of(b"\"\\{}[]:,u0n x\xff\0");
        match random.below(5) {
            0 => body.insert(at, byte),
            1 => body.truncate(at),
            2 if at < body.len() => body[at] = byte,
            3 if at < body.len() => drop(body.remove(at)),
            _ => {
                let to = body.len().min(at + random.below(300));
                let piece = body[at..to].to_vec();
                let here = random.below(body.len() + 1);
                body.splice(here..here, piece);
            }
        }
    }
    body
}

struct Writer<'r> {
    random: &'r mut Random,
    out: Vec<u8>,
    /// Bytes after which values become short.
    room: usize,
}

/// What may stand in a string: the last ones are no text at all, which is not the scanner's business.
const PIECES: [&[u8]; 17] = [
    b"x",
    b"\\\\",
    b"]",
    b"{}[",
    b"\\\\",
    b"\\\"",
    b"x\\\"",
    b"\\\\x",
    b"\\\\\\\"",
    b"\\u0022\\u005c",
    b"\\\",\\\"kv_transfer_params\\\":{\\\"max_load_tokens\\\":5},\\\"",
    b"kv_transfer_params",
    "é€😀".as_bytes(),
    b"\\ud83d\\ude00\\n\\/",
    b",:\x7f|~",
    b"\xff\x80",
    b"\0\x1f",
];

/// Not the key that counts, as JSON spells them.
const OTHER_KEYS: [&str; 14] = [
    "kv_transfer_param",
    "kv_transfer_paramss",
    "kv_transfer_params ",
    "KV_transfer_params",
    r"kv_transfer\u015fparams",
    r"kv_transfer_params\u0000",
    r#"kv_transfer_params\""#,
    r"\\kv_transfer_params",
    r"kv_transfer\\u005fparams",
    r"kv_transfer\/params",
    "max_load_tokens",
    "extra_args",
    "messages",
    "",
];

impl Writer<'_> {
    fn text(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    /// A number of bytes, often around that of a block or a run.
    fn length(&mut self) -> usize {
        match self.random.below(12) {
            0..5 => self.random.below(12),
            5..8 => self.random.below(70),
            8 => 60 + self.random.below(10),
            9 => 250 + self.random.below(16),
            _ => self.random.below(1_200),
        }
    }

    fn space(&mut self) {
        match self.random.below(40) {
            0 => {
                let byte = self.random.of(b" \t\n\r");
                let length = self.length();
                self.out.resize(self.out.len() + length, byte);
            }
            1..8 => self.out.push(self.random.of(b" \t\n\r")),
            _ => {}
        }
    }

    fn string(&mut self) {
        self.out.push(b'"');
        for _ in 0..self.random.below(5) {
            let piece = self.random.of(&PIECES);
            let copies = match self.random.below(3) {
                0 => 1,
                1 => 1 + self.length() / piece.len(),
                _ => {
                    // Nearly up to a border.
                    let border = self.random.of(&[64, 256]);
                    let missing = border - self.out.len() % border + self.random.below(3);
                    missing.saturating_sub(1) / piece.len()
                }
            };
            self.out.extend_from_slice(&piece.repeat(copies));
        }
        self.out.push(b'"');
    }

    /// Some characters, or all, as escapes.
    fn key(&mut self, name: &str) {
        let escaped = self.random.of(&[0, 0, 0, 30, 100]);
        self.out.push(b'"');
        for character in name.chars() {
            let code = u32::from(character);
            match self.random.below(100) < escaped {
                true if self.random.below(2) == 0 => self.text(&format!("\\u{code:04x}")),
                true => self.text(&format!("\\u{code:04X}")),
                false => self.out.push(character as u8),
            }
        }
        self.text("\"");
        self.space();
        self.text(":");
        self.space();
    }

    fn scalar(&mut self) {
        let text = self.random.of(&[
            "0",
            "-0",
            "0.0",
            "7",
            "null",
            "true",
            "false",
            "1e400",
            "-1.5E-3",
            "NaN",
            "-Infinity",
        ]);
        match self.random.below(8) {
            0 => {
                let length = 1 + self.length();
                self.out.resize(self.out.len() + length, b'7');
            }
            _ => self.text(text),
        }
    }

    /// `write` between brackets, up to `most` times.
    fn items(&mut self, brackets: [&str; 2], most: usize, write: &mut dyn FnMut(&mut Self)) {
        self.text(brackets[0]);
        let count = self.random.below(most + 1);
        if count == 0 {
            self.space();
        }
        for item in 0..count {
            if item > 0 {
                self.text(",");
            }
            self.space();
            write(self);
            self.space();
        }
        self.text(brackets[1]);
    }

    fn value(&mut self, depth: usize) {
        if depth > 8 || self.out.len() > self.room {
            return self.scalar();
        }
        match self.random.below(12) {
            0..3 => self.scalar(),
            3..6 => self.string(),
            6 => {
                let most = self.length();
                self.items(["[", "]"], most, &mut |w| {
                    let number = w.random.below(200_000);
                    w.text(&number.to_string());
                });
            }
            7 => self.chain(depth),
            8 => self.items(["[", "]"], 4, &mut |w| w.value(depth + 1)),
            _ => self.items(["{", "}"], 4, &mut |w| w.other_member(depth + 1)),
        }
    }

    /// One in the other, many times, of both kinds.
    fn chain(&mut self, depth: usize) {
        let levels = match self.random.below(3) {
            0 => 58 + self.random.below(12),
            _ => self.random.below(140),
        };
        let squares = self.random.of(&[0, 50, 100]);
        let mut close = Vec::new();
        for _ in 0..levels {
            if self.random.below(100) < squares {
                self.text("[");
                close.push("]");
            } else {
                self.text("{\"a\":");
                close.push("}");
            }
        }
        self.value(depth + 7);
        for bracket in close.into_iter().rev() {
            if self.random.below(12) == 0 {
                self.text(if bracket == "]" {
                    ",\"]\""
                } else {
                    ",\"}\":[]"
                });
            }
            self.text(bracket);
        }
    }

    /// Not at the top level, where params would count.
    fn other_member(&mut self, depth: usize) {
        match self.random.below(6) {
            0 => {
                self.key("kv_transfer_params");
                self.params(depth);
            }
            _ => self.plain_member(depth),
        }
    }

    fn plain_member(&mut self, depth: usize) {
        let key = self.random.of(&OTHER_KEYS);
        self.text(&format!("\"{key}\":"));
        self.value(depth);
    }

    fn params(&mut self, depth: usize) {
        match self.random.below(10) {
            0 => self.text("null"),
            1 => self.value(depth),
            _ => self.items(["{", "}"], 5, &mut |w| {
                let name = w.random.of(&[
                    "max_load_tokens",
                    "max_load_tokens",
                    "max_offload_tokens",
                    "kv_load_tiers",
                    "disagg_spec",
                    "max_load_token",
                ]);
                w.key(name);
                match w.random.below(2) {
                    0 => w.scalar(),
                    _ => w.value(depth + 1),
                }
            }),
        }
    }

    fn body(&mut self) {
        if self.random.below(12) == 0 {
            self.text("\u{feff}");
        }
        self.space();
        self.items(["{", "}"], 7, &mut |w| match w.random.below(8) {
            0..2 => {
                w.key("kv_transfer_params");
                w.params(1);
            }
            2 => {
                w.key("sampling_params");
                w.items(["{", "}"], 3, &mut |w| match w.random.below(2) {
                    0 => {
                        w.key("extra_args");
                        w.items(["{", "}"], 3, &mut |w| w.other_member(3));
                    }
                    _ => w.other_member(2),
                });
            }
            _ => w.plain_member(1),
        });
        let behind = ["", "", "", "\n", "}{\"kv_transfer_params\":{}}", "\"", "]"];
        let behind = self.random.of(&behind);
        self.text(behind);
    }
}
