//! Options of a source that decide whether it is used: architectures, targets.

/// A list that options set, extend and shorten: `arch`, `arch+` and `arch-` of a line, `Architectures`,
/// `Architectures-Add` and `Architectures-Remove` of a stanza. None is apt's default.
#[derive(Debug, Default)]
pub(super) struct Listed {
    pub(super) set: Option<Vec<String>>,
    pub(super) add: Vec<String>,
    pub(super) remove: Vec<String>,
}

impl Listed {
    /// Returns the list as apt computes it from its own `default`.
    fn all(&self, default: &[&str]) -> Vec<String> {
        let own = || default.iter().map(|name| (*name).to_owned()).collect();
        let mut all: Vec<String> = self.set.clone().unwrap_or_else(own);
        all.extend(self.add.iter().cloned());
        all.retain(|name| !self.remove.contains(name));
        all
    }
}

/// Options of a source that decide whether it is used.
#[derive(Debug, Default)]
pub(super) struct Choices {
    pub(super) architectures: Listed,
    pub(super) targets: Listed,
}

impl Choices {
    /// Returns why the source has no packages for `arch`; None where it has. A flat archive has one index for all
    /// architectures.
    pub(super) fn reason_against(&self, arch: &str, is_flat: bool) -> Option<String> {
        let architectures = self.architectures.all(&[arch]);
        if !is_flat && !architectures.iter().any(|one| one == arch) {
            let others = match architectures.is_empty() {
                true => "none".to_owned(),
                false => architectures.join(", "),
            };
            return Some(format!("its architectures are {others}, and this host's is {arch}"));
        }
        let targets = self.targets.all(&["Packages"]);
        let has_packages = targets.iter().any(|target| target == "Packages");
        (!has_packages).then(|| "its targets have no Packages".to_owned())
    }
}

/// Splits a value at commas and blanks, as apt does for lists of options.
pub(super) fn list(value: &str) -> Vec<String> {
    let words = value.split(|c: char| c == ',' || c.is_whitespace());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}
