//! Tier evidence: which prompt-prefix blocks an endpoint holds in which tier (DESIGN 5), from
//! `selective-kv/1/evidence/<bucket of request id>` or from a header.

use crate::sorted::{SortedMap, sort_by};
use std::borrow::Cow;

use super::cbor::{self, Cursor, Item, Kind, List, Map};
use super::runs::{ListId, Runs, TierList};
use super::{MAX_VALUE_BYTES, Malformed};

/// Most prompts in the evidence for one endpoint.
pub const MAX_PROMPTS: usize = 4096;
/// Most runs in the evidence for one endpoint, over all its prompts.
pub const MAX_RUNS: usize = 65_536;
/// Most blocks, and most tokens, in the evidence for one endpoint, over all its prompts.
pub const MAX_TOTAL: u64 = u32::MAX as u64;

/// Evidence for one request and one endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evidence {
    /// When the snapshot was taken, Unix ms. `None` from a header: it has no age.
    pub t_ms: Option<u64>,
    /// Tokens a block; at least 1.
    pub block_size: u32,
    /// One per prompt of the request; at least one.
    pub prompts: Vec<Prompt>,
    /// A lower bound: it can admit a load, never refuse one as too small.
    pub partial: bool,
}

/// Blocks of one prompt. Tier names are lower case when read from a record or a header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Prompt {
    /// Exact: the prompt's full blocks from block 0, run after run.
    Runs(Runs),
    /// Counts: leading blocks held in each tier.
    Tiers(SortedMap<String, u64>),
}

impl Prompt {
    /// Blocks an engine could load after its GPU prefix, from the external tiers that `permitted`
    /// lets count (it is asked for external ones only).
    ///
    /// Runs: from the first block that is not in `gpu`, as long as each block is in at least one
    /// such tier. Counts: the longest such tier beyond `gpu`.
    #[must_use]
    pub fn external_blocks(&self, permitted: &dyn Fn(&str) -> bool) -> u64 {
        let counts = |tier: &str| is_external(tier) && permitted(tier);
        match self {
            Self::Runs(runs) => runs.after_gpu(is_gpu, counts),
            Self::Tiers(tiers) => {
                let longest = |wanted: &dyn Fn(&str) -> bool| {
                    let blocks = tiers.iter().filter(|(t, _)| wanted(t)).map(|(_, n)| *n);
                    blocks.max().unwrap_or(0)
                };
                longest(&counts).saturating_sub(longest(&is_gpu))
            }
        }
    }
}

fn is_gpu(tier: &str) -> bool {
    tier.eq_ignore_ascii_case("gpu")
}

/// Every name but `gpu` and `speculative` (a guess, held nowhere).
fn is_external(tier: &str) -> bool {
    !is_gpu(tier) && !tier.eq_ignore_ascii_case("speculative")
}

/// What there is to know about one request at one endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// Nothing that counts: reason `no_evidence`.
    Absent(Absent),
    /// There is something, and it is wrong inside: reason `invalid_evidence`.
    Invalid(Invalid),
    Found(Evidence),
}

/// Why there is no evidence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absent {
    /// The key was never set, or the request has no id.
    NoRecord,
    Malformed(Malformed),
    /// The record does not speak of this request.
    NoRequest,
    /// The request's entry does not speak of this endpoint.
    NoEndpoint,
    /// The prompt list is empty.
    NoPrompts,
}

impl Absent {
    /// The `kind` label of `selective_kv_evidence_problems_total`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoRecord => "no_record",
            Self::Malformed(m) => m.as_str(),
            Self::NoRequest => "no_request",
            Self::NoEndpoint => "no_endpoint",
            Self::NoPrompts => "no_prompts",
        }
    }
}

/// What is wrong inside an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Invalid {
    /// The header is not one JSON object.
    Header,
    /// A field is missing, or of another type or shape.
    Type,
    /// A count or time is negative or no integer.
    Count,
    /// Not an integer from 1 to 2³² − 1.
    BlockSize,
    /// More than [`MAX_PROMPTS`].
    TooManyPrompts,
    /// More than [`MAX_RUNS`].
    TooManyRuns,
    /// More than [`MAX_TOTAL`] blocks or tokens.
    TooLarge,
}

impl Invalid {
    /// The `kind` label of `selective_kv_evidence_problems_total`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Header => "invalid_header",
            Self::Type => "invalid_type",
            Self::Count => "invalid_count",
            Self::BlockSize => "invalid_block_size",
            Self::TooManyPrompts => "too_many_prompts",
            Self::TooManyRuns => "too_many_runs",
            Self::TooLarge => "too_large",
        }
    }
}

/// Why an entry gives no evidence.
pub(super) enum Fault {
    Absent(Absent),
    Invalid(Invalid),
}

impl From<Absent> for Fault {
    fn from(why: Absent) -> Self {
        Self::Absent(why)
    }
}

impl From<Invalid> for Fault {
    fn from(why: Invalid) -> Self {
        Self::Invalid(why)
    }
}

impl From<Result<Evidence, Fault>> for Lookup {
    fn from(result: Result<Evidence, Fault>) -> Self {
        match result {
            Ok(evidence) => Self::Found(evidence),
            Err(Fault::Absent(why)) => Self::Absent(why),
            Err(Fault::Invalid(why)) => Self::Invalid(why),
        }
    }
}

/// Evidence for `request_id` at `endpoint` in a record. Of several entries with that id the
/// newest, which is the last, counts alone. An empty value is no record, an empty id none.
#[must_use]
pub fn find(value: &[u8], request_id: &str, endpoint: &str) -> Lookup {
    find_with_time(value, request_id, endpoint).0
}

/// As [`find`], and when the entry that counts was written, Unix ms, if it says so: an invalid one may
/// be stale as well.
#[must_use]
pub fn find_with_time(value: &[u8], request_id: &str, endpoint: &str) -> (Lookup, Option<u64>) {
    let newest = match newest(value, request_id, endpoint) {
        Ok(newest) => newest,
        Err(why) => return (Lookup::Absent(why), None),
    };
    let written_ms = newest.request.t.and_then(Item::uint);
    (newest.evidence().into(), written_ms)
}

/// The newest entry of a request.
struct Newest<'a> {
    request: Request<'a>,
    /// What it says of one endpoint: `None` if the entry has no map of endpoints.
    endpoint: Option<Option<Item<'a>>>,
}

impl Newest<'_> {
    fn evidence(&self) -> Result<Evidence, Fault> {
        let entry = self.endpoint.ok_or(Invalid::Type)?;
        let entry = entry.ok_or(Absent::NoEndpoint)?;
        of_entry(&self.request, entry)
    }
}

fn newest<'a>(value: &'a [u8], request_id: &str, endpoint: &str) -> Result<Newest<'a>, Absent> {
    if value.is_empty() || request_id.is_empty() {
        return Err(Absent::NoRecord);
    }
    // `None` of the inner one: no list.
    let mut newest: Option<Option<Option<Newest<'_>>>> = None;
    cbor::walk_record(value, |key, cursor| {
        if !key.is_text("requests") {
            return cursor.item().map(|_| ());
        }
        let mut last = None;
        let is_list = cursor.array(|cursor| {
            last = entry(cursor, request_id, endpoint)?.or(last.take());
            Some(())
        })?;
        newest = Some(is_list.then_some(last));
        Some(())
    })
    .map_err(Absent::Malformed)?;
    let list = newest
        .flatten()
        .ok_or(Absent::Malformed(Malformed::Shape))?;
    list.ok_or(Absent::NoRequest)
}

/// Passes a request's entry; it is given back if it is that request's.
fn entry<'a>(
    cursor: &mut Cursor<'a>,
    request_id: &str,
    endpoint: &str,
) -> Option<Option<Newest<'a>>> {
    let mut its_own = false;
    let mut found = Newest {
        request: Request {
            t: None,
            block_size: None,
        },
        endpoint: None,
    };
    cursor.map(|key, cursor| {
        if key.is_text("endpoints") {
            let mut entry = None;
            let is_map = cursor.map(|name, cursor| {
                let value = cursor.item()?;
                if name.is_text(endpoint) {
                    entry = Some(value);
                }
                Some(())
            })?;
            found.endpoint = is_map.then_some(entry);
            return Some(());
        }
        let value = cursor.item()?;
        if key.is_text("id") {
            its_own = value.is_text(request_id);
        } else if key.is_text("t") {
            found.request.t = Some(value);
        } else if key.is_text("block_size") {
            found.request.block_size = Some(value);
        }
        Some(())
    })?;
    Some(its_own.then_some(found))
}

/// What a request's entry says for all its endpoints.
pub(super) struct Request<'a> {
    pub t: Option<Item<'a>>,
    pub block_size: Option<Item<'a>>,
}

/// The evidence of one endpoint's entry.
pub(super) fn of_entry(request: &Request<'_>, entry: Item<'_>) -> Result<Evidence, Fault> {
    let (mut all, mut partial) = (None, None);
    let is_map = Cursor::new(entry.bytes()).map(|key, cursor| {
        if key.is_text("prompts") {
            all = Some(prompts(cursor)?);
            return Some(());
        }
        let value = cursor.item()?;
        if key.is_text("partial") {
            partial = Some(value);
        }
        Some(())
    });
    let all = all.filter(|_| is_map == Some(true)).flatten();
    let mut evidence = evidence(request.block_size, partial, all.ok_or(Invalid::Type)?)?;
    evidence.t_ms = Some(count(request.t.ok_or(Invalid::Type)?)?);
    Ok(evidence)
}

/// Evidence for the chosen endpoint from a header's value:
/// `{"block_size":64,"tiers":{"gpu":4,"cpu":20}}`, the same with `runs`, or with
/// `"prompts":[{…},…]`. `partial` may be in it too; other members are ignored.
#[must_use]
pub fn from_header(value: &[u8]) -> Lookup {
    in_header(value).into()
}

fn in_header(value: &[u8]) -> Result<Evidence, Fault> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(Invalid::Header.into());
    }
    // One set of rules reads both.
    let value = cbor::json_to_cbor(value).ok_or(Invalid::Header)?;
    let whole = Item::parse(&value).ok_or(Invalid::Header)?;
    let fields = whole.map().ok_or(Invalid::Header)?;
    let [block_size, partial, list] = fields.pick(["block_size", "partial", "prompts"]);
    let all = match list {
        Some(list) => prompts(&mut Cursor::new(list.bytes())).flatten(),
        None => prompt(&mut Cursor::new(whole.bytes())).map(|prompt| vec![prompt]),
    };
    evidence(block_size, partial, all.ok_or(Invalid::Type)?)
}

type Prompts = Vec<Result<Prompt, Invalid>>;

/// Evidence without a time.
fn evidence(
    block_size: Option<Item<'_>>,
    partial: Option<Item<'_>>,
    prompts: Prompts,
) -> Result<Evidence, Fault> {
    if prompts.is_empty() {
        return Err(Absent::NoPrompts.into());
    }
    if prompts.len() > MAX_PROMPTS {
        return Err(Invalid::TooManyPrompts.into());
    }
    let block_size = block_size
        .ok_or(Invalid::Type)?
        .uint()
        .and_then(|n| u32::try_from(n).ok())
        .filter(|n| *n > 0)
        .ok_or(Invalid::BlockSize)?;
    let partial = match partial.map(Item::kind) {
        None => false,
        Some(Kind::Bool(partial)) => partial,
        Some(_) => return Err(Invalid::Type.into()),
    };

    let mut size = Size::default();
    let prompts = prompts
        .into_iter()
        .map(|prompt| prompt.and_then(|prompt| size.with(prompt)))
        .collect::<Result<_, _>>()?;
    if size.blocks.saturating_mul(u64::from(block_size)) > MAX_TOTAL {
        return Err(Invalid::TooLarge.into());
    }
    Ok(Evidence {
        t_ms: None,
        block_size,
        prompts,
        partial,
    })
}

/// Sums over all prompts of one entry.
#[derive(Default)]
struct Size {
    runs: usize,
    blocks: u64,
}

impl Size {
    fn with(&mut self, prompt: Prompt) -> Result<Prompt, Invalid> {
        match &prompt {
            Prompt::Runs(runs) => {
                self.runs = self.runs.saturating_add(runs.len());
                if self.runs > MAX_RUNS {
                    return Err(Invalid::TooManyRuns);
                }
                self.blocks = self.blocks.saturating_add(runs.blocks());
            }
            Prompt::Tiers(tiers) => {
                let longest = tiers.values().copied().max().unwrap_or(0);
                self.blocks = self.blocks.saturating_add(longest);
            }
        }
        Ok(prompt)
    }
}

/// Passes the list of an entry's prompts. `None` of the inner one: it is no list. One more than
/// allowed is enough to tell.
fn prompts(cursor: &mut Cursor<'_>) -> Option<Option<Prompts>> {
    let mut all = Vec::new();
    let is_list = cursor.array(|cursor| {
        match all.len() <= MAX_PROMPTS {
            true => all.push(prompt(cursor)?),
            false => drop(cursor.item()?),
        }
        Some(())
    })?;
    Some(is_list.then_some(all))
}

/// Passes a prompt. One with both forms counts by its `runs`.
fn prompt(cursor: &mut Cursor<'_>) -> Option<Result<Prompt, Invalid>> {
    let (mut list, mut tiers) = (None, None);
    let is_map = cursor.map(|key, cursor| {
        if key.is_text("runs") {
            list = Some(runs(cursor)?);
            return Some(());
        }
        let value = cursor.item()?;
        if key.is_text("tiers") {
            tiers = Some(value);
        }
        Some(())
    })?;
    let counts = || {
        let tiers = tiers.filter(|_| is_map).and_then(Item::map);
        Ok(Prompt::Tiers(tier_counts(tiers.ok_or(Invalid::Type)?)?))
    };
    Some(list.map_or_else(counts, |runs| runs.map(Prompt::Runs)))
}

/// Passes a list of runs.
fn runs(cursor: &mut Cursor<'_>) -> Option<Result<Runs, Invalid>> {
    let mut runs = Runs::default();
    let mut wrong = None;
    // Of the lists that the cursor knows.
    let mut known: [Option<ListId>; Cursor::KNOWN_LISTS] = Default::default();
    cursor.forget_lists();
    let is_list = cursor.array_by(|cursor, left| {
        let passed = cursor.known_runs(left, |blocks, place| match known.get(place) {
            Some(Some(list)) => runs.push(blocks.into(), *list),
            // What the cursor knows it was told here.
            _ => wrong = wrong.or(Some(Invalid::Type)),
        });
        if passed.is_some() {
            return passed;
        }
        match run(cursor.new_item()?) {
            Ok((blocks, tiers, list)) => {
                let id = runs.list(tiers);
                runs.push(blocks, id);
                if let Some(place) = cursor.learn(list).and_then(|place| known.get_mut(place)) {
                    *place = Some(id);
                }
            }
            Err(why) => wrong = wrong.or(Some(why)),
        }
        Some(1)
    })?;
    Some(match wrong {
        None if is_list => Ok(runs),
        why => Err(why.unwrap_or(Invalid::Type)),
    })
}

/// Its blocks and tiers, and the list of those as it stands there.
fn run(item: Item<'_>) -> Result<(u64, TierList, Item<'_>), Invalid> {
    let pair = item.array().and_then(List::pair);
    let (blocks, list) = pair.ok_or(Invalid::Type)?;
    let name = |tier: Item<'_>| Some(tier.text()?.to_ascii_lowercase());
    let tiers = list
        .array()
        .and_then(|list| list.iter().map(name).collect::<Option<_>>());
    let blocks = count(blocks)?;
    Ok((blocks, tiers.ok_or(Invalid::Type)?, list))
}

/// Names that differ only in case are one tier, with the larger count.
fn tier_counts(fields: Map<'_>) -> Result<SortedMap<String, u64>, Invalid> {
    let spelled = fields
        .iter()
        .map(|(name, blocks)| Ok((name.text().ok_or(Invalid::Type)?, blocks)));
    let spelled: SortedMap<Cow<'_, str>, Item<'_>> = spelled.collect::<Result<_, _>>()?;
    let tiers = spelled
        .iter()
        .map(|(name, blocks)| Ok((name.to_ascii_lowercase(), count(*blocks)?)));
    let mut tiers: Vec<(String, u64)> = tiers.collect::<Result<_, _>>()?;
    // Of one name the last one stays.
    sort_by(&mut tiers, |(_, a), (_, b)| a.cmp(b));
    Ok(tiers.into())
}

fn count(item: Item<'_>) -> Result<u64, Invalid> {
    match item.kind() {
        Kind::Uint(n) => Ok(n),
        Kind::Negative | Kind::Float(_) => Err(Invalid::Count),
        _ => Err(Invalid::Type),
    }
}

#[cfg(test)]
mod tests {
    use super::super::cbor::{Out, from_json};
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const EP: &str = "10.0.0.7:8000";

    fn in_requests(requests: &str) -> Lookup {
        let record = format!(r#"{{"v":1,"requests":{requests}}}"#);
        find(&from_json(&record), "r", EP)
    }

    fn in_request(request: &str) -> Lookup {
        in_requests(&format!(r#"[{{"id":"r",{request}}}]"#))
    }

    /// The endpoint's entry of an otherwise good request.
    fn in_entry(entry: &str) -> Lookup {
        in_request(&format!(
            r#""t":7,"block_size":16,"endpoints":{{"{EP}":{entry}}}"#
        ))
    }

    fn runs(list: &[(u64, &[&str])]) -> Prompt {
        let tiers = |tiers: &[&str]| tiers.iter().map(|t| (*t).to_owned()).collect();
        let run = |(blocks, list): &(u64, &[&str])| (*blocks, tiers(list));
        Prompt::Runs(list.iter().map(run).collect())
    }

    fn tiers(list: &[(&str, u64)]) -> Prompt {
        Prompt::Tiers(list.iter().map(|(t, n)| ((*t).to_owned(), *n)).collect())
    }

    fn found(t_ms: Option<u64>, prompts: Vec<Prompt>, partial: bool) -> Lookup {
        Lookup::Found(Evidence {
            t_ms,
            block_size: 16,
            prompts,
            partial,
        })
    }

    #[test]
    fn both_forms_are_read() {
        let table = [
            (
                r#"{"prompts":[{"runs":[[4,["gpu","CPU"]],[0,[]],[16,["cpu"]]]}]}"#,
                vec![runs(&[(4, &["gpu", "cpu"]), (0, &[]), (16, &["cpu"])])],
                false,
            ),
            (
                r#"{"prompts":[{"tiers":{"gpu":4,"cpu":20}},{"tiers":{}},{"runs":[]}],"partial":true}"#,
                vec![tiers(&[("gpu", 4), ("cpu", 20)]), tiers(&[]), runs(&[])],
                true,
            ),
            // Both: the runs count, the counts are not even looked at.
            (
                r#"{"prompts":[{"tiers":{"cpu":-1},"runs":[[1,["cpu"]]]}],"partial":false}"#,
                vec![runs(&[(1, &["cpu"])])],
                false,
            ),
            (
                r#"{"prompts":[{"tiers":7,"runs":[]}],"writer":7}"#,
                vec![runs(&[])],
                false,
            ),
            (
                r#"{"prompts":[{"runs":[]}],"writer":null}"#,
                vec![runs(&[])],
                false,
            ),
            // One tier in several spellings: the larger count.
            (
                r#"{"prompts":[{"tiers":{"cpu":1,"CPU":3,"Cpu":2}}]}"#,
                vec![tiers(&[("cpu", 3)])],
                false,
            ),
            // The same key twice: the last one, as everywhere.
            (
                r#"{"prompts":[{"tiers":{"cpu":9,"cpu":2}}],"x":[{}]}"#,
                vec![tiers(&[("cpu", 2)])],
                false,
            ),
        ];
        for (entry, prompts, partial) in table {
            assert_eq!(in_entry(entry), found(Some(7), prompts, partial), "{entry}");
        }
    }

    #[test]
    fn no_evidence() {
        use Absent::{NoEndpoint, NoPrompts, NoRecord, NoRequest};
        let malformed = |m| Lookup::Absent(Absent::Malformed(m));
        assert_eq!(find(b"", "r", EP), Lookup::Absent(NoRecord));
        let nameless = format!(
            r#"{{"v":1,"requests":[{{"id":"","t":7,"block_size":16,"endpoints":{{"{EP}":{{"prompts":[{{"runs":[]}}]}}}}}}]}}"#
        );
        assert_eq!(
            find(&from_json(&nameless), "", EP),
            Lookup::Absent(NoRecord)
        );
        assert_eq!(find(b"\xa1", "r", EP), malformed(Malformed::Cbor));
        let v2 = from_json(r#"{"v":2,"requests":[]}"#);
        assert_eq!(find(&v2, "r", EP), malformed(Malformed::Version));
        assert_eq!(
            find(&from_json(r#"{"v":1}"#), "r", EP),
            malformed(Malformed::Shape)
        );
        let large = vec![0; MAX_VALUE_BYTES + 1];
        assert_eq!(find(&large, "r", EP), malformed(Malformed::TooLarge));

        assert_eq!(in_requests("{}"), malformed(Malformed::Shape));
        assert_eq!(in_requests("[]"), Lookup::Absent(NoRequest));
        assert_eq!(
            in_requests(r#"[5,{},{"id":7},{"id":"R"}]"#),
            Lookup::Absent(NoRequest)
        );
        let elsewhere = r#""t":7,"block_size":0,"endpoints":{"10.0.0.8:8000":{}}"#;
        assert_eq!(in_request(elsewhere), Lookup::Absent(NoEndpoint));
        let timeless = r#""endpoints":{"10.0.0.8:8000":{}}"#;
        assert_eq!(in_request(timeless), Lookup::Absent(NoEndpoint));
        assert_eq!(in_entry(r#"{"prompts":[]}"#), Lookup::Absent(NoPrompts));
        // An empty list says nothing, whatever else is wrong.
        let empty =
            format!(r#""block_size":0,"endpoints":{{"{EP}":{{"prompts":[],"partial":7}}}}"#);
        assert_eq!(in_request(&empty), Lookup::Absent(NoPrompts));
    }

    #[test]
    fn the_newest_entry_of_a_request_counts_alone() {
        let entry = |id: &str, t: u64, ep: &str, blocks: i64| {
            format!(
                r#"{{"id":"{id}","t":{t},"block_size":16,"endpoints":{{"{ep}":{{"prompts":[{{"tiers":{{"cpu":{blocks}}}}}]}}}}}}"#
            )
        };
        let found_at = |t, blocks| found(Some(t), vec![tiers(&[("cpu", blocks)])], false);
        let run = |entries: &[String]| in_requests(&format!("[{}]", entries.join(",")));
        let older = entry("r", 5, EP, 1);
        assert_eq!(run(&[older.clone(), entry("r", 6, EP, 2)]), found_at(6, 2));
        // The place counts, not the time.
        assert_eq!(run(&[older.clone(), entry("r", 4, EP, 2)]), found_at(4, 2));
        assert_eq!(run(&[older.clone(), entry("s", 6, EP, 2)]), found_at(5, 1));
        // It hides an older one even if it has nothing to say here.
        let other = entry("r", 6, "10.0.0.8:8000", 2);
        assert_eq!(
            run(&[older.clone(), other]),
            Lookup::Absent(Absent::NoEndpoint)
        );
        let invalid = entry("r", 6, EP, -2);
        assert_eq!(
            run(&[older.clone(), invalid]),
            Lookup::Invalid(Invalid::Count)
        );
        // A malformed neighbour does not spoil it.
        assert_eq!(
            run(&[
                older,
                "7".to_owned(),
                r#"{"id":"s","endpoints":5}"#.to_owned()
            ]),
            found_at(5, 1)
        );
    }

    #[test]
    fn invalid_inside() {
        use Invalid::{BlockSize, Count, TooLarge, Type};
        let in_prompt =
            |prompt: &str| in_entry(&format!(r#"{{"prompts":[{{"runs":[]}},{prompt}]}}"#));
        let prompts = [
            ("7", Type),
            ("{}", Type),
            (r#"{"runs":7}"#, Type),
            (r#"{"runs":null,"tiers":{"cpu":1}}"#, Type),
            (r#"{"runs":[7]}"#, Type),
            (r#"{"runs":[[]]}"#, Type),
            (r#"{"runs":[[1]]}"#, Type),
            (r#"{"runs":[[1,["cpu"],2]]}"#, Type),
            (r#"{"runs":[[1,"cpu"]]}"#, Type),
            (r#"{"runs":[[1,[5]]]}"#, Type),
            (r#"{"runs":[["1",["cpu"]]]}"#, Type),
            (r#"{"runs":[[true,["cpu"]]]}"#, Type),
            (r#"{"runs":[[-1,["cpu"]]]}"#, Count),
            (r#"{"runs":[[1.0,["cpu"]]]}"#, Count),
            (r#"{"runs":[[1.5,["cpu"]]]}"#, Count),
            (r#"{"tiers":[]}"#, Type),
            (r#"{"tiers":{"cpu":"1"}}"#, Type),
            (r#"{"tiers":{"cpu":null}}"#, Type),
            (r#"{"tiers":{"cpu":-1}}"#, Count),
            (r#"{"tiers":{"cpu":3,"gpu":-5}}"#, Count),
            (r#"{"tiers":{"speculative":2.0}}"#, Count),
            (r#"{"tiers":{"cpu":18446744073709551615}}"#, TooLarge),
            (
                r#"{"runs":[[18446744073709551615,[]],[18446744073709551615,[]]]}"#,
                TooLarge,
            ),
            (r#"{"runs":[[268435456,[]]]}"#, TooLarge), // 2³² tokens
        ];
        for (prompt, why) in prompts {
            assert_eq!(in_prompt(prompt), Lookup::Invalid(why), "{prompt}");
        }
        // 2³² - 16 tokens are the most with 16 a block.
        assert!(matches!(
            in_prompt(r#"{"runs":[[268435455,[]]]}"#),
            Lookup::Found(_)
        ));
        // Totals are over all prompts.
        let two = r#"{"prompts":[{"tiers":{"cpu":134217728}},{"runs":[[134217728,[]]]}]}"#;
        assert_eq!(in_entry(two), Lookup::Invalid(TooLarge));

        let good = r#"{"prompts":[{"runs":[]}]}"#;
        let requests = [
            (
                format!(r#""block_size":16,"endpoints":{{"{EP}":{good}}}"#),
                Type,
            ),
            (
                format!(r#""t":"7","block_size":16,"endpoints":{{"{EP}":{good}}}"#),
                Type,
            ),
            (
                format!(r#""t":-7,"block_size":16,"endpoints":{{"{EP}":{good}}}"#),
                Count,
            ),
            (
                format!(r#""t":7.5,"block_size":16,"endpoints":{{"{EP}":{good}}}"#),
                Count,
            ),
            (format!(r#""t":7,"endpoints":{{"{EP}":{good}}}"#), Type),
            (
                format!(r#""t":7,"block_size":0,"endpoints":{{"{EP}":{good}}}"#),
                BlockSize,
            ),
            (
                format!(r#""t":7,"block_size":-16,"endpoints":{{"{EP}":{good}}}"#),
                BlockSize,
            ),
            (
                format!(r#""t":7,"block_size":16.0,"endpoints":{{"{EP}":{good}}}"#),
                BlockSize,
            ),
            (
                format!(r#""t":7,"block_size":"16","endpoints":{{"{EP}":{good}}}"#),
                BlockSize,
            ),
            (
                format!(r#""t":7,"block_size":4294967296,"endpoints":{{"{EP}":{good}}}"#),
                BlockSize,
            ),
            (r#""t":7,"block_size":16"#.to_owned(), Type),
            (r#""t":7,"block_size":16,"endpoints":[]"#.to_owned(), Type),
            (
                format!(r#""t":7,"block_size":16,"endpoints":{{"{EP}":5}}"#),
                Type,
            ),
            (
                format!(r#""t":7,"block_size":16,"endpoints":{{"{EP}":{{}}}}"#),
                Type,
            ),
            (
                format!(r#""t":7,"block_size":16,"endpoints":{{"{EP}":{{"prompts":7}}}}"#),
                Type,
            ),
            (
                format!(
                    r#""t":7,"block_size":16,"endpoints":{{"{EP}":{{"prompts":[{{"runs":[]}}],"partial":null}}}}"#
                ),
                Type,
            ),
        ];
        for (request, why) in requests {
            assert_eq!(in_request(&request), Lookup::Invalid(why), "{request}");
        }
    }

    #[test]
    fn limits_on_prompts_and_runs() {
        let list = |one: &str, n: usize| vec![one; n].join(",");
        let prompts = |n| in_entry(&format!(r#"{{"prompts":[{}]}}"#, list(r#"{"runs":[]}"#, n)));
        assert!(matches!(prompts(MAX_PROMPTS), Lookup::Found(_)));
        assert_eq!(
            prompts(MAX_PROMPTS + 1),
            Lookup::Invalid(Invalid::TooManyPrompts)
        );
        // Runs are counted over all prompts, the empty ones too.
        let runs = |n| {
            let half = list("[0,[]]", n / 2);
            let rest = list("[0,[]]", n - n / 2);
            in_entry(&format!(
                r#"{{"prompts":[{{"runs":[{half}]}},{{"runs":[{rest}]}}]}}"#
            ))
        };
        assert!(matches!(runs(MAX_RUNS), Lookup::Found(_)));
        assert_eq!(runs(MAX_RUNS + 1), Lookup::Invalid(Invalid::TooManyRuns));
    }

    #[test]
    fn an_invalid_entry_still_has_its_time() {
        let record = |request: &str| {
            let record = format!(r#"{{"v":1,"requests":[{{"id":"r","t":5}},{request}]}}"#);
            find_with_time(&from_json(&record), "r", EP).1
        };
        assert_eq!(record(r#"{"id":"r","t":7,"endpoints":5}"#), Some(7));
        assert_eq!(record(r#"{"id":"r"}"#), None);
        assert_eq!(record(r#"{"id":"r","t":-7}"#), None);
        assert_eq!(record(r#"{"id":"other","t":7}"#), Some(5));
        assert_eq!(find_with_time(b"", "r", EP).1, None);
    }

    #[test]
    fn integers_of_any_width_and_indefinite_lengths() {
        let uint = |n: u64| [&[0x1b][..], &n.to_be_bytes()].concat();
        let body = [
            b"\xbf\x61v".as_slice(), &uint(1), b"\x68requests\x9f\xbf\x62id\x7f\x61r\x60\xff\x61t", &uint(7),
            b"\x6ablock_size\x19\x00\x10\x69endpoints\xbf\x6d10.0.0.7:8000\xbf\x67prompts\x9f\xbf\x64runs\x9f\x9f",
            &uint(4), b"\x9f\x7f\x62cp\x61u\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        ]
        .concat();
        assert_eq!(
            find(&body, "r", EP),
            found(Some(7), vec![runs(&[(4, &["cpu"])])], false)
        );
    }

    #[test]
    fn keys_that_are_no_text_name_nothing_but_spoil_counts() {
        // {1: 2, "v": 1, "requests": [{1: 2, "id": "r", …, "endpoints": {1: 2, EP: {1: 2, …}}}]}
        let record = |tiers: &[u8]| {
            [
                b"\xa3\x01\x02\x61v\x01\x68requests\x81\xa5\x01\x02\x62id\x61r\x61t\x07".as_slice(),
                b"\x6ablock_size\x10\x69endpoints\xa2\x01\x02\x6d10.0.0.7:8000",
                b"\xa2\x01\x02\x67prompts\x81\xa2\x01\x02\x65tiers",
                tiers,
            ]
            .concat()
        };
        assert_eq!(
            find(&record(b"\xa1\x63cpu\x03"), "r", EP),
            found(Some(7), vec![tiers(&[("cpu", 3)])], false)
        );
        assert_eq!(
            find(&record(b"\xa2\x01\x02\x63cpu\x03"), "r", EP),
            Lookup::Invalid(Invalid::Type)
        );
    }

    #[test]
    fn floats_are_no_counts_in_cbor_either() {
        for n in [4.0, f64::NAN, f64::INFINITY, -1.0] {
            let mut out = Out::default();
            out.array(2).float(n).array(0);
            let item = Item::parse(out.as_slice()).unwrap();
            assert_eq!(
                run(item).map(|(blocks, ..)| blocks),
                Err(Invalid::Count),
                "{n}"
            );
        }
    }

    #[test]
    fn header_forms() {
        let ok = |prompts, partial| found(None, prompts, partial);
        let invalid = Lookup::Invalid;
        let table = [
            (
                r#"{"block_size":16,"tiers":{"gpu":4,"cpu":20}}"#,
                ok(vec![tiers(&[("gpu", 4), ("cpu", 20)])], false),
            ),
            (
                r#" { "partial" : true , "runs" : [[4,["GPU"]]] , "block_size" : 16 , "t": "x" } "#,
                ok(vec![runs(&[(4, &["gpu"])])], true),
            ),
            (
                r#"{"block_size":16,"prompts":[{"tiers":{}},{"runs":[]}],"runs":7}"#,
                ok(vec![tiers(&[]), runs(&[])], false),
            ),
            (
                r#"{"block_size":7,"block_size":16,"runs":[]}"#,
                ok(vec![runs(&[])], false),
            ),
            (
                r#"{"block_size":16,"prompts":[]}"#,
                Lookup::Absent(Absent::NoPrompts),
            ),
            ("", invalid(Invalid::Header)),
            ("gpu=4", invalid(Invalid::Header)),
            ("[]", invalid(Invalid::Header)),
            (
                r#"{"block_size":16,"runs":[]},{"block_size":16,"runs":[]}"#,
                invalid(Invalid::Header),
            ),
            (r#"{"block_size":16,"runs":[]"#, invalid(Invalid::Header)),
            (
                r#"{"block_size":16,"tiers":{"cpu":NaN}}"#,
                invalid(Invalid::Header),
            ),
            ("{}", invalid(Invalid::Type)),
            (r#"{"block_size":16}"#, invalid(Invalid::Type)),
            (r#"{"tiers":{}}"#, invalid(Invalid::Type)),
            (r#"{"block_size":16,"prompts":{}}"#, invalid(Invalid::Type)),
            (
                r#"{"block_size":16,"prompts":[[]]}"#,
                invalid(Invalid::Type),
            ),
            (
                r#"{"block_size":0,"tiers":{}}"#,
                invalid(Invalid::BlockSize),
            ),
            (
                r#"{"block_size":16.0,"tiers":{}}"#,
                invalid(Invalid::BlockSize),
            ),
            (
                r#"{"block_size":16,"tiers":{"cpu":-1}}"#,
                invalid(Invalid::Count),
            ),
            (
                r#"{"block_size":16,"tiers":{"cpu":1e3}}"#,
                invalid(Invalid::Count),
            ),
            (
                r#"{"block_size":16,"tiers":{"cpu":99999999999999999999}}"#,
                invalid(Invalid::Count),
            ),
        ];
        for (header, expected) in table {
            assert_eq!(from_header(header.as_bytes()), expected, "{header}");
        }
        assert_eq!(from_header(b"{\"\xff\":1}"), invalid(Invalid::Header));
        assert_eq!(from_header(&b"[".repeat(100_000)), invalid(Invalid::Header));
        assert_eq!(
            from_header(&b" ".repeat(MAX_VALUE_BYTES + 1)),
            invalid(Invalid::Header)
        );
    }
}
