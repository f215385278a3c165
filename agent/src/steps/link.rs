//! Making of links in /dev/char.
//!
//! With cgroups made by systemd, runc names a device by `/dev/char/MAJOR:MINOR`, and systemd drops one
//! that has no such link at its next reload. udev makes them for devices with a uevent, which NVIDIA's
//! have none of.

use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use super::bounds::{given, is_plain};
use super::node::{is_node_name, listed_first};
use super::{
    Announces, ApplyResult, Bounds, Deviation, Intent, Next, Progress, Properties, Recheck,
    StepKind, Tools, UndoResult, Watch, directory, exposing,
};
use longshore_core::failure::Failure;
use longshore_host::values::{NodeKeeper, WantedNode};
use longshore_host::{Host, VerbError};

/// Directory of the links below a /dev.
const CHAR: &str = "char";

/// Make the links to a loaded driver's nodes in /dev/char; undone by removing those made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, derive_more::Display)]
#[display("make links to device nodes in {}", self.dir().display())]
pub struct LinkNodes {
    /// The host's /dev.
    pub dev: PathBuf,
}

/// Directories that were missing, and links that were missing or led elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Links {
    /// Absolute paths, outermost first.
    pub missing_dirs: Vec<PathBuf>,
    /// The links to be made.
    pub links: Vec<LinkBefore>,
}

/// A link to be made, and its target before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkBefore {
    /// Absolute path.
    pub path: PathBuf,
    /// Target to give it, relative to its directory.
    pub target: PathBuf,
    /// Target before, if there was a link.
    pub was: Option<PathBuf>,
}

impl LinkNodes {
    fn dir(&self) -> PathBuf {
        self.dev.join(CHAR)
    }

    fn before(
        &self,
        host: &dyn Host,
        wanted: &WantedNode,
    ) -> Result<Option<LinkBefore>, VerbError> {
        // udev makes those of devices that the kernel makes nodes for.
        if !matches!(wanted.keeper, NodeKeeper::Installer | NodeKeeper::Loader) {
            return Ok(None);
        }
        let path = self.dir().join(format!("{}:{}", wanted.node.major, wanted.node.minor));
        let was = match host.link(&path) {
            Err(e) if e.errno == Errno::EEXIST => {
                tracing::warn!("{e}: left as it is");
                return Ok(None);
            }
            found => found?,
        };
        let target = Path::new("..").join(&wanted.name);
        // NVIDIA's toolkit makes absolute ones.
        let absolute = Path::new("/dev").join(&wanted.name);
        if let Some(was) = was.as_ref().filter(|was| !leads_to_device(was)) {
            tracing::warn!("{} leads to {}: left as it is", path.display(), was.display());
            return Ok(None);
        }
        let is_right = was.as_ref().is_some_and(|was| *was == target || *was == absolute);
        Ok((!is_right).then_some(LinkBefore { path, target, was }))
    }
}

impl StepKind for LinkNodes {
    type Before = Links;
    const WAS: &'static str = "links";

    fn subject(&self) -> String {
        self.dir().display().to_string()
    }

    fn properties(&self) -> Properties<'_> {
        Properties {
            for_good: None,
            resumed: false,
            verified: true,
            optional: None,
            recheck: Recheck::WhileLoaded,
            carries_daemons: false,
            // Another driver has other numbers.
            next: Next::WantedUnlessReplaced("nvidia"),
            content: None,
            watch: Watch::Links(&self.dev),
            announces: Announces::Nothing,
            refresh: None,
        }
    }

    fn observe(&self, host: &dyn Host) -> Result<Option<Links>, Failure> {
        let wanted = host.wanted_nodes().map_err(exposing)?;
        let before = |wanted| self.before(host, wanted).map_err(exposing).transpose();
        let links: Vec<LinkBefore> = wanted.iter().filter_map(before).collect::<Result<_, _>>()?;
        if links.is_empty() {
            return Ok(None);
        }
        let missing_dirs = directory::missing(host, &self.dir()).map_err(exposing)?;
        Ok(Some(Links { missing_dirs, links }))
    }

    fn apply(&self, before: &Links, tools: &Tools<'_>, intent: Intent<'_>) -> ApplyResult {
        let host = tools.host;
        before.missing_dirs.iter().try_for_each(|dir| host.make_dir(dir)).map_err(exposing)?;
        before.links.iter().try_for_each(|link| make(host, link)).map_err(exposing)?;
        Ok(intent.done())
    }

    fn undo(&self, before: &Links, _: &Progress<'_>, tools: &Tools<'_>) -> UndoResult {
        before.links.iter().rev().try_for_each(|link| undo(tools.host, link))?;
        directory::remove(tools.host, &before.missing_dirs)
    }

    fn seen(&self, now: &Links) -> Deviation {
        let named = listed_first(now.links.iter().map(|link| &link.path));
        Deviation::gone(format!("links to device nodes are missing or wrong: {named}"))
    }

    fn check(&self, bounds: &Bounds) -> Result<(), String> {
        given(bounds.devs.contains(&self.dev), &self.dev)
    }

    fn check_before(&self, before: &Links, _: &Bounds) -> Result<(), String> {
        let dir = self.dir();
        before.missing_dirs.iter().try_for_each(|missing| given(*missing == dir, missing))?;
        before.links.iter().try_for_each(|link| allowed(&dir, link))
    }
}

fn make(host: &dyn Host, link: &LinkBefore) -> Result<(), VerbError> {
    if link.was.is_some() {
        host.remove_file(&link.path)?;
    }
    match host.make_link(&link.path, &link.target) {
        // udev, or NVIDIA's tools, were faster.
        Err(e) if e.errno == Errno::EEXIST => {
            tracing::warn!("{e}: another program made it just before us");
            Ok(())
        }
        made => made,
    }
}

fn undo(host: &dyn Host, link: &LinkBefore) -> Result<(), VerbError> {
    let there = match host.link(&link.path) {
        Err(e) if e.errno == Errno::EEXIST => return Ok(()),
        found => found?,
    };
    match there {
        Some(there) if there == link.target => host.remove_file(&link.path)?,
        Some(_) => return Ok(()),
        None => {}
    }
    link.was.as_ref().map_or(Ok(()), |was| host.make_link(&link.path, was))
}

/// Accepts a link MAJOR:MINOR in the directory to a node of the driver; a link before it may lead
/// anywhere below /dev or /run.
fn allowed(dir: &Path, link: &LinkBefore) -> Result<(), String> {
    let LinkBefore { path, target, was } = link;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let is_number = |text: &str| text.len() <= 7 && text.bytes().all(|b| b.is_ascii_digit());
    let is_named = name
        .split_once(':')
        .is_some_and(|(a, b)| !a.is_empty() && !b.is_empty() && is_number(a) && is_number(b));
    given(is_named && path.parent() == Some(dir) && is_plain(path), path)?;
    given(target.strip_prefix("..").is_ok_and(is_node_name), target)?;
    given(was.as_ref().is_none_or(|was| leads_to_device(was)), path)
}

/// True for a target below /dev or /run, absolute or relative to the directory of links.
fn leads_to_device(was: &Path) -> bool {
    let is_inside = |root: &str| was.starts_with(root) && is_plain(was);
    let mut parts = was.components();
    let is_relative = parts.next() == Some(Component::ParentDir)
        && parts.all(|part| matches!(part, Component::Normal(_)));
    is_relative || is_inside("/dev") || is_inside("/run")
}
