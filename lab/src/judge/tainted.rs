//! Judges what taints a guest's kernel (`/proc/sys/kernel/tainted`, Documentation/admin-guide/tainted-kernels.rst): it
//! tells of warnings and faults whatever their text in the log is.

use crate::judge::records::Records;

/// Bit of a kernel that warned.
const WARNED: u32 = 9;
/// Bits of faults, and what they say.
const FAULTS: [(u32, &str); 4] =
    [(5, "a bad page"), (7, "an oops or a BUG"), (WARNED, "a warning"), (14, "a soft lockup")];

/// Returns the faults that taint the kernel after the agent's end.
pub(crate) fn wrong(records: &Records) -> Vec<String> {
    match read(records, "after.tainted") {
        Ok(bits) => FAULTS
            .iter()
            .filter(|(bit, _)| bits & (1 << bit) != 0)
            .map(|(_, what)| format!("the kernel is tainted by {what} ({bits})"))
            .collect(),
        Err(missing) => vec![missing],
    }
}

/// Checks that a provoked warning has tainted the kernel.
pub(crate) fn not_warned(records: &Records) -> Option<String> {
    match read(records, "provoked.tainted") {
        Ok(bits) if bits & (1 << WARNED) != 0 => None,
        Ok(bits) => Some(format!("the provoked warning has not tainted the kernel ({bits})")),
        Err(missing) => Some(missing),
    }
}

fn read(records: &Records, fact: &str) -> Result<u64, String> {
    let text = records.facts.get(fact).ok_or_else(|| format!("the guest did not report {fact}"))?;
    text.parse().map_err(|_| format!("{fact} is {text:?}, which is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn records(fact: &str, bits: &str) -> Records {
        let mut records = Records::default();
        records.facts.insert(fact.into(), bits.into());
        records
    }

    #[rstest]
    #[case::nothing("0", "")]
    #[case::proprietary_foreign_and_unsigned_modules("12289", "")]
    #[case::a_warning("12801", "the kernel is tainted by a warning (12801)")]
    #[case::a_bad_page("32", "the kernel is tainted by a bad page (32)")]
    #[case::an_oops("128", "the kernel is tainted by an oops or a BUG (128)")]
    #[case::a_soft_lockup("16384", "the kernel is tainted by a soft lockup (16384)")]
    #[case::no_number("", "after.tainted is \"\", which is no number")]
    fn what_taints_the_kernel_is_told(#[case] bits: &str, #[case] wanted: &str) {
        assert_eq!(wrong(&records("after.tainted", bits)).join("; "), wanted);
    }

    #[test]
    fn a_guest_that_does_not_say_is_a_fault() {
        assert_eq!(wrong(&Records::default()), ["the guest did not report after.tainted"]);
        assert_eq!(
            not_warned(&Records::default()).unwrap(),
            "the guest did not report provoked.tainted"
        );
    }

    #[test]
    fn a_provoked_warning_has_to_taint() {
        assert_eq!(not_warned(&records("provoked.tainted", "12800")), None);
        assert_eq!(
            not_warned(&records("provoked.tainted", "12288")).unwrap(),
            "the provoked warning has not tainted the kernel (12288)"
        );
    }
}
