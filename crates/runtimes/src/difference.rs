//! Unified differences.

use similar::TextDiff;

/// Returns the difference between two texts of the file `path`, with three lines of context; the text
/// before is None where there was no file.
pub fn difference(path: &str, before: Option<&str>, after: Option<&str>) -> String {
    let name = |text: Option<&str>| if text.is_some() { path } else { "/dev/null" };
    TextDiff::from_lines(before.unwrap_or_default(), after.unwrap_or_default())
        .unified_diff()
        .context_radius(3)
        .header(name(before), name(after))
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_the_file_and_has_the_changed_lines() {
        let made = difference("/a", Some("1\n2\n3\n4\n5\n"), Some("1\n2\n3\n4\n6\n"));
        assert_eq!(made, "--- /a\n+++ /a\n@@ -2,4 +2,4 @@\n 2\n 3\n 4\n-5\n+6\n");
        let made = difference("/a", None, Some("1"));
        assert_eq!(
            made,
            "--- /dev/null\n+++ /a\n@@ -0,0 +1 @@\n+1\n\\ No newline at end of file\n"
        );
        assert_eq!(
            difference("/a", Some("1\n"), None),
            "--- /a\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"
        );
    }
}
