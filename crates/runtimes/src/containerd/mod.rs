//! containerd: `enable_cdi` of its CRI plugin in config.toml and the files that it imports.
//!
//! containerd 1.7 has it off by default, 2.0 and later on. Files are read breadth first, each once
//! (cmd/containerd/server/config, LoadConfig); [`reading`] has the rules by which they become one value.

mod candidate;
mod generated;
mod imports;
mod layer;
mod reading;

use std::path::{Path, PathBuf};

use crate::distribution::{Distribution, Keeping};
use crate::files::{Files, Overlay};
use crate::runtime::Runtime;
use crate::spec_dirs;
use crate::toml_text::{self, Flag};
use crate::verdict::{Assessment, Edit, Refusal, State};
use crate::version::Version;
pub use candidate::candidate;
pub use generated::generator;
use layer::Layer;
use reading::{Effective, Reading};

/// First version with CDI in its CRI plugin.
const FIRST: Version = Version::new(1, 7, 0);
/// First version that has it on by default, and reads files of version 3.
const DEFAULT: Version = Version::new(2, 0, 0);
/// First version that refuses a drop-in of a higher version than the root's, and reads files of version 4
/// (v2.3.0 to v2.3.4 and v2.4.0-beta.0 do; v2.2.7 does not).
const COMPARES: Version = Version::new(2, 3, 0);
const KEY: &str = "enable_cdi";

/// Answer of a runtime's program, as to `containerd config dump`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dump {
    /// It was not asked: there is no such program, or no file.
    NotAsked,
    /// It failed, with this message. Of `containerd config dump`: containerd does not start with these files.
    Failed(String),
    /// It did not answer, or could not be started; the reason.
    Silent(String),
    /// Its output.
    Text(String),
}

/// One question about a containerd.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// Its version, where it is known.
    pub version: Option<Version>,
    /// The file that it reads.
    pub path: &'a Path,
    /// File among those that it reads, or would read, that is to have the edit; None for the one in which
    /// the edit has its effect.
    pub edited: Option<&'a Path>,
    /// Keeping of the configuration.
    pub distribution: &'a Distribution,
    /// Answer of a runtime's program, as to `containerd config dump`.
    pub dump: &'a Dump,
}

/// Assesses a configuration.
pub fn assess(asked: Question<'_>, files: &dyn Files) -> Assessment {
    let mut notes = Vec::new();
    let state = state(asked, files, &mut notes).unwrap_or_else(State::from);
    Assessment { runtime: Runtime::Containerd, version: asked.version, state, notes }
}

fn state(
    asked: Question<'_>,
    files: &dyn Files,
    notes: &mut Vec<String>,
) -> Result<State, Refusal> {
    if let Some(version) = asked.version.filter(|version| *version < FIRST) {
        return Ok(State::Impossible {
            reason: format!("containerd {version} has no CDI, which came with 1.7"),
            remedy: "upgrade containerd".to_owned(),
        });
    }
    if generated::is_template(asked.path) {
        return Err(generated::of_template(asked, files));
    }
    let layers = imports::load(files, asked.path, asked.distribution.keeping)?;
    if layers.is_empty() && asked.distribution.keeping != Keeping::Own {
        return Err(generated::absent(asked));
    }
    check_dump(asked, &layers)?;
    if let Some(layer) = layers.iter().find(|layer| layer.disables_cri()) {
        let file = layer.path.display();
        return Ok(State::Unused { reason: format!("its CRI plugin is disabled in {file}") });
    }
    check_formats(asked.version, &layers)?;
    let computed = Computed::from_layers(asked.version, &layers);
    let is_on = match (computed.on, dumped(asked.dump)) {
        (on, Some(true)) => {
            if on != Some(true) {
                notes.push(format!("by its files CDI would not be on: {}", computed.reason));
            }
            Some(true)
        }
        (Some(true), Some(false)) => {
            return Err(Refusal::new(
                format!("`containerd config dump` has {KEY} = false, though {}", computed.reason),
                "name the file that containerd reads with --file, or set the value by hand",
            ));
        }
        (on, _) => on,
    };
    if is_on == Some(true) {
        return Ok(on(asked, &layers, &computed));
    }
    off(asked, files, &layers, &computed)
}

/// The state where the value is on: the directories of specs are what is left to check.
fn on(asked: Question<'_>, layers: &[Layer], computed: &Computed) -> State {
    if let Some(state) = lacking_dirs(layers) {
        return state;
    }
    match dumped(asked.dump) {
        Some(true) if computed.on != Some(true) => {
            State::on(format!("`containerd config dump` has {KEY} = true"))
        }
        _ => State::on(&computed.reason),
    }
}

/// The state where the list of directories lacks that of longshore's spec; None where it has it.
fn lacking_dirs(layers: &[Layer]) -> Option<State> {
    let (layer, dirs) = layers.iter().rev().find_map(|layer| Some((layer, layer.spec_dirs()?)))?;
    let setting = format!("cdi_spec_dirs in {}", layer.path.display());
    let (reason, remedy) = spec_dirs::missing(&setting, &dirs)?;
    Some(State::Manual { reason, remedy })
}

/// The state where the value is off, or not known: the edit, or the place that lasts. An edit of the value does
/// not add a directory, so that a list without longshore's comes first.
fn off(
    asked: Question<'_>,
    files: &dyn Files,
    layers: &[Layer],
    computed: &Computed,
) -> Result<State, Refusal> {
    if let Some(state) = lacking_dirs(layers) {
        return Ok(state);
    }
    let reason = computed.reason.clone();
    let made = match generated::lasting(asked, layers) {
        Some(remedy) if computed.on.is_none() => {
            return Ok(State::Unknown { reason, remedy, edit: None });
        }
        Some(remedy) => return Ok(State::Manual { reason, remedy }),
        None => edit(asked, layers).and_then(|edit| verified(asked, files, edit))?,
    };
    if computed.on.is_some() {
        return Ok(State::Off { reason, edit: made });
    }
    let remedy = format!(
        "set {KEY} = true in {}, which is right for every version from 1.7 on",
        made.path.display()
    );
    Ok(State::Unknown { reason, remedy, edit: Some(made) })
}

fn dumped(dump: &Dump) -> Option<bool> {
    match dump {
        Dump::Text(text) => layer::dumped(text),
        _ => None,
    }
}

/// Refuses what containerd itself refuses: by its own answer, or where that is not there by the versions of
/// its files.
fn check_dump(asked: Question<'_>, layers: &[Layer]) -> Result<(), Refusal> {
    let higher = higher_drop_in(layers);
    match asked.dump {
        Dump::Text(_) => Ok(()),
        Dump::Silent(why) => Err(Refusal::new(
            format!("`containerd config dump` could not be asked: {why}"),
            "run it by hand: its answer is what containerd starts with",
        )),
        Dump::Failed(why) => {
            let (file, remedy) = match higher {
                Some((layer, format, root)) if why.contains("drop-in") => {
                    (format!("{}: ", layer.path.display()), lower(layer, format, root))
                }
                _ => (String::new(), format!("correct the files of {}", asked.path.display())),
            };
            Err(Refusal::new(
                format!("containerd does not start: {file}`containerd config dump` failed: {why}"),
                remedy,
            ))
        }
        Dump::NotAsked => match higher {
            Some((layer, format, root))
                if asked.version.is_some_and(|version| version >= COMPARES) =>
            {
                let reason = format!(
                    "containerd does not start: {} is of version {format}, above version {root} of {}, which \
                     containerd refuses from 2.3 on",
                    layer.path.display(),
                    asked.path.display()
                );
                Err(Refusal::new(reason, lower(layer, format, root)))
            }
            _ => Ok(()),
        },
    }
}

fn lower(layer: &Layer, format: i64, root: i64) -> String {
    format!(
        "write {} in version {root}, or convert the root's file to version {format} (`containerd config migrate` \
         prints it)",
        layer.path.display()
    )
}

/// Returns the first file whose version is above the root's: that of the first file that has one.
fn higher_drop_in(layers: &[Layer]) -> Option<(&Layer, i64, i64)> {
    let root = layers.iter().find_map(|layer| layer.format().filter(|format| *format != 0))?;
    let with = layers.iter().filter_map(|layer| Some((layer, layer.format()?)));
    with.into_iter().find(|(_, format)| *format > root).map(|(layer, format)| (layer, format, root))
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
        Some(4) if version.is_none_or(|version| version >= COMPARES) => Ok(()),
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
    /// None where versions that are possible differ.
    on: Option<bool>,
    reason: String,
}

impl Computed {
    fn from_layers(version: Option<Version>, layers: &[Layer]) -> Self {
        let values: Vec<(Reading, Option<Effective<'_>>)> = Reading::possible(version, layers)
            .into_iter()
            .map(|reading| (reading, reading.effective(layers)))
            .collect();
        let is_on = |(reading, found): &(Reading, Option<Effective<'_>>)| {
            found.as_ref().map_or(reading.default(), |found| found.on)
        };
        let first = values.first().map(is_on);
        let agree = values.iter().all(|value| Some(is_on(value)) == first);
        let found = values.iter().find_map(|(_, found)| found.as_ref());
        let reason = match (found, agree, first, version) {
            (Some(found), true, ..) => {
                format!("{} has {KEY} = {}", found.layer.path.display(), found.on)
            }
            (None, true, Some(on), Some(version)) => {
                let state = if on { "on" } else { "off" };
                format!("{KEY} is not set, and {state} by default in containerd {version}")
            }
            (None, true, Some(true), None) => {
                format!(
                    "{KEY} is not set, and on by default in every containerd that reads these files"
                )
            }
            _ => format!(
                "containerd did not tell its version, and versions differ: {KEY} is off by default in 1.7 and \
                 on from 2.0, and imported files replace or add to a section"
            ),
        };
        Self { on: first.filter(|_| agree), reason }
    }
}

/// Returns the edit that switches CDI on.
fn edit(asked: Question<'_>, layers: &[Layer]) -> Result<Edit, Refusal> {
    let reading = Reading::possible(asked.version, layers).pop().unwrap_or(Reading::Replaces);
    let layer = match asked.edited {
        Some(path) => match layers.iter().find(|layer| layer.path == path) {
            Some(layer) => layer,
            None => return Ok(drop_in(path, layers)),
        },
        None => {
            let last = layers.iter().rev().find(|layer| reading.has_section(layer, layers));
            match last.or(layers.first()) {
                Some(layer) => layer,
                None => return Ok(drop_in(asked.path, layers)),
            }
        }
    };
    let flag = Flag { outer: "plugins", inner: reading.section_name(layer, layers), key: KEY };
    let after = toml_text::with_flag(&layer.text, flag).map_err(|why| {
        let reason = format!("{} is not edited: {why}", layer.path.display());
        let remedy = format!("set {KEY} = true in its section plugins.\"{}\" by hand", flag.inner);
        Refusal::new(reason, remedy)
    })?;
    Ok(Edit { path: layer.path.clone(), before: Some(layer.text.clone()), after })
}

/// Refuses an edit after which the value would not be on, as in a drop-in before one that switches it off.
fn verified(asked: Question<'_>, files: &dyn Files, edit: Edit) -> Result<Edit, Refusal> {
    let edited = Overlay { files, path: &edit.path, text: &edit.after };
    let layers = imports::load(&edited, asked.path, asked.distribution.keeping)?;
    let computed = Computed::from_layers(asked.version, &layers);
    if computed.on == Some(true) {
        return Ok(edit);
    }
    Err(Refusal::new(
        format!("an edit of {} has no effect: {}", edit.path.display(), computed.reason),
        format!("set {KEY} = true in the file that is named, by hand"),
    ))
}

/// A new file that adds to those present, in the format of the first of them. Where there are none: the defaults, and
/// CDI.
fn drop_in(path: &Path, layers: &[Layer]) -> Edit {
    let format = layers.first().and_then(Layer::format).unwrap_or(2);
    let section = if format >= 3 { layer::NEW_SECTION } else { layer::OLD_SECTION };
    let after = format!("version = {format}\n\n[plugins.\"{section}\"]\n  {KEY} = true\n");
    Edit { path: PathBuf::from(path), before: None, after }
}

#[cfg(test)]
mod tests;
