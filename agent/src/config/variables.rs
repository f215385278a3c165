//! Values that variables may have.

use std::fmt::Display;
use std::path::PathBuf;

use super::cdi::{CdiSpecs, DriverCapability};
use super::daemons::Mode;
use super::freshness::{DriverMinimum, LongSpan, SetDigest};
use super::layer::Variable;
use super::listen::Listen;
use super::next_kernel::NextKernelMode;
use super::operator::ConfigDigest;
use super::second_or_more::SecondOrMore;
use super::support_table_source::SupportTableSource;
use super::termination_message::TerminationMessage;
use super::values::{
    BoundedDuration, CompileJobs, ConflictingDrivers, DriverSelector, FlavourSelector, ModuleName,
    NoGpu, OnBusy, Reaction, SizeBound, parse_bool,
};
use longshore_build::BuildUser;
use longshore_build::build_root::BuildRootSource;
use longshore_core::image_reference::{Host, Repository};
use longshore_core::value::{AbsolutePath, Uri};
use longshore_debian::max_age::MaxAge;
use longshore_modules::module_signing::Hash;
use longshore_modules::registry::RegistrySource;
use longshore_modules::signature::TrustEntry;
use longshore_modules::signature::statement::PredicateType;

impl Variable for PathBuf {
    fn read(_: &str, text: &str) -> Result<Option<Self>, String> {
        some(AbsolutePath::strict(text).map(|path| path.as_path().to_path_buf()))
    }
}

impl Variable for FlavourSelector {
    fn read(name: &str, text: &str) -> Result<Option<Self>, String> {
        match name {
            // The GPU operator's older variable; false left the choice to the driver container.
            "OPEN_KERNEL_MODULES_ENABLED" => {
                let open = parse_bool(text).map_err(|e| e.to_string())?;
                Ok(open.then_some(Self::OPEN))
            }
            _ => some(text.parse()),
        }
    }
}

/// Values of variables that a function parses.
macro_rules! parsed {
    ($parse:path: $($kind:ty),+ $(,)?) => {$(
        impl Variable for $kind {
            fn read(_: &str, text: &str) -> Result<Option<Self>, String> {
                some($parse(text))
            }
        }
    )+};
}

parsed!(Self::strict: AbsolutePath, SupportTableSource, TrustEntry);
parsed!(parse_bool: bool);
// Types that a flag has, parsed in the same way.
parsed! {
    str::parse:
    BoundedDuration, BuildRootSource, BuildUser, CdiSpecs, CompileJobs, ConfigDigest,
    ConflictingDrivers, DriverCapability, DriverMinimum, DriverSelector, Hash, Host, Listen,
    LongSpan, MaxAge, Mode, ModuleName, NextKernelMode, NoGpu, OnBusy, PredicateType, Reaction,
    RegistrySource, Repository, SecondOrMore, SetDigest, SizeBound, String, TerminationMessage, u64,
    Uri
}

fn some<T, E: Display>(parsed: Result<T, E>) -> Result<Option<T>, String> {
    parsed.map(Some).map_err(|e| e.to_string())
}
