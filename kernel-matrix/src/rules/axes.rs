//! The two axes: kernels and drivers.

use std::collections::BTreeMap;
use std::fmt;

use longshore_core::flavour::Flavour;
use longshore_sources::source_tree::{SourceTree, SourceTrees};
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::Text;
use super::pattern::Patterns;

/// `[[kernels]]`: suites times flavours of one line, or kernels by name.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct KernelAxis {
    distribution: Option<Distribution>,
    #[serde(default)]
    suites: Vec<String>,
    /// Line with a meta-package of its own beside the suite's, for example `6.12`.
    line: Option<String>,
    #[serde(default)]
    flavours: Vec<KernelFlavour>,
    architecture: Option<String>,
    /// Name of a group of kernels by name, for example `el9`.
    name: Option<String>,
    /// `uname -r` of each of them.
    #[serde(default)]
    releases: Vec<String>,
    /// Their build root: headers and compiler. Without it they are of the suites.
    build_root: Option<String>,
}

/// Distribution of a kernel: it decides the meta-package's name. Kernels by name have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Distribution {
    Debian,
    Ubuntu,
}

/// Flavours of Debian's kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[serde(rename_all = "kebab-case")]
#[display(rename_all = "kebab-case")]
pub enum KernelFlavour {
    /// `linux-image-amd64`.
    Generic,
    /// `linux-image-cloud-amd64`.
    Cloud,
    /// `linux-image-rt-amd64`, Ubuntu's `-realtime`: PREEMPT_RT.
    Rt,
}

impl KernelFlavour {
    /// Returns the part of names that it adds; none for the generic one.
    fn part(self) -> String {
        if self == Self::Generic { String::new() } else { format!("-{self}") }
    }
}

/// A kernel of the matrix: the newest of a meta-package, or one by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Kernel {
    /// `SUITE[-LINE][-FLAVOUR]`; names of cells begin with it.
    pub id: String,
    /// Suite, for example `bookworm-security`; the group's name where it is by name.
    pub suite: String,
    /// Line, where it is not the suite's own.
    pub line: Option<String>,
    /// Flavour.
    pub flavour: KernelFlavour,
    /// Meta-package, for example `linux-image-6.12-rt-amd64`; empty where it is by name.
    pub package: String,
    /// The kernel by its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub named: Option<NamedKernel>,
}

/// A kernel by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct NamedKernel {
    /// `uname -r`.
    pub release: String,
    /// Place of its headers and compiler.
    #[serde(flatten)]
    pub place: KernelPlace,
}

/// Place of the headers and compiler of a kernel by its name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KernelPlace {
    /// Directory, tar file or image, as `build-root` of longshore has it.
    BuildRoot(String),
    /// Suites of an archive.
    Suites(Vec<String>),
}

impl Kernel {
    /// Returns the suites that have it: its own, those of a kernel by its name, none where a build root has it.
    pub fn suites(&self) -> &[String] {
        match self.named.as_ref().map(|named| &named.place) {
            None => std::slice::from_ref(&self.suite),
            Some(KernelPlace::Suites(suites)) => suites,
            Some(KernelPlace::BuildRoot(_)) => &[],
        }
    }
}

/// `[[drivers]]`: branches times flavours, all from the same suites; or the versions of a source tree.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(super) struct DriverAxis {
    #[serde(default)]
    branches: Vec<String>,
    #[serde(default)]
    flavours: Vec<Flavour>,
    #[serde(default)]
    suites: Vec<String>,
    /// NVIDIA's published sources, in the form of longshore's `[[source-tree]]`.
    source_tree: Option<SourceTrees>,
}

/// A driver of the matrix: the newest of a branch, from the newest packaging revision on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Driver {
    /// `BRANCH-FLAVOUR`.
    pub id: String,
    /// Branch (`535`) or version.
    pub branch: String,
    /// Flavour of the kernel modules.
    pub flavour: Flavour,
    /// Suites of its packages.
    pub suites: Vec<String>,
    /// Tree of sources that it is compiled from, instead of packages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_tree: Option<SourceTree>,
}

/// Match over both axes; without any key it matches everything.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Selector {
    suite: Option<Patterns>,
    line: Option<Patterns>,
    kernel_flavour: Option<Patterns>,
    branch: Option<Patterns>,
    flavour: Option<Patterns>,
}

impl Selector {
    /// True if it fits this combination.
    pub fn matches(&self, kernel: &Kernel, driver: &Driver) -> bool {
        let fits = |patterns: &Option<Patterns>, value: Option<&str>| {
            let is_met = |p: &Patterns| value.is_some_and(|value| p.matches(value));
            patterns.as_ref().is_none_or(is_met)
        };
        fits(&self.suite, Some(&kernel.suite))
            && fits(&self.line, kernel.line.as_deref())
            && fits(&self.kernel_flavour, Some(&kernel.flavour.to_string()))
            && fits(&self.branch, Some(&driver.branch))
            && fits(&self.flavour, Some(&driver.flavour.to_string()))
    }

    /// Returns its keys and their patterns.
    pub fn conditions(&self) -> BTreeMap<String, String> {
        let keys = [
            ("suite", &self.suite),
            ("line", &self.line),
            ("kernel-flavour", &self.kernel_flavour),
            ("branch", &self.branch),
            ("flavour", &self.flavour),
        ];
        let given = |(key, of): (&str, &Option<Patterns>)| {
            of.as_ref().map(|of| (key.to_owned(), of.to_string()))
        };
        keys.into_iter().filter_map(given).collect()
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let given = self.conditions().into_iter().map(|(key, of)| format!("{key}={of}"));
        f.write_str(&given.collect::<Vec<_>>().join(" "))
    }
}

/// Returns what all declarations give; refuses what an earlier one gives, too.
fn declared<A, T>(
    axes: &[Spanned<A>],
    text: &Text<'_>,
    of: impl Fn(&A) -> Result<Vec<T>, String>,
    name: impl Fn(&T) -> String,
) -> Result<Vec<T>, String> {
    let mut found = Vec::new();
    let mut lines = BTreeMap::new();
    for spanned in axes {
        let at = text.line(spanned);
        for one in of(spanned.get_ref()).map_err(|e| at_line(at, &e))? {
            let name = name(&one);
            if let Some(first) = lines.insert(name.clone(), at) {
                return Err(at_line(at, &format!("{name} is declared in line {first}, too")));
            }
            found.push(one);
        }
    }
    Ok(found)
}

/// Multiplies the kernels' axes.
pub(super) fn kernels(
    axes: &[Spanned<KernelAxis>],
    text: &Text<'_>,
) -> Result<Vec<Kernel>, String> {
    let of = |axis: &KernelAxis| match (&axis.name, axis.releases.as_slice(), &axis.build_root) {
        (None, [], None) => of_suites(axis),
        _ => named(axis),
    };
    declared(axes, text, of, |kernel: &Kernel| format!("the kernel {}", kernel.id))
}

/// Returns the newest kernel of each suite and flavour.
fn of_suites(axis: &KernelAxis) -> Result<Vec<Kernel>, String> {
    match axis.distribution {
        Some(Distribution::Debian) => {}
        Some(Distribution::Ubuntu) => {
            return Err(
                "Ubuntu's kernels are declared by name: add name and releases (uname -r)".into()
            );
        }
        None => {
            return Err("missing field `distribution`, or name, releases and build-root".into());
        }
    }
    let architecture = axis.architecture.as_ref().ok_or("missing field `architecture`")?;
    not_empty(&[("suites", axis.suites.len()), ("flavours", axis.flavours.len())])?;
    let mut names = axis.suites.iter().chain(&axis.line).chain([architecture]);
    names.try_for_each(|name| sound(name))?;
    let line = axis.line.as_ref().map(|line| format!("-{line}")).unwrap_or_default();
    let kernel = |suite: &String, flavour: KernelFlavour| Kernel {
        id: format!("{suite}{line}{}", flavour.part()),
        suite: suite.clone(),
        line: axis.line.clone(),
        flavour,
        package: format!("linux-image{line}{}-{architecture}", flavour.part()),
        named: None,
    };
    let of_suite = |suite| axis.flavours.iter().map(move |flavour| (suite, *flavour));
    Ok(axis.suites.iter().flat_map(of_suite).map(|(s, f)| kernel(s, f)).collect())
}

/// Returns kernels by their names.
fn named(axis: &KernelAxis) -> Result<Vec<Kernel>, String> {
    let Some(name) = &axis.name else { return Err(NEED.into()) };
    if axis.line.is_some() || axis.architecture.is_some() || !axis.flavours.is_empty() {
        return Err(
            "a release names line, flavour and architecture of a kernel: leave them out".into()
        );
    }
    let place = place_of(axis)?;
    not_empty(&[("releases", axis.releases.len())])?;
    sound(name)?;
    axis.releases.iter().try_for_each(|release| sound_release(release))?;
    let kernel = |release: &String| Kernel {
        id: format!("{name}-{release}"),
        suite: name.clone(),
        line: None,
        flavour: flavour_of(release),
        package: String::new(),
        named: Some(NamedKernel { release: release.clone(), place: place.clone() }),
    };
    Ok(axis.releases.iter().map(kernel).collect())
}

/// Keys of kernels by name.
const NEED: &str =
    "kernels by name need name and releases, and build-root or distribution and suites";

/// Returns the place of kernels by name: a build root or suites.
fn place_of(axis: &KernelAxis) -> Result<KernelPlace, String> {
    match (&axis.build_root, axis.distribution, axis.suites.as_slice()) {
        (Some(root), None, []) => {
            not_empty(&[("build-root", root.len())])?;
            Ok(KernelPlace::BuildRoot(root.clone()))
        }
        (Some(_), ..) => {
            Err("these kernels are of a build root: leave out distribution and suites".into())
        }
        (None, Some(_), [_, ..]) => {
            axis.suites.iter().try_for_each(|suite| sound(suite))?;
            Ok(KernelPlace::Suites(axis.suites.clone()))
        }
        (None, ..) => Err(NEED.into()),
    }
}

/// Returns the flavour that a release names: `-rt` of Debian, `.rt` and `+rt` of Enterprise Linux, `-realtime` of
/// Ubuntu.
fn flavour_of(release: &str) -> KernelFlavour {
    let mut parts = release.split(['-', '.', '+', '_']);
    let is_rt = |part: &str| {
        let numbered = part.strip_prefix("rt");
        numbered.is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit())) || part == "realtime"
    };
    if parts.any(is_rt) { KernelFlavour::Rt } else { KernelFlavour::Generic }
}

/// Multiplies the drivers' axes.
pub(super) fn drivers(
    axes: &[Spanned<DriverAxis>],
    text: &Text<'_>,
) -> Result<Vec<Driver>, String> {
    declared(axes, text, of_branches, |driver: &Driver| format!("the driver {}", driver.id))
}

/// Returns the driver of each branch and flavour.
fn of_branches(axis: &DriverAxis) -> Result<Vec<Driver>, String> {
    let DriverAxis { branches, flavours, suites, source_tree } = axis;
    if let Some(SourceTrees(trees)) = source_tree {
        return match branches.is_empty() && flavours.is_empty() && suites.is_empty() {
            true => Ok(trees.iter().map(of_tree).collect()),
            false => Err("a source tree has its versions in sha256 and the open flavour alone: leave out branches, \
                          flavours and suites"
                .to_owned()),
        };
    }
    not_empty(&[
        ("branches", branches.len()),
        ("flavours", flavours.len()),
        ("suites", suites.len()),
    ])?;
    branches.iter().chain(suites).try_for_each(|name| sound(name))?;
    let driver = |branch: &String, flavour: Flavour| Driver {
        id: format!("{branch}-{flavour}"),
        branch: branch.clone(),
        flavour,
        suites: suites.clone(),
        source_tree: None,
    };
    let of_branch = |branch| flavours.iter().map(move |flavour| (branch, *flavour));
    Ok(branches.iter().flat_map(of_branch).map(|(b, f)| driver(b, f)).collect())
}

/// Returns the driver of a tree: its branch is its version.
fn of_tree(tree: &SourceTree) -> Driver {
    Driver {
        id: format!("{}-{}", tree.version, Flavour::Open),
        branch: tree.version.clone(),
        flavour: Flavour::Open,
        suites: Vec::new(),
        source_tree: Some(tree.clone()),
    }
}

/// Adds the line to an error.
pub(super) fn at_line(line: usize, what: &str) -> String {
    format!("line {line}: {what}")
}

fn not_empty(lengths: &[(&str, usize)]) -> Result<(), String> {
    match lengths.iter().find(|(_, length)| *length == 0) {
        Some((key, _)) => Err(format!("{key} is empty, so that it gives nothing")),
        None => Ok(()),
    }
}

/// Refuses what is no `uname -r`, of which a cell's name is a part.
fn sound_release(release: &str) -> Result<(), String> {
    let is_good = |c: char| c.is_ascii_alphanumeric() || "-._+~".contains(c);
    match release.starts_with(|c: char| c.is_ascii_digit()) && release.chars().all(is_good) {
        true => Ok(()),
        false => Err(format!("`{}` is no kernel release (uname -r)", release.escape_default())),
    }
}

/// Refuses names that could not be part of a file's name or of an argument.
fn sound(name: &str) -> Result<(), String> {
    let is_good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.+".contains(c);
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit());
    match begins && name.chars().all(is_good) {
        true => Ok(()),
        false => Err(format!("`{}` is no name of a suite, line or branch", name.escape_default())),
    }
}
