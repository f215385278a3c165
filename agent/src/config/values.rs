//! Types of setting values, parsed alike from a file, the environment and a flag.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;

use longshore_core::flavour::Flavour;
use longshore_core::from_string;
use longshore_core::value::BadValue;

/// Longest deadline that can be set.
const LONGEST_DEADLINE: Duration = Duration::from_secs(3600);

fn bad(given: &str, wanted: &'static str) -> BadValue {
    BadValue::new(given, wanted)
}

/// Parses a setting of these words, also in a file; the error about another text names what is wanted.
macro_rules! words {
    ($kind:ty, $wanted:literal; $($word:pat => $value:expr),+ $(,)?) => {
        impl std::str::FromStr for $kind {
            type Err = longshore_core::value::BadValue;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok($value),)+
                    _ => Err(longshore_core::value::BadValue::new(text, $wanted)),
                }
            }
        }

        longshore_core::from_string!($kind);
    };
}

pub(super) use words;

/// Selected driver version: `newest`, `auto`, a branch (`535`) or a version (`535.261.03`).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct DriverSelector {
    version: Option<String>,
    auto: bool,
}

impl DriverSelector {
    /// Returns the version or branch; None for the newest and for auto.
    pub fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// True if the support table chooses the version.
    pub fn is_auto(&self) -> bool {
        self.auto
    }
}

impl fmt::Display for DriverSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.version().unwrap_or(if self.auto { "auto" } else { "newest" }))
    }
}

impl FromStr for DriverSelector {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        if matches!(text, "newest" | "auto") {
            return Ok(Self { version: None, auto: text == "auto" });
        }
        let parts: Vec<&str> = text.split('.').collect();
        let numeric = parts.iter().all(|p| !p.is_empty() && p.bytes().all(|b| b.is_ascii_digit()));
        if numeric && parts.len() <= 4 && text.len() <= 32 {
            Ok(Self { version: Some(text.to_owned()), auto: false })
        } else {
            Err(bad(
                text,
                "a driver version such as 535.261.03, a branch such as 535, newest or auto",
            ))
        }
    }
}

/// Selected flavour: `auto`, `open` or `proprietary`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct FlavourSelector(Option<Flavour>);

impl FlavourSelector {
    /// The open modules.
    pub(super) const OPEN: Self = Self(Some(Flavour::Open));

    /// Returns the flavour; None for auto.
    pub fn flavour(self) -> Option<Flavour> {
        self.0
    }
}

words! {
    FlavourSelector, "auto, open or proprietary";
    "auto" => Self(None),
    "open" => Self(Some(Flavour::Open)),
    "proprietary" => Self(Some(Flavour::Proprietary)),
}

/// Number of parallel compile jobs: `1` to `65535`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct CompileJobs(u16);

impl CompileJobs {
    /// Returns the number.
    pub fn number(self) -> usize {
        self.0.into()
    }
}

impl TryFrom<i64> for CompileJobs {
    type Error = BadValue;

    fn try_from(number: i64) -> Result<Self, BadValue> {
        let bad = || bad(&number.to_string(), "a number of jobs from 1 to 65535");
        u16::try_from(number).ok().filter(|number| *number > 0).map(Self).ok_or_else(bad)
    }
}

impl FromStr for CompileJobs {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let number: Result<i64, _> = text.parse();
        number.map_err(|_| bad(text, "a number of jobs from 1 to 65535"))?.try_into()
    }
}

/// A kernel module's name as the kernel writes it: `-` becomes `_`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize, derive_more::Display)]
#[serde(try_from = "String")]
pub struct ModuleName(String);

impl ModuleName {
    /// Returns the name with underscores.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ModuleName {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let valid = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
        // MODULE_NAME_LEN of the kernel (include/linux/moduleparam.h) is 56 with 64-bit longs.
        if text.is_empty() || text.len() > 55 || !text.bytes().all(valid) {
            return Err(bad(text, "the name of a kernel module"));
        }
        Ok(Self(text.replace('-', "_")))
    }
}

/// A module parameter as on the kernel's command line: `MODULE.NAME=VALUE` or `MODULE.NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModuleParameter {
    /// Module.
    pub module: ModuleName,
    /// `NAME=VALUE` or `NAME`.
    pub setting: String,
}

impl FromStr for ModuleParameter {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let wanted = "MODULE.NAME=VALUE, for example nvidia.NVreg_EnableMSI=1";
        let (module, setting) = text.split_once('.').ok_or_else(|| bad(text, wanted))?;
        let name = setting.split('=').next().unwrap_or("");
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(bad(text, wanted));
        }
        let module = module.parse().map_err(|_| bad(text, wanted))?;
        Ok(Self { module, setting: setting.to_owned() })
    }
}

/// Size limit in bytes (`5GiB`, `500MiB`, `0`), or `none` for no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct SizeBound(Option<u64>);

impl SizeBound {
    /// Returns the limit in bytes; None for no limit.
    pub fn bytes(self) -> Option<u64> {
        self.0
    }
}

impl FromStr for SizeBound {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        const UNITS: [(&str, u32); 9] = [
            ("KiB", 10),
            ("MiB", 20),
            ("GiB", 30),
            ("TiB", 40),
            ("K", 10),
            ("M", 20),
            ("G", 30),
            ("T", 40),
            ("", 0),
        ];
        let wanted = "a size such as 5GiB or 500MiB, 0, or none";
        if text == "none" {
            return Ok(Self(None));
        }
        let unit =
            UNITS.into_iter().find_map(|(unit, bits)| Some((text.strip_suffix(unit)?, bits)));
        let (number, bits) = unit.ok_or_else(|| bad(text, wanted))?;
        let number: u64 = number.parse().map_err(|_| bad(text, wanted))?;
        // A bare number of bytes is more often a mistake than meant.
        if bits == 0 && number != 0 {
            return Err(bad(text, wanted));
        }
        number.checked_mul(1 << bits).map(|n| Self(Some(n))).ok_or_else(|| bad(text, wanted))
    }
}

/// Reaction to a driver that is in use when it is to be uninstalled: `leave`, `wait` or
/// `wait:SPAN`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum OnBusy {
    /// Leave the driver installed at once.
    Leave,
    /// Wait for the processes that use it for this long (None: `unload-deadline`), then leave it
    /// installed.
    Wait(Option<BoundedDuration>),
}

impl OnBusy {
    /// Returns the time limit for waiting on the driver's users.
    pub fn users_deadline(self, unload_deadline: Duration) -> Duration {
        match self {
            Self::Leave => Duration::ZERO,
            Self::Wait(span) => span.map_or(unload_deadline, BoundedDuration::duration),
        }
    }
}

impl FromStr for OnBusy {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let wanted = "leave, wait, or wait:SPAN with a span such as 20s or 5m, 1h at most";
        match text.split_once(':') {
            None if text == "leave" => Ok(Self::Leave),
            None if text == "wait" => Ok(Self::Wait(None)),
            Some(("wait", span)) => {
                span.parse().map(|span| Self::Wait(Some(span))).map_err(|_| bad(text, wanted))
            }
            _ => Err(bad(text, wanted)),
        }
    }
}

/// Reaction to a missing part of the driver's service: a GPU that it did not take, the fabric manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Reaction {
    /// Warn, and continue.
    Warn,
    /// Do not install the driver, or report it as not Ready.
    Refuse,
}

impl Reaction {
    /// True for `refuse`.
    pub fn refuses(self) -> bool {
        self == Self::Refuse
    }
}

words! {
    Reaction, "warn or refuse";
    "warn" => Self::Warn,
    "refuse" => Self::Refuse,
}

/// Conduct on a host without a GPU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum NoGpu {
    /// End with exit code 17.
    #[default]
    Exit,
    /// Wait for one, without any change to the host.
    Wait,
}

impl NoGpu {
    /// True for `wait`.
    pub fn waits(self) -> bool {
        self == Self::Wait
    }
}

words! {
    NoGpu, "exit or wait";
    "exit" => Self::Exit,
    "wait" => Self::Wait,
}

/// Reaction to a driver of the kernel's own that is bound to a GPU: nouveau or nova_core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum ConflictingDrivers {
    /// Unload it if nobody uses it.
    #[default]
    UnloadIdle,
    /// Leave it, and refuse to install the driver.
    Refuse,
}

impl ConflictingDrivers {
    /// True for `unload-idle`.
    pub fn unloads_idle(self) -> bool {
        self == Self::UnloadIdle
    }
}

words! {
    ConflictingDrivers, "unload-idle or refuse";
    "unload-idle" => Self::UnloadIdle,
    "refuse" => Self::Refuse,
}

/// A time span such as `20s`, `1m30s` or `500ms`, of at most an hour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct BoundedDuration(Duration);

impl BoundedDuration {
    /// Returns the duration.
    pub fn duration(self) -> Duration {
        self.0
    }
}

impl FromStr for BoundedDuration {
    type Err = BadValue;

    fn from_str(text: &str) -> Result<Self, BadValue> {
        let wanted = "a span of time from 0s to 1h, for example 20s or 1m30s";
        let span: jiff::SignedDuration = text.parse().map_err(|_| bad(text, wanted))?;
        match Duration::try_from(span) {
            Ok(span) if span <= LONGEST_DEADLINE => Ok(Self(span)),
            _ => Err(bad(text, wanted)),
        }
    }
}

/// Parses `true` or `false`; also `1`, `0`, `yes` and `no`, which are usual in the environment.
///
/// # Errors
/// If `text` is none of these.
pub(super) fn parse_bool(text: &str) -> Result<bool, BadValue> {
    match text {
        "true" | "1" | "yes" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(bad(text, "true or false")),
    }
}

from_string!(DriverSelector, ModuleName, OnBusy, SizeBound, BoundedDuration);

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_core::value::AbsolutePath;
    use rstest::rstest;

    #[rstest]
    #[case("newest", Some(None))]
    #[case("auto", Some(None))]
    #[case("535", Some(Some("535")))]
    #[case("535.261.03", Some(Some("535.261.03")))]
    #[case("", None)]
    #[case("535.", None)]
    #[case("v535", None)]
    #[case("1.2.3.4.5", None)]
    #[case("../../etc", None)]
    fn driver_selectors(#[case] text: &str, #[case] wanted: Option<Option<&str>>) {
        let parsed = text.parse::<DriverSelector>().ok();
        assert_eq!(parsed.as_ref().map(DriverSelector::version), wanted);
        assert!(parsed.is_none_or(|selector| selector.to_string() == text), "{text}");
    }

    #[rstest]
    #[case("20s", Some(20_000))]
    #[case("1m30s", Some(90_000))]
    #[case("500ms", Some(500))]
    #[case("0s", Some(0))]
    #[case("20", None)]
    #[case("-5s", None)]
    #[case("2h", None)]
    #[case("soon", None)]
    fn spans(#[case] text: &str, #[case] millis: Option<u128>) {
        assert_eq!(text.parse::<BoundedDuration>().ok().map(|s| s.duration().as_millis()), millis);
    }

    #[rstest]
    #[case("leave", Some(0))]
    #[case("wait", Some(20_000))]
    #[case("wait:5m", Some(300_000))]
    #[case("wait:0s", Some(0))]
    #[case("wait:", None)]
    #[case("wait:2h", None)]
    #[case("kill", None)]
    #[case("leave:5s", None)]
    fn what_to_do_about_users(#[case] text: &str, #[case] millis: Option<u128>) {
        let unload = Duration::from_secs(20);
        let parsed = text.parse::<OnBusy>().ok();
        assert_eq!(parsed.map(|b| b.users_deadline(unload).as_millis()), millis);
    }

    #[rstest]
    #[case("5GiB", Some(Some(5 << 30)))]
    #[case("500MiB", Some(Some(500 << 20)))]
    #[case("1G", Some(Some(1 << 30)))]
    #[case("0", Some(Some(0)))]
    #[case("none", Some(None))]
    #[case("5", None)]
    #[case("5GB", None)]
    #[case("-1GiB", None)]
    #[case("1.5GiB", None)]
    #[case("99999999999TiB", None)]
    #[case("GiB", None)]
    #[case("", None)]
    fn size_bounds(#[case] text: &str, #[case] wanted: Option<Option<u64>>) {
        assert_eq!(text.parse::<SizeBound>().ok().map(SizeBound::bytes), wanted);
    }

    #[rstest]
    #[case("nvidia.NVreg_EnableMSI=1", Some(("nvidia", "NVreg_EnableMSI=1")))]
    #[case("nvidia-uvm.uvm_debug_prints", Some(("nvidia_uvm", "uvm_debug_prints")))]
    #[case("nvidia.NVreg_RegistryDwords=\"a=1;b=0.5\"", Some(("nvidia", "NVreg_RegistryDwords=\"a=1;b=0.5\"")))]
    #[case("NVreg_EnableMSI=1", None)]
    #[case("nvidia.", None)]
    #[case("nvidia.=1", None)]
    fn parameters(#[case] text: &str, #[case] wanted: Option<(&str, &str)>) {
        let parsed = text.parse::<ModuleParameter>().ok();
        assert_eq!(parsed.as_ref().map(|p| (p.module.as_str(), p.setting.as_str())), wanted);
    }

    #[test]
    fn a_relative_path_is_refused_where_there_is_no_working_directory_to_speak_of() {
        assert!(AbsolutePath::strict("store").is_err());
        for written in ["/a/store/", "/a//store", "/a/./store"] {
            let strict = AbsolutePath::strict(written).expect("absolute");
            let parsed: AbsolutePath = written.parse().expect("a path");
            for path in [strict, parsed] {
                assert_eq!(path.as_path().as_os_str(), "/a/store", "{written}");
            }
        }
        assert!("store".parse::<AbsolutePath>().is_ok_and(|p| p.as_path().is_absolute()));
    }
}
