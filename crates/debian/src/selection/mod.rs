//! Selection of the suites and archives to read.
//!
//! Sources named in the configuration are all read, and one that fails is an error. Of the host's
//! apt sources only the distribution's own are read: third-party archives on a host can be
//! unreachable, and a kernel module should not be built with their packages of the same names. A
//! source counts as the distribution's if its suite belongs to the release in os-release (or is an
//! alias such as `stable`, or one that was requested), and if its Release's Origin, if it has one,
//! is the distribution's ID. A flat source has no suite: it is read where its Release's Origin or Label
//! is that of the distribution, or of the drivers' maker. A host source that fails is a warning.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::apt_conf::AptMaxAges;
use super::apt_sources::{self, AptSource, LeftOut, SignedBy};
use super::keyring::Keyring;
use super::max_age::{AgeLimits, MaxAge};
use super::release::is_flat;
use super::resolve::release_of;
use crate::settings::{ArchiveConfig, ArchiveSource};
use longshore_core::bounded_read;
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::ownership;
use longshore_core::redact::redacted;
use longshore_core::root::{is_absent, read_below};

/// Maximum size of a keyring: the largest known has 8 MB.
const MOST_BYTES: u64 = 64 << 20;

/// A suite to read.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) suite: String,
    pub(super) components: Vec<Component>,
    /// Archives that may have it; the first that does is taken.
    pub(super) places: Vec<CandidateArchive>,
    /// True if the configuration names it, so that it must exist.
    pub(super) explicit: bool,
    /// Accepted Origins, in lower case; empty for any.
    pub(super) origins: Vec<String>,
}

/// A component to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Component {
    pub(super) name: String,
    pub(super) need: Need,
}

/// Requirement on a component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// Named by the configuration for this archive: it must exist.
    Must,
    /// Named by a source of the host's apt: a suite may lack it, but must have it if its Release
    /// lists it.
    Listed,
    /// Wanted beyond the host's apt sources: a mirror may lack it even if listed.
    May,
}

/// An archive that may have a suite.
#[derive(Debug, Clone)]
pub(super) struct CandidateArchive {
    pub(super) url: String,
    pub(super) keyring: Arc<Keyring>,
    pub(super) ages: AgeLimits,
}

/// The suites to read.
#[derive(Debug, Default)]
pub(super) struct Selection {
    pub(super) wanted: Vec<Wanted>,
    /// Problems of the host's apt sources.
    pub(super) problems: Vec<Failure>,
    /// Sources of the host's apt that are not used.
    pub(super) left_out: Vec<LeftOut>,
}

/// Selects the suites to read.
///
/// # Errors
/// Exit code 12 where there is no archive; 2 where the configuration names a keyring that cannot be used.
pub(super) fn select(
    config: &ArchiveConfig,
    host_root: &Path,
    arch: &str,
) -> Result<Selection, Failure> {
    let mut selection = Selection::default();
    for source in &config.sources {
        selection.add_configured(source, config.max_age, host_root)?;
    }
    if config.use_host_apt {
        selection.add_host(config, host_root, arch)?;
    }
    if selection.wanted.is_empty() {
        let Selection { problems, left_out, .. } = selection;
        return Err(problems.into_iter().next().unwrap_or_else(|| none(config, &left_out)));
    }
    Ok(selection)
}

/// Returns the failure that there is no archive to read, with what the host's apt has instead.
fn none(config: &ArchiveConfig, left_out: &[LeftOut]) -> Failure {
    let of_host = match (config.use_host_apt, left_out) {
        (false, _) => "the host's apt sources are switched off (host-apt)".to_owned(),
        (true, []) => "the host has none for apt".to_owned(),
        (true, left_out) => {
            let named = apt_sources::named(left_out);
            format!("none of the host's apt sources can be used: {named}")
        }
    };
    Failure::new(FailureKind::NoSource, format!("no archive is configured, and {of_host}"))
        .remedy("name one as [[archive]] in the configuration file")
}

impl Selection {
    fn add_configured(
        &mut self,
        source: &ArchiveSource,
        max_age: MaxAge,
        host_root: &Path,
    ) -> Result<(), Failure> {
        let keyring = Arc::new(keyring_of(source, host_root)?);
        let ages = AgeLimits::of_entry(source.max_age, max_age);
        let place = CandidateArchive { url: source.url.clone(), keyring, ages };
        for suite in &source.suites {
            self.add(Wanted {
                suite: suite.clone(),
                components: configured_components(source, suite)?,
                places: vec![place.clone()],
                explicit: true,
                origins: Vec::new(),
            });
        }
        Ok(())
    }

    /// Adds the flat suites of a host's source.
    fn add_flat(&mut self, source: &AptSource, place: &CandidateArchive, os: &Os) {
        for suite in source.suites.iter().filter(|suite| is_flat(suite)) {
            self.add(Wanted {
                suite: suite.clone(),
                components: flat_component(),
                places: vec![place.clone()],
                explicit: false,
                origins: os.origins.clone(),
            });
        }
    }

    fn cannot_use(&mut self, source: &AptSource, failure: Failure) {
        let (file, line) = (source.file.display(), source.line);
        let cause = format!("the source of {file}, line {line}, cannot be used");
        self.problems.push(Failure::new(failure.kind(), cause).with_source(failure));
    }

    fn add_host(
        &mut self,
        config: &ArchiveConfig,
        host_root: &Path,
        arch: &str,
    ) -> Result<(), Failure> {
        let os = Os::read(host_root);
        let max_ages = Arc::new(AptMaxAges::read(host_root));
        let found = apt_sources::read_with(config.container_lists.as_deref(), host_root, arch);
        self.problems.extend(found.problems);
        self.left_out.extend(found.left_out);
        let mut own: Vec<(AptSource, CandidateArchive)> = Vec::new();
        let mut keyrings: BTreeMap<SignedBy, Arc<Keyring>> = BTreeMap::new();
        for mut source in found.sources {
            let is_wanted = |suite: &String| {
                is_flat(suite) || os.has(suite) || config.host_suites.contains(suite)
            };
            let (wanted, others): (Vec<String>, Vec<String>) =
                source.suites.drain(..).partition(is_wanted);
            if !others.is_empty() {
                let other = AptSource { suites: others, ..source.clone() };
                self.left_out.push(LeftOut::new(&other, os.reason_against(&other.suites)));
            }
            source.suites = wanted;
            if source.suites.is_empty() {
                continue;
            }
            // Many sources name the same files.
            let known = keyrings.get(&source.signed_by).map(Arc::clone);
            let read = || source.signed_by.keyring(host_root, &os.origins).map(Arc::new);
            match known.map_or_else(read, Ok) {
                Ok(keyring) => {
                    keyrings.insert(source.signed_by.clone(), Arc::clone(&keyring));
                    let ages = AgeLimits::of_host(config.max_age, &max_ages, &source);
                    let place = CandidateArchive { url: source.url.clone(), keyring, ages };
                    own.push((source, place));
                }
                Err(failure) => self.cannot_use(&source, failure),
            }
        }
        let (flat, own): (Vec<_>, Vec<_>) =
            own.into_iter().partition(|(source, _)| source.components.is_empty());
        for (source, place) in &own {
            for suite in &source.suites {
                let mut wanted = components(&source.components, Need::Listed);
                merge(&mut wanted, components(&config.host_components, Need::May));
                self.add(Wanted {
                    suite: suite.clone(),
                    components: wanted,
                    places: vec![place.clone()],
                    explicit: config.host_suites.contains(suite),
                    origins: os.origins.clone(),
                });
            }
        }
        for suite in &config.host_suites {
            self.add_suite(suite, &own, config, &os)?;
        }
        for (source, place) in &flat {
            self.add_flat(source, place, &os);
        }
        Ok(())
    }

    /// Adds a suite that the host's sources do not name: from the archive of a similar suite. A
    /// security suite is taken from the archive of another one, every other suite from the main
    /// archive; otherwise from the remaining archives.
    fn add_suite(
        &mut self,
        suite: &str,
        own: &[(AptSource, CandidateArchive)],
        config: &ArchiveConfig,
        os: &Os,
    ) -> Result<(), Failure> {
        if self.wanted.iter().any(|wanted| wanted.suite == suite) {
            return Ok(());
        }
        let alike = |source: &AptSource| {
            source.suites.iter().any(|other| is_security(other) == is_security(suite))
        };
        let (like, unlike): (Vec<_>, Vec<_>) = own.iter().partition(|(source, _)| alike(source));
        let mut wanted = Vec::new();
        let mut places: Vec<CandidateArchive> = Vec::new();
        for (source, place) in like.into_iter().chain(unlike) {
            merge(&mut wanted, components(&source.components, Need::Listed));
            if places.iter().all(|known| known.url != place.url) {
                places.push(place.clone());
            }
        }
        merge(&mut wanted, components(&config.host_components, Need::May));
        if places.is_empty() {
            let cause = format!(
                "the suite {suite} is wanted, and the host has no apt source to take it from"
            );
            return Err(Failure::new(FailureKind::Usage, cause)
                .remedy("name its archive as [[archive]] in the configuration file"));
        }
        self.add(Wanted {
            suite: suite.to_owned(),
            components: wanted,
            places,
            explicit: true,
            origins: os.origins.clone(),
        });
        Ok(())
    }

    /// Adds a suite, or its components and limits of age to the same suite of the same archive.
    fn add(&mut self, wanted: Wanted) {
        fn url(wanted: &Wanted) -> Option<&str> {
            wanted.places.first().map(|place| place.url.trim_end_matches('/'))
        }
        let same = self
            .wanted
            .iter_mut()
            .find(|known| known.suite == wanted.suite && url(known) == url(&wanted));
        match same {
            Some(known) => {
                merge(&mut known.components, wanted.components);
                for (known, other) in known.places.iter_mut().zip(&wanted.places) {
                    known.ages.merge(&other.ages);
                }
            }
            None => self.wanted.push(wanted),
        }
    }
}

fn components(names: &[String], need: Need) -> Vec<Component> {
    names.iter().map(|name| Component { name: name.clone(), need }).collect()
}

/// Returns the one component of a flat archive, as plans and messages name it.
fn flat_component() -> Vec<Component> {
    components(&["flat".to_owned()], Need::Must)
}

/// Returns the components to read of a suite of the configuration.
fn configured_components(source: &ArchiveSource, suite: &str) -> Result<Vec<Component>, Failure> {
    let named = &source.components;
    let (cause, remedy) = match (is_flat(suite), named.is_empty()) {
        (true, true) => return Ok(flat_component()),
        (false, false) => return Ok(components(named, Need::Must)),
        (true, false) => ("is flat and has no components", "remove components from"),
        (false, true) => ("has no components", "name components, for example main, in"),
    };
    let cause = format!("the suite {suite} of {} {cause}", redacted(&source.url));
    Err(Failure::new(FailureKind::Usage, cause).remedy(format!("{remedy} this [[archive]]")))
}

fn merge(into: &mut Vec<Component>, more: Vec<Component>) {
    for component in more {
        if into.iter().all(|known| known.name != component.name) {
            into.push(component);
        }
    }
}

fn is_security(suite: &str) -> bool {
    suite.ends_with("-security") || suite.ends_with("/updates")
}

/// Reads a configured keyring from this file system or, failing that, from the host's. Nobody but root may write to it,
/// because its keys decide what is compiled.
fn keyring_of(source: &ArchiveSource, host_root: &Path) -> Result<Keyring, Failure> {
    let what =
        || format!("reading the keyring {} of {}", source.keyring.display(), redacted(&source.url));
    let path = &source.keyring;
    let of_host = || ownership::way(host_root, path).and_then(|_| read_below(host_root, path));
    let bytes = ownership::file(path)
        .and_then(|()| bounded_read::read(path, MOST_BYTES))
        .or_else(|error| match is_absent(&error) {
            true => of_host().map_err(|other| if is_absent(&other) { error } else { other }),
            false => Err(error),
        })
        .map_err(|error| {
            let remedy =
                "set keyring of this [[archive]] to the keyring that the archive signs with";
            ownership::failure(FailureKind::Usage, what(), error, remedy)
        })?;
    let keyring = Keyring::read(&bytes);
    if keyring.is_empty() {
        let cause = format!("{}: no OpenPGP certificate in it", what());
        return Err(Failure::new(FailureKind::Usage, cause)
            .remedy("give a keyring as `gpg --export` writes it, binary or armored"));
    }
    Ok(keyring)
}

/// The distribution, from os-release.
struct Os {
    codename: Option<String>,
    origins: Vec<String>,
}

impl Os {
    fn read(root: &Path) -> Self {
        let read = |path| read_below(root, Path::new(path));
        let bytes = read("/etc/os-release").or_else(|_| read("/usr/lib/os-release"));
        Self::parse(&String::from_utf8_lossy(&bytes.unwrap_or_default()))
    }

    fn parse(text: &str) -> Self {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
            Some(line.trim().trim_matches(['"', '\'']).to_owned()).filter(|v| !v.is_empty())
        };
        let ids = [value("ID"), value("ID_LIKE")].into_iter().flatten();
        Self {
            codename: value("VERSION_CODENAME"),
            origins: ids.flat_map(|ids| split_words(&ids)).collect(),
        }
    }

    /// Returns why suites that are not this distribution's are left out.
    fn reason_against(&self, suites: &[String]) -> String {
        if let Some(suite) = suites.iter().find(|suite| suite.contains('$')) {
            return format!("apt takes {suite} as it is written, and no archive has such a suite");
        }
        let codename = self.codename.as_deref().unwrap_or_default();
        format!("no suite of this distribution ({codename}); archive-suites names further ones")
    }

    /// True if a suite may be the distribution's, by its name.
    fn has(&self, suite: &str) -> bool {
        let aliases =
            ["stable", "oldstable", "oldoldstable", "testing", "unstable", "sid", "experimental"];
        let release = release_of(suite);
        self.codename.as_deref().is_none_or(|codename| codename == release)
            || aliases.contains(&release)
    }
}

fn split_words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests;
