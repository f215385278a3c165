//! Age of an attestation, by the time that its statement gives.

use std::time::Duration;

use jiff::Timestamp;

use crate::signature::set_index::SKEW;

/// Checks that a statement's time is at most `most` before `now`, and at most 5 minutes after it: clocks differ.
///
/// # Errors
/// A text that describes the fault.
pub(super) fn check(
    stated: Option<Timestamp>,
    most: Duration,
    now: Timestamp,
) -> Result<(), String> {
    let Some(stated) = stated else {
        return Err("it states no time, and attestation-max-age is set".into());
    };
    if now.checked_add(SKEW).is_ok_and(|latest| stated > latest) {
        return Err(format!("it states the time {stated:.0}, which is in the future"));
    }
    match now.checked_sub(most) {
        Ok(oldest) if stated < oldest => Err(format!(
            "it states the time {stated:.0}, and attestation-max-age permits none before {oldest:.0}"
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case::now(Some("2026-11-20T14:00:00Z"), "")]
    #[case::of_the_limit(Some("2026-11-13T14:00:00Z"), "")]
    #[case::older(Some("2026-11-13T13:59:59Z"), "states the time 2026-11-13T13:59:59Z")]
    #[case::of_a_clock_ahead(Some("2026-11-20T14:05:00Z"), "")]
    #[case::of_the_future(Some("2026-11-20T14:05:01Z"), "in the future")]
    #[case::without(None, "states no time")]
    fn ages(#[case] stated: Option<&str>, #[case] refused: &str) {
        let time = |text: &str| text.parse().expect("a time");
        let week = Duration::from_secs(7 * 86_400);
        let checked = check(stated.map(time), week, time("2026-11-20T14:00:00Z"));
        match refused {
            "" => assert_eq!(checked, Ok(())),
            _ => assert!(checked.expect_err("refused").contains(refused)),
        }
    }
}
