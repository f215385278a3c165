use super::*;
use rstest::rstest;

const DIGEST: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn origin() -> Origin {
    Origin {
        base_url: "https://archive.example.com/debian/".into(),
        suite: "bookworm".into(),
        component: "main".into(),
        arch: "amd64".into(),
        host_flat: false,
    }
}

fn stanza(name: &str, rest: &str) -> String {
    format!(
        "Package: {name}\nVersion: 1\nArchitecture: amd64\nDescription: x\n continued\n{rest}\
         Filename: pool/{name}.deb\nSize: 7\nSHA256: {DIGEST}\n"
    )
}

fn read(text: &str) -> Index {
    Index::read(text.as_bytes(), text.len() as u64, origin()).expect("reads")
}

#[test]
fn stanzas_are_read_on_demand_and_descriptions_dropped() {
    let text = [
        stanza("b", "Source: s (2)\nPre-Depends: p\nDepends: x (>= 1) | y,\n z\n"),
        stanza("a", "Provides: virtual (= 3),\n other\n"),
        stanza("a", "Architecture-Odd: 1\nMulti-Arch: same\n").replace("Version: 1", "Version: 2"),
    ]
    .join("\n");
    let index = read(&text);
    assert_eq!(index.len(), 3);
    assert!(!String::from_utf8_lossy(&index.text).contains("continued"));
    assert_eq!(index.names().collect::<Vec<_>>(), ["a", "a", "b"]);
    assert_eq!(index.named("a").len(), 2);
    assert!(index.named("c").is_empty());
    let b = index.named("b").remove(0);
    assert_eq!(b.source.as_deref(), Some("s"));
    assert_eq!(b.url(), "https://archive.example.com/debian/pool/b.deb");
    let depends: Vec<_> = b.depends.iter().map(ToString::to_string).collect();
    assert_eq!(depends, ["p", "x (>= 1) | y", "z"]);
    assert_eq!(index.providing("virtual")[0].name, "a");
    assert_eq!(index.providing("other").len(), 1);
    assert!(index.providing("a").is_empty());
}

#[rstest]
#[case::none("", None)]
#[case::some("Phased-Update-Percentage: 30\n", Some(30))]
#[case::all("Phased-Update-Percentage: 100\n", None)]
#[case::nonsense("Phased-Update-Percentage: most\n", None)]
fn a_phased_update_is_told(#[case] field: &str, #[case] expected: Option<u8>) {
    assert_eq!(read(&stanza("a", field)).named("a")[0].origin.percentage, expected);
}

#[rstest]
#[case::transitional("Depends: a-580\n", Some("a-580"))]
#[case::among_others("Depends: libc6 (>= 2.38), a-580 (= 1)\n", Some("a-580"))]
#[case::an_alternative("Depends: a-580 | a-570\n", None)]
#[case::itself("Depends: a\n", None)]
#[case::none("", None)]
fn a_transitional_package_has_a_successor(#[case] field: &str, #[case] expected: Option<&str>) {
    let package = read(&stanza("a", field)).named("a").remove(0);
    assert_eq!(package.successor(|name| name.starts_with('a')), expected);
}

/// An index of `packages` stanzas with Ubuntu's fields, made while it is read.
struct Generated {
    packages: u32,
    pending: io::Cursor<Vec<u8>>,
}

impl Generated {
    fn new(packages: u32) -> Self {
        Self { packages, pending: io::Cursor::default() }
    }
}

impl Read for Generated {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.pending.read(buffer)?;
        if read > 0 || self.packages == 0 {
            return Ok(read);
        }
        self.packages -= 1;
        let dropped = "Description-md5: 0123456789abcdef0123456789abcdef\nTask: x\n".repeat(8);
        let depends = "Depends: libc6 (>= 2.38), zlib1g (>= 1:1.2.3.3)\n";
        let text = stanza(&format!("package-{:07}", self.packages), &(dropped + depends));
        self.pending = io::Cursor::new(format!("{text}\n").into_bytes());
        self.pending.read(buffer)
    }
}

#[test]
fn an_index_of_a_hundred_megabytes_takes_less_than_half_of_it_in_memory() {
    let index = Index::read(Generated::new(140_000), MOST_BYTES, origin()).expect("reads");
    assert_eq!(index.len(), 140_000);
    assert_eq!(index.named("package-0123456").len(), 1);
    let memory = index.text.capacity() + index.stanzas.capacity() * size_of::<Stanza>();
    assert!(memory < 45 << 20, "{memory}");
}

#[test]
fn a_line_without_end_is_refused() {
    let error = Index::read(io::repeat(b'a'), MOST_BYTES, origin()).expect_err("refused");
    assert!(error.to_string().contains("a line in it has 8 MiB"), "{error}");
}

#[test]
fn the_last_line_may_lack_its_end() {
    let index = read(stanza("a", "").trim_end());
    assert_eq!(index.named("a").len(), 1);
}

#[rstest]
#[case::other_architecture("Architecture: amd64", "Architecture: i386")]
#[case::no_size("Size: 7\n", "")]
#[case::bad_size("Size: 7", "Size: many")]
#[case::bad_digest("SHA256: e3", "SHA256: zz")]
#[case::parent("pool/", "../")]
#[case::absolute("pool/", "/")]
#[case::no_version("Version: 1\n", "")]
#[case::bad_relation("Version: 1\n", "Version: 1\nDepends: (((\n")]
fn a_stanza_that_cannot_be_used_is_left_out(#[case] from: &str, #[case] to: &str) {
    let text = stanza("a", "").replace(from, to);
    let index = read(&format!("{text}\n{}", stanza("b", "")));
    assert!(index.named("a").is_empty(), "{text}");
    assert_eq!(index.named("b").len(), 1);
}

#[test]
fn more_than_was_promised_is_refused() {
    let text = stanza("a", "");
    let error = Index::read(text.as_bytes(), text.len() as u64 - 1, origin());
    assert_eq!(error.expect_err("refused").kind(), io::ErrorKind::InvalidData);
}

#[rstest]
#[case(b"")]
#[case(b"\n\n\n")]
#[case(b"garbage\xff\xfe\n continued\n\nPackage:\n\nPackage: \xff\n")]
fn garbage_gives_no_packages(#[case] text: &[u8]) {
    let index = Index::read(text, text.len() as u64, origin()).expect("reads");
    assert!(index.named("").is_empty());
    assert!(index.providing("x").is_empty());
}

proptest::proptest! {
    #[test]
    fn nothing_makes_it_panic(text in "((Package|Provides|Depends|Version|X)?:?[ (),|a-z=\u{e9}\n\t]{0,8}\n?){0,30}") {
        let index = Index::read(text.as_bytes(), text.len() as u64, origin()).expect("reads");
        for name in index.names() {
            index.named(name);
        }
        index.providing("a");
    }
}

#[test]
fn a_percent_sign_of_a_file_name_is_no_escape() {
    let index = read(&stanza("a", "").replace("pool/a.deb", "pool/a_1%3a2.deb"));
    let url = index.named("a").remove(0).url();
    assert_eq!(url, "https://archive.example.com/debian/pool/a_1%253a2.deb");
}
