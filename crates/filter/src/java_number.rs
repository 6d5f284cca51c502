//! Numbers in text as `Integer.valueOf`, `Long.valueOf` and `Double.valueOf` read them.
//!
//! A producer writes `" 1e3 "`, `"0x1p4"` or `"٣"` into a property; whether that equals a number decides who gets the message,
//! so it is decided as in Java.

/// Where the decimal digits of other scripts begin, within the first 65,536 characters: the ones that Java, which reads UTF-16
/// units here, knows.
const ZEROS: [u32; 36] = [
    0x0660, 0x06f0, 0x07c0, 0x0966, 0x09e6, 0x0a66, 0x0ae6, 0x0b66, 0x0be6, 0x0c66, 0x0ce6, 0x0d66, 0x0de6, 0x0e50,
    0x0ed0, 0x0f20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50,
    0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10,
];

/// A 32-bit integer: a sign, then digits; no blanks.
pub(crate) fn int(text: &[u8]) -> Option<i32> {
    i32::try_from(long(text)?).ok()
}

/// A 64-bit integer: a sign, then digits; no blanks.
pub(crate) fn long(text: &[u8]) -> Option<i64> {
    let (is_negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() {
        return None;
    }
    // The negative side reaches one further, so the sum is kept negative.
    let mut sum: i64 = 0;
    let mut add = |digit: u32| {
        sum = sum.checked_mul(10)?.checked_sub(i64::from(digit))?;
        Some(())
    };
    if digits.is_ascii() {
        for byte in digits {
            add(char::from(*byte).to_digit(10)?)?;
        }
    } else {
        for character in std::str::from_utf8(digits).ok()?.chars() {
            add(digit(character)?)?;
        }
    }
    if is_negative { Some(sum) } else { sum.checked_neg() }
}

fn digit(character: char) -> Option<u32> {
    character.to_digit(10).or_else(|| {
        let code = u32::from(character);
        let zero = *ZEROS.get(ZEROS.partition_point(|zero| *zero <= code).checked_sub(1)?)?;
        (code - zero < 10).then(|| code - zero)
    })
}

/// A double: blanks around it, a sign, a decimal or hexadecimal fraction, one of the letters `dDfF`; `NaN`, `Infinity`.
pub(crate) fn double(text: &[u8]) -> Option<f64> {
    let text = std::str::from_utf8(text).ok()?.trim_matches(|character| character <= ' ');
    let (sign, magnitude) = match text.as_bytes() {
        [b'-', ..] => (-1.0, &text[1..]),
        [b'+', ..] => (1.0, &text[1..]),
        _ => (1.0, text),
    };
    let value = match magnitude {
        "NaN" => return Some(f64::NAN),
        "Infinity" => f64::INFINITY,
        _ => {
            let number = magnitude.strip_suffix(['d', 'D', 'f', 'F']);
            match magnitude.strip_prefix("0x").or_else(|| magnitude.strip_prefix("0X")) {
                Some(hex) => hex_fraction(hex.strip_suffix(['d', 'D', 'f', 'F']).unwrap_or(hex))?,
                None => decimal_fraction(number.unwrap_or(magnitude))?,
            }
        }
    };
    Some(sign * value)
}

/// Rust reads all that Java reads, and also `inf`, `nan` and a second sign.
fn decimal_fraction(text: &str) -> Option<f64> {
    let is_decimal = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'));
    let has_sign = text.starts_with(['+', '-']);
    if is_decimal && !has_sign { text.parse().ok() } else { None }
}

/// `1.8p3`: hexadecimal digits with at most one point, and a binary exponent, which cannot be left out.
fn hex_fraction(text: &str) -> Option<f64> {
    let (digits, exponent) = text.split_once(['p', 'P'])?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut exponent = binary_exponent(exponent)?;
    // The first 64 bits, and whether anything but zeros follows them: more is not needed to round once, at the end.
    let (mut bits, mut has_more) = (0_u64, false);
    for (index, character) in whole.chars().chain(fraction.chars()).enumerate() {
        let digit = u64::from(character.to_digit(16)?);
        let is_fraction = index >= whole.len();
        if bits >> 60 == 0 {
            bits = bits << 4 | digit;
            exponent = exponent.saturating_sub(if is_fraction { 4 } else { 0 });
        } else {
            has_more |= digit != 0;
            exponent = exponent.saturating_add(if is_fraction { 0 } else { 4 });
        }
    }
    Some(rounded(bits, has_more, exponent))
}

fn binary_exponent(text: &str) -> Option<i64> {
    let (sign, digits) = match text.as_bytes() {
        [b'-', ..] => (-1, &text[1..]),
        [b'+', ..] => (1, &text[1..]),
        _ => (1, text),
    };
    if digits.is_empty() {
        return None;
    }
    digits.chars().try_fold(0_i64, |sum, character| {
        let digit = i64::from(character.to_digit(10)?);
        Some(sum.saturating_mul(10).saturating_add(sign * digit))
    })
}

/// The double nearest to `bits * 2^exponent`, or a little more if there are further bits; to the even one of two.
fn rounded(bits: u64, has_more: bool, exponent: i64) -> f64 {
    const MANTISSA_BITS: i64 = 53;
    const EXPONENT_MIN: i64 = -1022;
    const EXPONENT_MAX: i64 = 1023;
    if bits == 0 {
        return 0.0;
    }
    let shift = bits.leading_zeros();
    let bits = u128::from(bits << shift);
    // The value is 1.xxx times two to the power of `magnitude`.
    let magnitude = exponent.saturating_sub(i64::from(shift)).saturating_add(63);
    if magnitude > EXPONENT_MAX {
        return f64::INFINITY;
    }
    let dropped = 64 - MANTISSA_BITS + EXPONENT_MIN.saturating_sub(magnitude).max(0);
    if dropped > 64 {
        return 0.0;
    }
    let mantissa = (bits >> dropped) as u64;
    let remainder = bits & ((1 << dropped) - 1);
    let half = 1 << (dropped - 1);
    let is_up = remainder > half || (remainder == half && (has_more || mantissa & 1 == 1));
    // A mantissa that overflows by rounding carries into the exponent, which is what the next larger double is.
    let biased = (magnitude.max(EXPONENT_MIN) - EXPONENT_MIN) as u64;
    f64::from_bits((biased << (MANTISSA_BITS - 1)) + mantissa + u64::from(is_up))
}

#[cfg(test)]
#[path = "../tests/recorded/mod.rs"]
mod recorded;

#[cfg(test)]
mod tests {
    use super::recorded::unescape;
    use super::*;

    #[test]
    fn text_is_the_number_that_it_is_for_java() {
        let mut numbers = 0;
        for line in include_str!("../tests/data/numbers.tsv").lines() {
            let [text, as_int, as_long, as_double] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let text = unescape(text);
            let bytes = text.as_bytes();
            assert_eq!(int(bytes), as_int.parse().ok(), "{text:?} as an int");
            assert_eq!(long(bytes), as_long.parse().ok(), "{text:?} as a long");
            let expected = u64::from_str_radix(as_double, 16).ok();
            assert_eq!(double(bytes).map(f64::to_bits), expected, "{text:?} as a double");
            numbers += 1;
        }
        assert!(numbers > 400);
    }
}
