//! `push`.

use std::path::PathBuf;

use kernel_matrix::ending::Ending;
use kernel_matrix::push::published::Target;
use kernel_matrix::push::{self, Outcome, Passed, Push, Signer};
use kernel_matrix::results::Line;
use kernel_matrix::reuse;
use longshore_core::image_reference::Reference;
use longshore_lab::cell::supply::Supply;
use longshore_lab::host::cache::Cache;
use longshore_lab::host::error::Error;

use super::{SealKey, longshore};
use crate::print;

/// Number of failures in a row after which the registry is given up.
const MOST_FAILURES: usize = 5;

/// Options of `push`.
#[derive(Debug, clap::Args)]
pub(crate) struct PushOptions {
    /// Results of a run, or of every shard of it.
    #[arg(required = true)]
    results: Vec<PathBuf>,
    /// Repository that the sets are pushed to: HOST/REPOSITORY.
    #[arg(long, value_name = "REFERENCE")]
    to: Reference,
    /// Sign the sets with this key: a cosign.key, its password in COSIGN_PASSWORD.
    #[arg(long, value_name = "FILE")]
    sign_key: Option<PathBuf>,
    /// Attest provenance and contents of the sets, as `longshore push --attest` does, and the test result of those that
    /// cells booted and passed with.
    #[arg(long, requires = "sign_key")]
    attest: bool,
    #[command(flatten)]
    seal_key: SealKey,
    /// longshore program; by default that of `cargo build --release` in this checkout.
    #[arg(long, value_name = "FILE")]
    longshore: Option<PathBuf>,
}

/// Pushes the sets of all cells that passed. True if the registry has every one of them.
pub(crate) fn push(options: &PushOptions, ending: &Ending) -> Result<bool, Error> {
    let cache = Cache::of_user()?;
    let key = options.seal_key.read(&cache)?;
    let read = options.results.iter().map(|path| Ok(reuse::read(path, &key, false)?.0));
    let (sets, unnamed) = push::passed(&read.collect::<Result<Vec<_>, Error>>()?);
    let program = longshore(options.longshore.as_deref())?;
    let push = Push {
        target: Target::from_reference(&program, &options.to)?,
        store: &cache.dir(Supply::Archive.store()),
        signer: options.sign_key.as_deref().map(Signer::from_key_file).transpose()?,
        attests: options.attest,
    };
    let mut done = Summary { failed: unnamed, ..Summary::default() };
    for passed in &sets {
        if ending.signal().is_some() || done.in_a_row == MOST_FAILURES {
            done.left += 1;
            continue;
        }
        let outcome = push.push(passed);
        if ending.signal().is_some() {
            done.left += 1;
            continue;
        }
        done.add(passed, outcome);
    }
    print(&done.text());
    Ok(done.failed.is_empty() && done.left == 0)
}

/// Outcomes of all sets.
#[derive(Debug, Default)]
struct Summary {
    pushed: usize,
    there: usize,
    failed: Vec<(Line, String)>,
    /// Sets that were not tried.
    left: usize,
    in_a_row: usize,
}

impl Summary {
    fn add(&mut self, passed: &Passed, outcome: Outcome) {
        self.in_a_row = if matches!(outcome, Outcome::Failed(_)) { self.in_a_row + 1 } else { 0 };
        let said = match outcome {
            Outcome::Pushed => {
                self.pushed += 1;
                "pushed".to_owned()
            }
            Outcome::There => {
                self.there += 1;
                "there already".to_owned()
            }
            Outcome::Failed(why) => {
                let said = format!("FAILED: {why}");
                self.failed.push((passed.name.clone(), why));
                said
            }
        };
        print(&format!("{:48} {}", passed.name, Line::new(&said)));
    }

    fn text(&self) -> String {
        let Self { pushed, there, failed, left, in_a_row } = self;
        let count = pushed + there + failed.len() + left;
        let mut text = format!(
            "{count} sets: {pushed} pushed, {there} there already, {} failed, {left} not tried",
            failed.len()
        );
        for (name, why) in failed {
            text.push_str(&format!("\nnot pushed: {name}: {}", Line::new(why)));
        }
        if *left > 0 && *in_a_row == MOST_FAILURES {
            text.push_str(&format!(
                "\n{MOST_FAILURES} sets failed one after the other: put the registry right, and push again"
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_names_every_failure() {
        let failed = vec![(Line::new("a"), "500".to_owned()), (Line::new("b"), "401\n".to_owned())];
        let done = Summary { pushed: 1, there: 2, failed, left: 3, in_a_row: MOST_FAILURES };
        let text = done.text();
        assert!(text.starts_with("8 sets: 1 pushed, 2 there already, 2 failed, 3 not tried\n"));
        for line in ["not pushed: a: 500", "not pushed: b: 401\\n", "put the registry right"] {
            assert!(text.contains(line), "{text}");
        }
    }
}
