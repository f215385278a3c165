//! Volumes of an agent's pod with files of the cluster: its service account's Secret (Kubernetes 1.20) or projected token,
//! and ConfigMaps. Directories of the node and empty ones are left out: the agent's own paths are below the directory of its
//! node.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, DownwardAPIVolumeFile, KeyToPath, Pod, Secret, ServiceAccount,
    ServiceAccountTokenProjection, Volume, VolumeProjection,
};
use kube::ResourceExt;
use kube::api::{Api, PostParams};

use crate::kubelet::{Error, Kubelet, persist};

/// Directories with the files of a pod's volumes. Displayed as the agent reads them: DIRECTORY:MOUNT_PATH, separated
/// by commas.
pub(crate) struct Volumes {
    dir: PathBuf,
    mounts: Vec<(PathBuf, String)>,
}

impl Volumes {
    /// Writes the files of all volumes that the pod's container mounts, below a directory.
    pub(crate) async fn make(kubelet: &Kubelet, pod: &Pod, dir: PathBuf) -> Result<Self, Error> {
        let spec = pod.spec.as_ref().ok_or("a pod without spec")?;
        let container = spec.containers.first().ok_or("a pod without containers")?;
        let mut mounts = Vec::new();
        let has_files = |volume: &&Volume| volume.host_path.is_none() && volume.empty_dir.is_none();
        for volume in spec.volumes.iter().flatten().filter(has_files) {
            let Some(place) = place(container, volume) else { continue };
            let source = Source { kubelet, pod, namespace: pod.namespace().unwrap_or_default() };
            let files = source.volume(volume).await?;
            let dir = dir.join(&volume.name);
            write(&dir, files)?;
            mounts.push((dir, place));
        }
        Ok(Self { dir, mounts })
    }

    /// Removes the files.
    pub(crate) fn remove(&self) -> std::io::Result<()> {
        fs::remove_dir_all(&self.dir)
    }
}

impl fmt::Display for Volumes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mounts = self.mounts.iter().map(|(dir, place)| format!("{}:{place}", dir.display()));
        f.write_str(&mounts.collect::<Vec<_>>().join(","))
    }
}

/// Path at which the container mounts the volume.
fn place(container: &Container, volume: &Volume) -> Option<String> {
    let mut mounts = container.volume_mounts.iter().flatten();
    mounts.find(|mount| mount.name == volume.name).map(|mount| mount.mount_path.clone())
}

/// Files of a volume, by path below it.
type Files = Vec<(String, Vec<u8>)>;

/// Objects of the cluster that a pod's volumes are made of.
struct Source<'a> {
    kubelet: &'a Kubelet,
    pod: &'a Pod,
    namespace: String,
}

impl Source<'_> {
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope>,
        K::DynamicType: Default,
    {
        Api::namespaced(self.kubelet.client.clone(), &self.namespace)
    }

    async fn volume(&self, volume: &Volume) -> Result<Files, Error> {
        if let Some(source) = &volume.secret {
            return self.secret(&source.secret_name.clone().unwrap_or_default()).await;
        }
        if let Some(source) = &volume.config_map {
            return self.config_map(&source.name).await;
        }
        let Some(source) = &volume.projected else { return Err(unknown(&volume.name)) };
        let mut files = Vec::new();
        for projection in source.sources.iter().flatten() {
            files.extend(self.projected(&volume.name, projection).await?);
        }
        Ok(files)
    }

    async fn projected(&self, volume: &str, of: &VolumeProjection) -> Result<Files, Error> {
        if let Some(source) = &of.service_account_token {
            return Ok(vec![(source.path.clone(), self.token(source).await?)]);
        }
        if let Some(source) = &of.config_map {
            return selected(self.config_map(&source.name).await?, source.items.as_deref());
        }
        if let Some(source) = &of.secret {
            return selected(self.secret(&source.name).await?, source.items.as_deref());
        }
        let Some(source) = &of.downward_api else { return Err(unknown(volume)) };
        source.items.iter().flatten().map(|file| field(self.pod, file)).collect()
    }

    /// Token of the pod's service account that is bound to the pod, as a kubelet asks for it. It is not renewed: the API
    /// server takes one that is for 3607 s, which its own admission plugin asks for, for a year
    /// (--service-account-extend-token-expiration).
    async fn token(&self, source: &ServiceAccountTokenProjection) -> Result<Vec<u8>, Error> {
        let spec = self.pod.spec.as_ref().ok_or("a pod without spec")?;
        let account = spec.service_account_name.as_deref().unwrap_or("default");
        let request = TokenRequest {
            spec: TokenRequestSpec {
                audiences: source.audience.iter().cloned().collect(),
                bound_object_ref: Some(BoundObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    name: Some(self.pod.name_any()),
                    uid: self.pod.uid(),
                }),
                expiration_seconds: source.expiration_seconds,
            },
            ..TokenRequest::default()
        };
        let (api, parameters) = (self.api::<ServiceAccount>(), PostParams::default());
        let made = persist(|| api.create_token_request(account, &parameters, &request)).await?;
        let token = made.status.map(|status| status.token);
        Ok(token.ok_or("the API server answered without a token")?.into_bytes())
    }

    async fn secret(&self, name: &str) -> Result<Files, Error> {
        let api = self.api::<Secret>();
        let secret = persist(|| api.get(name)).await?;
        Ok(secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect())
    }

    async fn config_map(&self, name: &str) -> Result<Files, Error> {
        let api = self.api::<ConfigMap>();
        let map = persist(|| api.get(name)).await?;
        Ok(map.data.into_iter().flatten().map(|(key, value)| (key, value.into_bytes())).collect())
    }
}

fn unknown(volume: &str) -> Error {
    format!("volume {volume} is of a kind that simulated nodes do not have").into()
}

/// Files of the items alone, at their paths; all files where there are no items.
fn selected(files: Files, items: Option<&[KeyToPath]>) -> Result<Files, Error> {
    let Some(items) = items else { return Ok(files) };
    let of = |item: &KeyToPath| {
        let found = files.iter().find(|(key, _)| *key == item.key);
        let (_, text) = found.ok_or_else(|| format!("an object without the key {}", item.key))?;
        Ok((item.path.clone(), text.clone()))
    };
    items.iter().map(of).collect()
}

/// File with a field of the pod.
fn field(pod: &Pod, file: &DownwardAPIVolumeFile) -> Result<(String, Vec<u8>), Error> {
    let path = file.field_ref.as_ref().map(|field| field.field_path.as_str());
    let text = match path {
        Some("metadata.namespace") => pod.namespace().unwrap_or_default(),
        Some("metadata.name") => pod.name_any(),
        Some("metadata.uid") => pod.uid().unwrap_or_default(),
        other => {
            let other = other.unwrap_or("a resource");
            return Err(format!("{other} is no field that simulated nodes have files of").into());
        }
    };
    Ok((file.path.clone(), text.into_bytes()))
}

fn write(dir: &Path, files: Files) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    files.into_iter().try_for_each(|(path, text)| {
        let path = dir.join(path);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(path, text)
    })
}
