//! Results of a run over other rules beside those of the report: other drivers or kernels, in the same table.
//!
//! The shards of one matrix have one lock file and one program ([`merge`](super::merge)); a run beside them has its own.

use super::merge::{Merged, by_version, unite};
use crate::results::{KernelAxis, Line};

/// Adds the cells of another run. A kernel of the same name in another version is another row.
///
/// # Errors
/// Both are of the same run, or have a cell or a driver of the same name.
pub(crate) fn add(merged: &mut Merged, mut other: Merged, file: &str) -> Result<(), String> {
    let is_same = |run: &&crate::results::Run| merged.runs.iter().any(|own| own.nonce == run.nonce);
    if let Some(run) = other.runs.iter().find(is_same) {
        return Err(format!("{file} is of run {}, which is in the report already", run.id));
    }
    let has_cell = |name: &Line| merged.cells.iter().any(|own| own.planned.name == *name);
    if let Some(cell) = other.cells.iter().find(|cell| has_cell(&cell.planned.name)) {
        let name = &cell.planned.name;
        return Err(format!("cell {name} is in {file} and in other results of the report"));
    }
    for at in 0..other.kernels.len() {
        let kernel = &other.kernels[at];
        if merged.kernels.iter().any(|own| own.id == kernel.id && own != kernel) {
            rename(&mut other, at);
        }
    }
    unite(&mut merged.kernels, other.kernels, "kernel", |kernel| &kernel.id)?;
    unite(&mut merged.drivers, other.drivers, "driver", |driver| &driver.id)?;
    let new = other.excluded.into_iter().filter(|of| !merged.excluded.contains(of));
    let new: Vec<_> = new.collect();
    merged.excluded.extend(new);
    merged.cells.extend(other.cells);
    merged.runs.extend(other.runs);
    merged.problems.extend(other.problems.into_iter().map(|problem| format!("{file}: {problem}")));
    merged.notes.extend(other.notes);
    merged.kernels.sort_by(by_version);
    Ok(())
}

/// Names a kernel by its version, too.
fn rename(other: &mut Merged, at: usize) {
    let KernelAxis { id, release, version, .. } = &other.kernels[at];
    let version = [version, release].into_iter().find(|text| !text.is_empty());
    let (old, new) =
        (id.clone(), Line::new(&format!("{id} {}", version.map_or("-", Line::as_str))));
    for cell in other.cells.iter_mut().filter(|cell| cell.planned.kernel == old) {
        cell.planned.kernel = new.clone();
    }
    other.kernels[at].id = new;
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::super::merge::Source;
    use super::*;
    use crate::results::{Authenticity, Digest, Results, sample};

    fn merged(results: Results) -> Merged {
        let source = Source { file: "a".into(), results, authenticity: Authenticity::Sealed };
        Merged::merge(vec![source]).unwrap()
    }

    /// A run of a source tree for the kernels of the sample, by another program and lock file.
    fn tree() -> Results {
        let mut results = sample::results();
        results.run.nonce = "other".into();
        results.run.id = "20261129T023635Z-c6cea048".into();
        results.run.lock = Some(Digest::from_sha256(&[9; 32]));
        results.run.agent.program = results.run.lock.clone();
        results.drivers.truncate(1);
        results.planned.truncate(4);
        results.cells.truncate(4);
        let driver = &mut results.drivers[0];
        (driver.id, driver.branch, driver.flavour) =
            ("580.142-open".into(), "580.142".into(), "open".into());
        driver.revisions[0].package = "open-gpu-kernel-modules".into();
        driver.revisions[0].version = "580.142".into();
        driver.revisions[0].suite = "".into();
        for (planned, cell) in results.planned.iter_mut().zip(&mut results.cells) {
            planned.driver = "580.142-open".into();
            planned.name = Line::new(&format!("{}-580.142-open", planned.kernel));
            cell.name = planned.name.clone();
        }
        results
    }

    #[test]
    fn a_run_of_a_source_tree_stands_beside_one_of_packages() {
        let mut of_packages = merged(sample::results());
        add(&mut of_packages, merged(tree()), "tree.json").unwrap();
        assert_eq!((of_packages.kernels.len(), of_packages.drivers.len()), (4, 3));
        assert_eq!((of_packages.cells.len(), of_packages.runs.len()), (12, 2));
        assert_eq!(of_packages.grid().len(), 12);
        assert!(
            of_packages.drivers[2].is_source_tree() && !of_packages.drivers[0].is_source_tree()
        );
        assert_eq!(of_packages.problems, Vec::<String>::new());
    }

    #[test]
    fn a_kernel_in_another_version_is_another_row() {
        let mut of_packages = merged(sample::results());
        let mut newer = tree();
        newer.kernels[3].release = "7.3.5+deb13-amd64".into();
        newer.kernels[3].version = "7.3.5-1".into();
        add(&mut of_packages, merged(newer), "tree.json").unwrap();
        assert_eq!(of_packages.kernels.len(), 5);
        assert_eq!(of_packages.grid().len(), 12);
        let row =
            of_packages.kernels.iter().find(|kernel| kernel.release.as_str().contains("7.3.5"));
        let id = &row.unwrap().id;
        assert_eq!(id.as_str(), "trixie-backports-generic 7.3.5-1");
        assert!(of_packages.grid().contains_key(&(id, &"580.142-open".into())));
    }

    type Change = fn(&mut Results);

    #[rstest]
    #[case::run((|r| r.run.nonce = sample::results().run.nonce) as Change, "is of run 2026")]
    #[case::cell((|r| r.planned[0].name = sample::results().planned[0].name.clone()) as Change, "in tree.json and in")]
    #[case::driver((|r| r.drivers[0].id = "470-proprietary".into()) as Change, "driver 470-proprietary is not the same")]
    fn contradictions_are_refused(#[case] change: Change, #[case] says: &str) {
        let mut other = tree();
        change(&mut other);
        let error = add(&mut merged(sample::results()), merged(other), "tree.json").unwrap_err();
        assert!(error.contains(says), "{error}");
    }
}
