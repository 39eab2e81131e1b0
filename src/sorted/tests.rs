use super::*;
#[cfg(target_arch = "wasm32")]
use wasm_bindgen_test::wasm_bindgen_test as test;

fn map(pairs: &[(u32, char)]) -> SortedMap<u32, char> {
    pairs.iter().copied().collect()
}

fn pairs(map: &SortedMap<u32, char>) -> Vec<(u32, char)> {
    map.iter().map(|(key, value)| (*key, *value)).collect()
}

#[test]
fn what_is_collected_is_sorted_and_the_last_of_a_key_stays() {
    for (given, sorted) in [
        (&[][..], &[][..]),
        (&[(3, 'a')], &[(3, 'a')]),
        (
            &[(1, 'a'), (2, 'b'), (3, 'c')],
            &[(1, 'a'), (2, 'b'), (3, 'c')],
        ),
        (
            &[(3, 'c'), (2, 'b'), (1, 'a')],
            &[(1, 'a'), (2, 'b'), (3, 'c')],
        ),
        (&[(1, 'a'), (1, 'b'), (1, 'c')], &[(1, 'c')]),
        (
            &[(2, 'a'), (1, 'b'), (2, 'c'), (1, 'd'), (0, 'e')],
            &[(0, 'e'), (1, 'd'), (2, 'c')],
        ),
    ] {
        assert_eq!(pairs(&map(given)), sorted, "{given:?}");
        let set: SortedSet<u32> = given.iter().map(|(key, _)| *key).collect();
        let keys: Vec<u32> = sorted.iter().map(|(key, _)| *key).collect();
        assert_eq!(set.into_iter().collect::<Vec<_>>(), keys, "{given:?}");
    }
}

#[test]
fn a_map_inserts_in_order_and_says_what_was_there() {
    let mut map = SortedMap::new();
    for (key, value, old, after) in [
        (5, 'a', None, &[(5, 'a')][..]),
        (9, 'b', None, &[(5, 'a'), (9, 'b')]),
        (1, 'c', None, &[(1, 'c'), (5, 'a'), (9, 'b')]),
        (5, 'd', Some('a'), &[(1, 'c'), (5, 'd'), (9, 'b')]),
        (9, 'e', Some('b'), &[(1, 'c'), (5, 'd'), (9, 'e')]),
    ] {
        assert_eq!(map.insert(key, value), old, "{key}");
        assert_eq!(pairs(&map), after, "{key}");
    }
    *map.entry(5).or_insert('x') = 'f';
    assert_eq!(*map.entry(6).or_default(), '\0');
    assert_eq!(*map.entry(10).or_insert('g'), 'g');
    let all = [(1, 'c'), (5, 'f'), (6, '\0'), (9, 'e'), (10, 'g')];
    assert_eq!(pairs(&map), all);
    assert_eq!(map.get(&6), Some(&'\0'));
    assert_eq!(map.get_key_value(&7), None);
    assert_eq!(map.remove(&7), None);
    assert_eq!(map.remove(&6), Some('\0'));
    for (from, rest) in [(0, 4), (5, 3), (6, 2), (10, 1), (11, 0)] {
        assert_eq!(map.iter_from(&from).count(), rest, "{from}");
    }
    assert_eq!(map.pop_last(), Some((10, 'g')));
    map.retain(|key, value| {
        *value = value.to_ascii_uppercase();
        *key != 5
    });
    assert_eq!(format!("{map:?}"), "{1: 'C', 9: 'E'}");
}

#[test]
fn a_set_inserts_in_order_and_says_what_is_new() {
    let mut set = SortedSet::new();
    for (item, is_new) in [(5, true), (9, true), (1, true), (5, false), (9, false)] {
        assert_eq!(set.insert(item), is_new, "{item}");
    }
    assert_eq!(format!("{set:?}"), "{1, 5, 9}");
    assert!(set.contains(&9) && !set.contains(&8));
    assert!(set.remove(&1) && !set.remove(&1));
    set.extend([7, 5, 3]);
    set.retain(|item| *item != 9);
    assert_eq!(set, SortedSet::from([3, 5, 7]));
}

#[test]
fn equal_items_stay_in_their_order() {
    let mut words = ["be", "to", "a", "or", "not", "I", "of"];
    sort_by(&mut words, |a, b| a.len().cmp(&b.len()));
    assert_eq!(words, ["a", "I", "be", "to", "or", "of", "not"]);
    sort_by(&mut words, |a, b| b.len().cmp(&a.len()));
    assert_eq!(words, ["not", "be", "to", "or", "of", "a", "I"]);
}

/// A hostile record has any order; the time of a sort that compares every pair would be minutes.
#[test]
fn many_entries_in_any_order_take_few_comparisons() {
    use std::cell::Cell;
    use std::cmp::Ordering;

    #[derive(PartialEq, Eq)]
    struct Counting<'a>(u32, &'a Cell<u32>);
    impl Ord for Counting<'_> {
        fn cmp(&self, other: &Self) -> Ordering {
            self.1.set(self.1.get().saturating_add(1));
            self.0.cmp(&other.0)
        }
    }
    impl PartialOrd for Counting<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }
    const N: u32 = 50_000;
    let compared = Cell::new(0);
    let scattered = |n: u32| n.wrapping_mul(2_654_435_761) % N;
    for (keys, most) in [
        ((0..N).collect::<Vec<_>>(), N),
        ((0..N).rev().collect(), 4 * N),
        ((0..N).map(scattered).collect(), 40 * N),
        ((0..N).map(|n| n % 7).collect(), 40 * N),
    ] {
        compared.set(0);
        let map: SortedMap<_, _> = keys
            .iter()
            .map(|key| (Counting(*key, &compared), ()))
            .collect();
        assert!(map.iter().is_sorted());
        compared.set(0);
        let set: SortedSet<_> = keys.iter().map(|key| Counting(*key, &compared)).collect();
        let spent = compared.get();
        assert!(spent <= most, "{spent} of {most}");
        assert_eq!(set.len(), map.len());
    }
}

#[cfg(not(target_arch = "wasm32"))]
mod properties {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u8, u16),
        Remove(u8),
        Entry(u8, u16),
        Extend(Vec<(u8, u16)>),
        Retain(u8),
        PopLast,
    }

    fn step() -> impl Strategy<Value = Step> {
        let pair = || (0..40u8, any::<u16>());
        prop_oneof![
            pair().prop_map(|(k, v)| Step::Insert(k, v)),
            (0..40u8).prop_map(Step::Remove),
            pair().prop_map(|(k, v)| Step::Entry(k, v)),
            prop::collection::vec(pair(), 0..40).prop_map(Step::Extend),
            (2..9u8).prop_map(Step::Retain),
            Just(Step::PopLast),
        ]
    }

    proptest! {
        #[test]
        fn a_map_is_the_standard_librarys(steps in prop::collection::vec(step(), 0..60)) {
            let (mut map, mut model) = (SortedMap::new(), BTreeMap::new());
            for step in steps {
                match step {
                    Step::Insert(k, v) => prop_assert_eq!(map.insert(k, v), model.insert(k, v)),
                    Step::Remove(k) => prop_assert_eq!(map.remove(&k), model.remove(&k)),
                    Step::Entry(k, v) => {
                        let (a, b) = (map.entry(k).or_insert(v), model.entry(k).or_insert(v));
                        *a ^= 1;
                        *b ^= 1;
                    }
                    Step::Extend(pairs) => {
                        map.extend(pairs.clone());
                        model.extend(pairs);
                    }
                    Step::Retain(n) => {
                        map.retain(|k, v| { *v ^= 2; k % n != 0 });
                        model.retain(|k, v| { *v ^= 2; k % n != 0 });
                    }
                    Step::PopLast => prop_assert_eq!(map.pop_last(), model.pop_last()),
                }
                prop_assert_eq!(map.len(), model.len());
                prop_assert!(map.iter().eq(&model));
                prop_assert!(map.iter().rev().eq(model.iter().rev()));
                for k in 0..41 {
                    prop_assert_eq!(map.get(&k), model.get(&k));
                    prop_assert!(map.iter_from(&k).eq(model.range(k..)));
                }
            }
        }

        #[test]
        fn a_set_is_the_standard_librarys(steps in prop::collection::vec(step(), 0..60)) {
            let (mut set, mut model) = (SortedSet::new(), BTreeSet::new());
            for step in steps {
                match step {
                    Step::Insert(k, _) | Step::Entry(k, _) => {
                        prop_assert_eq!(set.insert(k), model.insert(k));
                    }
                    Step::Remove(k) => prop_assert_eq!(set.remove(&k), model.remove(&k)),
                    Step::Extend(pairs) => {
                        set.extend(pairs.iter().map(|(k, _)| *k));
                        model.extend(pairs.iter().map(|(k, _)| *k));
                    }
                    Step::Retain(n) => {
                        set.retain(|k| k % n != 0);
                        model.retain(|k| k % n != 0);
                    }
                    Step::PopLast => {}
                }
                prop_assert!(set.iter().eq(&model));
                prop_assert!((0..41).all(|k| set.contains(&k) == model.contains(&k)));
            }
        }

        #[test]
        fn a_sort_is_the_standard_librarys(
            items in prop::collection::vec((0..20u8, any::<u16>()), 0..400),
        ) {
            let (mut ours, mut theirs) = (items.clone(), items);
            sort_by(&mut ours, |a, b| a.0.cmp(&b.0));
            theirs.sort_by_key(|item| item.0);
            prop_assert_eq!(ours, theirs);
        }
    }
}

/// serde is the oracle of records that have maps.
mod oracle {
    use super::*;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::collections::BTreeMap;

    impl<K: Serialize, V: Serialize> Serialize for SortedMap<K, V> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map(self)
        }
    }

    impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Deserialize<'de> for SortedMap<K, V> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            BTreeMap::deserialize(deserializer).map(|map| map.into_iter().collect())
        }
    }
}
