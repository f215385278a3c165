//! Volumes of an agent's pod with files of the cluster: its service account's Secret, and ConfigMaps. Directories of
//! the node are left out: the agent's own paths are below the directory of its node.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{ConfigMap, Container, Pod, Secret, Volume};
use kube::ResourceExt;
use kube::api::Api;

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
        for volume in spec.volumes.iter().flatten().filter(|volume| volume.host_path.is_none()) {
            let Some(place) = place(container, volume) else { continue };
            let files = files(kubelet, &pod.namespace().unwrap_or_default(), volume).await?;
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

/// Files of a volume, by name.
async fn files(
    kubelet: &Kubelet,
    namespace: &str,
    volume: &Volume,
) -> Result<Vec<(String, Vec<u8>)>, Error> {
    if let Some(source) = &volume.secret {
        let api: Api<Secret> = Api::namespaced(kubelet.client.clone(), namespace);
        let name = source.secret_name.clone().unwrap_or_default();
        let secret = persist(|| api.get(&name)).await?;
        return Ok(secret.data.into_iter().flatten().map(|(key, value)| (key, value.0)).collect());
    }
    if let Some(source) = &volume.config_map {
        let api: Api<ConfigMap> = Api::namespaced(kubelet.client.clone(), namespace);
        let map = persist(|| api.get(&source.name)).await?;
        return Ok(map.data.into_iter().flatten().map(|(key, v)| (key, v.into_bytes())).collect());
    }
    Err(format!("volume {} is of a kind that simulated nodes do not have", volume.name).into())
}

fn write(dir: &Path, files: Vec<(String, Vec<u8>)>) -> std::io::Result<()> {
    fs::create_dir_all(dir)?;
    files.into_iter().try_for_each(|(name, text)| fs::write(dir.join(name), text))
}
