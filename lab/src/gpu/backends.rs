//! All backends of the simulated GPU.

use super::backend::Backend;
use super::proxy::Proxy;
use super::vfio_user::VfioUser;

/// All backends, the preferred one first.
pub(crate) const BACKENDS: [&dyn Backend; 2] = [&VfioUser, &Proxy];

/// Returns the backend of that name.
///
/// # Errors
/// There is none; the text has the names.
pub(crate) fn named(name: &str) -> Result<&'static dyn Backend, String> {
    let names = BACKENDS.map(Backend::name).join(" or ");
    let found = BACKENDS.into_iter().find(|backend| backend.name() == name);
    found.ok_or_else(|| format!("no backend `{name}`: {names}"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;
    use crate::gpu::device::Device;
    use crate::gpu::qemu_version::Version;
    use crate::gpu::sockets::Sockets;

    const BAR0: u64 = 0xfb00_0000;

    /// QEMU's side of a backend: accesses of four bytes to configuration space and BAR0.
    trait Client {
        fn config_read(&mut self, address: u32) -> u32;
        fn config_write(&mut self, address: u32, value: u32);
        fn register(&mut self, offset: u64) -> u32;
    }

    /// Sends a message, and returns the last four bytes of a reply of `len` bytes.
    fn exchange(stream: &mut UnixStream, message: &[Vec<u8>], len: usize) -> u32 {
        stream.write_all(&message.concat()).unwrap();
        let mut reply = vec![0; len];
        stream.read_exact(&mut reply).unwrap();
        u32::from_le_bytes(*reply.last_chunk().unwrap())
    }

    fn words(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    struct OfProxy(UnixStream);

    impl OfProxy {
        /// A reply is a header and a u64, whose lower half comes first.
        fn ask(&mut self, command: u32, payload: &[u32]) -> u32 {
            let size = u32::try_from(4 * payload.len()).unwrap();
            let message = [words(&[command, 0, size, 0]), words(payload)];
            let low = exchange(&mut self.0, &message, 20);
            self.0.read_exact(&mut [0; 4]).unwrap();
            low
        }
    }

    impl Client for OfProxy {
        fn config_read(&mut self, address: u32) -> u32 {
            self.ask(3, &[address, 0, 4])
        }
        fn config_write(&mut self, address: u32, value: u32) {
            self.ask(2, &[address, value, 4]);
        }
        fn register(&mut self, offset: u64) -> u32 {
            let address = u32::try_from(BAR0 + offset).unwrap();
            self.ask(5, &[address, 0, 0, 0, 4, 1])
        }
    }

    struct OfVfioUser(UnixStream);

    impl OfVfioUser {
        fn ask(&mut self, command: u32, region: u32, offset: u64, value: &[u32]) -> u32 {
            let size = 32 + 4 * u32::try_from(value.len()).unwrap();
            let place = [offset.to_le_bytes().to_vec(), words(&[region, 4]), words(value)].concat();
            let reply = if value.is_empty() { 36 } else { 32 };
            exchange(&mut self.0, &[words(&[command << 16, size, 0, 0]), place], reply)
        }
    }

    impl Client for OfVfioUser {
        fn config_read(&mut self, address: u32) -> u32 {
            self.ask(9, 7, address.into(), &[])
        }
        fn config_write(&mut self, address: u32, value: u32) {
            self.ask(10, 7, address.into(), &[value]);
        }
        fn register(&mut self, offset: u64) -> u32 {
            self.ask(9, 0, offset, &[])
        }
    }

    /// Returns all that a guest finds: the sizes of the BARs, configuration space, and the registers.
    fn found(client: &mut dyn Client) -> Vec<u32> {
        let bars = [0x10, 0x14, 0x18, 0x1c, 0x20, 0x24, 0x30];
        let mut found = Vec::new();
        for bar in bars {
            client.config_write(bar, u32::MAX);
            found.push(client.config_read(bar));
        }
        for (bar, base) in bars.into_iter().zip([0xfb00_0000, 0xd000_0000, 0xf800_0000]) {
            client.config_write(bar, base);
        }
        client.config_write(0x04, 0x0000_0406);
        client.config_write(0x3c, 11);
        found.extend((0..256).step_by(4).map(|address| client.config_read(address)));
        found.extend((0..0x1000).step_by(4).map(|offset| client.register(offset)));
        found
    }

    #[test]
    fn a_guest_finds_the_same_device_behind_each_backend() {
        for spec in ["t4", "t4:off-bus", "t4:no-irq", "h100", "k80"] {
            let device = Device::new(spec.parse().unwrap(), false);
            let mut sockets = Sockets::default();
            let proxy = Proxy.attach(device.clone(), &mut sockets).unwrap();
            let vfio_user = VfioUser.attach(device, &mut sockets).unwrap();
            let argument: serde_json::Value = serde_json::from_str(&vfio_user.argument).unwrap();
            let path = argument["socket"]["path"].as_str().unwrap().to_owned();
            thread::spawn(proxy.serve);
            thread::spawn(vfio_user.serve);
            let end = sockets.into_mappings().remove(0).parent_fd;
            let of_proxy = found(&mut OfProxy(end.into()));
            let of_vfio_user = found(&mut OfVfioUser(UnixStream::connect(path).unwrap()));
            assert_eq!(of_proxy, of_vfio_user, "{spec}");
            assert_eq!(of_proxy[0], 0xff00_0000, "{spec}: the size of BAR0");
        }
    }

    #[test]
    fn each_backend_has_a_name_and_no_other_text_is_one() {
        for backend in BACKENDS {
            assert_eq!(named(backend.name()).unwrap().model(), backend.model());
        }
        let refusal = named("x-remote").unwrap_err();
        assert!(refusal.contains("x-remote") && refusal.contains("vfio-user or proxy"));
    }

    #[test]
    fn a_version_is_of_a_backend_by_what_was_seen() {
        for (version, backends) in [
            ([7, 2, 22], vec!["proxy"]),
            ([10, 0, 13], vec![]),
            ([10, 1, 0], vec!["vfio-user"]),
            ([11, 1, 3], vec!["vfio-user"]),
        ] {
            let runs = BACKENDS.into_iter().filter(|b| b.runs_in(Version(version)));
            assert_eq!(runs.map(Backend::name).collect::<Vec<_>>(), backends, "{version:?}");
        }
    }
}
