//! Records of all formats, and bytes that are no record.

use std::collections::BTreeSet;

use rstest::rstest;

use super::*;

#[test]
fn what_cannot_be_understood_is_refused_and_left_alone() {
    let cases: [(&[u8], ExitCode, &str); 7] = [
        (b"", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": 1, \"boot", ExitCode::Verification, "cannot be understood"),
        (b"\x00\xff\xfe", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": 1}", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": -3}", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": 0, \"boot_id\": null}", ExitCode::Verification, "cannot be understood"),
        (b"{\"format\": 5, \"new\": []}", ExitCode::Preflight, "has format 5"),
    ];
    for (bytes, code, text) in cases {
        let scene = Scene::new();
        fs::create_dir_all(&scene.paths.state).unwrap();
        fs::write(scene.state_file(), bytes).unwrap();
        let failure = Journal::open(&scene.paths, Disk::default()).unwrap_err();
        assert_eq!(failure.code(), code, "{failure}");
        assert!(failure.to_string().contains(text), "{failure}");
        assert!(failure.remedy_text().is_some());
        assert_eq!(fs::read(scene.state_file()).unwrap(), bytes);
    }
}

/// State of an agent of format 1, which is replaced by this one while its driver is installed.
pub(super) const FORMAT_1: &str = include_str!("format-1.json");

#[test]
fn the_state_of_an_older_agent_is_understood_and_written_anew() {
    let scene = Scene::new();
    fs::create_dir_all(&scene.paths.state).unwrap();
    fs::write(scene.state_file(), FORMAT_1).unwrap();
    let mut journal = Journal::open(&scene.paths, Disk::default()).unwrap();
    let live: Vec<_> = journal.live().map(|e| (e.seq, e.instance)).collect();
    assert_eq!(live, [(2, None)]);
    journal.record_done(2, Some(77));
    journal.flush().unwrap();
    drop(journal);
    let state = read_state(&scene.paths).unwrap().unwrap();
    assert_eq!((state.format, state.entries[1].instance), (FORMAT, Some(77)));
}

/// The fuzzer of the record begins with each of them.
#[test]
fn the_records_are_the_fuzzers_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/journal");
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/journal/tests");
    for format in 1..=FORMAT {
        let read = |path: PathBuf| fs::read(&path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
        let record = read(records.join(format!("format-{format}.json")));
        assert!(record == read(corpus.join(format!("format-{format}"))), "format {format}");
    }
}

/// Records of all formats, with an entry of every kind in the newest.
#[rstest]
#[case(include_str!("format-1.json"), 1)]
#[case(include_str!("format-2.json"), 2)]
#[case(include_str!("format-3.json"), 3)]
#[case(include_str!("format-4.json"), FORMAT)]
fn a_record_of_every_format_is_read_and_its_entries_are_written_the_same(
    #[case] text: &str,
    #[case] format: u32,
) {
    let state = parse_state(Path::new("state.json"), text.as_bytes()).unwrap();
    assert_eq!(state.format, format);
    let again = serde_json::to_string_pretty(&state).unwrap();
    if format == FORMAT {
        assert_eq!(again, text.trim_end(), "byte for byte");
        let kinds: BTreeSet<_> = state.entries.iter().map(|entry| entry.step.kind()).collect();
        assert_eq!(kinds, crate::steps::Step::KINDS.iter().copied().collect());
    }
    let entries = |text: &str| {
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        value["entries"].clone()
    };
    assert_eq!(entries(&again), entries(text));
}

#[test]
fn a_step_with_the_state_before_another_kind_of_step_is_refused_when_it_is_read() {
    let text = include_str!("format-3.json");
    let forged = text.replacen(r#""was": "mounts""#, r#""was": "not-loaded""#, 1);
    for any_entry in [true, false] {
        let mut scene = Scene::new();
        scene.paths.any_entry = any_entry;
        fs::create_dir_all(&scene.paths.state).unwrap();
        fs::write(scene.state_file(), &forged).unwrap();
        let failure = Journal::open(&scene.paths, Disk::default()).unwrap_err();
        assert_eq!(failure.code(), ExitCode::Verification);
        let why = "entry 4 (bind): the recorded earlier state belongs to another kind of step";
        assert!(failure.to_string().ends_with(why), "{failure}");
        assert_eq!(fs::read_to_string(scene.state_file()).unwrap(), forged, "it is left alone");
    }
}
