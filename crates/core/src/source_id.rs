//! Kinds of sources of a driver, in one table: a kind is a row here and a file in the agent's `supplier/source`.

use serde::{Deserialize, Serialize};

macro_rules! sources {
    ($($(#[$doc:meta])+ $variant:ident $name:literal $(sets $value:literal built $built:literal)?,)+) => {
        /// Kind of a source.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(rename_all = "kebab-case")]
        pub enum SourceId {
            $($(#[$doc])+ $variant,)+
        }

        impl SourceId {
            /// All kinds.
            pub const ALL: &[SourceId] = &[$(SourceId::$variant),+];

            /// Returns the name in metrics and JSON.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }

            /// Returns the words for its sets; None for a kind without sets of its own.
            pub fn of_sets(self) -> Option<SetWords> {
                let words: &[SetWords] = match self {
                    $(Self::$variant => &[$(SetWords { value: $value, built: $built })?],)+
                };
                words.first().copied()
            }
        }
    };
}

/// Words of a plan about the sets of a kind of source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetWords {
    /// The choice of such a set, for example `prebuilt`.
    pub value: &'static str,
    /// Place of such a set, for example `in a prebuilt directory`.
    pub built: &'static str,
}

sources! {
    /// The archives, as a whole.
    Archives "archives",
    /// The .run files, as a whole.
    RunFiles "run-files",
    /// The trees of NVIDIA's open kernel modules, as a whole.
    SourceTrees "source-trees",
    /// A package of an archive, with finished modules.
    Package "package",
    /// A directory with an image layout.
    Layout "layout" sets "prebuilt" built "in a prebuilt directory",
    /// A registry, or one of its sets.
    Registry "registry" sets "from a registry" built "in a registry",
    /// The registry that sets are published to.
    Publish "publish",
    /// The store.
    Store "store" sets "from the store" built "in the store",
    /// The configured build root.
    BuildRoot "build-root",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_one_name_in_metrics_and_json() {
        for id in SourceId::ALL {
            let json = serde_json::to_value(id).expect("JSON");
            assert_eq!(json, id.as_str());
        }
    }
}
