//! Settings as help, completions, `longshore settings` and docs/reference/configuration.md show them: the
//! rows of the tables, one after the other.

use super::Fragment;

/// A row of a table of settings; a part that it lacks is empty.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    /// Lines of the comment.
    pub(super) text: &'static str,
    /// Name and rows of a section, in place of a setting.
    pub(super) section: &'static [(&'static str, &'static [Row])],
    /// Heading of this row and of those that follow.
    pub(super) group: &'static [&'static str],
    pub(super) key: &'static [&'static str],
    /// Text of the key in the page.
    pub(super) written: &'static [&'static str],
    pub(super) flag: &'static [&'static str],
    /// Name of the flag's value.
    pub(super) value: &'static [&'static str],
    /// Value of the flag where none follows.
    pub(super) alone: &'static [&'static str],
    /// Type of the field.
    pub(super) kind: &'static str,
    pub(super) variables: &'static [&'static str],
    pub(super) default: &'static str,
    /// `restart`, `internal`, or nothing.
    pub(super) is: &'static str,
}

/// Change of a setting in a running agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// SIGHUP makes the agent follow the file.
    Followed,
    /// SIGHUP keeps the running configuration; the agent has to be started again.
    Restart,
    /// No file has it: flags and variables are those of the agent's start.
    OnlyAtStart,
}

/// A setting of the agent.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    group: &'static str,
    section: Option<&'static str>,
    row: &'static Row,
}

impl Setting {
    /// Returns all settings, group by group.
    pub fn all() -> Vec<Self> {
        let mut group = "";
        let mut all = Vec::new();
        for row in Fragment::ROWS {
            group = row.group.first().copied().unwrap_or(group);
            let inner = row.section.iter().flat_map(|(name, rows)| {
                rows.iter().map(move |row| Self { group, section: Some(name), row })
            });
            all.extend(inner);
            if row.section.is_empty() {
                all.push(Self { group, section: None, row });
            }
        }
        all
    }

    /// Returns the settings of each group, with the group's heading.
    pub fn grouped() -> Vec<(&'static str, Vec<Self>)> {
        let mut groups: Vec<(&'static str, Vec<Self>)> = Vec::new();
        for setting in Self::all() {
            match groups.last_mut() {
                Some((group, settings)) if *group == setting.group => settings.push(setting),
                _ => groups.push((setting.group, vec![setting])),
            }
        }
        groups
    }

    /// Returns the heading of the setting's group.
    pub fn group(&self) -> &'static str {
        self.group
    }

    /// Returns the table of the file that it stands in, None for the top level.
    pub fn section(&self) -> Option<&'static str> {
        self.section
    }

    /// Returns the key in the file, dotted: `publish.sign-key`.
    pub fn key(&self) -> Option<String> {
        let key = self.row.key.first()?;
        Some(self.section.map_or_else(|| (*key).to_owned(), |section| format!("{section}.{key}")))
    }

    /// Returns the key as it is written in a file, in Markdown: a key of a section behind the section.
    pub fn written_key(&self) -> String {
        let table = self.section.map(|name| format!("`[{name}]` ")).unwrap_or_default();
        match (self.row.written, self.row.key) {
            ([written], _) => (*written).to_owned(),
            (_, [key]) => format!("{table}`{key}`"),
            _ => String::new(),
        }
    }

    /// Returns the flag's name, without hyphens.
    pub fn flag(&self) -> Option<&'static str> {
        self.row.flag.first().copied()
    }

    /// Returns the flag as a command line has it: `--driver VERSION`, `--taint[=BOOL]`.
    pub fn flag_with_value(&self) -> Option<String> {
        let flag = self.flag()?;
        Some(match (self.row.value, self.row.alone) {
            ([value], []) => format!("--{flag} {value}"),
            ([value], _) => format!("--{flag}[={value}]"),
            _ => format!("--{flag}"),
        })
    }

    /// Returns the variables. The first that is set counts, but see [`Self::has_variables_of_parts`].
    pub fn variables(&self) -> &'static [&'static str] {
        self.row.variables
    }

    /// True if each variable sets another part of the setting.
    pub fn has_variables_of_parts(&self) -> bool {
        self.row.kind.contains("BTreeMap") || self.row.kind == "FabricSettings"
    }

    /// Returns the default, in Markdown.
    pub fn default(&self) -> &'static str {
        self.row.default
    }

    /// Returns the default as a variable has it, where it is one that can be set.
    pub fn settable_default(&self) -> Option<String> {
        let quoted = |word: &str| -> Option<String> {
            let word = word.strip_prefix('`')?.strip_suffix('`')?;
            (!word.contains('`')).then(|| word.to_owned())
        };
        let words: Option<Vec<String>> = self.row.default.split(", ").map(quoted).collect();
        words.map(|words| words.join(","))
    }

    /// Returns the first paragraph of its text, in Markdown, without a full stop.
    pub fn short(&self) -> String {
        self.paragraphs().next().unwrap_or_default()
    }

    /// Returns the text as one paragraph, in Markdown, without a full stop.
    pub fn text(&self) -> String {
        let whole = self.paragraphs().collect::<Vec<_>>().join(". ");
        whole.strip_suffix('.').map(str::to_owned).unwrap_or(whole)
    }

    fn paragraphs(&self) -> impl Iterator<Item = String> {
        self.row.text.split("\n\n").map(|paragraph| {
            paragraph.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join(" ")
        })
    }

    /// True if several values can be given: the flag is repeated, a variable has commas.
    pub fn is_repeatable(&self) -> bool {
        self.row.kind.contains("Vec<")
    }

    /// True for a flag that only this program uses.
    pub fn is_internal(&self) -> bool {
        self.row.is == "internal"
    }

    /// Returns the way in which a running agent takes another value.
    pub fn change(&self) -> Change {
        match (self.row.is, self.row.key) {
            ("restart", _) => Change::Restart,
            (_, []) => Change::OnlyAtStart,
            _ => Change::Followed,
        }
    }

    /// Returns the type of a value, in words.
    pub fn kind(&self) -> &'static str {
        let inner = self.row.kind.trim_end_matches('>').trim_start_matches("Option<");
        let inner = inner.trim_start_matches("Vec<");
        KINDS.iter().find(|(kind, _)| *kind == inner).map_or("", |(_, words)| *words)
    }

    /// Returns the shortest form in which it can be set, for a list: flag, key, or variable.
    pub fn label(&self) -> String {
        let key = || Some(self.row.written.first()?.split('`').nth(1)?.to_owned()).or(self.key());
        let variable = || match self.row.variables {
            [variable] => Some((*variable).to_owned()),
            [variable, ..] => Some(format!("{variable} ...")),
            [] => None,
        };
        self.flag_with_value().or_else(key).or_else(variable).unwrap_or_default()
    }

    /// Returns the names that it is asked for by: flag, key (alone, and with its section) and variables.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.flag().map(str::to_owned).into_iter().collect();
        names.extend(self.key());
        names.extend(self.row.variables.iter().map(|name| (*name).to_owned()));
        names.dedup();
        names
    }
}

/// Types of fields, in words.
const KINDS: [(&str, &str); 44] = [
    ("AbsolutePath", "path"),
    ("ArchiveSource", "table"),
    ("BTreeMap<ModuleName, String", "table of texts"),
    ("BoundedDuration", "span of time, such as 20s or 1m30s; 1h at most"),
    ("BuildRootSource", "path, or image by its digest"),
    ("BuildUser", "user id"),
    ("CdiSpecs", "auto or off"),
    ("CompileJobs", "number from 1 to 65535"),
    ("ConfigDigest", "text"),
    ("ConflictingDrivers", "unload-idle or refuse"),
    ("DriverCapability", "compute, utility, video or graphics"),
    ("DriverMinimum", "version or branch"),
    ("DriverRule", "table"),
    ("DriverSelector", "version, branch, newest or auto"),
    ("FabricSettings", "number for each variable"),
    ("FlavourSelector", "auto, open or proprietary"),
    ("Hash", "sha256, sha384 or sha512"),
    ("Host", "host, or host and port"),
    ("Listen", "address and port, unix:PATH, or off"),
    ("LongSpan", "span of time from 1h to 10y, such as 12h, 7d or 1y"),
    ("MaxAge", "span of time from 1h to 3650d, such as 14d, or none"),
    ("Mode", "auto, on or off"),
    ("ModuleName", "name of a kernel module"),
    ("ModuleParameter", "MODULE.NAME=VALUE"),
    ("NextKernelMode", "prepare, report or off"),
    ("NoGpu", "exit or wait"),
    ("OnBusy", "leave, wait or wait:SPAN"),
    ("PathBuf", "path"),
    ("PredicateType", "provenance, spdx, test-result, or URI"),
    ("Reaction", "warn or refuse"),
    ("RegistrySource", "repository, or table with its mirrors"),
    ("Repository", "repository: HOST/REPOSITORY"),
    ("RunFileSource", "table"),
    ("SourceTrees", "table"),
    ("SecondOrMore", "span of time from 1s to 1h"),
    ("SetDigest", "digest of a manifest: sha256:HEX"),
    ("SizeBound", "size, such as 5GiB, or none"),
    ("String", "text"),
    ("SupportTableSource", "path, or artifact by its tag or digest"),
    ("TerminationMessage", "path, or off"),
    ("TrustEntry", "table; ROLE+ROLE=FILE in a flag or variable"),
    ("Uri", "URI"),
    ("bool", "true or false"),
    ("u64", "number"),
];

/// Returns Markdown without its marks: the text of a link, and words without backticks.
pub fn plain(markdown: &str) -> String {
    let mut text = String::with_capacity(markdown.len());
    let mut rest = markdown;
    while let Some((before, after)) = rest.split_once('[') {
        text.push_str(before);
        let link = after.split_once("](").and_then(|(words, to)| {
            (!words.contains(['[', ']'])).then_some((words, to.split_once(')')?.1))
        });
        match link {
            Some((words, behind)) => {
                text.push_str(words);
                rest = behind;
            }
            None => {
                text.push('[');
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text.replace('`', "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("one `two` three", "one two three")]
    #[case("see [store.md](../operate/store.md#size), too", "see store.md, too")]
    #[case("`suites = [\"/\"]` (a [link](x))", "suites = [\"/\"] (a link)")]
    #[case("`wait[:SPAN]`", "wait[:SPAN]")]
    fn marks_are_left_out(#[case] markdown: &str, #[case] wanted: &str) {
        assert_eq!(plain(markdown), wanted);
    }

    #[test]
    fn every_setting_has_a_text_a_type_and_names_of_its_own() {
        let mut names: Vec<String> = Vec::new();
        for setting in Setting::all() {
            let (short, text) = (setting.short(), setting.text());
            assert!(!short.is_empty() && !short.ends_with('.') && !text.contains('|'), "{text}");
            assert!(
                short.starts_with(char::is_uppercase) || short.starts_with("sha256"),
                "{short}"
            );
            assert!(!setting.default().is_empty() && !setting.group().is_empty(), "{short}");
            assert!(!setting.kind().is_empty(), "{}", setting.row.kind);
            let flag = setting.flag().map(|flag| format!("--{flag}"));
            let key = setting.key().map(|key| format!("key {key}"));
            let variables = setting.variables().iter().map(|name| (*name).to_owned());
            names.extend(flag.into_iter().chain(key).chain(variables));
        }
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count, "a name is there twice");
    }

    #[test]
    fn a_setting_of_a_section_is_named_with_it() {
        let all = Setting::all();
        let one = all.iter().find(|one| one.flag() == Some("publish-key")).expect("there");
        assert_eq!(one.key().as_deref(), Some("publish.sign-key"));
        assert_eq!(one.names(), ["publish-key", "publish.sign-key", "LONGSHORE_PUBLISH_KEY"]);
        assert_eq!(one.label(), "--publish-key FILE");
        assert_eq!((one.group(), one.change()), ("Publishing", Change::Followed));
        assert_eq!(
            one.text(),
            "Key to sign pushed modules with: a cosign.key. Its password in `COSIGN_PASSWORD`"
        );
        assert_eq!(one.short(), "Key to sign pushed modules with: a cosign.key");
    }
}
