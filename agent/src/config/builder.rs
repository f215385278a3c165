//! Settings of `longshore builder`.

use std::time::Duration;

use super::DriverConfig;
use super::freshness::LongSpan;
use super::layer::settings;
use super::values::{DriverSelector, FlavourSelector};
use longshore_core::flavour::Flavour;

/// Time for which an index counts by default.
const INDEX_EXPIRES: Duration = Duration::from_secs(7 * 86_400);

/// Drivers and flavours that the builder builds, each for every kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuilderConfig {
    /// Versions and branches, each once; None for the newest.
    pub drivers: Vec<Option<String>>,
    /// Flavours, each once; None for those that a driver has.
    pub flavours: Option<Vec<Flavour>>,
    /// Time for which the index of the registry counts.
    pub index_expires: Duration,
}

settings! {
    /// Builder settings of one configuration layer.
    BuilderFragment;

    /// Driver that `longshore builder` builds, beside others
    ///
    /// A version, a branch or `newest`; every one is built for every kernel
    /// ([builder.md](../supply-chain/builder.md)).
    drivers: Option<Vec<DriverSelector>>;
        key "drivers" flag "builder-driver" "VERSION" env "LONGSHORE_BUILDER_DRIVERS"
        default "that of `driver`"
    /// Flavour that `longshore builder` builds, beside others
    ///
    /// `open`, `proprietary`, or `auto` for those that the driver has.
    flavours: Option<Vec<FlavourSelector>>;
        key "flavours" flag "builder-flavour" "FLAVOUR" env "LONGSHORE_BUILDER_FLAVOURS"
        default "that of `flavour`"
    /// Time for which the index of the registry counts
    ///
    /// A builder with a `publish-key` writes an [index](../supply-chain/registry.md#index-of-a-repository), after each push and
    /// before half of this time is over; 1h to 1y.
    index_expires: Option<LongSpan>;
        key "index-expires" flag "builder-index-expires" "SPAN" env "LONGSHORE_BUILDER_INDEX_EXPIRES"
        default "`7d`"
}

impl BuilderFragment {
    /// Returns the configuration of a builder beside an agent's `driver` and `flavour`.
    pub(super) fn with_defaults(self, driver: &DriverConfig) -> BuilderConfig {
        let drivers = self.drivers.map_or_else(
            || vec![driver.version.clone()],
            |all| all.iter().map(|one| one.version().map(str::to_owned)).collect(),
        );
        let flavours = match self.flavours {
            None => driver.flavour.map(|flavour| vec![flavour]),
            // One that is auto leaves the others without effect.
            Some(all) => all.into_iter().map(FlavourSelector::flavour).collect(),
        };
        let index_expires = self.index_expires.map_or(INDEX_EXPIRES, LongSpan::duration);
        BuilderConfig { drivers: once(drivers), flavours: flavours.map(once), index_expires }
    }
}

/// Returns each element once, in order.
pub(super) fn once<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::collections::BTreeMap;

    fn driver(version: Option<&str>, flavour: Option<Flavour>) -> DriverConfig {
        DriverConfig {
            version: version.map(str::to_owned),
            auto: false,
            is_named: version.is_some(),
            flavour,
            minimum: None,
            extra_modules: Vec::new(),
            parameters: BTreeMap::new(),
        }
    }

    #[rstest]
    #[case::of_the_agent("", &[Some("550")], Some(vec![Flavour::Open]))]
    #[case::several(
        "drivers = ['535', 'newest', '535']\nflavours = ['proprietary', 'open', 'open']",
        &[Some("535"), None],
        Some(vec![Flavour::Proprietary, Flavour::Open])
    )]
    #[case::those_that_there_are("flavours = ['open', 'auto']", &[Some("550")], None)]
    fn what_is_built_is_listed_or_that_of_the_agent(
        #[case] text: &str,
        #[case] drivers: &[Option<&str>],
        #[case] flavours: Option<Vec<Flavour>>,
    ) {
        let fragment: BuilderFragment = toml::from_str(text).expect("a section");
        let config = fragment.with_defaults(&driver(Some("550"), Some(Flavour::Open)));
        let found: Vec<_> = config.drivers.iter().map(Option::as_deref).collect();
        assert_eq!((found.as_slice(), config.flavours), (drivers, flavours));
    }

    #[test]
    fn an_agent_with_auto_has_a_builder_of_every_flavour() {
        let config = BuilderFragment::default().with_defaults(&driver(None, None));
        assert_eq!((config.drivers, config.flavours), (vec![None], None));
    }
}
