//! The queue length of one engine out of its metrics page (Prometheus text format).
//!
//! A page is about 90 kB of which one or a few lines matter, once a second per engine. So nothing
//! is parsed but the lines that begin with the metric's name, found by substring search.
//!
//! One engine address publishes one series per data-parallel engine core
//! (`vllm:num_requests_waiting{engine="0",…}`, `{engine="1",…}`): the address's queue is their sum.
//! llm-d's parser takes the first series only, which hides the others' queues.

use super::metric_spec::{MetricSpec, is_name_byte, is_name_start};
use memchr::{memchr, memchr_iter, memchr3};
use std::borrow::Cow;

/// What a page says about one metric.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Reading {
    /// Sum over the valid series; None without a valid one. Finite and not negative.
    pub sum: Option<f64>,
    /// Series of this metric left out: NaN, infinite, negative, or not a well-formed line.
    pub ignored: u32,
}

/// Sums every series of `spec` on `page`.
///
/// A last line without a newline is half a line (the format requires the newline) and is ignored.
pub fn read(page: &[u8], spec: &MetricSpec) -> Reading {
    let mut reading = Reading {
        sum: None,
        ignored: 0,
    };
    let mut rest = page;
    let mut at_line_start = true;
    while let Some(at) = spec.finder().find(rest) {
        let (before, hit) = rest.split_at_checked(at).unwrap_or((rest, &[]));
        let after_name = hit.get(spec.name().len()..).unwrap_or_default();
        if !begins_line(before, at_line_start) {
            at_line_start = false;
            rest = after_name;
            continue;
        }
        match series(after_name, spec.labels()) {
            Line::Value(value) => {
                let sum = reading.sum.unwrap_or(0.0) + value;
                if sum.is_finite() {
                    reading.sum = Some(sum);
                } else {
                    reading.ignored = reading.ignored.saturating_add(1);
                }
            }
            Line::Invalid => reading.ignored = reading.ignored.saturating_add(1),
            Line::Other => {}
        }
        rest = match memchr(b'\n', after_name) {
            Some(end) => after_name.get(end..).unwrap_or_default(),
            None => &[],
        };
        at_line_start = false;
    }
    reading
}

/// The labels of one series, as they stand between its braces.
pub struct Labels<'a>(&'a [u8]);

impl Labels<'_> {
    /// The label's value, unescaped; None if it is not there, or not UTF-8.
    pub fn get(&self, label: &str) -> Option<Cow<'_, str>> {
        let mut rest = self.0;
        loop {
            let (name, value, after) = read_label(rest)?;
            if name == label.as_bytes() {
                return unescaped(value);
            }
            rest = skip_blanks(after);
            rest = rest.strip_prefix(b",").unwrap_or(rest);
        }
    }
}

/// Calls `see` for every well-formed series with a finite value from 0 up in a `wanted` line: with
/// its name, labels and value. Lines come from the name on; most of a page is wanted by nobody, and
/// of that no more than the first bytes is read.
pub fn each_series(
    page: &[u8],
    wanted: &dyn Fn(&[u8]) -> bool,
    see: &mut dyn FnMut(&[u8], &Labels<'_>, f64),
) {
    let starts = memchr_iter(b'\n', page).map(|end| end.saturating_add(1));
    for start in std::iter::once(0).chain(starts) {
        let line = page.get(start..).unwrap_or_default();
        if line.first() == Some(&b'#') {
            continue;
        }
        let line = skip_blanks(line);
        if !wanted(line) {
            continue;
        }
        let end = line.iter().position(|byte| !is_name_byte(*byte));
        let (name, after_name) = line
            .split_at_checked(end.unwrap_or(line.len()))
            .unwrap_or_default();
        if let Line::Value(value) = series(after_name, &[]) {
            let labels = skip_blanks(after_name).strip_prefix(b"{");
            see(name, &Labels(labels.unwrap_or_default()), value);
        }
    }
}

enum Line {
    Value(f64),
    /// A series of this metric that must not count.
    Invalid,
    /// Another metric that only begins with the same bytes, or other labels than asked for.
    Other,
}

/// Whether only blanks stand between the last newline and the end of `before`.
fn begins_line(before: &[u8], at_line_start: bool) -> bool {
    match before.iter().rev().find(|byte| !is_blank(**byte)) {
        Some(b'\n') => true,
        Some(_) => false,
        None => at_line_start,
    }
}

/// The rest of a line after the metric's name: labels, value, timestamp, newline.
fn series(after_name: &[u8], wanted: &[(String, String)]) -> Line {
    if after_name.first().is_some_and(|byte| is_name_byte(*byte)) {
        return Line::Other;
    }
    let rest = skip_blanks(after_name);
    let (rest, matching) = match rest.strip_prefix(b"{") {
        Some(labels) => match read_labels(labels, wanted) {
            Some((rest, matching)) => (rest, matching),
            None => return Line::Invalid,
        },
        // Without braces a blank must part the name from the value.
        None if rest.len() == after_name.len() => return Line::Invalid,
        None => (rest, wanted.is_empty()),
    };
    if !matching {
        return Line::Other;
    }
    match read_value(rest) {
        Some(value) if value.is_finite() && value >= 0.0 => Line::Value(value),
        _ => Line::Invalid,
    }
}

/// `label="value",…}`; gives what follows the brace and whether every wanted label is there.
/// None: not well-formed, or cut by the end of the line.
fn read_labels<'a>(mut rest: &'a [u8], wanted: &[(String, String)]) -> Option<(&'a [u8], bool)> {
    let mut matched = 0usize;
    loop {
        rest = skip_blanks(rest);
        if let Some(after) = rest.strip_prefix(b"}") {
            return Some((after, matched == wanted.len()));
        }
        let (label, value, after) = read_label(rest)?;
        let hits = wanted
            .iter()
            .filter(|(name, want)| name.as_bytes() == label && unescaped_equals(value, want))
            .count();
        matched = matched.saturating_add(hits);
        rest = skip_blanks(after);
        match rest.strip_prefix(b",") {
            Some(next) => rest = next,
            None if rest.starts_with(b"}") => {}
            None => return None,
        }
    }
}

/// `label="value"`: both, and what follows. None: not well-formed.
fn read_label(text: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let text = skip_blanks(text);
    let end = text.iter().position(|byte| !is_name_byte(*byte))?;
    let (label, after) = text.split_at_checked(end)?;
    if !label.first().is_some_and(|byte| is_name_start(*byte)) {
        return None;
    }
    let after = skip_blanks(skip_blanks(after).strip_prefix(b"=")?);
    let (value, after) = read_quoted(after.strip_prefix(b"\"")?)?;
    Some((label, value, after))
}

/// A label value up to its closing quote, escapes as they stand. A raw newline cuts it.
fn read_quoted(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut from = 0usize;
    loop {
        let at = from.checked_add(memchr3(b'"', b'\\', b'\n', text.get(from..)?)?)?;
        match text.get(at)? {
            b'"' => return Some((text.get(..at)?, text.get(at.checked_add(1)?..)?)),
            b'\\' => {
                from = at.checked_add(2)?;
                if text.get(at.checked_add(1)?)? == &b'\n' {
                    return None;
                }
            }
            _ => return None,
        }
    }
}

/// Compares an escaped label value (`\"`, `\\`, `\n`) with plain text.
fn unescaped_equals(escaped: &[u8], plain: &str) -> bool {
    let mut want = plain.bytes();
    let mut bytes = escaped.iter().copied();
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'\\' => match bytes.next() {
                Some(b'n') => b'\n',
                Some(other) => other,
                None => return false,
            },
            plain => plain,
        };
        if want.next() != Some(byte) {
            return false;
        }
    }
    want.next().is_none()
}

/// A label value with its escapes (`\"`, `\\`, `\n`) taken out.
fn unescaped(escaped: &[u8]) -> Option<Cow<'_, str>> {
    let text = std::str::from_utf8(escaped).ok()?;
    if !text.contains('\\') {
        return Some(Cow::Borrowed(text));
    }
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '\\' => match chars.next()? {
                'n' => '\n',
                other => other,
            },
            plain => plain,
        });
    }
    Some(Cow::Owned(out))
}

/// Value and optional timestamp, up to the newline that must end them.
fn read_value(text: &[u8]) -> Option<f64> {
    let (line, _) = text.split_at_checked(memchr(b'\n', text)?)?;
    let mut words = line
        .split(|byte| is_blank(*byte))
        .filter(|word| !word.is_empty());
    let value = std::str::from_utf8(words.next()?).ok()?;
    if let Some(timestamp) = words.next() {
        std::str::from_utf8(timestamp).ok()?.parse::<i64>().ok()?;
    }
    if words.next().is_some() {
        return None;
    }
    value.parse().ok()
}

fn skip_blanks(text: &[u8]) -> &[u8] {
    let end = text
        .iter()
        .position(|byte| !is_blank(*byte))
        .unwrap_or(text.len());
    text.get(end..).unwrap_or_default()
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const WAITING: &str = "vllm:num_requests_waiting";
    const FULL_PAGE: &[u8] = include_bytes!("../../testdata/metrics_full_0.32.0.txt");
    const SAMPLES: &[u8] = include_bytes!("../../testdata/metrics_sample.txt");

    fn read_as(page: &[u8], spec: &str) -> (Option<f64>, u32) {
        let reading = read(page, &MetricSpec::parse(spec).unwrap());
        (reading.sum, reading.ignored)
    }

    #[test]
    fn real_page_of_vllm_0_32_0() {
        let rows: &[(&str, Option<f64>)] = &[
            (WAITING, Some(16.0)),
            ("vllm:num_requests_waiting{engine=0}", Some(16.0)),
            ("vllm:num_requests_waiting{engine=1}", None),
            ("vllm:num_requests_waiting_by_reason", Some(16.0)),
            (
                "vllm:num_requests_waiting_by_reason{reason=capacity}",
                Some(14.0),
            ),
            (
                "vllm:num_requests_waiting_by_reason{reason=deferred,engine=0}",
                Some(2.0),
            ),
            ("vllm:num_requests", None),
            ("num_requests_waiting", None),
        ];
        for (spec, sum) in rows {
            assert_eq!(read_as(FULL_PAGE, spec), (*sum, 0), "{spec}");
        }
    }

    #[test]
    fn data_parallel_engines_and_odd_labels_of_prometheus_client() {
        // Given the library's own page: engines 3 and 12, an escaped model 0.5, NaN, +Inf, 1e+17
        let section_b = SAMPLES
            .windows(12)
            .position(|window| window == b"## SECTION B")
            .unwrap();
        // Then the finite ones are summed, and two are left out.
        assert_eq!(
            read_as(&SAMPLES[section_b..], WAITING),
            (Some(1e17 + 15.5), 2)
        );
    }

    #[test]
    fn lines() {
        // "m" is the metric; each row is a whole page.
        let rows: &[(&str, Option<f64>, u32)] = &[
            ("", None, 0),
            ("\n", None, 0),
            ("m 1\n", Some(1.0), 0),
            ("m{} 1\n", Some(1.0), 0),
            ("  m 1\n", Some(1.0), 0),
            ("\tm\t1\t\n", Some(1.0), 0),
            ("m { a = \"b\" , } 1 \n", Some(1.0), 0),
            ("m{engine=\"0\"} 3.0\nm{engine=\"1\"} 12.0\n", Some(15.0), 0),
            // the same series twice counts twice: nothing says which one is right
            ("m 1\nm 1\n", Some(2.0), 0),
            // forms of a number
            ("m 0\n", Some(0.0), 0),
            ("m -0\n", Some(0.0), 0),
            ("m 1.5e+01\n", Some(15.0), 0),
            ("m 1E2\n", Some(100.0), 0),
            ("m .5\n", Some(0.5), 0),
            ("m +4\n", Some(4.0), 0),
            ("m NaN\n", None, 1),
            ("m +Inf\n", None, 1),
            ("m -Inf\n", None, 1),
            ("m 1e999\n", None, 1),
            ("m -1\n", None, 1),
            ("m x\n", None, 1),
            ("m 1,5\n", None, 1),
            ("m 0x10\n", None, 1),
            ("m \n", None, 1),
            ("m\n", None, 1),
            ("m NaN\nm 2\n", Some(2.0), 1),
            ("m 1e308\nm 1e308\n", Some(1e308), 1),
            // timestamps, ms
            ("m 7 1795952365346\n", Some(7.0), 0),
            ("m 7 -1\n", Some(7.0), 0),
            ("m 7 soon\n", None, 1),
            ("m 7 1 1\n", None, 1),
            // half lines
            ("m 16", None, 1),
            ("m 4\nm 16", Some(4.0), 1),
            ("m{a=\"b", None, 1),
            ("m{a=\"b\n} 1\n", None, 1),
            ("m", None, 1),
            ("m{", None, 1),
            ("m{\nm 2\n", Some(2.0), 1),
            ("m{a=\"\\\n\"} 3\nm 2\n", Some(2.0), 1),
            // escapes, and braces in quotes
            ("m{a=\"x\\\"y\"} 1\n", Some(1.0), 0),
            ("m{a=\"x\\\\\"} 1\n", Some(1.0), 0),
            ("m{a=\"x\\n}y\"} 1\n", Some(1.0), 0),
            ("m{a=\"}\",b=\"{\"} 1\n", Some(1.0), 0),
            ("m{a=\"} 9\"} 1\n", Some(1.0), 0),
            ("m{a=\"\u{e9}\"} 1\n", Some(1.0), 0),
            // not well-formed
            ("m{a=b} 1\n", None, 1),
            ("m{a} 1\n", None, 1),
            ("m{=\"b\"} 1\n", None, 1),
            ("m{a=\"b\"c=\"d\"} 1\n", None, 1),
            ("m{,} 1\n", None, 1),
            ("m{a=\"b\"} } 1\n", None, 1),
            ("m=1\n", None, 1),
            // the value may follow the brace directly
            ("m{}1\n", Some(1.0), 0),
            // other lines
            ("# m 1\n", None, 0),
            ("# HELP m 1\n# TYPE m gauge\nm 2\n", Some(2.0), 0),
            ("#\nm 2\n", Some(2.0), 0),
            ("m_total 9\nm 2\nmm 8\nm:x 7\nm1 6\n", Some(2.0), 0),
            ("a{b=\"m 5\"} 1\n", None, 0),
            ("a m 1\n", None, 0),
            ("am 1\n", None, 0),
            // the data model allows no newline in a name, so the next line stands for itself
            ("a{b=\"\nm 5\n", Some(5.0), 0),
            ("m 5\r\n", None, 1),
        ];
        for (page, sum, ignored) in rows {
            assert_eq!(read_as(page.as_bytes(), "m"), (*sum, *ignored), "{page:?}");
        }
    }

    #[test]
    fn wanted_labels() {
        let page = b"m{type=\"waiting\",model=\"a\"} 4\nm{type=\"waiting\",model=\"b\"} 2\n\
            m{type=\"max\",model=\"a\"} 100\nm 9\nm{type=\"x\\\"y\\\\z\\n\"} 1\n";
        let rows: &[(&str, Option<f64>)] = &[
            ("m", Some(116.0)),
            ("m{type=waiting}", Some(6.0)),
            ("m{type=waiting,model=b}", Some(2.0)),
            ("m{type=wait}", None),
            ("m{type=waitingx}", None),
            ("m{type=}", None),
            ("m{other=waiting}", None),
        ];
        for (spec, sum) in rows {
            assert_eq!(read_as(page, spec), (*sum, 0), "{spec}");
        }
    }

    #[test]
    fn escaped_label_values_are_compared_unescaped() {
        let rows: &[(&[u8], &str, bool)] = &[
            (b"", "", true),
            (b"a", "a", true),
            (b"\\\"", "\"", true),
            (b"\\\\n", "\\n", true),
            (b"\\n", "\n", true),
            (b"a\\", "a", false),
            (b"ab", "a", false),
            (b"a", "ab", false),
        ];
        for (escaped, plain, equal) in rows {
            assert_eq!(unescaped_equals(escaped, plain), *equal, "{plain:?}");
        }
    }

    #[test]
    fn series_of_wanted_lines() {
        let page = "x_a{t=\"1\"} 1\nx_b{s=\"\",t=\"a\\\"b\\\\\\n\" ,} 2.5\nx_c 3\n x_ 4\nyx_d 5\n\
                    # x_e 6\nx_f NaN\nx_g{t=\"1} 7\nx_h{t} 8\nx_i{u=\"t\",t=\"z\"} 9 1\n\nx_j 10";
        let mut seen = Vec::new();
        let wanted = |line: &[u8]| line.starts_with(b"x_");
        each_series(page.as_bytes(), &wanted, &mut |name, labels, value| {
            let name = String::from_utf8_lossy(name).into_owned();
            seen.push((name, labels.get("t").map(Cow::into_owned), value));
        });
        let row =
            |name: &str, t: Option<&str>, value| (name.to_owned(), t.map(str::to_owned), value);
        let expected = [
            row("x_a", Some("1"), 1.0),
            row("x_b", Some("a\"b\\\n"), 2.5),
            row("x_c", None, 3.0),
            row("x_", None, 4.0),
            row("x_i", Some("z"), 9.0),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_page_of_nothing_but_the_name_is_read_once_over() {
        // Given 4 MiB of hits that are no line starts, and of line starts that are no series
        for unit in ["m ", "mm", "m{", " m", "m\n", "m{a=\""] {
            let page = unit.repeat((4 << 20) / unit.len());
            assert_eq!(read_as(page.as_bytes(), "m").0, None, "{unit}");
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod properties {
    use super::*;
    use proptest::prelude::*;

    /// The format, line by line and character by character.
    fn naive(page: &str, name: &str) -> (Option<f64>, u32) {
        let (mut sum, mut ignored) = (None, 0);
        let complete = page.rfind('\n').map_or(0, |at| at + 1);
        for (index, line) in page.split('\n').enumerate() {
            let start: usize = page.split('\n').take(index).map(|l| l.len() + 1).sum();
            let line = line.trim_start_matches([' ', '\t']);
            let Some(rest) = line.strip_prefix(name) else {
                continue;
            };
            let named = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
            if rest.starts_with(named) {
                continue;
            }
            let value = naive_value(rest).filter(|_| start < complete);
            match value {
                Some(value) if value.is_finite() && value >= 0.0 => {
                    sum = Some(sum.unwrap_or(0.0) + value)
                }
                _ => ignored += 1,
            }
        }
        (sum, ignored)
    }

    fn naive_value(rest: &str) -> Option<f64> {
        let blank = [' ', '\t'];
        let mut chars: Vec<char> = rest.trim_matches(blank).chars().collect();
        let had_blank = rest.starts_with(blank);
        if chars.first() == Some(&'{') {
            chars.remove(0);
            loop {
                while chars.first().is_some_and(|c| blank.contains(c)) {
                    chars.remove(0);
                }
                if chars.first() == Some(&'}') {
                    chars.remove(0);
                    break;
                }
                let mut label = String::new();
                while chars
                    .first()
                    .is_some_and(|c| c.is_ascii_alphanumeric() || *c == '_' || *c == ':')
                {
                    label.push(chars.remove(0));
                }
                if label.is_empty() || label.starts_with(|c: char| c.is_ascii_digit()) {
                    return None;
                }
                let mut expect = |wanted: char| {
                    while chars.first().is_some_and(|c| blank.contains(c)) {
                        chars.remove(0);
                    }
                    (chars.first() == Some(&wanted)).then(|| chars.remove(0))
                };
                expect('=')?;
                expect('"')?;
                loop {
                    match *chars.first()? {
                        '"' => break,
                        '\\' => {
                            chars.remove(0);
                        }
                        _ => {}
                    }
                    chars.first()?;
                    chars.remove(0);
                }
                chars.remove(0);
                while chars.first().is_some_and(|c| blank.contains(c)) {
                    chars.remove(0);
                }
                match *chars.first()? {
                    ',' => {
                        chars.remove(0);
                    }
                    '}' => {}
                    _ => return None,
                }
            }
        } else if !had_blank {
            return None;
        }
        let rest: String = chars.into_iter().collect();
        let words: Vec<&str> = rest.split(blank).filter(|word| !word.is_empty()).collect();
        match words.as_slice() {
            [value] => value.parse().ok(),
            [value, timestamp] => {
                timestamp.parse::<i64>().ok()?;
                value.parse().ok()
            }
            _ => None,
        }
    }

    fn piece() -> impl Strategy<Value = String> {
        prop_oneof![
            Just("m".to_owned()),
            Just("\nm".to_owned()),
            Just("\nm{a=\"b\"} 3\n".to_owned()),
            Just("\nm 2.5 1795952365346\n".to_owned()),
            "[{}=,\"\\\\ \n\tmab#]",
            "[ \n]?m\\{([ab]=\"[^\"]{0,4}\",?){0,2}\\} ?-?[0-9]{1,3}(\\.5|e2)?( [0-9]{1,4})?\n",
            "(NaN|\\+Inf|-1|1e5|m_x|# HELP m|\u{e9}|\u{1f600}) ?",
        ]
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_parser(pieces in prop::collection::vec(piece(), 0..40)) {
            let page = pieces.concat();
            let reading = read(page.as_bytes(), &MetricSpec::parse("m").unwrap());
            prop_assert_eq!((reading.sum, reading.ignored), naive(&page, "m"), "{:?}", page);
        }

        #[test]
        fn any_bytes_give_a_finite_sum_or_none(page in prop::collection::vec(any::<u8>(), 0..400)) {
            let reading = read(&page, &MetricSpec::parse("m").unwrap());
            prop_assert!(reading.sum.is_none_or(|sum| sum.is_finite() && sum >= 0.0));
        }
    }
}
