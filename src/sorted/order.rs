//! Sorting by places: whatever the items are, only numbers are sorted, by one and the same code.

use std::cmp::Ordering;

/// Sorts, equal items in the order in which they were. Quick where they are in order already.
pub fn sort_by<T>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering) {
    let order = order(items.len(), &mut |a, b| compare_at(items, a, b, &compare));
    arrange(order, &mut |a, b| swap(items, a, b));
}

/// Sorts, and keeps the last one of equal items.
#[inline(never)]
pub(super) fn sort_last_of_equal<T>(items: &mut Vec<T>, compare: fn(&T, &T) -> Ordering) {
    let by_place = &mut |a, b| compare_at(items, a, b, &compare);
    if is_strictly_ascending(items.len(), by_place) {
        return;
    }
    let order = order(items.len(), by_place);
    arrange(order, &mut |a, b| swap(items, a, b));
    items.dedup_by(|later, earlier| {
        let equal = compare(later, earlier).is_eq();
        if equal {
            std::mem::swap(later, earlier);
        }
        equal
    });
}

fn compare_at<T>(
    items: &[T],
    a: usize,
    b: usize,
    compare: &impl Fn(&T, &T) -> Ordering,
) -> Ordering {
    match (items.get(a), items.get(b)) {
        (Some(a), Some(b)) => compare(a, b),
        // `order` asks for no other places.
        _ => Ordering::Equal,
    }
}

fn swap<T>(items: &mut [T], a: usize, b: usize) {
    if let Ok([a, b]) = items.get_disjoint_mut([a, b]) {
        std::mem::swap(a, b);
    }
}

type Compare<'a> = dyn FnMut(usize, usize) -> Ordering + 'a;

#[inline(never)]
fn is_strictly_ascending(len: usize, compare: &mut Compare<'_>) -> bool {
    (0..len).zip(1..len).all(|(a, b)| compare(a, b).is_lt())
}

/// For each place the place of the item that belongs there; none where all are in place.
#[inline(never)]
fn order(len: usize, compare: &mut Compare<'_>) -> Vec<usize> {
    if (0..len).zip(1..len).all(|(a, b)| compare(a, b).is_le()) {
        return Vec::new();
    }
    if (0..len).zip(1..len).all(|(a, b)| compare(a, b).is_gt()) {
        return (0..len).rev().collect();
    }
    // A merge sort from the bottom up: the standard library's sort is 8 kB.
    let mut order: Vec<usize> = (0..len).collect();
    let mut merged = Vec::with_capacity(len);
    let mut run = 1usize;
    while run < len {
        let pair = run.saturating_mul(2);
        for runs in order.chunks(pair) {
            let (left, right) = runs.split_at_checked(run).unwrap_or((runs, &[]));
            merge(left, right, compare, &mut merged);
        }
        std::mem::swap(&mut order, &mut merged);
        merged.clear();
        run = pair;
    }
    order
}

/// Equal ones stay in order: `left`'s come first.
fn merge(
    mut left: &[usize],
    mut right: &[usize],
    compare: &mut Compare<'_>,
    merged: &mut Vec<usize>,
) {
    while let ([a, behind_a @ ..], [b, behind_b @ ..]) = (left, right) {
        if compare(*b, *a).is_lt() {
            merged.push(*b);
            right = behind_b;
        } else {
            merged.push(*a);
            left = behind_a;
        }
    }
    merged.extend_from_slice(left);
    merged.extend_from_slice(right);
}

/// Brings the items where `order` says, cycle by cycle.
#[inline(never)]
fn arrange(mut order: Vec<usize>, swap: &mut dyn FnMut(usize, usize)) {
    for start in 0..order.len() {
        let mut at = start;
        while let Some(from) = order.get_mut(at) {
            // Done: a place is visited once.
            let from = std::mem::replace(from, at);
            if from == start {
                break;
            }
            swap(at, from);
            at = from;
        }
    }
}
