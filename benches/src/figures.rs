//! Medians and the like. Nothing here takes an empty list.

/// The middle one, or of an even count the mean of the middle two.
pub fn median(values: &[f64]) -> f64 {
    let sorted = sorted(values);
    let (low, high) = ((sorted.len() - 1) / 2, sorted.len() / 2);
    f64::midpoint(sorted[low], sorted[high])
}

/// The smallest of the values that so large a part (0 to 1) of them does not exceed.
pub fn quantile(values: &[f64], part: f64) -> f64 {
    let sorted = sorted(values);
    let count = (sorted.len() as f64 * part).ceil() as usize;
    sorted[count.clamp(1, sorted.len()) - 1]
}

/// The smallest and the largest.
pub fn spread(values: &[f64]) -> (f64, f64) {
    let sorted = sorted(values);
    (sorted[0], sorted[sorted.len() - 1])
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_few_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), (1.0, 3.0));
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        for (part, value) in [
            (0.0, 1.0),
            (0.5, 50.0),
            (0.99, 99.0),
            (0.991, 100.0),
            (1.0, 100.0),
        ] {
            assert_eq!(quantile(&hundred, part), value, "{part}");
        }
    }
}
