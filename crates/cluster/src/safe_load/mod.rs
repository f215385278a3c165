//! Safe load: the upgrade controller of NVIDIA's GPU operator is asked to drain this node before the
//! driver is changed.
//!
//! The controller (k8s-operator-libs, pkg/upgrade) takes the annotation's presence as the request, drains
//! the node by its own policy, and removes the annotation. [`Requests`] keeps the annotation as it is
//! wanted; one that another program set is left alone.

mod decision;
mod node;
mod requests;
mod watched;

pub use decision::{Pace, Standing};
pub use requests::Requests;

/// Annotation of the node that asks for a safe load.
pub const SAFE_LOAD: &str = "nvidia.com/gpu-driver-upgrade.driver-wait-for-safe-load";
/// Annotation of the node that the operator sets where its controller upgrades drivers.
pub const UPGRADES_ENABLED: &str = "nvidia.com/gpu-driver-upgrade-enabled";
/// Label of the node with the controller's state.
const UPGRADE_STATE: &str = "nvidia.com/gpu-driver-upgrade-state";
/// Label of a node that the controller leaves alone.
const SKIPPED: &str = "nvidia.com/gpu-driver-upgrade.skip";

/// Number of users that are named, and length of a name.
const MOST_HOLDERS: usize = 20;
const LONGEST_HOLDER: usize = 120;
/// Length of the longest value of a request.
const LONGEST_VALUE: usize = (MOST_HOLDERS + 1) * (LONGEST_HOLDER + 2) + 64;
/// Beginning of each request's value: it tells longshore's requests from those of other programs.
const OWN: &str = "longshore: driver in use";

/// Value of a request: names of the driver's users, each once, bounded, of harmless characters.
fn holders_value(holders: &[String]) -> String {
    let safe = |c: char| match c {
        c if c.is_ascii_alphanumeric() || "._:/-()".contains(c) => c,
        ' ' => ' ',
        _ => '_',
    };
    let name = |name: &String| name.chars().take(LONGEST_HOLDER).map(safe).collect::<String>();
    let mut names: Vec<String> = holders.iter().map(name).collect();
    names.sort();
    names.dedup();
    let more = names.len().saturating_sub(MOST_HOLDERS);
    names.truncate(MOST_HOLDERS);
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    match names.is_empty() {
        true => OWN.to_owned(),
        false => format!("{OWN} by {}", names.join(", ")),
    }
}

/// True for a value that [`holders_value`] can have made.
pub(crate) fn is_own_request(value: &str) -> bool {
    let rest = value.strip_prefix(OWN).filter(|_| value.len() <= LONGEST_VALUE);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(" by "))
}

#[cfg(test)]
mod tests;
