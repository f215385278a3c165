//! Support table of a file: its signature, its age, and the configuration that follows from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{Config, StorePlace};
use longshore_core::bounded_read;
use longshore_core::day::Day;
use longshore_core::failure::{Failure, FailureKind, OrFail};
use longshore_core::store::Store;
use longshore_host::facts::pci;
use longshore_modules::sets::index_versions::IndexVersions;
use longshore_modules::signature::{self, Role};
use longshore_support::{SupportTable, TableHead};

/// Maximum size of a table, in bytes; the built-in one has less than a tenth.
const MOST_BYTES: u64 = 1 << 20;

/// Maximum size of a signature, in bytes.
const LONGEST_SIGNATURE: u64 = 1 << 10;

/// Name under which the issue of the newest table is kept beside the versions of registries' indexes.
const REMEMBERED: &str = "support-table";

/// Returns the configuration of this host: with the table of its file, and the driver of the rule for its GPUs. With
/// `remembers` the issue of the table is kept in the store, so that an older one is refused from then on.
///
/// # Errors
/// Exit code 2 where the file cannot be read, contradicts itself, or no key may sign it, or a rule is for no GPU; 13
/// where it is unsigned, or older than one that was used before; 15 where that cannot be kept.
pub(crate) fn settled(config: Config, remembers: bool) -> Result<Config, Failure> {
    settled_on(Day::today(), config, remembers)
}

fn settled_on(today: Day, mut config: Config, remembers: bool) -> Result<Config, Failure> {
    if let Some(file) = &config.support.file {
        let table = of_file(&config, file, remembers.then_some(today))?;
        config.driver_rules.check(&table)?;
        config.support.table = Arc::new(table);
    }
    if config.driver_rules.rules.is_empty() {
        return Ok(config);
    }
    // A plan reads the bus, too, and reports one that cannot be read.
    let devices = pci::devices(&config.paths.root).unwrap_or_default();
    Ok(config.for_devices(&devices))
}

/// Reads and checks the table of a file. `remembered_on` is the day on which its issue is kept: an issue of a later day is
/// kept as one of that day, so that a wrong day does not shut out the tables after it.
fn of_file(
    config: &Config,
    file: &Path,
    remembered_on: Option<Day>,
) -> Result<SupportTable, Failure> {
    let reading = || format!("reading the support table {}", file.display());
    let text = bounded_read::read_text(file, MOST_BYTES).or_fail(FailureKind::Usage, reading)?;
    verify(config, file, &text)?;
    let built_in = SupportTable::built_in()?;
    let named = |failure: Failure| {
        let remedy = failure.remedy_text().map(str::to_owned);
        let failure = Failure::new(failure.kind(), format!("{}: {failure}", file.display()));
        remedy.into_iter().fold(failure, Failure::remedy)
    };
    let TableHead { issued, extends } = TableHead::read(&text).map_err(named)?;
    let table = built_in.merged(&text).map_err(named)?;
    let (root, disk) = (store(config), config.disk());
    let newest = match remembered_on {
        Some(today) => {
            let versions = IndexVersions::new(&Store::open(&root, disk)?);
            versions.remember(REMEMBERED, issued.min(today).number())?
        }
        None => {
            let versions = IndexVersions::new(&Store::at(&root, disk));
            versions.highest(REMEMBERED)?.unwrap_or_default()
        }
    };
    if issued.number() < newest {
        let cause = format!(
            "the support table {} of {issued} is older than one that was used before ({newest})",
            file.display()
        );
        return Err(Failure::new(FailureKind::Verification, cause)
            .remedy("put the newest table there; an older one can hide a vulnerability"));
    }
    if !extends && issued < built_in.issued() {
        tracing::warn!(
            "the support table {} of {issued} is older than the built-in one of {}, which is used",
            file.display(),
            built_in.issued()
        );
    }
    Ok(table)
}

/// Checks the signature beside the file, FILE.sig, by the keys with the role of support tables.
fn verify(config: &Config, file: &Path, text: &str) -> Result<(), Failure> {
    let keys = config.signatures.trust()?.keys_for(&Role::SupportTable);
    if keys.is_empty() {
        let cause = format!("support-table is {}, and no key may sign it", file.display());
        return Err(Failure::new(FailureKind::Usage, cause).remedy(
            "give a key that role: [[trust]] key = \"/keys/cosign.pub\", roles = [\"support-table\"]; or name it in \
             signature-keys",
        ));
    }
    let mut name = file.as_os_str().to_owned();
    name.push(".sig");
    let path = PathBuf::from(name);
    let unsigned = |cause: String| {
        Failure::new(FailureKind::Verification, cause).remedy(format!(
            "sign the table: `longshore sign {} --sign-key cosign.key`",
            file.display()
        ))
    };
    let signature = bounded_read::read_text(&path, LONGEST_SIGNATURE).map_err(|error| {
        unsigned(format!("the support table has no signature: reading {}: {error}", path.display()))
    })?;
    match signature::signer_of_file(text.as_bytes(), &signature, &keys) {
        Some(_) => Ok(()),
        None => {
            let names: Vec<&str> = keys.iter().map(|key| key.name()).collect();
            Err(unsigned(format!(
                "the signature {} is not of {} by any of these keys: {}",
                path.display(),
                file.display(),
                names.join(", ")
            )))
        }
    }
}

/// Returns the directory of the store: the host's where `run` will attach that.
fn store(config: &Config) -> PathBuf {
    let paths = &config.paths;
    match config.store_place {
        StorePlace::ToAttach => {
            paths.host_root.join(paths.store.strip_prefix("/").unwrap_or(&paths.store))
        }
        _ => paths.store.clone(),
    }
}

#[cfg(test)]
mod tests;
