//! Checks of the store, quick ones: descriptions and names, no digests.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;

use super::{Checked, Input, found_or, passed};
use crate::config::StorePlace;
use longshore_build as build;
use longshore_core::finding::{Code, Finding};
use longshore_core::store::Store;
use longshore_modules::artifact::ModuleSet;

pub(super) fn store(input: &Input<'_>) -> Checked {
    let config = input.look.config;
    let path = config.paths.store.display();
    let store = input.look.store();
    let through = match config.store_place {
        StorePlace::ToAttach => " (the host's, which `run` attaches through process 1)",
        StorePlace::Attached => " (the host's, attached through process 1)",
        StorePlace::AsItIs | StorePlace::InContainer(_) => "",
    };
    match fs::read_dir(store.root()) {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return passed(format!("{path}{through} does not exist yet; `run` makes it"));
        }
        Err(e) => {
            let finding = Finding::refusal(Code::StoreUnusable, format!("{path}: {e}"));
            return Checked::Found(vec![finding]);
        }
    }
    let (whole, damaged) = sets(&store);
    let found = (!damaged.is_empty()).then(|| {
        let names: Vec<String> = damaged.iter().map(|p| p.display().to_string()).collect();
        let detail = format!("not readable, or with modules missing: {}", names.join(", "));
        Finding::warning(Code::StoreDamaged, detail)
    });
    found_or(found, || format!("{path}{through} has {whole} sets of modules"))
}

pub(super) fn failed_compiles(input: &Input<'_>) -> Checked {
    let failed = build::failed_before(&input.look.store());
    let found = (!failed.is_empty())
        .then(|| Finding::warning(Code::CompileFailedBefore, failed.join("; ")));
    found_or(found, || "none that delays a retry".to_owned())
}

/// Counts the sets that are complete, as far as names tell, and lists the others.
fn sets(store: &Store) -> (usize, Vec<PathBuf>) {
    let mut paths: Vec<PathBuf> = match fs::read_dir(store.dir("sets")) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        // The store is being created.
        Err(_) => return (0, Vec::new()),
    };
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    paths.sort();
    let is_whole = |path: &PathBuf| {
        let set =
            fs::read(path).ok().and_then(|text| serde_json::from_slice::<ModuleSet>(&text).ok());
        set.is_some_and(|set| set.modules.iter().all(|module| store.has_blob(&module.sha256)))
    };
    let (whole, damaged): (Vec<PathBuf>, Vec<PathBuf>) = paths.into_iter().partition(is_whole);
    (whole.len(), damaged)
}
