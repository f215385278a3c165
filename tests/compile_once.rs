//! Compiles once in an existing build root:
//!
//! ```text
//! compile-once ROOT WORK STORE RELEASE JOBS [UID]
//! ```
//!
//! WORK holds the sources in `driver`. Exits with longshore's exit code and prints the error.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use longshore_build::BuildUser;
use longshore_build::compile::{Compile, kernel_dirs};
use longshore_build::sandbox::{INIT_SUBCOMMAND, SUBCOMMAND, sandbox_main};
use longshore_core::flavour::Flavour;
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_modules::artifact::HeadersFrom;
use longshore_tests::scene::disk;

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let stage = args.first().and_then(|a| a.to_str()).unwrap_or_default();
    if [SUBCOMMAND, INIT_SUBCOMMAND].contains(&stage) {
        return sandbox_main(args).into();
    }
    match compile(&args.iter().map(PathBuf::from).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            complain(&what);
            ExitCode::FAILURE
        }
    }
}

#[allow(clippy::print_stderr)]
fn complain(what: &str) {
    eprintln!("compile-once: {what}");
}

fn compile(args: &[PathBuf]) -> Result<(), String> {
    let [root, work, store, release, jobs, uid @ ..] = args else {
        return Err("needs five arguments".into());
    };
    let uid = uid.first().and_then(|uid| uid.to_str()).map(BuildUser::from_str).transpose();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let store = Store::open(store, disk()).map_err(|f| f.report())?;
    let release = release.to_str().unwrap_or_default();
    let kernel_dirs = kernel_dirs(root, release).map_err(|f| f.report())?;
    let compile = Compile {
        store: &store,
        helper: Path::new("/proc/self/exe"),
        root,
        kernel_dirs: &kernel_dirs,
        has_many_kernels: false,
        work,
        held: None,
        user: uid.map_err(|e| e.to_string())?.unwrap_or_default(),
        headers_from: HeadersFrom::Archive,
        driver: "535.261.03",
        flavour: Flavour::Open,
        release,
        compiler: None,
        modules: &["nvidia"],
        options: &[],
        jobs: jobs.to_str().and_then(|n| n.parse().ok()).ok_or("no number of jobs")?,
        limit: Duration::from_secs(300),
        log: &store.dir("logs").join("log"),
    };
    let run = runtime.map_err(|e| e.to_string())?.block_on(compile.run(&Silent));
    run.map(drop).map_err(|failed| failed.failure.report())
}
