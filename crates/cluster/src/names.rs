//! Names on objects of the cluster. All of longshore's begin with `longshore.dev/`.

/// Beginning of each name.
pub(crate) const PREFIX: &str = "longshore.dev/";

/// Label of the node: version of the loaded driver.
pub const DRIVER_VERSION: &str = "longshore.dev/driver-version";
/// Label of the node: `open` or `proprietary`.
pub const FLAVOUR: &str = "longshore.dev/flavour";
/// Label of the node: the agent's phase, as the journal spells it.
pub const STATE: &str = "longshore.dev/state";
/// Label of the node: `ready` or `missing`, the modules for the kernel of the next boot; absent where that
/// is not known.
pub const NEXT_KERNEL: &str = "longshore.dev/next-kernel";
/// Labels of the node that an agent writes.
pub(crate) const NODE_LABELS: [&str; 4] = [DRIVER_VERSION, FLAVOUR, STATE, NEXT_KERNEL];

/// Annotation of the node: a [`NodeStatus`](crate::NodeStatus) in JSON.
pub const STATUS: &str = "longshore.dev/status";
/// Annotation of the node while longshore has it cordoned: JSON with `pod`, `since` and `reason`.
pub const CORDONED: &str = "longshore.dev/cordoned";
/// Annotation of the node, which its agent writes while a change waits for users in pods: an
/// [`EvictRequest`](crate::EvictRequest) in JSON.
pub const EVICT_REQUEST: &str = "longshore.dev/evict-request";
/// Annotation of the node, which the controller writes while a request is there: a
/// [`DrainStatus`](crate::DrainStatus) in JSON.
pub const EVICTIONS: &str = "longshore.dev/evictions";
/// Label of a pod: with the value `false` it is never evicted.
pub const EVICT: &str = "longshore.dev/evict";

/// Type of the node's condition.
pub const CONDITION: &str = "GpuDriverReady";
/// Key of the node's taint, whose effect is `NoSchedule`.
pub const TAINT: &str = "longshore.dev/driver-not-ready";
/// Effect of the taint.
pub const TAINT_EFFECT: &str = "NoSchedule";

/// Reporting controller of events.
pub const CONTROLLER: &str = "longshore.dev/agent";
/// Namespace of events about a node.
pub const NODE_EVENTS: &str = "default";

/// Beginning of the name of a build lease, before the first 16 hexadecimal digits of its key's sha256.
pub const BUILD_LEASE: &str = "longshore-build-";
/// Annotation of a build lease: its claim in JSON.
pub const CLAIM: &str = "longshore.dev/claim";
