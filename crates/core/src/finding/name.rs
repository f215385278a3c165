//! Names of finding codes, in messages and in JSON.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Code;

impl Code {
    /// Returns the name, for example `no-device`.
    pub fn as_str(self) -> &'static str {
        self.entry().name
    }

    /// Returns the code with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|code| code.as_str() == name)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::from_name(&name).ok_or_else(|| de::Error::custom(format!("{name}: no such code")))
    }
}
