//! Debian version numbers: `[epoch:]upstream[-revision]` (deb-version(7)).

use std::cmp::Ordering;

/// Compares two Debian versions as dpkg does: epoch, upstream version, revision; `~` sorts before
/// everything, even before the end.
pub fn compare(a: &str, b: &str) -> Ordering {
    let (a, b) = (split(a), split(b));
    number_order(a.epoch.as_bytes(), b.epoch.as_bytes())
        .then_with(|| part_order(a.upstream, b.upstream))
        .then_with(|| part_order(a.revision, b.revision))
}

/// Returns the upstream part: without epoch and revision. `1:535.261.03-1~deb12u1` gives
/// `535.261.03`.
pub fn upstream(version: &str) -> &str {
    split(version).upstream
}

struct Parts<'a> {
    epoch: &'a str,
    upstream: &'a str,
    revision: &'a str,
}

fn split(version: &str) -> Parts<'_> {
    let (epoch, rest) = version.split_once(':').unwrap_or(("0", version));
    let (upstream, revision) = rest.rsplit_once('-').unwrap_or((rest, ""));
    Parts { epoch, upstream, revision }
}

/// Compares digit strings of any length without converting them.
fn number_order(a: &[u8], b: &[u8]) -> Ordering {
    let significant = |digits: &[u8]| digits.iter().take_while(|&&d| d == b'0').count();
    let (a, b) = (&a[significant(a)..], &b[significant(b)..]);
    a.len().cmp(&b.len()).then_with(|| a.cmp(b))
}

/// The weight of a byte outside a number: `~` < end of the part < letters < everything else.
fn weight(byte: Option<u8>) -> i32 {
    match byte {
        Some(b'~') => -1,
        None => 0,
        Some(b) if b.is_ascii_digit() => 0,
        Some(b) if b.is_ascii_alphabetic() => i32::from(b),
        Some(b) => i32::from(b) + 256,
    }
}

/// Compares an upstream version or a revision: non-digits and digits alternately.
fn part_order(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (a.as_bytes(), b.as_bytes());
    while !a.is_empty() || !b.is_empty() {
        let text = |part: &[u8]| part.iter().take_while(|c| !c.is_ascii_digit()).count();
        let (text_a, text_b) = (text(a), text(b));
        for i in 0..text_a.max(text_b) {
            let byte = |part: &[u8], len: usize| part[..len].get(i).copied();
            let order = weight(byte(a, text_a)).cmp(&weight(byte(b, text_b)));
            if order.is_ne() {
                return order;
            }
        }
        (a, b) = (&a[text_a..], &b[text_b..]);
        let digits = |part: &[u8]| part.iter().take_while(|c| c.is_ascii_digit()).count();
        let (digits_a, digits_b) = (digits(a), digits(b));
        let order = number_order(&a[..digits_a], &b[..digits_b]);
        if order.is_ne() {
            return order;
        }
        (a, b) = (&a[digits_a..], &b[digits_b..]);
    }
    Ordering::Equal
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, Write};
    use std::process::Command;

    use proptest::strategy::{Strategy, ValueTree};
    use proptest::test_runner::TestRunner;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("1.0", "1.0", Ordering::Equal)]
    #[case("1.0", "1.1", Ordering::Less)]
    #[case("1.10", "1.9", Ordering::Greater)]
    #[case("1.0~rc1", "1.0", Ordering::Less)]
    #[case("1.0~~", "1.0~", Ordering::Less)]
    #[case("1.0~~a", "1.0~", Ordering::Less)]
    #[case("1.0~", "1.0", Ordering::Less)]
    #[case("1.0", "1.0a", Ordering::Less)]
    #[case("1.0a", "1.0+", Ordering::Less)]
    #[case("1.0+b1", "1.0-1", Ordering::Greater)]
    #[case("0:1.0", "1.0", Ordering::Equal)]
    #[case("1:0.1", "9.9", Ordering::Greater)]
    #[case("10:1", "9:1", Ordering::Greater)]
    #[case("1.0-1", "1.0-2", Ordering::Less)]
    #[case("1.0-0", "1.0", Ordering::Equal)]
    #[case("1.0-1", "1.0", Ordering::Greater)]
    #[case("1.0-1~bpo12+1", "1.0-1", Ordering::Less)]
    #[case("1.002", "1.2", Ordering::Equal)]
    #[case("1.0.0", "1.0", Ordering::Greater)]
    #[case("a", "1", Ordering::Greater)]
    #[case("1.a", "1.1", Ordering::Greater)]
    #[case("6.1.170-3", "6.1.170-10", Ordering::Less)]
    #[case("535.261.03-1~deb12u1", "535.261.03-1", Ordering::Less)]
    #[case("12.2.0-14+deb12u1", "12.2.0-14", Ordering::Greater)]
    #[case("99999999999999999999999", "99999999999999999999998", Ordering::Greater)]
    #[case("1.0-rc-1", "1.0-rc-2", Ordering::Less)]
    #[case("", "", Ordering::Equal)]
    #[case("", "~", Ordering::Greater)]
    fn versions_are_ordered_as_dpkg_orders_them(
        #[case] a: &str,
        #[case] b: &str,
        #[case] expected: Ordering,
    ) {
        assert_eq!(compare(a, b), expected, "{a} against {b}");
        assert_eq!(compare(b, a), expected.reverse(), "{b} against {a}");
    }

    #[rstest]
    #[case("1:535.261.03-1~deb12u1", "535.261.03")]
    #[case("6.1.170-3", "6.1.170")]
    #[case("1.0-rc-1", "1.0-rc")]
    #[case("2.36", "2.36")]
    fn upstream_is_the_middle(#[case] version: &str, #[case] expected: &str) {
        assert_eq!(upstream(version), expected);
    }

    /// Versions of few characters: so that many begin alike, and some are equal.
    const ALIKE: &str = "([01]:)?[01][01a~]{0,2}(-[01~]{1,2})?";

    proptest::proptest! {
        #[test]
        fn the_order_is_total(a in "[0-9a-z.+~:-]{0,12}", b in "[0-9a-z.+~:-]{0,12}") {
            proptest::prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
            proptest::prop_assert_eq!(compare(&a, &a), Ordering::Equal);
            proptest::prop_assert_eq!(compare(&format!("{a}~"), &a), Ordering::Less);
        }

        #[test]
        fn the_order_of_three_is_one(mut versions in [ALIKE; 3]) {
            versions.sort_by(|a, b| compare(a, b));
            let [a, b, c] = &versions;
            let (first, second) = (compare(a, b), compare(b, c));
            proptest::prop_assert!(first.is_le() && second.is_le(), "{versions:?}");
            proptest::prop_assert_eq!(compare(a, c), first.min(second), "{:?}", versions);
        }
    }

    /// Compares pairs with one shell for all of them: `<`, `=` or `>` for each.
    fn by_dpkg(pairs: &[(String, String)]) -> Vec<Ordering> {
        const SCRIPT: &str = "while read -r a b; do \
                                if dpkg --compare-versions \"$a\" lt \"$b\"; then echo lt; \
                                elif dpkg --compare-versions \"$a\" eq \"$b\"; then echo eq; \
                                else echo gt; fi; \
                              done";
        let lines: String = pairs.iter().map(|(a, b)| format!("{a} {b}\n")).collect();
        let mut input = tempfile::tempfile().expect("a file");
        input.write_all(lines.as_bytes()).expect("written");
        input.rewind().expect("rewound");
        let found = Command::new("sh").args(["-euc", SCRIPT]).stdin(input).output().expect("sh");
        assert!(found.status.success() && found.stderr.is_empty(), "{found:?}");
        let order = |line: &str| match line {
            "lt" => Ordering::Less,
            "eq" => Ordering::Equal,
            "gt" => Ordering::Greater,
            _ => panic!("{line}"),
        };
        String::from_utf8(found.stdout).expect("text").lines().map(order).collect()
    }

    #[test]
    fn dpkg_itself_orders_a_sample_of_versions_alike() {
        let mut runner = TestRunner::deterministic();
        let mut sample = || (ALIKE, ALIKE).new_tree(&mut runner).expect("a pair").current();
        let pairs: Vec<_> = (0..1000).map(|_| sample()).collect();
        let wanted = by_dpkg(&pairs);
        assert_eq!(wanted.len(), pairs.len());
        for ((a, b), wanted) in pairs.iter().zip(&wanted) {
            assert_eq!(compare(a, b), *wanted, "{a} against {b}");
        }
        for order in [Ordering::Less, Ordering::Equal, Ordering::Greater] {
            let count = wanted.iter().filter(|found| **found == order).count();
            assert!(count >= 10, "{count} pairs are {order:?}");
        }
    }
}
