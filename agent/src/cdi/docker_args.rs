//! Options of `docker run` for a docker without CDI: the devices and files of the spec, one by one.
//!
//! Not a view `usr/local/nvidia/{bin,lib64}` in the driver root, as nvidia-docker 1.0 had: an image finds
//! its libraries by LD_LIBRARY_PATH alone, which few images set, and links in it would lead out of the one
//! directory that a container has. The C library of any image searches the directories of the spec.

use std::str::FromStr;

use longshore_cdi::{Device, Spec};
use longshore_core::failure::{Failure, FailureKind};
use longshore_core::sanitize::in_line;

/// GPUs that a container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gpus {
    /// All of them.
    All,
    /// The first so many.
    Count(usize),
    /// Those with these names: indices or UUIDs.
    Named(Vec<String>),
}

/// Form of `--gpus` that is not one of these.
#[derive(Debug, thiserror::Error)]
#[error("not `all`, a number above 0, or `device=0,1`")]
pub struct WrongForm;

impl FromStr for Gpus {
    type Err = WrongForm;

    /// Parses docker's own form, also with the quotation marks that docker wants around a list.
    fn from_str(text: &str) -> Result<Self, WrongForm> {
        let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
        if let Some(list) = inner.strip_prefix("device=") {
            let names: Vec<String> = list.split(',').map(str::to_owned).collect();
            let is_name = |name: &String| !name.is_empty() && name.chars().all(is_plain);
            return names.iter().all(is_name).then_some(Self::Named(names)).ok_or(WrongForm);
        }
        match inner {
            "all" => Ok(Self::All),
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                let count = digits.parse().ok().filter(|count| *count > 0);
                count.map(Self::Count).ok_or(WrongForm)
            }
            _ => Err(WrongForm),
        }
    }
}

/// True for a character that no shell takes for more than itself. What `$(...)` gives is split at blanks,
/// and quotation marks in it are not removed, so a path with others cannot be given at all.
fn is_plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || "/._+@=,-".contains(c)
}

/// Returns the options in one line.
///
/// # Errors
/// Exit code 2 where there is no such GPU, or a path has odd characters.
pub fn options(spec: &Spec, gpus: &Gpus) -> Result<String, Failure> {
    let mut paths: Vec<&str> = Vec::new();
    for device in chosen(spec, gpus)? {
        paths.extend(device.container_edits.device_nodes.iter().map(|node| node.path.as_str()));
    }
    paths.extend(spec.container_edits.device_nodes.iter().map(|node| node.path.as_str()));
    let mut words = Vec::new();
    for (n, path) in paths.iter().enumerate() {
        if !paths[..n].contains(path) {
            words.extend(["--device".to_owned(), plain(path)?.to_owned()]);
        }
    }
    for env in &spec.container_edits.env {
        words.extend(["-e".to_owned(), plain(env)?.to_owned()]);
    }
    for mount in &spec.container_edits.mounts {
        let (from, to) = (plain(&mount.host_path)?, plain(&mount.container_path)?);
        words.extend(["-v".to_owned(), format!("{from}:{to}:ro")]);
    }
    Ok(words.join(" "))
}

fn plain(text: &str) -> Result<&str, Failure> {
    if text.chars().all(is_plain) {
        return Ok(text);
    }
    let cause = format!("{} has characters that a shell would take apart", in_line(text));
    Err(Failure::new(FailureKind::Usage, cause)
        .remedy("set driver-root to a path of letters, digits and -_."))
}

fn chosen<'a>(spec: &'a Spec, gpus: &Gpus) -> Result<Vec<&'a Device>, Failure> {
    let named = |name: &str| spec.devices.iter().find(|device| device.name == name);
    let indices =
        || spec.devices.iter().filter(|d| d.name.bytes().all(|byte| byte.is_ascii_digit()));
    let chosen: Result<Vec<&Device>, String> = match gpus {
        Gpus::All => Ok(named("all").into_iter().collect()),
        Gpus::Count(count) if *count > indices().count() => Err(format!("{count} GPUs")),
        Gpus::Count(count) => Ok(indices().take(*count).collect()),
        Gpus::Named(names) => {
            let find = |name: &String| named(name).ok_or_else(|| format!("GPU {name}"));
            names.iter().map(find).collect()
        }
    };
    chosen.map_err(|wanted| {
        let all: Vec<_> = spec.devices.iter().map(|device| device.name.as_str()).collect();
        let cause = format!("this host has no {wanted}, but these: {}", all.join(", "));
        Failure::new(FailureKind::Usage, cause).remedy("`longshore cdi show` has the devices")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_cdi::{ContainerEdits, DeviceNode, Mount};
    use rstest::rstest;

    fn edits(nodes: &[&str]) -> ContainerEdits {
        let node =
            |name: &&str| DeviceNode { path: format!("/dev/{name}"), ..DeviceNode::default() };
        ContainerEdits {
            device_nodes: nodes.iter().map(node).collect(),
            ..ContainerEdits::default()
        }
    }

    fn spec(from: &str) -> Spec {
        let devices: [(&str, &[&str]); 4] = [
            ("0", &["nvidia0"]),
            ("GPU-1", &["nvidia0"]),
            ("1", &["nvidia3"]),
            ("all", &["nvidia0", "nvidia3"]),
        ];
        let device = |(name, nodes): (&str, &[&str])| Device {
            name: name.to_owned(),
            container_edits: edits(nodes),
            ..Device::default()
        };
        let mut container_edits = edits(&["nvidiactl"]);
        container_edits.env.push("A=b".to_owned());
        container_edits.mounts.push(Mount {
            host_path: from.to_owned(),
            container_path: "/usr/bin/x".to_owned(),
            ..Mount::default()
        });
        Spec { devices: devices.map(device).into(), container_edits, ..Spec::default() }
    }

    const REST: &str = "--device /dev/nvidiactl -e A=b -v /r/x:/usr/bin/x:ro";

    #[rstest]
    #[case("all", "--device /dev/nvidia0 --device /dev/nvidia3")]
    #[case("1", "--device /dev/nvidia0")]
    #[case("2", "--device /dev/nvidia0 --device /dev/nvidia3")]
    #[case("device=1", "--device /dev/nvidia3")]
    #[case("device=1,0", "--device /dev/nvidia3 --device /dev/nvidia0")]
    #[case("device=0,GPU-1", "--device /dev/nvidia0")]
    #[case("\"device=0,1\"", "--device /dev/nvidia0 --device /dev/nvidia3")]
    fn forms(#[case] text: &str, #[case] devices: &str) {
        let gpus = text.parse().expect("a form");
        assert_eq!(options(&spec("/r/x"), &gpus).expect("options"), format!("{devices} {REST}"));
    }

    #[rstest]
    #[case("")]
    #[case("0")]
    #[case("-1")]
    #[case("none")]
    #[case("device=")]
    #[case("device=0,,1")]
    #[case("device=0 1")]
    #[case("\"device=0")]
    #[case("99999999999999999999999")]
    fn wrong_forms(#[case] text: &str) {
        assert!(text.parse::<Gpus>().is_err());
    }

    #[rstest]
    #[case("3", "/r/x", "this host has no 3 GPUs, but these: 0, GPU-1, 1, all")]
    #[case("device=2", "/r/x", "this host has no GPU 2, but these")]
    #[case("all", "/r oot/x", "a shell would take apart")]
    #[case("all", "/r$(x)", "a shell would take apart")]
    #[case("all", "/a:b", "a shell would take apart")]
    fn refused(#[case] text: &str, #[case] from: &str, #[case] cause: &str) {
        let gpus = text.parse().expect("a form");
        let failure = options(&spec(from), &gpus).expect_err("refused");
        assert_eq!(failure.code().number(), 2);
        assert!(failure.to_string().contains(cause), "{failure}");
    }
}
