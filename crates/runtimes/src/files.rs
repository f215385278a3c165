//! Files of a host, as a configuration's reader needs them.

use std::io;
use std::path::Path;

/// Access to the files of a host.
pub trait Files {
    /// Reads a file; None where there is none.
    ///
    /// # Errors
    /// If it exists and cannot be read, or is larger than a configuration is.
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>>;

    /// Lists the names in a directory, sorted; none where there is no such directory.
    ///
    /// # Errors
    /// If it exists and cannot be read.
    fn names(&self, dir: &Path) -> io::Result<Vec<String>>;
}

/// Files of which one has another text.
pub(crate) struct Overlay<'a> {
    pub(crate) files: &'a dyn Files,
    pub(crate) path: &'a Path,
    pub(crate) text: &'a str,
}

impl Files for Overlay<'_> {
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match path == self.path {
            true => Ok(Some(self.text.as_bytes().to_vec())),
            false => self.files.read(path),
        }
    }

    fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = self.files.names(dir)?;
        if let (true, Some(name)) = (self.path.parent() == Some(dir), self.path.file_name()) {
            names.push(name.to_string_lossy().into_owned());
            names.sort_unstable();
            names.dedup();
        }
        Ok(names)
    }
}

/// Files in memory, for tests.
#[cfg(test)]
pub(crate) mod memory {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use super::*;

    /// Files by path.
    #[derive(Debug, Clone, Default)]
    pub(crate) struct Memory(pub(crate) BTreeMap<PathBuf, Vec<u8>>);

    impl Memory {
        pub(crate) fn new(files: &[(&str, &str)]) -> Self {
            let files = files.iter().map(|(path, text)| (path.into(), text.as_bytes().to_vec()));
            Self(files.collect())
        }
    }

    impl Files for Memory {
        fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
            Ok(self.0.get(path).cloned())
        }

        fn names(&self, dir: &Path) -> io::Result<Vec<String>> {
            let here = self.0.keys().filter(|path| path.parent() == Some(dir));
            Ok(here.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
        }
    }
}
