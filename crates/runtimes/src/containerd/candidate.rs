//! A copy of a configuration with an edit in it, for `containerd config dump` to judge before the edit is made.

use std::path::{Path, PathBuf};

use toml_edit::{Array, DocumentMut, value};

use super::imports;
use super::layer::Layer;
use crate::distribution::{K0S_DROP_INS, Keeping};
use crate::files::{Files, Overlay};
use crate::verdict::Edit;

/// Returns the files of the copy in `dir`, the one to be read first: every import is an absolute path of the
/// copy, so that containerd reads them in the order of the originals.
///
/// # Errors
/// The reason why there is no copy.
pub fn candidate(
    files: &dyn Files,
    path: &Path,
    keeping: Keeping,
    edit: &Edit,
    dir: &Path,
) -> Result<Vec<(PathBuf, String)>, String> {
    let edited = Overlay { files, path: &edit.path, text: &edit.after };
    let layers = imports::load(&edited, path, keeping).map_err(|refusal| refusal.reason)?;
    let name = |index: usize| dir.join(format!("{index}.toml"));
    let mut made = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let mut document: DocumentMut = layer.text.parse().map_err(|error| format!("{error}"))?;
        let mut imports = Array::new();
        for import in layer.imports() {
            let found = imports::resolve(&edited, &layer.path, &import);
            for file in found.map_err(|refusal| refusal.reason)? {
                let at = layers.iter().position(|layer| layer.path == file);
                imports.extend(at.map(|at| name(at).to_string_lossy().into_owned()));
            }
        }
        if let (Keeping::K0s, 0) = (keeping, index) {
            // The imports that k0s adds at its start.
            let added = |layer: &Layer| layer.path.parent() == Some(Path::new(K0S_DROP_INS));
            let added = layers.iter().enumerate().filter(|(_, layer)| added(layer));
            imports.extend(added.map(|(at, _)| name(at).to_string_lossy().into_owned()));
        }
        if document.contains_key("imports") || !imports.is_empty() {
            document.insert("imports", value(imports));
        }
        made.push((name(index), document.to_string()));
    }
    Ok(made)
}
