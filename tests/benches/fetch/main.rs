//! Benchmark of fetching, verifying and unpacking a kernel's headers and compiler: longshore
//! against curl, sha256sum and dpkg-deb, from one server, alternating. docs/internals/benchmarks.md describes
//! the comparison.

#![allow(clippy::print_stdout, reason = "a benchmark's table is what it is for")]

mod packages;
mod rivals;
mod server;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use longshore_build::root;
use longshore_core::failure::Failure;
use longshore_core::progress::Silent;
use longshore_core::store::Store;
use longshore_debian::archive::{Archive, Requirement};
use longshore_debian::compression;
use longshore_fetch::http;
use longshore_tests::archive::{self, Suite};
use longshore_tests::scene::disk;

use rivals::{Rival, Wanted};
use server::{Line, Server};
use table::Row;

#[derive(Parser)]
struct Arguments {
    /// Number of rounds, in each of which every contestant runs once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of delay before each answer, in the second part.
    #[arg(long, default_value_t = 30)]
    latency: u64,
    /// KiB per second and connection, in the second part.
    #[arg(long, default_value_t = 4096)]
    rate: u64,
    /// Directory of the packages, kept from run to run.
    #[arg(long)]
    packages: PathBuf,
    /// Directory that they are unpacked in; in memory, so as not to measure a disk.
    #[arg(long)]
    dir: PathBuf,
    /// Download and decompress in this process, and not in others without rights as longshore does.
    #[arg(long)]
    in_process: bool,
    /// Flag that cargo bench adds.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == compression::SUBCOMMAND) {
        let status = compression::decompress_main(std::env::args_os().skip(1));
        std::process::exit(status.into());
    }
    if std::env::args_os().nth(1).is_some_and(|argument| argument == http::SUBCOMMAND) {
        let status = http::fetch_main(std::env::args_os().skip(1));
        std::process::exit(status.into());
    }
    let arguments = Arguments::parse();
    if !arguments.in_process {
        compression::decompress_by("/proc/self/exe");
        http::fetch_by("/proc/self/exe");
    }
    if let Err(failure) = run(&arguments) {
        println!("{}", failure.report());
        std::process::exit(failure.code().number().into());
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    fs::create_dir_all(&arguments.dir).expect("the directory");
    let suite = packages::suite(&runtime, &arguments.packages)?;
    let bytes: usize = suite.packages.iter().map(|(_, deb)| deb.len()).sum();
    println!("{} packages, {} MB", suite.packages.len(), bytes / 1_000_000);
    let Arguments { latency, rate, .. } = *arguments;
    let slow = Line { latency: Duration::from_millis(latency), bytes_per_second: rate << 10 };
    println!("\nwith {latency} ms before each answer and {rate} KiB/s for each connection:");
    let ratio = compare(arguments, &runtime, &suite, slow)?;
    println!("\nslow-fetch ratio {ratio:.2}");
    println!("\nfrom memory over loopback:");
    let ratio = compare(arguments, &runtime, &suite, Line::default())?;
    println!("\nfetch ratio {ratio:.2}");
    Ok(())
}

/// Runs all contestants in rounds, prints the table, and returns our time over the better of
/// theirs.
fn compare(
    arguments: &Arguments,
    runtime: &tokio::runtime::Runtime,
    suite: &Suite,
    line: Line,
) -> Result<f64, Failure> {
    let key = archive::key();
    let server = Server::start(suite.files(&key), line);
    let keyring = arguments.dir.join("keyring.asc");
    fs::write(&keyring, archive::certificate(&key)).expect("keyring");
    let wanted: Vec<Wanted> = (0..suite.packages.len())
        .map(|at| Wanted {
            url: format!("{}{}", server.url(), suite.pool(at)),
            sha256: archive::digest(&suite.packages[at].1),
        })
        .collect();
    let rivals = [Rival::OneByOne, Rival::AtATime(6), Rival::OneCurl(6)];
    let mut rows = vec![Row::new("longshore")];
    rows.extend(rivals.iter().map(|rival| Row::new(&rival.name())));
    for _ in 0..arguments.rounds {
        let work = arguments.dir.join("work");
        let fresh = || {
            let _ = fs::remove_dir_all(&work);
            fs::create_dir_all(&work).expect("a directory");
            // The next run must not wait for writes of the last one.
            let dir = fs::File::open(&work).expect("a directory");
            nix::unistd::syncfs(dir).expect("synced");
            Instant::now()
        };
        let since = fresh();
        runtime.block_on(ours(&server.url(), suite, &keyring, &work))?;
        rows[0].times.push(since.elapsed());
        for (rival, row) in rivals.iter().zip(&mut rows[1..]) {
            let since = fresh();
            rival.run(&wanted, &work);
            row.times.push(since.elapsed());
        }
        let _ = fs::remove_dir_all(&work);
    }
    println!("{}", table::table(&rows));
    let best = rows[1..].iter().map(Row::median).min().expect("rivals");
    Ok(rows[0].median().as_secs_f64() / best.as_secs_f64())
}

/// Makes a build root of all packages as a build would: from the signed index on.
async fn ours(url: &str, suite: &Suite, keyring: &Path, work: &Path) -> Result<(), Failure> {
    let config = archive::config(url, &suite.name, &suite.component, keyring);
    let store = Store::open(&work.join("store"), disk())?;
    let archive = Archive::open(&config, Path::new("/"), &store, &Silent).await?;
    let names = archive.names_matching(&|_| true);
    let roots: Vec<Requirement> = names.iter().map(Requirement::any).collect();
    let packages = archive.closure(&roots)?;
    root::assemble(&packages, longshore_build::LIMIT, &archive, &store, &Silent).await?;
    Ok(())
}
