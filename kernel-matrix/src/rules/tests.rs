use super::*;

const OWN: &str = include_str!("../../rules.toml");
const TREES: &str = include_str!("../../source-trees.toml");

const AXES: &str = "format = 1
[[kernels]]
distribution = 'debian'
suites = ['bookworm', 'bookworm-security']
flavours = ['generic', 'rt']
architecture = 'amd64'
[[kernels]]
distribution = 'debian'
suites = ['bookworm-security']
line = '6.12'
flavours = ['cloud']
architecture = 'amd64'
[[drivers]]
branches = ['470', '550']
flavours = ['proprietary']
suites = ['sid']
[[rule]]
name = 'all'
";

fn with(more: &str) -> Result<Rules, String> {
    Rules::parse(&format!("{AXES}{more}"))
}

fn names(rules: &Rules) -> Vec<&str> {
    rules.cells.iter().map(|cell| cell.name.as_str()).collect()
}

#[test]
fn axes_are_multiplied_in_the_order_of_the_file() {
    let rules = with("").unwrap();
    assert_eq!(
        names(&rules),
        [
            "bookworm-470-proprietary",
            "bookworm-550-proprietary",
            "bookworm-rt-470-proprietary",
            "bookworm-rt-550-proprietary",
            "bookworm-security-470-proprietary",
            "bookworm-security-550-proprietary",
            "bookworm-security-rt-470-proprietary",
            "bookworm-security-rt-550-proprietary",
            "bookworm-security-6.12-cloud-470-proprietary",
            "bookworm-security-6.12-cloud-550-proprietary",
        ]
    );
    let packages: Vec<&str> = rules.kernels.iter().map(|k| k.package.as_str()).collect();
    assert_eq!(packages[1..3], ["linux-image-rt-amd64", "linux-image-amd64"]);
    assert_eq!(packages[4], "linux-image-6.12-cloud-amd64");
    assert_eq!(rules.suites(), ["bookworm", "bookworm-security", "sid"]);
    assert_eq!(rules, with("").unwrap());
}

#[test]
fn cells_are_taken_out_and_put_in_with_their_reason() {
    let rules = with(
        "[[rule]]\nname = 'few'\nsuffix = 'few'\nonly = [{ branch = '550', line = '6.*' }]\n\
         [[include]]\nmatch = { suite = 'bookworm', kernel-flavour = 'rt', branch = '550..' }\n\
         rule = 'few'\nreason = 'asked for'\n\
         [[exclude]]\nmatch = { branch = '..515', suite = 'bookworm' }\nrule = 'all'\nreason = 'old'\n",
    )
    .unwrap();
    let few: Vec<_> = rules.cells.iter().filter(|c| c.rule == "few").collect();
    assert_eq!(few.len(), 2);
    assert_eq!(few[0].name, "bookworm-security-6.12-cloud-550-proprietary-few");
    assert_eq!(few[1].included.as_deref(), Some("asked for"));
    assert_eq!(rules.cells.len(), 10 - 2 + 2);
    let excluded = &rules.excluded[0];
    assert_eq!(excluded.cells, ["bookworm-470-proprietary", "bookworm-rt-470-proprietary"]);
    assert_eq!((excluded.of["branch"].as_str(), excluded.reason.as_str()), ("..515", "old"));
}

#[test]
fn a_part_without_effect_is_refused_with_its_line() {
    let lines = AXES.lines().count();
    let at = |line: usize| format!("line {}", lines + line);
    let cases = [
        (
            "[[exclude]]\nmatch = { suite = 'trixie' }\nreason = 'r'\n",
            1,
            "matches nothing: suite=trixie",
        ),
        ("\n[[exclude]]\nmatch = { branch = '550' }\nreason = ' '\n", 2, "reason is empty"),
        ("[[exclude]]\nmatch = {}\nrule = 'none'\nreason = 'r'\n", 1, "no rule `none`"),
        ("[[exclude]]\nmatch = {}\nreason = 'r'\n", 0, "the rule `all` gives no cell"),
        (
            "[[exclude]]\nmatch = { branch = '550' }\nreason = 'r'\n",
            0,
            "driver 550-proprietary is in no cell",
        ),
        ("[[exclude]]\nmatch = { line = '6.12' }\nreason = 'r'\n", 0, "6.12-cloud is in no cell"),
        (
            "[[include]]\nmatch = { branch = '550' }\nrule = 'all'\nreason = 'r'\n",
            1,
            "gives every cell",
        ),
        (
            "[[include]]\nmatch = { branch = '560' }\nrule = 'all'\nreason = 'r'\n",
            1,
            "matches nothing",
        ),
        ("[[include]]\nmatch = {}\nrule = 'none'\nreason = 'r'\n", 1, "no rule `none`"),
        ("[[rule]]\nname = 'all'\nsuffix = 'b'\n", 1, "`all` is in line"),
        (
            "[[rule]]\nname = 'b'\nsuffix = 'b'\nonly = [{ suite = 'sid' }]\n",
            4,
            "matches nothing: suite=sid",
        ),
        ("[[rule]]\nname = 'b'\n", 0, "two cells are named `bookworm-470-proprietary`"),
        ("[[exclude]]\nmatch = { suit = 'sid' }\nreason = 'r'\n", 2, "suit"),
        ("[[exclude]]\nmatch = { suite = [] }\nreason = 'r'\n", 2, "an empty list"),
        ("[[exclude]]\nmatch = { branch = '535..450' }\nreason = 'r'\n", 2, "535..450"),
        (
            "[[drivers]]\nbranches = ['470']\nflavours = ['proprietary']\nsuites = ['sid']\n",
            1,
            "470-proprietary is declared in line",
        ),
        (
            "[[drivers]]\nbranches = []\nflavours = ['open']\nsuites = ['sid']\n",
            1,
            "branches is empty",
        ),
        ("[[drivers]]\nbranches = ['-x']\nflavours = ['open']\nsuites = ['sid']\n", 1, "`-x`"),
        ("[[drivers]]\nbranches = ['535']\nflavours = ['closed']\nsuites = ['sid']\n", 3, "closed"),
    ];
    for (more, line, expected) in cases {
        let error = with(more).unwrap_err();
        assert!(error.contains(expected), "{more}: {error}");
        assert!(line == 0 || error.contains(&at(line)), "{more}: {error}");
    }
}

#[test]
fn each_source_tree_is_compiled_for_every_generic_kernel_of_rules_toml() {
    let (own, trees) = (Rules::parse(OWN).unwrap(), Rules::parse(TREES).unwrap());
    let generic = own.kernels.iter().filter(|kernel| kernel.flavour == KernelFlavour::Generic);
    let generic: Vec<_> = generic.map(|kernel| kernel.id.as_str()).collect();
    let of_trees: Vec<_> = trees.kernels.iter().map(|kernel| kernel.id.as_str()).collect();
    // The archive lists the headers of bullseye-security's 6.1, and does not have them.
    let left_out = generic.iter().filter(|id| !of_trees.contains(id)).collect::<Vec<_>>();
    assert_eq!(left_out, [&"bullseye-security-6.1"]);
    assert_eq!(trees.cells.len(), of_trees.len() * 4);
}

#[test]
fn a_source_tree_gives_a_driver_for_each_version() {
    let pins = format!("sha256 = {{ '580.142' = '{}' }}", "a".repeat(64));
    let tree = format!("[[drivers]]\nsource-tree = {{ urls = ['/srv/{{version}}'], {pins} }}\n");
    let rules = with(&tree).unwrap();
    let of_tree = names(&rules).into_iter().filter(|name| name.ends_with("-580.142-open"));
    assert!(of_tree.count() > 0, "{:?}", names(&rules));
    let error = with(&format!("{tree}suites = ['sid']\n")).unwrap_err();
    assert!(error.contains("the open flavour alone"), "{error}");
}

#[test]
fn an_exclude_that_contradicts_an_include_is_refused() {
    let error = with(
        "[[rule]]\nname = 'few'\nsuffix = 'few'\nonly = [{ branch = '550' }]\n\
         [[include]]\nmatch = { suite = 'bookworm', branch = '470' }\nrule = 'few'\nreason = 'r'\n\
         [[exclude]]\nmatch = { branch = '470' }\nrule = 'few'\nreason = 'r'\n",
    )
    .unwrap_err();
    assert!(error.contains("contradicts") && error.contains("bookworm-470"), "{error}");
}

#[test]
fn the_head_of_the_file_is_checked() {
    for (text, expected) in [
        (AXES.replace("format = 1", "format = 2"), "format 2 is not known"),
        (
            AXES.replace("format = 1", "format = 1\nfrozen = ['trixie']"),
            "line 2: the frozen suite `trixie`",
        ),
        (AXES.replace("format = 1", "format = 1\nfrosen = []"), "frosen"),
        (AXES.replace("'debian'", "'plan9'"), "plan9"),
        ("format = 1\n".to_owned(), "there is no cell"),
    ] {
        let error = Rules::parse(&text).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn the_own_rules_compile_each_kernel_with_each_driver_and_boot_some() {
    let rules = Rules::parse(OWN).unwrap();
    assert_eq!(rules.compiled().len(), rules.kernels.len() * rules.drivers.len());
    assert_eq!((rules.kernels.len(), rules.drivers.len()), (27, 12));
    let booted: Vec<&Cell> = rules.cells.iter().filter(|cell| cell.scenario.boots()).collect();
    assert!(!booted.is_empty());
    assert!(booted.iter().all(|cell| !cell.gpus.devices().is_empty()));
}

/// The axes with a rule that has these scenarios and sets of devices.
fn booting(more: &str) -> Result<Rules, String> {
    with(&format!("[[rule]]\nname = 'boot'\n{more}\n"))
}

#[test]
fn scenarios_are_multiplied_by_sets_of_devices() {
    let rules = booting(
        "only = [{ line = '6.12', branch = '550' }]\nscenarios = ['compile', 'round-trip', 'in-use']\n\
         suffix = 's'\ngpus = [['T4'], ['2xA100', 'L4']]\ndeadline-seconds = 60",
    )
    .unwrap();
    let cells: Vec<&Cell> = rules.cells.iter().filter(|cell| cell.rule == "boot").collect();
    let ends: Vec<&str> = cells
        .iter()
        .filter_map(|cell| cell.name.strip_prefix("bookworm-security-6.12-cloud-550-proprietary-"))
        .collect();
    assert_eq!(
        ends,
        ["s", "s-round-trip-t4", "s-round-trip-2xa100-l4", "s-in-use-t4", "s-in-use-2xa100-l4"]
    );
    assert!(cells[0].gpus.devices().is_empty() && cells[2].gpus.devices().len() == 3);
    assert!(cells.iter().all(|cell| cell.deadline_seconds == 60));
    assert_eq!(rules.compiled().len(), rules.cells.len() - 4);
}

#[test]
fn scenarios_and_devices_that_cannot_be_meant_are_refused() {
    for (more, expected) in [
        ("scenarios = ['round-trip']", "needs gpus"),
        ("gpus = [['T4']]", "no scenario boots"),
        ("scenarios = []", "scenarios is empty"),
        ("scenarios = ['compile', 'compile']", "compile is listed twice"),
        ("scenarios = ['round-trip']\ngpus = [['T4'], ['t4']]", "t4 is listed twice"),
        ("scenarios = ['round-trip']\ngpus = [['T5']]", "no simulated device `t5`"),
        ("scenarios = ['round-trip']\ngpus = [[]]", "no device without a fault"),
        ("scenarios = ['levitate']\ngpus = [['T4']]", "levitate"),
        ("scenarios = ['round-trip']\ngpus = [['T4']]\ndeadline-seconds = 1", "10 to 7200"),
        (
            "scenarios = ['round-trip']\ngpus = [['H100']]\nonly = [{ branch = '470' }]",
            "the rule `boot` supports the devices h100",
        ),
    ] {
        let error = booting(more).unwrap_err();
        assert!(error.contains(expected), "{more}: {error}");
    }
}

const NAMED: &str = "[[kernels]]\nname = 'el9'\nreleases = ['5.14.0-1.el9.x86_64', '5.14.0-1.rt9.el9.x86_64']\n\
    build-root = '/srv/el9'\n";

#[test]
fn kernels_by_name_are_of_their_build_root_and_of_no_suite() {
    let rules = with(NAMED).unwrap();
    let named: Vec<&Kernel> = rules.kernels.iter().filter(|k| k.named.is_some()).collect();
    assert_eq!((named.len(), rules.cells.len()), (2, 10 + 4));
    let of = named[0].named.as_ref().unwrap();
    assert_eq!(of.release, "5.14.0-1.el9.x86_64");
    assert_eq!(of.place, KernelPlace::BuildRoot("/srv/el9".into()));
    assert_eq!(named[0].id, "el9-5.14.0-1.el9.x86_64");
    assert_eq!((named[0].flavour, named[1].flavour), (KernelFlavour::Generic, KernelFlavour::Rt));
    assert_eq!(rules.suites(), ["bookworm", "bookworm-security", "sid"]);
}

#[test]
fn kernels_by_name_that_cannot_be_meant_are_refused_with_their_line() {
    let at = format!("line {}: ", AXES.lines().count() + 1);
    for (from, to, expected) in [
        ("name = 'el9'\n", "", "need name and releases, and build-root or"),
        ("build-root = '/srv/el9'\n", "", "need name and releases, and build-root or"),
        ("name = 'el9'", "name = 'el9'\nsuites = ['sid']", "leave out distribution and suites"),
        ("name = 'el9'", "name = 'el9'\ndistribution = 'ubuntu'", "leave out distribution and"),
        ("name = 'el9'", "name = 'el9'\nline = '6.12'", "a release names line, flavour and"),
        ("'5.14.0-1.el9.x86_64', '5.14.0-1.rt9.el9.x86_64'", "", "releases is empty"),
        ("'5.14.0-1.el9.x86_64'", "'../x'", "`../x` is no kernel release"),
        ("'5.14.0-1.el9.x86_64'", "'5.14.0-1.rt9.el9.x86_64'", "is declared in line"),
        ("el9'", "E'", "`E` is no name"),
    ] {
        let error = with(&NAMED.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(expected) && error.contains(&at), "{to}: {error}");
    }
    let boots = "[[rule]]\nname = 'boot'\nscenarios = ['round-trip']\ngpus = [['T4']]\n\
        only = [{ suite = 'el9', branch = '550' }]\n";
    let error = with(&format!("{NAMED}{boots}")).unwrap_err();
    assert!(error.contains("boots the kernel el9-5.14.0-1.el9.x86_64"), "{error}");
}

const ARCHIVES: &str = "[[archive]]\nurl = 'http://archive.example.com/ubuntu'\n\
    suites = ['noble', 'noble-updates']\ncomponents = ['main', 'universe']\nkeyring = '/k.gpg'\n";

const OF_ARCHIVE: &str = "[[kernels]]\nname = 'noble'\ndistribution = 'ubuntu'\n\
    suites = ['noble', 'noble-updates']\n\
    releases = ['6.8.0-45-generic', '6.8.1-1015-realtime']\n";

#[test]
fn kernels_by_name_are_of_the_suites_of_an_archive() {
    for (rules, archives) in [
        (format!("{ARCHIVES}{OF_ARCHIVE}"), 1),
        (OF_ARCHIVE.to_owned(), 0),
        (format!("{ARCHIVES}{OF_ARCHIVE}").replace("ubuntu'", "debian'"), 1),
    ] {
        let rules = with(&rules).unwrap();
        let named: Vec<&Kernel> = rules.kernels.iter().filter(|k| k.named.is_some()).collect();
        let ids: Vec<&str> = named.iter().map(|kernel| kernel.id.as_str()).collect();
        assert_eq!(ids, ["noble-6.8.0-45-generic", "noble-6.8.1-1015-realtime"]);
        let flavours = [KernelFlavour::Generic, KernelFlavour::Rt];
        assert_eq!([named[0].flavour, named[1].flavour], flavours);
        assert_eq!(named[0].suites(), ["noble", "noble-updates"]);
        let suites = ["bookworm", "bookworm-security", "noble", "noble-updates", "sid"];
        assert_eq!(
            (rules.suites(), rules.archives.len()),
            (suites.map(String::from).into(), archives)
        );
    }
    let json = serde_json::to_value(&with(OF_ARCHIVE).unwrap().kernels).unwrap();
    let named = &json.as_array().unwrap().last().unwrap()["named"];
    assert_eq!(named["suites"], serde_json::json!(["noble", "noble-updates"]), "{named}");
}

#[test]
fn archives_and_their_kernels_that_cannot_be_meant_are_refused() {
    let both = format!("{ARCHIVES}{OF_ARCHIVE}");
    let boots = "[[rule]]\nname = 'boot'\nscenarios = ['round-trip']\ngpus = [['T4']]\n\
        only = [{ suite = 'bookworm-security', kernel-flavour = 'generic', branch = '550' }]\n";
    let axis = AXES.lines().count() + 1;
    for (text, line, expected) in [
        (
            both.replace("suites = ['noble', 'noble-updates']\nreleases", "releases"),
            axis + 5,
            "need name and",
        ),
        (both.replace("distribution = 'ubuntu'\n", ""), axis + 5, "need name and"),
        (
            both.replace("releases = [", "architecture = 'amd64'\nreleases = ["),
            axis + 5,
            "a release names",
        ),
        (
            both.replace("['noble', 'noble-updates']\nreleases", "['Noble']\nreleases"),
            axis + 5,
            "`Noble` is no",
        ),
        (
            OF_ARCHIVE
                .replace("name = 'noble'\n", "")
                .replace("releases", "flavours = ['generic'] #"),
            axis,
            "Ubuntu's kernels are declared by name",
        ),
        (
            ARCHIVES.to_owned(),
            axis,
            "no kernel and no driver is of the archive's suites (noble, noble-updates)",
        ),
        (both.replace("'http://", "'ftp://"), axis, "is not an http, https or file URL"),
        (
            format!("{}{boots}", ARCHIVES.replace("'noble'", "'sid'")),
            axis,
            "-round-trip-t4 with packages of this archive (sid, noble-updates), which can only be compiled",
        ),
    ] {
        let error = with(&text).unwrap_err();
        let at = if line == 0 { String::new() } else { format!("line {line}: ") };
        assert!(error.contains(expected) && error.contains(&at), "{at}{expected}: {error}");
    }
}

#[test]
fn a_keyring_is_found_from_the_directory_of_the_rules() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("rules.toml");
    for (given, expected) in [
        ("/k.gpg", std::path::PathBuf::from("/k.gpg")),
        ("keys/k.gpg", dir.path().join("keys/k.gpg")),
    ] {
        let archive = ARCHIVES.replace("/k.gpg", given);
        std::fs::write(&path, format!("{AXES}{archive}{OF_ARCHIVE}")).unwrap();
        assert_eq!(Rules::read(&path).unwrap().archives[0].keyring, expected);
    }
}
