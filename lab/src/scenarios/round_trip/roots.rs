//! Judges containers of different make that got the GPUs by CDI (guest/scripts/in-roots.sh).

use crate::cell::guests::Consumer;
use crate::judge::records::Records;

/// Directories in which the loader of a root finds the driver's libraries.
const MULTIARCH: &str = "/lib/x86_64-linux-gnu/";
const LIB64: &str = "/lib64/";

/// A root, and the file that its loader finds for libcuda: content, and a part of its path. None for
/// a root whose C library cannot load it.
const ROOTS: [(&str, Option<(&str, &str)>); 9] = [
    ("debian", Some(("driver", MULTIARCH))),
    ("ubuntu-like", Some(("driver", MULTIARCH))),
    ("rhel-like", Some(("driver", LIB64))),
    ("no-lib64", Some(("driver", MULTIARCH))),
    // Without a hook the image's cache stays, and it is read before the directories.
    ("own-libcuda", Some(("foreign", "/usr/local/own/"))),
    ("newer-cuda", Some(("driver", MULTIARCH))),
    ("newer-cuda-on", Some(("foreign", "/usr/local/cuda/compat/"))),
    ("old-driver", Some(("driver", MULTIARCH))),
    ("musl", None),
];

/// Returns the faults of the containers of one consumer.
pub(super) fn wrong(consumer: Consumer, records: &Records) -> Vec<String> {
    records.faults(&consumer.section(), |seen| {
        let faults = |(root, libcuda): &(&str, Option<(&str, &str)>)| {
            let seen = of_root(seen, root);
            let wrong = fault(&seen, *libcuda)?;
            Some(format!("{consumer}, root {root}: {wrong}; it says: {}", seen.join(" / ")))
        };
        ROOTS.iter().filter_map(faults).collect()
    })
}

/// Returns the lines about a root.
fn of_root<'a>(seen: &'a [String], root: &str) -> Vec<&'a str> {
    let lines = seen.iter().map(String::as_str);
    let after = lines.skip_while(|line| *line != format!("root {root}")).skip(1);
    after.take_while(|line| !line.starts_with("root ")).collect()
}

fn fault(seen: &[&str], libcuda: Option<(&str, &str)>) -> Option<String> {
    let Some((content, place)) = libcuda else {
        let refused = seen.iter().any(|line| line.starts_with("Error"));
        return (!refused).then(|| "the loader reports no error".to_owned());
    };
    let finds = |library: &str, content: &str, place: &str| {
        let start = format!("finds {library} {content} ");
        seen.iter().any(|line| line.strip_prefix(&start).is_some_and(|path| path.contains(place)))
    };
    if !finds("libcuda.so.1", content, place) {
        return Some(format!("libcuda is not the {content}'s in {place}"));
    }
    if !finds("libnvidia-ml.so.1", "driver", "") {
        return Some("libnvidia-ml is not the driver's".into());
    }
    let refused = seen.iter().any(|line| line.contains("LD_PRELOAD"));
    let answered = seen.contains(&"No devices were found") && seen.last() == Some(&"rc 6");
    match (refused, answered) {
        (true, _) => Some("a library cannot be loaded".into()),
        (_, false) => Some("nvidia-smi does not answer as outside".into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> String {
        let root = |(name, libcuda): &(&str, Option<(&str, &str)>)| match libcuda {
            None => format!("root {name}\nError relocating libcuda.so.1\nrc 127\n"),
            Some((content, place)) => format!(
                "root {name}\nfinds libcuda.so.1 {content} {place}libcuda.so.1\n\
                 finds libnvidia-ml.so.1 driver {place}libnvidia-ml.so.1\n\
                 No devices were found\nrc 6\n"
            ),
        };
        ROOTS.iter().map(root).collect()
    }

    #[test]
    fn each_root_is_judged() {
        let preload =
            "ERROR: ld.so: object 'libcuda.so.1' from LD_PRELOAD cannot be preloaded\nrc 6";
        let cases = [
            ("", "", ""),
            ("root debian", "root other", "root debian: libcuda is not the driver's"),
            ("driver /lib64/", "driver /lib/", "root rhel-like: libcuda is not"),
            ("finds libnvidia-ml.so.1 driver", "finds libnvidia-ml.so.1 foreign", "libnvidia-ml"),
            ("rc 6", preload, "cannot be loaded"),
            ("rc 6", "rc 18", "nvidia-smi does not answer"),
            ("Error relocating", "Loaded", "root musl: the loader reports no error"),
        ];
        for (from, to, reason) in cases {
            let mut records = Records::default();
            let lines = good().replacen(from, to, 1).lines().map(str::to_owned).collect();
            records.sections.insert(Consumer::PodmanRoots.section(), lines);
            let wrong = wrong(Consumer::PodmanRoots, &records).join("\n");
            assert_eq!(wrong.is_empty(), reason.is_empty(), "{wrong}");
            assert!(wrong.contains(reason), "{wrong}");
        }
    }
}
