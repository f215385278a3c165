//! Tables of settings: a row has all of a setting but its effect. `settings!` makes from a table one
//! layer of the configuration, which a file, the environment or the flags may set.

use std::collections::BTreeMap;

use super::environment::get;
use super::values::ModuleName;
use longshore_core::environment::Env;
use longshore_core::failure::Failure;

/// Makes a layer from a table: its fields, its flags (clap), its keys in the file (serde), the reading
/// of its variables, its merge with the layer below, and its rows for help, `longshore settings` and
/// docs/reference/configuration.md.
///
/// The name of the layer comes first, with a function (`after`) that both layers of a merge go
/// through before it, for settings that exclude each other. Then the rows:
///
/// - the comment is the text of the setting: its first paragraph one line for help, without a full
///   stop; the others the rest for the page. Links are as in the page;
/// - `section`: a table of its own, with the settings of another layer, and nothing else;
/// - `group`: heading of this row and of those that follow;
/// - `attributes`: further attributes of the field;
/// - `key`: in the file; `written` is its text in the page. Rows without have `#[serde(skip)]`;
/// - `flag`: its name, the name of its value, and (`alone`) its value where none follows. Rows
///   without have `#[arg(skip)]`;
/// - `env`: variables, of which the first that is set counts;
/// - `default`: one in backticks is what could be set instead, which a test holds the program to;
/// - `is`: `restart` for a setting that SIGHUP does not change, `internal` for a flag that completions
///   leave out.
macro_rules! settings {
    (
        $(#[$about:meta])*
        $layer:ident $(after $related:path)?;
        $(
            $(#[doc = $text:literal])+
            $field:ident: $kind:ty;
            $(section $section:literal)?
            $(group $group:literal)?
            $(attributes $(#[$attribute:meta])+)?
            $(key $key:literal $(written $written:literal)?)?
            $(flag $flag:literal $($value:literal)? $(alone $alone:literal)?)?
            $(env $($variable:literal)+)?
            $(default $default:literal)?
            $(is $is:literal)?
        )+
    ) => {
        #[derive(Debug, Clone, Default, PartialEq, Eq, serde::Deserialize, clap::Args)]
        #[serde(deny_unknown_fields, default)]
        $(#[$about])*
        pub struct $layer {
            $(
                $(#[doc = $text])+
                $(#[command(flatten)] #[serde(rename = $section)])?
                $(#[serde(rename = $key)])?
                $($(#[$attribute])+)?
                $(#[arg(
                    id = $flag, long = $flag, global = true, hide = true
                    $(, value_name = $value)?
                    $(, num_args = 0..=1, require_equals = true, default_missing_value = $alone)?
                )])?
                pub $field: $kind,
            )+
        }

        impl $crate::config::layer::FromEnv for $layer {
            fn from_env(
                env: longshore_core::environment::Env<'_>,
                _: &[&str],
            ) -> Result<Self, longshore_core::failure::Failure> {
                use $crate::config::layer::read;
                Ok(Self {
                    $($field: read!(env; $(section $section)? $($($variable)+)?),)+
                })
            }
        }

        impl $crate::config::layer::Over for $layer {
            fn over(self, below: Self) -> Self {
                let (above, below) = (self, below);
                $(let (above, below) = $related(above, below);)?
                Self {
                    $($field: $crate::config::layer::Over::over(above.$field, below.$field),)+
                }
            }
        }

        impl $layer {
            /// Rows of the table.
            pub(super) const ROWS: &'static [$crate::config::settings::Row] = &[
                $($crate::config::settings::Row {
                    text: concat!($($text, "\n"),+),
                    section: &[$(($section, <$kind>::ROWS))?],
                    group: &[$($group)?],
                    key: &[$($key)?],
                    written: &[$($($written)?)?],
                    flag: &[$($flag)?],
                    value: &[$($($value)?)?],
                    alone: &[$($($alone)?)?],
                    kind: stringify!($kind),
                    variables: &[$($($variable),+)?],
                    default: concat!($($default)?),
                    is: concat!($($is)?),
                },)+
            ];
        }
    };
}

/// Reads the variables of one row.
macro_rules! read {
    ($env:ident;) => {
        Default::default()
    };
    ($env:ident; section $section:literal) => {
        $crate::config::layer::FromEnv::from_env($env, &[])?
    };
    ($env:ident; $($variable:literal)+) => {
        $crate::config::layer::FromEnv::from_env($env, &[$($variable),+])?
    };
}

pub(super) use read;
pub(super) use settings;

/// Settings that variables may set.
pub(super) trait FromEnv: Sized {
    /// Reads the variables with these names.
    ///
    /// # Errors
    /// Exit code 2 with the variable's name where its value is not valid.
    fn from_env(env: Env<'_>, names: &[&str]) -> Result<Self, Failure>;
}

impl<T: Variable> FromEnv for Option<T> {
    fn from_env(env: Env<'_>, names: &[&str]) -> Result<Self, Failure> {
        for name in names {
            if let Some(Some(value)) = get(env, name, |text| T::read(name, text))? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }
}

/// Module parameters: each variable ends in the module's name.
impl FromEnv for BTreeMap<ModuleName, String> {
    fn from_env(env: Env<'_>, names: &[&str]) -> Result<Self, Failure> {
        let mut parameters = Self::new();
        for name in names {
            let module = name.trim_start_matches("LONGSHORE_PARAMETERS_").to_lowercase();
            if let Some(line) = get(env, name, |text| String::read(name, text))?.flatten()
                && let Ok(module) = module.parse()
            {
                parameters.insert(module, line);
            }
        }
        Ok(parameters)
    }
}

/// Settings of one layer, which take the place of those of the layer below.
pub(super) trait Over {
    /// Returns these settings, and `below` where they are not set. Lists replace each other.
    fn over(self, below: Self) -> Self;
}

impl<T> Over for Option<T> {
    fn over(self, below: Self) -> Self {
        self.or(below)
    }
}

impl Over for bool {
    fn over(self, below: Self) -> Self {
        self || below
    }
}

impl<T> Over for Vec<T> {
    fn over(self, below: Self) -> Self {
        if self.is_empty() { below } else { self }
    }
}

impl<K, V> Over for BTreeMap<K, V> {
    fn over(self, below: Self) -> Self {
        if self.is_empty() { below } else { self }
    }
}

/// Value that a variable may have.
pub(super) trait Variable: Sized {
    /// Parses the text of the variable `name`; None counts as unset.
    ///
    /// # Errors
    /// The wanted form, where `text` is not valid.
    fn read(name: &str, text: &str) -> Result<Option<Self>, String>;
}

/// A list, separated by commas or blanks.
impl<T: Variable> Variable for Vec<T> {
    fn read(name: &str, text: &str) -> Result<Option<Self>, String> {
        let parts = text.split([',', ' ']).filter(|part| !part.is_empty());
        parts.map(|part| T::read(name, part)).collect()
    }
}
