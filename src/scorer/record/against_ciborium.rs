//! serde and ciborium are the oracle: what is written is the same bytes, what is read is the same
//! or nothing. The types of the records derive serde's traits in tests for this alone.

use super::*;
use ciborium::Value as Cbor;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::fmt::Debug;

#[derive(Serialize, Deserialize)]
struct Record<S> {
    v: u32,
    scorers: S,
}

fn oracle_encode<T: Serialize>(scorers: &SortedMap<String, T>) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(&Record { v: 1, scorers }, &mut bytes).unwrap();
    bytes
}

fn oracle_decode<T: DeserializeOwned>(bytes: &[u8]) -> SortedMap<String, T> {
    match ciborium::from_reader::<Record<_>, _>(bytes) {
        Ok(record) if record.v == 1 => record.scorers,
        _ => SortedMap::new(),
    }
}

/// What is written is what the oracle writes, and is read again.
pub(in crate::scorer) fn same_bytes<T>(scorers: &SortedMap<String, T>) -> Result<(), TestCaseError>
where
    T: Value + Serialize + PartialEq + Debug,
{
    let bytes = encode(scorers).expect("short enough");
    prop_assert_eq!(&bytes, &oracle_encode(scorers));
    prop_assert_eq!(&decode::<T>(Some(&bytes)), scorers);
    Ok(())
}

/// What is wrong with a record.
#[derive(Clone, Debug)]
pub(in crate::scorer) struct Damage {
    edits: Vec<(Index, Edit)>,
    /// Indefinite lengths and long heads, where a bit is set.
    spelling: u64,
    bytes: Vec<(Index, u8)>,
    cut: Option<Index>,
    trailing: bool,
}

/// To one value of the record; those of a map's pairs change nothing elsewhere.
#[derive(Clone, Debug)]
enum Edit {
    Replace(Cbor),
    Tag(u64),
    Remove(Index),
    Repeat(Index, Option<Cbor>),
    Rename(Index, Cbor),
    Add(Cbor, Cbor),
}

fn any_value() -> impl Strategy<Value = Cbor> {
    let leaf = prop_oneof![
        any::<u64>().prop_map(Cbor::from),
        (0..40u8).prop_map(Cbor::from),
        any::<i64>().prop_map(Cbor::from),
        (0..40u8).prop_map(|n| Cbor::Float(n.into())),
        any::<bool>().prop_map(Cbor::Bool),
        Just(Cbor::Null),
        any_text(),
        vec(any::<u8>(), 0..4).prop_map(Cbor::Bytes),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Cbor::Array),
            vec((any_text(), inner), 0..4).prop_map(Cbor::Map),
        ]
    })
}

/// Keys of our records.
const KNOWN: &[&str] = &[
    "v",
    "scorers",
    "s",
    "holder",
    "config",
    "beat",
    "t",
    "block_size",
    "engines",
    "endpoints",
    "model",
    "aliases",
    "ranks",
];

/// One of our keys, or another text.
fn any_text() -> impl Strategy<Value = Cbor> {
    prop_oneof![
        select(KNOWN).prop_map(Cbor::from),
        "[a-zé]{0,30}".prop_map(Cbor::Text)
    ]
}

pub(in crate::scorer) fn damage() -> impl Strategy<Value = Damage> {
    let key = || prop_oneof![8 => any_text(), 1 => any_value()];
    let edit = prop_oneof![
        any_value().prop_map(Edit::Replace),
        any::<u64>().prop_map(Edit::Tag),
        any::<Index>().prop_map(Edit::Remove),
        (any::<Index>(), prop::option::of(any_value())).prop_map(|(i, v)| Edit::Repeat(i, v)),
        (any::<Index>(), key()).prop_map(|(i, k)| Edit::Rename(i, k)),
        (key(), any_value()).prop_map(|(k, v)| Edit::Add(k, v)),
    ];
    let rarely = |n: usize| vec((any::<Index>(), any::<u8>()), n..=n);
    (
        vec((any::<Index>(), edit), 0..3),
        prop_oneof![Just(0), any::<u64>()],
        prop_oneof![9 => rarely(0), 1 => rarely(1), 1 => rarely(3)],
        prop_oneof![9 => Just(None), 1 => any::<Index>().prop_map(Some)],
        prop::bool::weighted(0.1),
    )
        .prop_map(|(edits, spelling, bytes, cut, trailing)| Damage {
            edits,
            spelling,
            bytes,
            cut,
            trailing,
        })
}

/// Of a damaged record the same is read, or nothing.
pub(in crate::scorer) fn same_reading<T>(
    scorers: &SortedMap<String, T>,
    damage: &Damage,
) -> Result<(), TestCaseError>
where
    T: Value + Serialize + DeserializeOwned + PartialEq + Debug,
{
    let mut value: Cbor = ciborium::from_reader(&oracle_encode(scorers)[..]).unwrap();
    for (at, edit) in &damage.edits {
        apply(edit, *at, &mut value);
    }
    let mut bytes = Vec::new();
    let mut spelling = damage.spelling;
    put(&value, &mut spelling, &mut bytes);
    for (at, byte) in &damage.bytes {
        let at = at.index(bytes.len());
        bytes[at] = *byte;
    }
    if let Some(cut) = damage.cut {
        bytes.truncate(cut.index(bytes.len()));
    }
    if damage.trailing {
        bytes.push(0);
    }
    let (ours, oracles) = (decode::<T>(Some(&bytes)), oracle_decode::<T>(&bytes));
    if ours == oracles {
        return Ok(());
    }
    // Tags, byte strings (which the oracle takes for keys and for lists), trailing bytes; changed bytes make
    // them too, and undefined. In fields nobody knows the oracle alone refuses unassigned simple values.
    let stricter = ours.is_empty() && (damage.trailing || is_odd(&value));
    let changed = !damage.bytes.is_empty() && (ours.is_empty() || oracles.is_empty());
    prop_assert!(stricter || changed, "{ours:?} {oracles:?} {bytes:02x?}");
    Ok(())
}

/// There is a tag in it, or a byte string.
fn is_odd(value: &Cbor) -> bool {
    match value {
        Cbor::Tag(..) | Cbor::Bytes(_) => true,
        Cbor::Array(items) => items.iter().any(is_odd),
        Cbor::Map(pairs) => pairs.iter().any(|(k, v)| is_odd(k) || is_odd(v)),
        _ => false,
    }
}

fn apply(edit: &Edit, at: Index, value: &mut Cbor) {
    let mut left = at.index(count(value));
    let value = nth(value, &mut left).expect("so many");
    let value = match (edit, value) {
        (Edit::Replace(new), value) => {
            *value = new.clone();
            return;
        }
        (Edit::Tag(tag), value) => {
            *value = Cbor::Tag(*tag, Box::new(value.clone()));
            return;
        }
        (_, Cbor::Map(pairs)) => pairs,
        _ => return,
    };
    if let Edit::Add(key, new) = edit {
        value.push((key.clone(), new.clone()));
        return;
    }
    if value.is_empty() {
        return;
    }
    let len = value.len();
    match edit {
        Edit::Remove(i) => {
            value.remove(i.index(len));
        }
        Edit::Repeat(i, new) => {
            let (key, old) = value[i.index(len)].clone();
            value.push((key, new.clone().unwrap_or(old)));
        }
        Edit::Rename(i, key) => value[i.index(len)].0 = key.clone(),
        _ => {}
    }
}

/// Values in it and itself, without keys.
fn count(value: &Cbor) -> usize {
    1 + match value {
        Cbor::Array(items) => items.iter().map(count).sum::<usize>(),
        Cbor::Map(pairs) => pairs.iter().map(|(_, v)| count(v)).sum(),
        _ => 0,
    }
}

fn nth<'a>(value: &'a mut Cbor, left: &mut usize) -> Option<&'a mut Cbor> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Cbor::Array(items) => items.iter_mut().find_map(|v| nth(v, left)),
        Cbor::Map(pairs) => pairs.iter_mut().find_map(|(_, v)| nth(v, left)),
        _ => None,
    }
}

/// Writes a value; every value takes one bit of how it may be spelt.
fn put(value: &Cbor, spelling: &mut u64, out: &mut Vec<u8>) {
    let unusual = *spelling & 1 == 1;
    *spelling = spelling.rotate_right(1);
    let plain = |out: &mut Vec<u8>| ciborium::into_writer(value, out).unwrap();
    match value {
        Cbor::Integer(n) if unusual => match u64::try_from(*n) {
            Ok(n) => {
                out.push(0x1b);
                out.extend(n.to_be_bytes());
            }
            Err(_) => plain(out),
        },
        Cbor::Text(text) if unusual => {
            out.push(0x7f);
            for c in text.chars() {
                ciborium::into_writer(&c.to_string(), &mut *out).unwrap();
            }
            out.push(0xff);
        }
        Cbor::Array(items) => {
            head(0x80, items.len(), unusual, out);
            items.iter().for_each(|item| put(item, spelling, out));
            out.extend(unusual.then_some(0xff));
        }
        Cbor::Map(pairs) => {
            head(0xa0, pairs.len(), unusual, out);
            for (key, value) in pairs {
                put(key, spelling, out);
                put(value, spelling, out);
            }
            out.extend(unusual.then_some(0xff));
        }
        Cbor::Tag(tag, value) => {
            out.push(0xdb);
            out.extend(tag.to_be_bytes());
            put(value, spelling, out);
        }
        _ => plain(out),
    }
}

fn head(major: u8, len: usize, indefinite: bool, out: &mut Vec<u8>) {
    match u8::try_from(len) {
        _ if indefinite => out.push(major | 31),
        Ok(len) if len < 24 => out.push(major | len),
        _ => {
            out.push(major | 25);
            out.extend(u16::try_from(len).unwrap().to_be_bytes());
        }
    }
}
