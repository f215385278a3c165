//! Ways in which versions of containerd make one value of several files.

use super::layer::{Layer, NEW_SECTION, OLD_SECTION};
use super::{COMPARES, DEFAULT, Version};

/// First version that merges the sections of a plugin.
const MERGES: Version = Version::new(2, 1, 0);

/// A way of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// 1.7: the section of a later file replaces the whole section of those before it (containerd#5837), and
    /// the old section alone counts.
    Replaces,
    /// 2.0: as 1.7, over both sections by the version of the last file.
    ReplacesEither,
    /// 2.1 and 2.2: keys are merged. All files count as of the version of the last one (one without a version
    /// counts as 3): the old section is read below version 3, where the new one has not the key.
    Merges,
    /// From 2.3: each file is migrated by its own version, from any below 4, and then merged.
    Migrates,
}

/// An effective value, with the file that has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effective<'a> {
    pub(super) on: bool,
    pub(super) layer: &'a Layer,
}

impl Reading {
    /// Returns the ways in which a containerd may read these files: one where its version is known.
    pub(super) fn possible(version: Option<Version>, layers: &[Layer]) -> Vec<Self> {
        match version {
            Some(version) if version >= COMPARES => vec![Self::Migrates],
            Some(version) if version >= MERGES => vec![Self::Merges],
            Some(version) if version >= DEFAULT => vec![Self::ReplacesEither],
            Some(_) => vec![Self::Replaces],
            None => match layers.first().and_then(Layer::format) {
                Some(4..) => vec![Self::Migrates],
                Some(3) => vec![Self::ReplacesEither, Self::Merges, Self::Migrates],
                _ => vec![Self::Replaces, Self::ReplacesEither, Self::Merges, Self::Migrates],
            },
        }
    }

    /// True if CDI is on where no file has the key.
    pub(super) fn default(self) -> bool {
        self != Self::Replaces
    }

    /// Returns the names of the sections that count in a file, the decisive one first.
    pub(super) fn sections(self, layer: &Layer, layers: &[Layer]) -> &'static [&'static str] {
        const BOTH: [&str; 2] = [NEW_SECTION, OLD_SECTION];
        let is_old = match self {
            Self::Replaces => return &BOTH[1..],
            Self::ReplacesEither | Self::Merges => {
                layers.iter().rev().find_map(Layer::effective_format).is_some_and(|last| last < 3)
            }
            Self::Migrates => layer.format().is_none_or(|format| format < 4),
        };
        if is_old { &BOTH } else { &BOTH[..1] }
    }

    /// Returns the name of the section that is to have the key: one that it has and that counts, or else that
    /// of its format, or of the first file's where it has no version.
    pub(super) fn section_name(self, layer: &Layer, layers: &[Layer]) -> &'static str {
        let names = self.sections(layer, layers);
        let own = names.iter().copied().find(|name| layer.has(name));
        let format = || {
            let first = layers.first().and_then(Layer::format);
            layer.format().or(first).unwrap_or(2)
        };
        own.unwrap_or_else(|| match names {
            [only] => only,
            _ if format() >= 3 => NEW_SECTION,
            _ => OLD_SECTION,
        })
    }

    /// True if the file has a section that counts.
    pub(super) fn has_section(self, layer: &Layer, layers: &[Layer]) -> bool {
        self.sections(layer, layers).iter().any(|name| layer.has(name))
    }

    /// Returns the effective value; None where no file has the key.
    pub(super) fn effective(self, layers: &[Layer]) -> Option<Effective<'_>> {
        let in_section = |name: &'static str| {
            let replaces = matches!(self, Self::Replaces | Self::ReplacesEither);
            let counts =
                layers.iter().filter(move |layer| self.sections(layer, layers).contains(&name));
            let mut last = counts.rev().filter(move |layer| {
                if replaces { layer.has(name) } else { layer.flag_in(name).is_some() }
            });
            last.next().and_then(|layer| Some(Effective { on: layer.flag_in(name)?, layer }))
        };
        if self == Self::Migrates {
            return layers.iter().rev().find_map(|layer| {
                let names = self.sections(layer, layers).iter();
                let on = names.filter_map(|name| layer.flag_in(name)).next()?;
                Some(Effective { on, layer })
            });
        }
        match self {
            Self::Replaces => in_section(OLD_SECTION),
            _ => in_section(NEW_SECTION).or_else(|| in_section(OLD_SECTION)),
        }
    }
}
