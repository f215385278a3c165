//! Known names that are nearest to a misspelt one.

/// Most letters of a misspelt name that are compared.
const MOST: usize = 60;

/// Returns the known names, the nearest first; equally near ones by alphabet.
pub fn by_nearness<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut names: Vec<&str> = known.collect();
    names.sort_by_key(|known| (distance(known, wanted), *known));
    names.dedup();
    names
}

/// Returns the nearest name, if it is near enough to be meant: a third of its letters may differ.
pub fn meant<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let nearest = by_nearness(wanted, known).into_iter().next()?;
    (distance(nearest, wanted) <= nearest.len().max(wanted.len()) / 3).then_some(nearest)
}

/// Number of insertions, removals and replacements that make one word of another, of which those of a part that the
/// other one has as a whole count a quarter: `unsigned` and `headers` are near the names that have them.
fn distance(known: &str, wanted: &str) -> usize {
    let wanted: Vec<char> = wanted.chars().take(MOST).collect();
    let mut row: Vec<usize> = (0..=wanted.len()).collect();
    for (at, of_known) in known.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = at + 1;
        for (index, of_wanted) in wanted.iter().enumerate() {
            let replaced = diagonal + usize::from(of_known != *of_wanted);
            diagonal = row[index + 1];
            row[index + 1] = replaced.min(row[index] + 1).min(diagonal + 1);
        }
    }
    let edits = row.last().copied().unwrap_or_default();
    let wanted: String = wanted.into_iter().collect();
    let contains = !wanted.is_empty() && known.contains(&wanted);
    if contains { edits / 4 } else { edits }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    const KNOWN: [&str; 4] = ["driver", "driver-root", "host-apt", "host-root"];

    #[rstest]
    #[case("drvier", Some("driver"))]
    #[case("host_apt", Some("host-apt"))]
    #[case("hostroot", Some("host-root"))]
    #[case("telemetry", None)]
    fn a_slip_has_a_meaning_and_another_word_has_none(
        #[case] wanted: &str,
        #[case] near: Option<&str>,
    ) {
        assert_eq!(meant(wanted, KNOWN.into_iter()), near);
    }
}
