//! Numbers as text, on the request path: core's formatter takes some hundred instructions for each.

/// Digits of the largest number.
pub const MOST: usize = 20;

pub fn text(number: u64) -> String {
    let mut text = String::with_capacity(MOST);
    push(&mut text, number);
    text
}

/// Appends the number's decimal digits.
pub fn push(text: &mut String, mut number: u64) {
    let mut digits = [b'0'; MOST];
    let mut first = MOST;
    loop {
        first = first.saturating_sub(1);
        if let Some(digit) = digits.get_mut(first) {
            *digit = digit.wrapping_add((number % 10) as u8);
        }
        number /= 10;
        if number == 0 {
            break;
        }
    }
    let digits = digits.get(first..).unwrap_or_default();
    text.push_str(std::str::from_utf8(digits).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(target_arch = "wasm32")]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn as_the_formatter_writes_them() {
        for number in [
            0,
            1,
            9,
            10,
            11,
            99,
            100,
            4095,
            18_832,
            u64::from(u32::MAX),
            u64::MAX,
        ] {
            let mut text = "n=".to_owned();
            push(&mut text, number);
            assert_eq!(text, format!("n={number}"));
        }
    }
}
