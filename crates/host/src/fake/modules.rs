//! Modules of a simulated kernel.

use nix::errno::Errno;

use super::{FakeModule, Inner};
use crate::verbs::{Binding, Stage};

impl Inner {
    fn put(&mut self, name: &str, parameters: &str) {
        self.loadings += 1;
        self.state.instances.insert(name.to_owned(), self.loadings);
        self.state.loaded.insert(name.to_owned(), parameters.to_owned());
    }

    /// Binds a driver to each device that has none and may have it.
    fn probe(&mut self, driver: &str) {
        let free =
            |it: &&mut Binding| it.driver.is_none() && (it.only.is_empty() || it.only == driver);
        let drives = self.kernel.get(driver).is_some_and(|module| module.drives);
        for device in self.state.bindings.values_mut().filter(free).filter(|_| drives) {
            device.driver = Some(driver.to_owned());
        }
    }

    fn release(&mut self, driver: &str) {
        let is_bound = |it: &&mut Binding| it.driver.as_deref() == Some(driver);
        self.state.bindings.values_mut().filter(is_bound).for_each(|it| it.driver = None);
    }

    fn hang(&mut self, name: &str, module: &FakeModule, at: Stage) -> Result<(), Errno> {
        if module.hangs != Some(at) {
            return Ok(());
        }
        self.state.wedged.insert(name.to_owned(), at);
        Err(Errno::ETIMEDOUT)
    }

    /// Loads a module from its bytes, or from a file of them.
    pub(super) fn load(
        &mut self,
        name: &str,
        bytes: &[u8],
        is_file: bool,
        parameters: &str,
    ) -> Result<(), Errno> {
        let module = self.kernel.get(name).ok_or(Errno::ENOEXEC)?.clone();
        if is_file && let Some(errno) = self.no_files {
            return Err(errno);
        }
        if let Some(theirs) = self.rival_loads.remove(name) {
            self.put(name, &theirs);
        }
        if bytes != name.as_bytes() {
            return Err(Errno::ENOEXEC);
        }
        if let Some(errno) = module.refused {
            return Err(errno);
        }
        if self.state.loaded.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        if !module.depends.iter().all(|d| self.state.loaded.contains_key(d)) {
            return Err(Errno::ENOENT);
        }
        self.put(name, parameters);
        self.probe(name);
        self.hang(name, &module, Stage::Coming)
    }

    pub(super) fn unload(&mut self, name: &str) -> Result<(), Errno> {
        if !self.state.loaded.contains_key(name) {
            return Err(Errno::ENOENT);
        }
        if self.state.wedged.contains_key(name) {
            return Err(Errno::EBUSY);
        }
        if self.refcount(name) > 0 {
            return Err(Errno::EAGAIN);
        }
        if self.kernel.get(name).is_some_and(|module| module.permanent) {
            return Err(Errno::EBUSY);
        }
        if let Some(module) = self.kernel.get(name).cloned() {
            self.hang(name, &module, Stage::Going)?;
        }
        self.state.loaded.remove(name);
        self.state.instances.remove(name);
        self.release(name);
        Ok(())
    }
}
