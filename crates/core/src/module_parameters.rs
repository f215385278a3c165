//! Parameters of modules, as the kernel reads and shows them.

use std::collections::BTreeMap;

/// The first of the `given` parameters whose live value differs, as `NAME is LIVE, wanted is
/// GIVEN`. A parameter that `live` does not report cannot be compared.
pub fn differing(given: &str, live: impl Fn(&str) -> Option<String>) -> Option<String> {
    split(given).into_iter().find_map(|(name, wanted)| {
        let live = live(name).filter(|live| !same_value(wanted, live))?;
        Some(format!("{name} is {live:?}, wanted is {wanted:?}"))
    })
}

/// True if two strings give a module the same parameters, in any order and spelling.
pub fn same_parameters(one: &str, other: &str) -> bool {
    // The kernel sets them in order, so the last value of a name applies.
    let by_name = |given| split(given).into_iter().collect::<BTreeMap<_, _>>();
    let (one, other) = (by_name(one), by_name(other));
    one.len() == other.len()
        && one.iter().zip(&other).all(|((a, x), (b, y))| a == b && same_value(x, y))
}

/// Splits `a=1 b="x y" c` as the kernel does (kernel/params.c, next_arg): a parameter without a
/// value is a flag; double quotes protect spaces and are removed around a value.
pub fn split(given: &str) -> Vec<(&str, &str)> {
    let mut parts = Vec::new();
    let mut rest = given.trim_start();
    while !rest.is_empty() {
        let mut quoted = false;
        let end = rest
            .find(|c: char| {
                quoted ^= c == '"';
                c.is_ascii_whitespace() && !quoted
            })
            .unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        let (name, value) = part.split_once('=').unwrap_or((part, "Y"));
        parts.push((name.trim_matches('"'), value.trim_matches('"')));
        rest = after.trim_start();
    }
    parts
}

/// True if two spellings are the same value: numbers in any base, booleans as Y, 1, on.
pub fn same_value(wanted: &str, live: &str) -> bool {
    wanted == live
        || match (number(wanted), number(live)) {
            (Some(wanted), Some(live)) => wanted == live,
            _ => boolean(wanted).is_some_and(|b| Some(b) == boolean(live)),
        }
}

/// Parses a number as kstrtol does. The kernel refuses a negative one for an unsigned parameter,
/// but the driver's display of one as u32 is no difference: so both are taken modulo 2^32.
fn number(text: &str) -> Option<u32> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let value = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => i64::from_str_radix(&digits[2..], 16).ok()?,
        [b'0', _, ..] => i64::from_str_radix(digits, 8).ok()?,
        _ => digits.parse().ok()?,
    };
    Some(if negative { value.wrapping_neg() } else { value } as u32)
}

/// Parses the usual words for a boolean; kstrtobool reads only their first letters.
fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "y" | "yes" | "t" | "true" | "1" | "on" => Some(true),
        "n" | "no" | "f" | "false" | "0" | "off" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_split_as_the_kernel_does() {
        let cases: [(&str, &[(&str, &str)]); 6] = [
            ("", &[]),
            ("  a=1   b=0x2 ", &[("a", "1"), ("b", "0x2")]),
            ("a=\"x y;z=1\" b=2", &[("a", "x y;z=1"), ("b", "2")]),
            ("\"a=x y\" b=2", &[("a", "x y"), ("b", "2")]),
            ("flag a=", &[("flag", "Y"), ("a", "")]),
            ("a=\"open", &[("a", "open")]),
        ];
        for (given, parts) in cases {
            assert_eq!(split(given), parts, "{given}");
        }
    }

    #[test]
    fn spellings_of_one_value_are_the_same() {
        let same = [("1", "1"), ("0x10", "16"), ("010", "8"), ("1", "Y"), ("off", "N"), ("y", "Y")];
        let same = same.into_iter().chain([("-1", "4294967295"), ("x;y", "x;y"), ("", "")]);
        for (wanted, live) in same {
            assert!(same_value(wanted, live), "{wanted} {live}");
        }
        for (wanted, live) in
            [("1", "0"), ("1", "N"), ("a", "b"), ("", "0"), ("0x", "0"), ("12", "1"), ("2", "Y")]
        {
            assert!(!same_value(wanted, live), "{wanted} {live}");
        }
    }

    #[test]
    fn two_strings_of_parameters_are_compared_by_what_they_mean() {
        for (one, other, same) in [
            ("", " ", true),
            ("a=1 b=Y", "b=1  a=0x1", true),
            ("a=0 a=1", "a=1", true),
            ("a=1", "", false),
            ("a=1", "b=1", false),
            ("a=1 b=2", "a=1 b=3", false),
        ] {
            assert_eq!(same_parameters(one, other), same, "{one:?} {other:?}");
        }
    }

    #[test]
    fn a_live_value_that_differs_is_named_and_one_that_is_not_shown_is_not_compared() {
        let live = |name: &str| (name == "a").then(|| "0".to_owned());
        assert_eq!(differing("b=1 a=0x0", live), None);
        assert_eq!(differing("b=1 a=1", live).unwrap(), "a is \"0\", wanted is \"1\"");
    }
}
