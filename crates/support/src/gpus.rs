//! GPUs by PCI device id: the list data/gpus.tsv, made by scripts/gpu-ids, and rows of files.

use std::collections::BTreeMap;

use longshore_core::driver_version::DriverVersion;
use longshore_core::failure::Failure;
use longshore_core::pci_id::parse_half;

use crate::fault::wrong;
use crate::rows::GpuRow;

/// GPU of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Name of its generation.
    pub generation: String,
    /// First driver, of those that were examined, whose list has it.
    pub first: Option<String>,
    /// Name for people.
    pub name: String,
}

/// GPUs by PCI device id.
pub(crate) type Gpus = BTreeMap<u16, Gpu>;

/// Parses lines of id, generation, first driver or `-`, and name, with tabs between them; `#` begins a comment.
///
/// # Errors
/// Exit code 2, naming the line: no id, another number of fields, or an id that is there twice.
pub(crate) fn parse(list: &str) -> Result<Gpus, Failure> {
    let mut gpus = Gpus::new();
    let lines = list.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    for (n, line) in lines {
        let at = || format!("line {} of the GPUs", n + 1);
        let fields: Vec<&str> = line.split('\t').collect();
        let [id, generation, first, name] = fields[..] else {
            return Err(wrong(format!("{}: {} fields in place of 4", at(), fields.len())));
        };
        let first = (first != "-").then(|| first.to_owned());
        let gpu = Gpu { generation: generation.to_owned(), first, name: name.to_owned() };
        insert(&mut gpus, id, gpu, &at())?;
    }
    Ok(gpus)
}

/// Returns the GPUs of a file's rows.
///
/// # Errors
/// Exit code 2: no id, or an id that is there twice, which could be of two generations.
pub(crate) fn of_rows(rows: Vec<GpuRow>) -> Result<Gpus, Failure> {
    let mut gpus = Gpus::new();
    for row in rows {
        let GpuRow { id, generation, first, name, .. } = row;
        insert(&mut gpus, &id, Gpu { generation, first, name }, &format!("gpu {id}"))?;
    }
    Ok(gpus)
}

fn insert(gpus: &mut Gpus, id: &str, gpu: Gpu, at: &str) -> Result<(), Failure> {
    let Some(device) = parse_half(id) else {
        return Err(wrong(format!("{at}: `{id}` is not a PCI device id such as 1eb8")));
    };
    if let Some(first) = &gpu.first
        && DriverVersion::parse(first).is_none()
    {
        return Err(wrong(format!("{at}: `{first}` is not a driver version")));
    }
    if let Some(other) = gpus.get(&device) {
        let both = if other.generation == gpu.generation { "twice" } else { "in two generations" };
        return Err(wrong(format!("{at}: id {id} is there {both}")));
    }
    gpus.insert(device, gpu);
    Ok(())
}
