use std::path::Path;

use rstest::rstest;

use super::difference::Differences;
use super::history::{self, PastRun, RUNS};
use super::merge::{Merged, Source};
use super::status::Status;
use super::{html, markdown};
use crate::results::{Authenticity, Line, Results, Shard, Verdict, sample};

fn source(file: &str, results: Results) -> Source {
    Source { file: file.into(), results, authenticity: Authenticity::Sealed }
}

fn merged() -> Merged {
    Merged::merge(vec![source("a", sample::results())]).unwrap()
}

/// The two shards of the sample.
fn shards() -> [Results; 2] {
    [1, 2].map(|index| {
        let mut results = sample::results();
        results.run.shard = Some(Shard { index, count: 2 });
        results.run.id = Line::new(&format!("run-{index}"));
        results.run.nonce = Line::new(&format!("nonce-{index}"));
        let half = results.cells.split_off(4);
        if index == 2 {
            results.cells = half;
        }
        results
    })
}

/// Makes these cells of the sample such as only compile.
fn only_compiled(results: &mut Results, which: impl Fn(&Verdict) -> bool) {
    for cell in results.cells.iter_mut().filter(|cell| which(&cell.verdict)) {
        cell.verdict = match std::mem::replace(&mut cell.verdict, Verdict::Works {}) {
            Verdict::Works {} => Verdict::Compiled { patches: Vec::new() },
            Verdict::WorksPatched { patches } => Verdict::Compiled { patches },
            verdict => verdict,
        };
        let planned = results.planned.iter_mut().find(|planned| planned.name == cell.name);
        planned.unwrap().scenario = Line::new("compile");
    }
}

#[test]
fn cells_that_compile_count_beside_those_that_work() {
    let mut results = sample::results();
    only_compiled(&mut results, |verdict| *verdict == Verdict::Works {});
    let merged = Merged::merge(vec![source("a", results)]).unwrap();
    assert_eq!(merged.count(Status::WorksPatched), 1);
    assert_eq!((merged.good(), merged.verb()), (2, "work or compile"));
}

#[test]
fn where_nothing_boots_the_cells_that_compile_count() {
    let mut results = sample::results();
    only_compiled(&mut results, |_| true);
    let merged = Merged::merge(vec![source("a", results)]).unwrap();
    let counts = [Status::Compiled, Status::CompiledPatched].map(|status| merged.count(status));
    assert_eq!((counts, merged.good(), merged.verb()), ([2, 1], 3, "compile"));
    let text = markdown::render(&merged, None);
    assert!(text.starts_with("## Kernel matrix: 3 of 7 that have sources compile"), "{text}");
    assert!(text.contains("⚙ 1 with patch"), "{text}");
}

#[test]
fn shards_are_merged_to_the_whole() {
    let [first, second] = shards();
    let merged = Merged::merge(vec![source("b", second), source("a", first)]).unwrap();
    assert_eq!(merged.problems, Vec::<String>::new());
    assert_eq!(merged.count(Status::Missing), 0);
    assert_eq!(merged.good(), 2);
    assert_eq!(merged.id().as_str(), "run-1+1");
    assert!(!merged.is_answered(), "a faulty cell and one that was not run");
}

#[test]
fn a_missing_shard_is_a_problem_and_its_cells_are_missing() {
    let [first, _] = shards();
    let merged = Merged::merge(vec![source("a", first)]).unwrap();
    assert_eq!(merged.problems, ["shard 2 of 2 is missing", "4 of 8 cells have no result"]);
    assert_eq!(merged.count(Status::Missing), 4);
}

#[test]
fn a_run_that_did_not_end_is_a_problem() {
    let mut results = sample::results();
    results.run.complete = false;
    let merged = Merged::merge(vec![source("a.json", results)]).unwrap();
    assert!(merged.problems[0].contains("(a.json) did not come to its end"));
}

#[test]
fn results_without_a_seal_are_shown_with_a_remark() {
    let why = Authenticity::Unproven("they have no seal".into());
    let source = Source { authenticity: why, ..source("a.json", sample::results()) };
    let merged = Merged::merge(vec![source]).unwrap();
    assert!(html::render(&merged, None, &[]).contains("Nothing vouches for the results"));
}

/// A change of the second shard.
type Change = fn(&mut Results);

#[rstest]
#[case::twice((|r| r.run.nonce = "nonce-1".into()) as Change, "of the same run")]
#[case::other_lock((|r| r.run.lock = None) as Change, "")]
#[case::no_part((|r| r.run.shard = Some(Shard { index: 2, count: 3 })) as Change, "no parts of one matrix")]
#[case::kernel((|r| r.kernels[0].release = "6".into()) as Change, "kernel bookworm-security-generic is not the same")]
#[case::cell((|r| r.cells[0].name = r.planned[0].name.clone()) as Change, "has a result in b and in another file")]
fn shards_that_contradict_each_other_are_refused(#[case] change: Change, #[case] says: &str) {
    let [first, mut second] = shards();
    change(&mut second);
    match Merged::merge(vec![source("a", first), source("b", second)]) {
        Ok(_) => assert_eq!(says, ""),
        Err(error) => assert!(!says.is_empty() && error.contains(says), "{error}"),
    }
}

#[test]
fn results_of_different_programs_or_images_are_refused() {
    for change in [
        (|run| run.agent.version = "0.2".into()) as fn(&mut crate::results::Run),
        |run| run.agent.program = run.agent.image.clone(),
        |run| run.agent.image = run.agent.program.clone(),
    ] {
        let [first, mut second] = shards();
        change(&mut second.run);
        let error = Merged::merge(vec![source("a", first), source("b", second)]).unwrap_err();
        assert!(error.contains("different programs or images"), "{error}");
    }
    let [first, mut second] = shards();
    (second.run.agent.program, second.run.agent.image) = (None, None);
    assert!(Merged::merge(vec![source("a", first), source("b", second)]).is_ok(), "not known");
}

#[test]
fn results_of_different_locks_are_refused() {
    let [first, mut second] = shards();
    second.run.lock = first.cells[0].key.clone();
    let error = Merged::merge(vec![source("a", first), source("b", second)]).unwrap_err();
    assert!(error.contains("resolved differently"), "{error}");
}

/// Returns the sample as an earlier run in which some cells had another status.
fn past(statuses: &[(usize, Status)]) -> PastRun {
    let mut past = PastRun::from_merged(&merged());
    past.id = "earlier".into();
    for (at, status) in statuses {
        past.cells[*at].status = *status;
    }
    past
}

#[test]
fn differences_are_worse_better_or_neither() {
    let mut past = past(&[(3, Status::Works), (0, Status::Faulty), (5, Status::Works)]);
    past.cells[7].name = "no-more".into();
    let merged = merged();
    let differences = Differences::new(&merged, &past);
    assert_eq!(
        differences.summary(),
        "1 worse, 1 better, 1 otherwise different, 1 new, 1 no longer planned"
    );
    assert_eq!(differences.worse[0].before, Status::Works);
    assert_eq!(differences.worse[0].cell.status(), Status::DoesNotCompile);
}

#[test]
fn a_run_like_the_last_one_has_no_differences() {
    let (merged, past) = (merged(), past(&[]));
    let differences = Differences::new(&merged, &past);
    assert_eq!(differences.summary(), "every cell as before");
}

#[test]
fn the_history_keeps_the_last_runs() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = past(&[]);
    for second in 0..=RUNS as i64 {
        run.id = Line::new(&format!("run/{second}"));
        run.ended = jiff::Timestamp::from_second(1_700_000_000 + second).unwrap();
        run.record(dir.path()).unwrap();
    }
    let runs = history::read(dir.path()).unwrap();
    assert_eq!(runs.len(), RUNS);
    assert_eq!(runs[0].id.as_str(), "run/1");
    assert_eq!(runs.last(), Some(&run));
}

#[test]
fn a_history_that_cannot_be_read_is_named() {
    let dir = tempfile::tempdir().unwrap();
    assert!(history::read(&dir.path().join("none")).unwrap().is_empty());
    std::fs::write(dir.path().join("a.json"), "{\"format\": 1,").unwrap();
    let error = history::read(dir.path()).unwrap_err().to_string();
    assert!(error.contains("a.json") && error.contains("EOF"), "{error}");
}

fn page() -> String {
    let (merged, past) = (merged(), past(&[(3, Status::Works), (0, Status::Faulty)]));
    let differences = Differences::new(&merged, &past);
    html::render(&merged, Some(&differences), &[past.clone(), past.clone()])
}

#[test]
fn hostile_texts_have_no_effect_on_the_page() {
    let page = page();
    assert_eq!(page.matches("<script").count(), 1);
    assert_eq!(page.matches("</script").count(), 1);
    assert_eq!(page.matches("<!--").count(), 0);
    assert_eq!(page.matches("<img").count(), 0);
    assert!(page.contains("&lt;/script&gt;&lt;script&gt;alert(1)"));
    assert!(!page.contains(['\x1b', '\u{202e}']));
    assert!(page.contains("\\u{1b}[31m\\u{202e}"));
    assert!(page.len() < 200_000, "{}", page.len());
}

#[test]
fn changes_of_one_kind_and_reason_stand_together() {
    let mut results = sample::results();
    results.cells[0].verdict = results.cells[1].verdict.clone();
    let merged = Merged::merge(vec![source("a", results)]).unwrap();
    let past = past(&[(0, Status::Works), (1, Status::Works)]);
    let page = html::render(&merged, Some(&Differences::new(&merged, &past)), &[]);
    assert_eq!(page.matches("<span class=\"step\">").count(), 1);
    assert!(page.contains("<h3>Worse <span class=\"quiet\">2</span></h3>"));
}

#[test]
fn the_page_loads_nothing() {
    let page = page();
    for address in ["http:", "https:", "src=", "@import", "url("] {
        let outside = page.replace("&lt;img src=x", "");
        assert!(!outside.contains(address), "{address}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
fn the_page_has_every_verdict_with_symbol_and_word() {
    let page = page();
    let (_, table) = page.split_once("<table role").unwrap();
    let (table, _) = table.split_once("</table>").unwrap();
    let not_in_sample = [Status::CompiledPatched, Status::Missing];
    for status in Status::ALL.into_iter().filter(|status| !not_in_sample.contains(status)) {
        let shown =
            format!("<span aria-hidden=\"true\">{}</span> {}", status.symbol(), status.word());
        assert!(table.contains(&shown), "{shown}");
    }
    for text in [
        "take a newer revision",
        "strncpy-gone",
        "guest 66.0 s",
        "gcc-12",
        "404 Not Found",
        "(cut off, 1000000 bytes)",
    ] {
        assert!(page.contains(text), "{text}");
    }
    assert_eq!(page.matches("<details class=\"cell\"").count(), 8);
    assert_eq!(page.matches("scope=\"row\"").count(), 4 + 2);
}

#[test]
fn markdown_shows_hostile_texts_as_code() {
    let (merged, past) = (merged(), past(&[(3, Status::Works)]));
    let text = markdown::render(&merged, Some(&Differences::new(&merged, &past)));
    assert!(text.starts_with("## Kernel matrix: 2 of 7 that have sources work"), "{text}");
    assert!(text.contains("✗ no compile") && text.contains("**Worse**"), "{text}");
    for line in text.lines().filter(|line| line.contains("alert(1)")) {
        let outside: String = line.split('`').step_by(2).collect();
        assert!(!outside.contains(['<', '>', '\x1b']) && !outside.contains("alert"), "{line}");
    }
}

#[test]
fn markdown_of_a_large_matrix_fits_a_comment() {
    let mut results = sample::results();
    let template = results.cells[3].clone();
    for n in 0..3000 {
        let mut planned = results.planned[3].clone();
        planned.name = Line::new(&format!("cell-{n}-{}", "x".repeat(100)));
        results
            .cells
            .push(crate::results::CellResult { name: planned.name.clone(), ..template.clone() });
        results.planned.push(planned);
    }
    let merged = Merged::merge(vec![source("a", results)]).unwrap();
    let text = markdown::render(&merged, None);
    assert!(text.len() <= markdown::BYTES, "{}", text.len());
    assert!(text.contains("2 of 3007 that have sources work"));
}

#[test]
fn a_run_without_cells_is_a_problem_and_no_fault_of_the_page() {
    let mut results = sample::results();
    (results.planned, results.cells) = (Vec::new(), Vec::new());
    let merged = Merged::merge(vec![source("a", results)]).unwrap();
    assert_eq!(merged.problems, ["no cell was planned"]);
    assert!(html::render(&merged, None, &[]).contains("no cell was planned"));
    assert!(!merged.is_answered());
    let mut unchanged = sample::results();
    (unchanged.planned, unchanged.cells) = (Vec::new(), Vec::new());
    unchanged.run.changed_only = true;
    let merged = Merged::merge(vec![source("a", unchanged)]).unwrap();
    assert!(merged.is_answered() && merged.notes[0].contains("No cell has changed"), "{merged:?}");
}

#[test]
fn every_answered_cell_is_good_enough_for_a_check() {
    let mut results = sample::results();
    for cell in &mut results.cells {
        if Status::from(&cell.verdict).is_red() {
            cell.verdict = Verdict::Works {};
        }
    }
    assert!(Merged::merge(vec![source("a", results)]).unwrap().is_answered());
}

#[test]
fn a_report_of_a_forged_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (key, path) = (dir.path().join("key"), dir.path().join("results.json"));
    let key = crate::results::Key::read_or_make(&key).unwrap();
    sample::results().write(&path, &key).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let forged = text.replacen("\"guest-ms\": ", "\"guest-ms\": 1", 1);
    assert_ne!(forged, text);
    std::fs::write(&path, forged).unwrap();
    let error = report_on(&path, &key).unwrap_err().to_string();
    assert!(error.contains("changed after"), "{error}");
}

fn report_on(
    path: &Path,
    key: &crate::results::Key,
) -> Result<Merged, longshore_lab::host::error::Error> {
    super::merged(&[path.to_path_buf()], Some(key))
}

#[test]
fn kernels_are_in_the_order_of_their_versions() {
    let mut results = sample::results();
    for (kernel, version) in results.kernels.iter_mut().zip(["6.12.9-1", "6.12.118-1", "", "5.10"])
    {
        (kernel.version, kernel.release) = (version.into(), "".into());
    }
    let merged = Merged::merge(vec![source("a", results)]).unwrap();
    let versions: Vec<&str> = merged.kernels.iter().map(|kernel| kernel.version.as_str()).collect();
    assert_eq!(versions, ["5.10", "6.12.9-1", "6.12.118-1", ""]);
}

#[test]
fn what_another_cell_booted_is_marked_where_kernel_driver_and_flavour_are_the_same() {
    let line = r#"{"cell":"c","kernel":"6.1.0-56-amd64","driver":"550.163.01","flavour":"open",
        "date":"2026-11-26 09:01","commit":"a0ffcd41645c"}"#;
    for (changed, expected) in [("", 4), ("550.163.01", 0), ("open", 0), ("6.1.0-56-amd64", 0)] {
        let mut merged = merged();
        let booted = line.replace(if changed.is_empty() { "none" } else { changed }, "other");
        merged.booted = vec![serde_json::from_str(&booted).unwrap()];
        let page = html::render(&merged, None, &[]);
        assert_eq!(
            page.matches("cell c, 2026-11-26 09:01, commit a0ffcd41645c\">").count(),
            expected
        );
        assert_eq!(merged.booted_count(), expected);
    }
}
