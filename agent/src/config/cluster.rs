//! Settings of a Kubernetes cluster that the agent's pod runs in.

use std::time::Duration;

use super::Config;
use super::layer::settings;
use super::values::BoundedDuration;

/// Uses of the cluster's API server; none has an effect outside of a pod with a service account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Report the driver on the node: labels, an annotation, a condition and events.
    pub report: bool,
    /// Taint the node while the driver is not ready.
    pub taint: bool,
    /// Write the driver's features to a file for Node Feature Discovery.
    pub features_file: bool,
    /// Request the cordon of the node, and the eviction of the pods that use the driver while a change of it waits for
    /// them.
    pub evict: bool,
    /// Time limit for evictions; after it the change waits without.
    pub evict_deadline: Duration,
    /// Keep the driver at SIGTERM while the pod's DaemonSet exists.
    pub keep_for_successor: bool,
    /// Take the build lease from a Lease object instead of the registry.
    pub build_lease: bool,
}

settings! {
    /// Cluster settings of one configuration layer.
    ClusterFragment;

    /// Report the driver on the node, in a pod
    ///
    /// The pod needs a service account: labels, an annotation, the condition `GpuDriverReady`, and
    /// events; what the account may not write is left out.
    report: Option<bool>;
        key "report" flag "cluster-report" "BOOL" alone "true" env "LONGSHORE_CLUSTER_REPORT"
        default "`true`"
        is "restart"
    /// Taint the node while the driver is not ready
    ///
    /// With `longshore.dev/driver-not-ready:NoSchedule`.
    taint: Option<bool>;
        key "taint" flag "cluster-taint" "BOOL" alone "true" env "LONGSHORE_CLUSTER_TAINT"
        default "`false`"
        is "restart"
    /// Write the features file of Node Feature Discovery
    ///
    /// The host's `/etc/kubernetes/node-feature-discovery/features.d/longshore`, with an expiry
    /// time; labels of the node follow from it.
    features_file: Option<bool>;
        key "features-file" flag "cluster-features-file" "BOOL" alone "true" env "LONGSHORE_CLUSTER_FEATURES_FILE"
        default "`false`"
    /// Evict pods that use a driver which is to be changed
    ///
    /// While a change of the driver waits for them, the agent requests it, and the controller (`longshore evictor`) cordons
    /// the node and evicts the pods; never under the GPU operator, which drains nodes itself.
    evict: Option<bool>;
        key "evict" flag "cluster-evict" "BOOL" alone "true" env "LONGSHORE_CLUSTER_EVICT"
        default "`false`"
        is "restart"
    /// Time limit for evictions
    ///
    /// After it the node is uncordoned, and the change waits without evictions; `0s` to `1h`. That of the controller
    /// (`longshore evictor`) is the longest that it grants.
    evict_deadline: Option<BoundedDuration>;
        key "evict-deadline" flag "cluster-evict-deadline" "SPAN" env "LONGSHORE_CLUSTER_EVICT_DEADLINE"
        default "`10m`"
        is "restart"
    /// Keep the driver at SIGTERM for the pod that follows
    ///
    /// While the pod's DaemonSet exists.
    keep_for_successor: Option<bool>;
        key "keep-for-successor" flag "cluster-keep-for-successor" "BOOL" alone "true" env "LONGSHORE_CLUSTER_KEEP_FOR_SUCCESSOR"
        default "`true`"
    /// Agree by Lease objects on the host that compiles
    ///
    /// In a pod with a service account, instead of by claims in the registry.
    build_lease: Option<bool>;
        key "build-lease" flag "cluster-build-lease" "BOOL" alone "true" env "LONGSHORE_CLUSTER_BUILD_LEASE"
        default "`true`"
}

impl Config {
    /// True if the agent requests a drain of its node: never under the GPU operator, whose controller
    /// drains nodes.
    pub fn evicts(&self) -> bool {
        self.cluster.evict && !self.operator.enabled
    }
}

/// Default of `evict-deadline`.
const EVICT_DEADLINE: Duration = Duration::from_secs(10 * 60);

impl ClusterFragment {
    pub(super) fn with_defaults(self) -> ClusterConfig {
        ClusterConfig {
            report: self.report.unwrap_or(true),
            taint: self.taint.unwrap_or(false),
            features_file: self.features_file.unwrap_or(false),
            evict: self.evict.unwrap_or(false),
            evict_deadline: self.evict_deadline.map_or(EVICT_DEADLINE, BoundedDuration::duration),
            keep_for_successor: self.keep_for_successor.unwrap_or(true),
            build_lease: self.build_lease.unwrap_or(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layer::Over;

    #[test]
    fn a_cluster_is_told_of_the_driver_and_nothing_is_moved_unless_it_is_said() {
        let config = ClusterFragment::default().with_defaults();
        assert!(config.report && config.keep_for_successor && config.build_lease);
        assert!(!config.taint && !config.features_file && !config.evict);
        assert_eq!(config.evict_deadline, Duration::from_secs(600));
    }

    /// Evictions are for a change that waits, and never where an operator drains nodes.
    #[test]
    fn an_agent_that_evicts_waits_and_one_of_the_operator_never_evicts() {
        for (operator, given, evicts, waits) in [
            ("false", Some("true"), true, true),
            ("false", None, false, false),
            ("true", Some("true"), false, true),
        ] {
            let env = |name: &str| match name {
                "LONGSHORE_CLUSTER_EVICT" => given.map(str::to_owned),
                "LONGSHORE_GPU_OPERATOR" => Some(operator.to_owned()),
                _ => None,
            };
            let config = crate::config::load(crate::config::Fragment::default(), &env, None)
                .expect("a configuration");
            assert_eq!((config.evicts(), config.operator.wait_to_change), (evicts, waits));
        }
    }

    #[test]
    fn flags_go_over_the_file() {
        let file = "report = false\ntaint = true\nevict = true\nevict-deadline = '1m30s'";
        let below: ClusterFragment = toml::from_str(file).expect("a section");
        let above = ClusterFragment { evict: Some(false), ..ClusterFragment::default() };
        let config = above.over(below).with_defaults();
        assert!(!config.report && config.taint && !config.evict);
        assert_eq!(config.evict_deadline, Duration::from_secs(90));
    }
}
