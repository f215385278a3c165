//! Client of the Kubernetes API server for a pod that manages the driver of its node: the pod's own image and
//! DaemonSet, the request for a safe load of the driver, the request for evictions from the node for a change of it,
//! Lease objects, a text in a ConfigMap, and the report of the driver on its node; the controller of evictions; for
//! `longshore fleet` also all nodes and DaemonSets, and the leftovers of agents.
//!
//! It is begun only in a cluster. Every call has a time limit and is repeated with growing pauses, but
//! for refusals (403, 404), which are final; no answer is read beyond a few MiB.

mod account;
mod all_nodes;
mod client;
mod config_map;
mod cordon;
mod error;
mod evict;
mod evictor;
mod image;
mod lease;
mod leftovers;
pub mod names;
mod node_kernels;
mod owner;
mod pods;
mod reconcile;
mod report;
mod safe_load;
mod text;
mod token_review;

pub use account::{Account, FILES};
pub use all_nodes::{Fleet, NodePatch, PodsOf, Right};
pub use client::{Cluster, Limits};
pub use config_map::{ConfigMapKey, ConfigMapText};
pub use cordon::CordonRecord;
pub use error::{ApiErrorKind, Error};
pub use evict::{
    AskPace, BadRequest, BlockedPod, Cordoned, DRAIN_FORMAT, DrainFailure, DrainState, DrainStatus,
    EvictEvent, EvictPace, EvictRequest, Evictions, Hindrance, REQUEST_FORMAT,
};
pub use evictor::{Evictor, EvictorOptions, Health, NodePace, Share};
pub use image::{OwnImage, driver_version};
pub use lease::{LeaseRecord, LeaseVersion, StoredLease};
pub use leftovers::{Leftover, NodeLeftovers};
pub use node_kernels::{FollowedNodes, KernelsOfNode, NodeKernels};
pub use owner::Owner;
pub use pods::{ActingPod, PodRef};
pub use report::{
    Event, Events, Holder, HolderStatus, LARGEST_STATUS, LastFailure, NextKernel, NodeStatus,
    Options, Reason, Regarding, Report, Reporter, STATUS_FORMAT, Unreadable,
};
pub use safe_load::{Pace, Requests, SAFE_LOAD, Standing, UPGRADES_ENABLED};
pub use text::is_name;
pub use token_review::TokenVerdict;

#[cfg(test)]
mod calls_tests;
#[cfg(any(test, feature = "testing"))]
pub mod lease_testing;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
