use super::*;
use proptest::prelude::*;
use rstest::rstest;

const FILE: &str = "one\ntwo\nthree\nfour\nfive\nsix\nseven\n";
const HUNK: &str = "--- a/x\n+++ b/x\n@@ -2,3 +2,3 @@\n two\n-three\n+THREE\n four\n";

fn applied(diff: &str, file: &str) -> Result<String, String> {
    let diff = Diff::parse(diff.as_bytes()).map_err(|e| e.to_string())?;
    let bytes = diff.files[0].apply(file.as_bytes()).map_err(|e| e.to_string())?;
    Ok(String::from_utf8(bytes).expect("UTF-8"))
}

#[rstest]
#[case::in_place(HUNK, FILE, "one\ntwo\nTHREE\nfour\nfive\nsix\nseven\n")]
#[case::moved(HUNK, "zero\none\ntwo\nthree\nfour\n", "zero\none\ntwo\nTHREE\nfour\n")]
#[case::moved_up(HUNK, "two\nthree\nfour\n", "two\nTHREE\nfour\n")]
#[case::repeated_but_at_its_line(
    HUNK,
    "one\ntwo\nthree\nfour\ntwo\nthree\nfour\n",
    "one\ntwo\nTHREE\nfour\ntwo\nthree\nfour\n"
)]
#[case::comment_and_time(
    "Why: because.\n\ndiff --git a/x b/x\n--- a/x\t2026-01-01\n+++ b/x\t2026-01-02\n@@ -1 +1,2 @@ fn\n one\n+1\n",
    FILE,
    "one\n1\ntwo\nthree\nfour\nfive\nsix\nseven\n"
)]
#[case::two_hunks_shifted_alike(
    "--- a/x\n+++ b/x\n@@ -1,1 +1,0 @@\n-a\n@@ -3,1 +2,1 @@\n-b\n+B\n",
    "0\na\n\nb\nb\n",
    "0\n\nB\nb\n"
)]
#[case::no_newline_at_the_end(
    "--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n",
    "a",
    "b"
)]
#[case::newline_added(
    "--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a\n",
    "a",
    "a\n"
)]
#[case::made(
    "diff --git a/x b/x\nnew file mode 100644\nindex 0..1\n--- /dev/null\n+++ b/x\n@@ -0,0 +1,2 @@\n+a\n+b\n",
    "",
    "a\nb\n"
)]
#[case::sent_by_mail(
    "From: A <a@example.com>\nSubject: a\n---\n x | 2 +-\n\ndiff --git a/x b/x\nindex 1..2 100644\n\
     --- a/x\n+++ b/x\n@@ -1 +1 @@\n-one\n+1\n-- \n2.39.5\n\n",
    "one\n",
    "1\n"
)]
fn a_hunk_is_applied_where_its_lines_are(
    #[case] diff: &str,
    #[case] file: &str,
    #[case] wanted: &str,
) {
    assert_eq!(applied(diff, file).as_deref(), Ok(wanted));
}

#[rstest]
#[case::not_there("one\ntwo\nfour\n", "hunk 1 (for line 2): its lines are not there")]
#[case::other_white_space("one\ntwo\nthree \nfour\n", "not there")]
#[case::other_line_ends("one\r\ntwo\r\nthree\r\nfour\r\n", "not there")]
#[case::too_short("one\ntwo\nthree", "not there")]
#[case::empty("", "not there")]
#[case::at_two_places("two\nthree\nfour\ntwo\nthree\nfour\n", "there 2 times")]
fn a_hunk_that_does_not_fit_is_named(#[case] file: &str, #[case] said: &str) {
    let misfit = applied(HUNK, file).expect_err("does not fit");
    assert!(misfit.contains(said), "{misfit}");
}

#[test]
fn hunks_are_applied_in_the_order_of_the_file() {
    let diff = "--- a/x\n+++ b/x\n@@ -6 +6 @@\n-six\n+6\n@@ -2 +2 @@\n-two\n+2\n";
    assert!(applied(diff, FILE).expect_err("backwards").contains("hunk 2"));
}

#[rstest]
#[case::empty("", "no file")]
#[case::only_text("a text\n", "no file")]
#[case::outside("--- a/../x\n+++ b/../x\n", "line 1: \"../x\" is not a path")]
#[case::deeper("--- a/n/../../x\n+++ b/n/../../x\n", "not a path")]
#[case::absolute("--- a//etc/x\n+++ b//etc/x\n", "not a path")]
#[case::bare_absolute("--- /etc/x\n+++ /etc/x\n", "begins with a/")]
#[case::made_of_lines("--- /dev/null\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", "has no old lines")]
#[case::made_by_two(
    "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n@@ -0,0 +1 @@\n+a\n",
    "more than one hunk"
)]
#[case::made_outside("--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+a\n", "not a path below")]
#[case::made_absolute("--- /dev/null\n+++ /etc/x\n@@ -0,0 +1 @@\n+a\n", "begins with b/")]
#[case::made_as_a_link(
    "diff --git a/x b/x\nnew file mode 120000\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc\n",
    "line 2: neither a hunk"
)]
#[case::of_another_mode(
    "diff --git a/x b/x\nold mode 100644\nnew mode 100755\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n",
    "line 2: neither a hunk"
)]
#[case::made_empty("diff --git a/x b/x\nnew file mode 100644\nindex 0..e\n", "no hunk")]
#[case::empty_before_another(
    "diff --git a/x b/x\nnew file mode 100644\ndiff --git a/y b/y\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n",
    "line 3: the file before has no hunk"
)]
#[case::text_after_the_trailer(
    "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n-- \n2.39\n--- a/y\n",
    "text follows git's mail trailer"
)]
#[case::long_trailer(
    &format!("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n-- \n{}\n", "2".repeat(80)),
    "text follows git's mail trailer"
)]
#[case::removed("--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", "begins with b/")]
#[case::renamed("--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", "may not rename")]
#[case::no_plus("--- a/x\n@@ -1 +1 @@\n-a\n+b\n", "line 2: `+++")]
#[case::no_hunk("--- a/x\n+++ b/x\n", "no hunk")]
#[case::bad_head("--- a/x\n+++ b/x\n@@ -a +1 @@\n", "line 3: `@@")]
#[case::signed_head("--- a/x\n+++ b/x\n@@ -+1 +1 @@\n-a\n+b\n", "line 3: `@@")]
#[case::endless("--- a/x\n+++ b/x\n@@ -1,99999999999999999999 +1 @@\n-a\n", "line 3: `@@")]
#[case::short("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n", "ends before")]
#[case::long("--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n-a\n+b\n c\n", "neither a hunk nor a file")]
#[case::uneven("--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n-a\n-b\n+c\n", "differ from the counts")]
#[case::stripped("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n\n-a\n+b\n", "line 4: a hunk's line begins")]
#[case::nothing_to_find("--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n+a\n", "lines to be found by")]
#[case::twice(
    "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-b\n+c\n",
    "changed twice"
)]
fn a_bad_diff_names_line_and_cause(#[case] diff: &str, #[case] said: &str) {
    let error = Diff::parse(diff.as_bytes()).expect_err("bad").to_string();
    assert!(error.contains(said), "{error}");
}

#[rstest]
#[case("nvidia/nv-pci.c", true)]
#[case("x", true)]
#[case("", false)]
#[case("/x", false)]
#[case("a/", false)]
#[case("a//b", false)]
#[case("./a", false)]
#[case("a/./b", false)]
#[case("a/..", false)]
#[case("..\\a", false)]
fn plain_paths(#[case] path: &str, #[case] plain: bool) {
    assert_eq!(is_plain(path), plain);
}

/// A diff of one file with a hunk around each changed line, as `diff -U1` writes it.
fn written(old: &[String], changed: &[usize]) -> (String, String) {
    let (mut diff, mut new) = (String::from("--- a/x\n+++ b/x\n"), old.to_vec());
    for &at in changed {
        let (from, to) = (at.saturating_sub(1), (at + 2).min(old.len()));
        diff.push_str(&format!("@@ -{},{n} +{},{n} @@\n", from + 1, from + 1, n = to - from));
        for (n, line) in old.iter().enumerate().take(to).skip(from) {
            if n == at {
                diff.push_str(&format!("-{line}\n+{line}!\n"));
                new[n] = format!("{line}!");
            } else {
                diff.push_str(&format!(" {line}\n"));
            }
        }
    }
    (diff, new.iter().map(|l| format!("{l}\n")).collect())
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_a_panic(text in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Diff::parse(&text);
    }

    #[test]
    fn anything_like_a_diff_is_read_and_applied_without_a_panic(
        lines in prop::collection::vec("(--- a/x|\\+\\+\\+ b/x|@@ -[0-3],[0-3] \\+[0-3],[0-3] @@|[ +-]a?|\\\\ No)", 0..20),
        file in "[a\n]{0,12}",
    ) {
        if let Ok(diff) = Diff::parse(lines.join("\n").as_bytes()) {
            let _ = diff.files[0].apply(file.as_bytes());
        }
    }

    /// Lines that occur once are found, however far the file's beginning has moved them.
    #[test]
    fn what_was_written_is_applied(
        count in 1usize..40,
        picked in prop::collection::btree_set(0usize..13, 1..5),
        before in 0usize..5,
    ) {
        let old: Vec<String> = (0..count).map(|n| format!("line {n}")).collect();
        let changed: Vec<usize> = picked.iter().map(|n| n * 3).filter(|n| *n < count).collect();
        prop_assume!(!changed.is_empty());
        let (diff, new) = written(&old, &changed);
        let moved: String = (0..before).map(|n| format!("before {n}\n")).collect();
        let file = format!("{moved}{}\n", old.join("\n"));
        prop_assert_eq!(applied(&diff, &file), Ok(format!("{moved}{new}")));
    }
}
