//! `bundle` and `import`: everything a driver needs in one file, for hosts without a network.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use super::registry::secret_key;
use super::{fetched, print, release};
use crate::bundle::{self, Contents, Imported};
use crate::config::Config;
use crate::supplier::Provisioner;
use crate::terminal;
use longshore_core::failure::{ExitCode, Failure, FailureKind, OrFail};
use longshore_core::progress::Unit;
use longshore_core::store::Store;
use longshore_modules::signature::Trust;

/// Arguments of `bundle`.
#[derive(Debug, clap::Args)]
pub(super) struct Bundle {
    /// File to write, or - for standard output
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Kernel release as uname -r gives it; by default this host's (repeatable)
    #[arg(long = "kernel", value_name = "RELEASE", value_parser = release)]
    kernels: Vec<String>,
    /// Sign everything in the bundle with this key: a cosign.key, its password in COSIGN_PASSWORD
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
}

/// Arguments of `import`.
#[derive(Debug, clap::Args)]
pub(super) struct Import {
    /// File that `longshore bundle` wrote, or - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Import only if everything is signed with one of these keys, a cosign.pub (repeatable)
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,
}

pub(super) async fn bundle(
    provisioner: &Provisioner<'_>,
    asked: Bundle,
) -> Result<ExitCode, Failure> {
    let key = asked.sign_key.as_deref().map(secret_key).transpose()?;
    bundle::check_destination(&asked.out)?;
    let (sets, trees) =
        fetched(provisioner, &asked.kernels).await?.into_iter().unzip::<_, _, Vec<_>, Vec<_>>();
    let trees: Vec<_> = trees.into_iter().flatten().collect();
    let store = provisioner.store()?;
    let progress = terminal::progress();
    let out = asked.out.clone();
    let write = move || -> Result<Contents, Failure> {
        let contents = Contents::collect(&sets, &trees, key.as_ref(), &store)?;
        let what = format!("bundling into {}", out.display());
        let task = progress.begin(&what, Some(contents.size()), Unit::Bytes);
        bundle::write(&contents, &out, store.disk(), task.as_ref())?;
        Ok(contents)
    };
    let contents = tokio::task::spawn_blocking(write)
        .await
        .or_fail(FailureKind::Bug, || "writing a bundle")??;
    // The bundle itself may go to standard output.
    if asked.out != Path::new("-") {
        for (tag, digest) in contents.entries() {
            print(&format!("{}:{tag}@{digest}\n", asked.out.display()))?;
        }
    }
    Ok(ExitCode::Done)
}

pub(super) async fn import(config: &Config, asked: Import) -> Result<ExitCode, Failure> {
    let trusts =
        [config.signatures.trust()?, Trust::read(!asked.keys.is_empty(), &asked.keys, &[])?];
    let store = Store::open(&config.paths.store, config.disk())?;
    let _shared = store.lock_shared(config.deadlines.lock).await?;
    let waiting = Arc::new(());
    let caller = Arc::downgrade(&waiting);
    let progress = terminal::progress();
    let read = move || -> Result<Imported, Failure> {
        let (from, name, size) = open(&asked.file)?;
        let task = progress.begin(&format!("importing {name}"), size, Unit::Bytes);
        let mut from = WhileWanted { inner: from, caller };
        bundle::import(&mut from, &name, &store, &trusts, task.as_ref())
    };
    let imported = tokio::task::spawn_blocking(read)
        .await
        .or_fail(FailureKind::Bug, || "importing a bundle")??;
    drop(waiting);
    for set in &imported.sets {
        let key = &set.key;
        print(&format!(
            "driver {} ({}) for {} ({}): {} modules, set {}\n",
            key.driver_version,
            key.flavour,
            key.kernel_release,
            key.kernel_build().unwrap_or("build not known"),
            set.modules.len(),
            key.file_stem()
        ))?;
    }
    for tree in &imported.trees {
        print(&format!(
            "driver {}: user-mode tree {}\n",
            tree.driver_version,
            tree.root.display()
        ))?;
    }
    Ok(ExitCode::Done)
}

/// Source of a bundle: reader, name in messages, and size where known.
type Source = (Box<dyn Read>, String, Option<u64>);

fn open(path: &Path) -> Result<Source, Failure> {
    if path == Path::new("-") {
        return Ok((Box::new(io::stdin().lock()), "standard input".to_owned(), None));
    }
    let name = path.display().to_string();
    let what = || format!("opening the bundle {name}");
    let remedy = "give a file that `longshore bundle` wrote";
    let file = File::open(path).or_fail(FailureKind::Usage, what);
    let file = file.map_err(|failure| failure.remedy(remedy))?;
    let found = file.metadata().or_fail(FailureKind::Usage, what)?;
    if found.is_dir() {
        return Err(Failure::new(FailureKind::Usage, format!("{name} is a directory")).remedy(
            "name a file of `longshore bundle --out`; for a directory there is --prebuilt",
        ));
    }
    let size = found.is_file().then_some(found.len());
    Ok((Box::new(file), name, size))
}

/// Reader that fails once its command was stopped, so that the reading thread ends at once.
struct WhileWanted {
    inner: Box<dyn Read>,
    caller: Weak<()>,
}

impl Read for WhileWanted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.caller.strong_count() == 0 {
            return Err(io::Error::other("the command was stopped"));
        }
        self.inner.read(buffer)
    }
}
