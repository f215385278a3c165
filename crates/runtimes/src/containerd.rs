//! containerd: `enable_cdi` of its CRI plugin in config.toml and the files that it imports.
//!
//! containerd 1.7 has it off by default, 2.0 and later on. Files are read breadth first, each once
//! (cmd/containerd/server/config, LoadConfig). Before 2.1 a plugin's section of a later file replaces the
//! whole section of the files before it (containerd#5837); from 2.1 only the keys that it has. The last
//! file that has the section decides in both cases once the key is in it, so that is the file to edit.

mod imports;
mod layer;

use std::path::{Path, PathBuf};

use crate::files::Files;
use crate::runtime::Runtime;
use crate::spec_dirs;
use crate::toml_text::{self, Flag};
use crate::verdict::{Assessment, Edit, Refusal, State};
use crate::version::Version;
use layer::Layer;

/// First version with CDI in its CRI plugin.
const FIRST: Version = Version::new(1, 7, 0);
/// First version that has it on by default, and reads files of version 3.
const DEFAULT: Version = Version::new(2, 0, 0);
/// First version that merges the sections of a plugin.
const MERGES: Version = Version::new(2, 1, 0);
const KEY: &str = "enable_cdi";

/// Assesses the configuration at `path`. `dump` is the output of `containerd config dump`, where that
/// could be asked.
pub fn assess(
    version: Option<Version>,
    path: &Path,
    files: &dyn Files,
    dump: Option<&str>,
) -> Assessment {
    let mut notes = Vec::new();
    let state = state(version, path, files, dump, &mut notes).unwrap_or_else(State::from);
    Assessment { runtime: Runtime::Containerd, version, state, notes }
}

fn state(
    version: Option<Version>,
    path: &Path,
    files: &dyn Files,
    dump: Option<&str>,
    notes: &mut Vec<String>,
) -> Result<State, Refusal> {
    if let Some(version) = version.filter(|version| *version < FIRST) {
        return Ok(State::Impossible {
            reason: format!("containerd {version} has no CDI, which came with 1.7"),
            remedy: "upgrade containerd".to_owned(),
        });
    }
    let layers = imports::load(files, path)?;
    if let Some(layer) = layers.iter().find(|layer| layer.disables_cri()) {
        let file = layer.path.display();
        return Ok(State::Unused { reason: format!("its CRI plugin is disabled in {file}") });
    }
    check_formats(version, &layers)?;
    notes.extend(layers.iter().filter_map(|layer| {
        let setting = format!("cdi_spec_dirs in {}", layer.path.display());
        spec_dirs::missing(&setting, layer.spec_dirs().as_deref())
    }));
    decide(&Computed::of(version, &layers), path, &layers, dump.and_then(layer::dumped), notes)
}

/// Refuses formats that are too old for CDI, or too new for the program.
fn check_formats(version: Option<Version>, layers: &[Layer]) -> Result<(), Refusal> {
    let Some(top) = layers.first() else { return Ok(()) };
    let path = top.path.display();
    match top.format() {
        None | Some(0 | 1) => Err(Refusal::new(
            format!(
                "{path} is in the format of version 1 (it has no `version = 2` or `version = 3`), which is not edited"
            ),
            "convert it (`containerd config migrate` prints it in the newest format), and try again",
        )),
        Some(2) => Ok(()),
        Some(3) if version.is_none_or(|version| version >= DEFAULT) => Ok(()),
        Some(format) => {
            let program = version.map_or_else(String::new, |version| format!(" {version}"));
            let reason = format!(
                "{path} is in the format of version {format}, which containerd{program} does not read"
            );
            Err(Refusal::new(
                reason,
                "use the format of this containerd (`containerd config default`)",
            ))
        }
    }
}

/// Effective value as computed from the files.
struct Computed {
    on: bool,
    reason: String,
}

impl Computed {
    fn of(version: Option<Version>, layers: &[Layer]) -> Self {
        let merges = version.map(|version| version >= MERGES);
        let merged = layers.iter().rev().find_map(|layer| Some((layer.flag()?, layer)));
        let last = layers.iter().rev().find(|layer| layer.has_section());
        let replaced = last.and_then(|layer| Some((layer.flag()?, layer)));
        match merges {
            Some(true) => Self::value(version, layers, merged),
            Some(false) => Self::value(version, layers, replaced),
            // On only where both ways of reading have it on.
            None => {
                let one = Self::value(version, layers, merged);
                let other = Self::value(version, layers, replaced);
                if one.on { other } else { one }
            }
        }
    }

    fn value(version: Option<Version>, layers: &[Layer], found: Option<(bool, &Layer)>) -> Self {
        if let Some((on, layer)) = found {
            return Self { on, reason: format!("{} has {KEY} = {on}", layer.path.display()) };
        }
        let is_new = layers.first().and_then(Layer::format) == Some(3);
        let on = version.map_or(is_new, |version| version >= DEFAULT);
        let by =
            version.map_or_else(|| "of unknown version".to_owned(), |version| version.to_string());
        let state = if on { "on" } else { "off" };
        Self { on, reason: format!("{KEY} is not set, and {state} by default in containerd {by}") }
    }
}

/// Compares the computed value with containerd's own.
fn decide(
    computed: &Computed,
    path: &Path,
    layers: &[Layer],
    dumped: Option<bool>,
    notes: &mut Vec<String>,
) -> Result<State, Refusal> {
    let Computed { on, reason } = computed;
    match dumped {
        Some(true) if !on => {
            notes.push(format!("by its files CDI would be off: {reason}"));
            Ok(State::on(format!("`containerd config dump` has {KEY} = true")))
        }
        Some(false) if *on => Err(Refusal::new(
            format!("`containerd config dump` has {KEY} = false, though {reason}"),
            "name the file that containerd reads with --config, or set the value by hand",
        )),
        _ if *on => Ok(State::on(reason)),
        _ => Ok(State::Off { reason: reason.clone(), edit: edit(path, layers)? }),
    }
}

fn edit(path: &Path, layers: &[Layer]) -> Result<Edit, Refusal> {
    let last = layers.iter().rev().find(|layer| layer.has_section()).or(layers.first());
    let Some(layer) = last else { return Ok(fresh(path)) };
    let flag = Flag { outer: "plugins", inner: layer.section_name(), key: KEY };
    let after = toml_text::with_flag(&layer.text, flag).map_err(|why| {
        let reason = format!("{} is not edited: {why}", layer.path.display());
        let remedy = format!("set {KEY} = true in its section plugins.\"{}\" by hand", flag.inner);
        Refusal::new(reason, remedy)
    })?;
    Ok(Edit { path: layer.path.clone(), before: Some(layer.text.clone()), after })
}

/// A configuration where there is none: the defaults, and CDI.
fn fresh(path: &Path) -> Edit {
    let after = format!("version = 2\n\n[plugins.\"{}\"]\n  {KEY} = true\n", layer::OLD_SECTION);
    Edit { path: PathBuf::from(path), before: None, after }
}

#[cfg(test)]
mod tests;
