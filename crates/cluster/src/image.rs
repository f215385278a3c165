//! Image of the pod's own container, and the driver version in its tag.

use kube::api::{Api, ApiResource};
use kube::core::{NotUsed, Object};
use serde::{Deserialize, Serialize};

use crate::client::Cluster;
use crate::error::{Error, check_names};

const CALL: &str = "reading the own pod (get pods)";

/// The part of a pod that is read.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Spec {
    #[serde(default)]
    containers: Vec<Container>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Container {
    name: String,
    #[serde(default)]
    image: Option<String>,
}

type Pod = Object<Spec, NotUsed>;

/// Reference of an image as the pod has it: `registry.example.com/gpu/driver:535.261.03-debian12`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnImage(String);

impl OwnImage {
    /// The reference.
    pub fn reference(&self) -> &str {
        &self.0
    }

    /// Its tag; None where it has only a digest, or neither.
    pub fn tag(&self) -> Option<&str> {
        let name = self.0.split_once('@').map_or(self.0.as_str(), |(name, _)| name);
        // A colon before the last slash is that of a port.
        let last = name.rsplit('/').next()?;
        last.split_once(':').map(|(_, tag)| tag)
    }

    /// Driver version in its tag.
    pub fn driver_version(&self) -> Option<&str> {
        driver_version(self.tag()?)
    }
}

/// Driver version of a tag as the GPU operator makes it: `VERSION-OS`, or `VERSION-KERNEL-OS` for
/// precompiled modules. A tag without the system is an image's own version.
pub fn driver_version(tag: &str) -> Option<&str> {
    let (version, rest) = tag.split_once('-')?;
    let system = rest.rsplit('-').next()?;
    let numbers: Vec<&str> = version.split('.').collect();
    let is_number = |n: &&str| (1..=4).contains(&n.len()) && n.bytes().all(|b| b.is_ascii_digit());
    // NVIDIA's versions have begun with three digits since 2008.
    let fits =
        matches!(numbers.len(), 2 | 3) && numbers.iter().all(is_number) && numbers[0].len() == 3;
    (fits && system.starts_with(|c: char| c.is_ascii_lowercase())).then_some(version)
}

impl Cluster {
    /// Reads the image of the pod's container that has the first of these names. None where no
    /// container has such a name.
    ///
    /// # Errors
    /// A name that is none; a refusal; no answer, or none of the API, after all tries.
    pub async fn own_image(
        &self,
        namespace: &str,
        pod: &str,
        containers: &[&str],
    ) -> Result<Option<OwnImage>, Error> {
        check_names(CALL, &[namespace, pod])?;
        let kind = ApiResource::erase::<k8s_openapi::api::core::v1::Pod>(&());
        let read = self.call(CALL, |client| {
            let pods: Api<Pod> = Api::namespaced_with(client, namespace, &kind);
            async move { pods.get(pod).await }
        });
        Ok(image_of(read.await?.spec, containers))
    }
}

fn image_of(spec: Spec, names: &[&str]) -> Option<OwnImage> {
    let named = |name: &&str| spec.containers.iter().find(|container| container.name == *name);
    names.iter().find_map(named).and_then(|found| found.image.clone()).map(OwnImage)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("registry.example.com/gpu/longshore:535.261.03-debian12", Some("535.261.03"))]
    #[case("localhost:5000/longshore:550.54-ubuntu24.04", Some("550.54"))]
    #[case("r.example.com/l:535.261.03-6.1.0-50-amd64-debian12", Some("535.261.03"))]
    #[case("r.example.com/l:535.261.03-rhel9@sha256:aa", Some("535.261.03"))]
    #[case("r.example.com/l@sha256:aa", None)]
    #[case("localhost:5000/longshore", None)]
    #[case("longshore", None)]
    #[case("longshore:latest", None)]
    #[case("longshore:0.1.0-debian12", None)]
    #[case("longshore:535.261.03", None)]
    #[case("longshore:535-debian12", None)]
    #[case("longshore:535.261.03.1-debian12", None)]
    #[case("longshore:535.26x.03-debian12", None)]
    #[case("longshore:535..03-debian12", None)]
    #[case("longshore:535.261.03-", None)]
    #[case("longshore:535.261.03-12", None)]
    #[case("", None)]
    fn the_version_is_in_the_tag(#[case] reference: &str, #[case] version: Option<&str>) {
        assert_eq!(OwnImage(reference.to_owned()).driver_version(), version);
    }
}
