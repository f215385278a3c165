//! Use of a driver by others: the modules that are held, and the processes seen to hold them.

use std::fmt;

use crate::facts::known_holders as known;
use crate::values::DriverUser;

/// A module of ours that others use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Kernel name.
    pub module: String,
    /// Modules that hold it and that are not ours.
    pub modules: Vec<String>,
    /// References that no module accounts for: open files, mappings, the kernel itself.
    pub references: i64,
}

/// Reason that the driver cannot be unloaded: the modules in use, and the processes found to use
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InUse {
    /// The driver's modules that are held.
    pub held: Vec<Held>,
    /// Processes with a device of the driver open or mapped.
    pub users: Vec<DriverUser>,
    /// Reason that not all processes could be inspected.
    pub unseen: Option<String>,
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is held", self.module)?;
        if !self.modules.is_empty() {
            let explained = |name: &String| match known::module(name) {
                Some(what) => format!("{name} ({what})"),
                None => name.clone(),
            };
            let modules: Vec<String> = self.modules.iter().map(explained).collect();
            write!(f, " by module {}", modules.join(", "))?;
        }
        if self.references > 0 {
            let and = if self.modules.is_empty() { "" } else { " and" };
            write!(f, "{and} by {} references of open devices", self.references)?;
        }
        Ok(())
    }
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held: Vec<String> = self.held.iter().map(ToString::to_string).collect();
        if held.is_empty() {
            write!(f, "a process opened it while it was being unloaded, and has closed it since")?;
        }
        write!(f, "{}", held.join("; "))?;
        for user in &self.users {
            write!(f, "; {user}")?;
            known::program(&user.comm).map_or(Ok(()), |what| write!(f, " ({what})"))?;
        }
        if let Some(why) = &self.unseen {
            write!(f, "; cannot inspect the other processes: {why}")?;
        } else if self.users.is_empty() && self.held.iter().any(|h| h.references > 0) {
            write!(
                f,
                "; no process was found to hold it: it may be in another PID namespace (share the \
                 host's), or the kernel itself (a console on the GPU's frame buffer)"
            )?;
        }
        Ok(())
    }
}
