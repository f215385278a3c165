//! Lease objects (coordination.k8s.io/v1), each with a claim that one writer at a time replaces.
//!
//! The API server compares and swaps: a write names the version that it replaces, and of all writers
//! that read the same version one succeeds. The object's own times and holder are filled for people
//! (`kubectl get leases`), and are never read.

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use std::collections::BTreeMap;
use std::time::Duration;

use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error, check_names};
use crate::names::CLAIM;
use crate::text::{in_line, is_version};

const READ: &str = "reading the build lease (get leases)";
const WRITE: &str = "writing the build lease (create and update leases)";
const REMOVE: &str = "removing the build lease (delete leases)";

/// Size limit of a claim, in bytes: that of all annotations of an object
/// (apimachinery, `TotalAnnotationSizeLimitB`).
const LARGEST_CLAIM: usize = 256 << 10;
/// Length at which a holder's name is cut.
const LONGEST_HOLDER: usize = 128;

/// One write of a Lease object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseVersion {
    uid: String,
    resource_version: String,
}

impl LeaseVersion {
    /// Reads the text that [`LeaseVersion::mark`] returned; None where it is another text.
    pub fn from_mark(mark: &str) -> Option<Self> {
        let (uid, version) = mark.split_once('/')?;
        let fits = |text: &str| is_version(text) && !text.contains('/');
        let own = || Self { uid: uid.to_owned(), resource_version: version.to_owned() };
        (fits(uid) && fits(version)).then(own)
    }

    /// Returns `UID/RESOURCE-VERSION`, different for each write.
    pub fn mark(&self) -> String {
        format!("{}/{}", self.uid, self.resource_version)
    }

    fn from_meta(meta: &ObjectMeta) -> Option<Self> {
        Self::from_mark(&format!("{}/{}", meta.uid.as_deref()?, meta.resource_version.as_deref()?))
    }
}

/// A Lease object as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredLease {
    /// The write that was read.
    pub version: LeaseVersion,
    /// Text of the claim, unchecked, of at most 256 KiB; None where there is none, or a longer one.
    pub claim: Option<String>,
    /// Number of earlier holders.
    pub transitions: i32,
}

impl StoredLease {
    fn from_lease(lease: Lease) -> Option<Self> {
        let version = LeaseVersion::from_meta(&lease.metadata)?;
        let claim = lease.metadata.annotations.unwrap_or_default().remove(CLAIM);
        let transitions = lease.spec.and_then(|spec| spec.lease_transitions).unwrap_or(0).max(0);
        Some(Self { version, claim: claim.filter(|text| text.len() <= LARGEST_CLAIM), transitions })
    }
}

/// Contents of a Lease object to write.
#[derive(Debug, Clone, Copy)]
pub struct LeaseRecord<'a> {
    /// Text of the claim, different for each write.
    pub claim: &'a str,
    /// Name of the holder, for people; None for a lease that is given back.
    pub holder: Option<&'a str>,
    /// Validity without a renewal, for people.
    pub duration: Duration,
    /// Time at which the holder got it, for people.
    pub acquired: Timestamp,
    /// Number of earlier holders, for people.
    pub transitions: i32,
}

impl LeaseRecord<'_> {
    fn object(&self, name: &str, over: Option<&LeaseVersion>) -> Lease {
        let text = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        let seconds = self.duration.as_millis().div_ceil(1000).max(1);
        Lease {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                uid: over.map(|version| version.uid.clone()),
                resource_version: over.map(|version| version.resource_version.clone()),
                labels: Some(BTreeMap::from(
                    [("app.kubernetes.io/managed-by", "longshore")].map(text),
                )),
                annotations: Some(BTreeMap::from([(CLAIM, self.claim)].map(text))),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: self.holder.map(|name| in_line(name, LONGEST_HOLDER)),
                lease_duration_seconds: Some(i32::try_from(seconds).unwrap_or(i32::MAX)),
                acquire_time: Some(MicroTime(self.acquired)),
                renew_time: Some(MicroTime(Timestamp::now())),
                lease_transitions: Some(self.transitions),
                ..LeaseSpec::default()
            }),
        }
    }
}

impl Cluster {
    /// Reads a Lease object; None where there is none.
    ///
    /// # Errors
    /// A name that is none; a refusal (403); no answer, or none of the API, after all tries.
    pub async fn read_lease(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Option<StoredLease>, Error> {
        check_names(READ, &[namespace, name])?;
        let read = self.call(READ, |client| {
            let leases: Api<Lease> = Api::namespaced(client, namespace);
            async move { leases.get(name).await }
        });
        match read.await {
            Ok(lease) => stored(READ, lease).map(Some),
            Err(error) if error.kind == ApiErrorKind::Missing => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Replaces the write `over` of a Lease object, or makes the object where that is None. None
    /// where another writer was faster: the object is not the one of `over` any more.
    ///
    /// # Errors
    /// As [`Cluster::read_lease`].
    pub async fn write_lease(
        &self,
        namespace: &str,
        name: &str,
        record: &LeaseRecord<'_>,
        over: Option<&LeaseVersion>,
    ) -> Result<Option<LeaseVersion>, Error> {
        check_names(WRITE, &[namespace, name])?;
        let object = &record.object(name, over);
        let write = self.call(WRITE, |client| {
            let leases: Api<Lease> = Api::namespaced(client, namespace);
            async move {
                match over {
                    Some(_) => leases.replace(name, &PostParams::default(), object).await,
                    None => leases.create(&PostParams::default(), object).await,
                }
            }
        });
        match write.await {
            Ok(lease) => stored(WRITE, lease).map(|lease| Some(lease.version)),
            // A repeated call conflicts with itself where the answer to its first try was lost.
            Err(error)
                if is_conflict(&error)
                    || (over.is_some() && error.kind == ApiErrorKind::Missing) =>
            {
                let there = self.read_lease(namespace, name).await?;
                let own = there.filter(|there| there.claim.as_deref() == Some(record.claim));
                Ok(own.map(|there| there.version))
            }
            Err(error) => Err(error),
        }
    }

    /// Removes the write `version` of a Lease object, and no other: one that has replaced it stays.
    ///
    /// # Errors
    /// As [`Cluster::read_lease`]; also where the account may not delete (403).
    pub async fn remove_lease(
        &self,
        namespace: &str,
        name: &str,
        version: &LeaseVersion,
    ) -> Result<(), Error> {
        check_names(REMOVE, &[namespace, name])?;
        let only = Preconditions {
            uid: Some(version.uid.clone()),
            resource_version: Some(version.resource_version.clone()),
        };
        let parameters = &DeleteParams::default().preconditions(only);
        let remove = self.call(REMOVE, |client| {
            let leases: Api<Lease> = Api::namespaced(client, namespace);
            async move { leases.delete(name, parameters).await.map(drop) }
        });
        match remove.await {
            Err(error) if is_conflict(&error) || error.kind == ApiErrorKind::Missing => Ok(()),
            ended => ended,
        }
    }
}

fn is_conflict(error: &Error) -> bool {
    error.kind == ApiErrorKind::Status(409)
}

fn stored(call: &'static str, lease: Lease) -> Result<StoredLease, Error> {
    let garbled = || Error::new(call, ApiErrorKind::Garbled, "an answer that is not of the API");
    StoredLease::from_lease(lease).ok_or_else(garbled)
}

#[cfg(test)]
mod tests;
