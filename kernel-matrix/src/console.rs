//! The serial console: kernel faults, and the guest's verdict line.

/// Texts that a kernel prints at a serious fault (lib/bug.c, kernel/panic.c, mm, module).
const TROUBLE: &[&str] = &[
    "Kernel panic",
    "BUG: ",
    "BUG ", // a slab's: `BUG nvidia_stack_cache (Tainted: P): Objects remaining`
    "Oops: ",
    "kernel BUG at",
    "WARNING: CPU:",
    "general protection fault",
    "Unknown symbol",
    "disagrees about version of symbol",
    "blocked for more than",
    "Out of memory:",
];

/// True if a console line reports a kernel fault.
pub fn is_trouble(line: &str) -> bool {
    TROUBLE.iter().any(|pattern| {
        let begins_a_word = |at: usize| !line[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
        line.match_indices(pattern).any(|(at, _)| begins_a_word(at))
    })
}

/// Parses nonce and exit code of a verdict line, `MATRIX-VERDICT NONCE CODE`. Kernel messages may
/// precede it in the same line.
pub fn verdict(line: &str) -> Option<(String, i32)> {
    let mut words = line.split_once("MATRIX-VERDICT ")?.1.split_whitespace();
    let nonce = words.next()?;
    let code = words.next()?.parse().ok()?;
    words.next().is_none().then(|| (nonce.to_owned(), code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trouble_is_told_from_ordinary_lines() {
        for line in [
            "[    1.0] Kernel panic - not syncing: Attempted to kill init!",
            "[    9.1] BUG: unable to handle page fault for address: 0000000000000010",
            "[    9.1] BUG nvidia_stack_cache (Tainted: P): Objects remaining",
            "[    5.5] nvidia: Unknown symbol drm_open (err -2)",
        ] {
            assert!(is_trouble(line), "{line}");
        }
        for line in [
            "[    0.0] DEBUG: nothing",
            "NVRM: loading NVIDIA UNIX Open Kernel Module",
            "nvidia: loading out-of-tree module taints kernel.",
        ] {
            assert!(!is_trouble(line), "{line}");
        }
    }

    #[test]
    fn verdicts_are_whole_or_nothing() {
        assert_eq!(verdict("[ 9.1] x MATRIX-VERDICT ab12 0"), Some(("ab12".into(), 0)));
        for line in ["MATRIX-VERDICT ab12", "MATRIX-VERDICT ab12 x", "MATRIX-VERDICT a 0 0", "a 0"]
        {
            assert_eq!(verdict(line), None, "{line}");
        }
    }
}
