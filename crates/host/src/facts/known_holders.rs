//! Usual users of a driver, and how to stop them.

/// Modules that depend on the driver's: name, description and remedy.
const MODULES: [(&str, &str); 9] = [
    ("gdrdrv", "GDRCopy's driver: unload it once no RDMA job runs, modprobe -r gdrdrv"),
    ("nvidia_fs", "GPUDirect Storage: unload it with what loaded it, modprobe -r nvidia-fs"),
    ("nvidia_peermem", "GPUDirect RDMA: modprobe -r nvidia-peermem once no RDMA job runs"),
    ("nv_peer_mem", "GPUDirect RDMA, the older one: modprobe -r nv_peer_mem"),
    ("nvidia_drm", "display and DRM clients: stop the display's users, modprobe -r nvidia-drm"),
    ("nvidia_modeset", "display: modprobe -r nvidia-modeset"),
    ("nvidia_uvm", "CUDA: modprobe -r nvidia-uvm once no CUDA program runs"),
    ("nvidia_vgpu_vfio", "vGPU: stop the virtual machines that have one"),
    ("nvidia_cspmu", "performance counters: modprobe -r nvidia_cspmu"),
];

/// Programs, by name; /proc/PID/comm truncates names to 15 bytes.
const PROGRAMS: [(&str, &str); 13] = [
    (
        "nvidia-persistenced",
        "a persistence daemon that is not ours: systemctl stop nvidia-persistenced, or stop the \
         container it is in",
    ),
    ("nv-fabricmanager", "a fabric manager that is not ours: systemctl stop nvidia-fabricmanager"),
    ("nv-hostengine", "DCGM: stop nvidia-dcgm, or the dcgm pod of this node"),
    ("dcgm-exporter", "GPU metrics: remove the dcgm-exporter pod from this node"),
    ("nvidia-device-plugin", "the device plugin: remove its pod from this node"),
    ("gpu-feature-discovery", "labels of the node: remove its pod from this node"),
    ("nvidia-mig-manager", "MIG: remove its pod from this node"),
    ("nvidia-cuda-mps-server", "MPS: echo quit | nvidia-cuda-mps-control"),
    ("nvidia-cuda-mps-control", "MPS: echo quit | nvidia-cuda-mps-control"),
    ("nvidia-imex", "IMEX: systemctl stop nvidia-imex"),
    ("Xorg", "a display server: stop the display manager"),
    ("gnome-shell", "a display server: stop the display manager"),
    ("nvidia-powerd", "power management: systemctl stop nvidia-powerd"),
];

/// Length of a command's name in the kernel (include/linux/sched.h, TASK_COMM_LEN - 1).
const COMM: usize = 15;

/// Returns a module's description, and how to unload it.
pub(crate) fn module(name: &str) -> Option<&'static str> {
    MODULES.iter().find(|(known, _)| *known == name).map(|(_, what)| *what)
}

/// Returns a program's description, and how to stop it.
pub(crate) fn program(comm: &str) -> Option<&'static str> {
    let cut = |name: &'static str| name.get(..COMM).unwrap_or(name);
    PROGRAMS.iter().find(|(known, _)| cut(known) == comm).map(|(_, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_as_the_kernel_cuts_them() {
        assert!(program("nvidia-persiste").is_some_and(|what| what.contains("not ours")));
        assert!(program("nv-hostengine").is_some());
        assert_eq!(program("nvidia-persistenced"), None, "no comm is as long");
        assert_eq!(program("python3"), None);
        assert!(module("gdrdrv").is_some() && module("ext4").is_none());
    }

    /// Two names that are truncated to the same could not be told apart.
    #[test]
    fn no_two_programs_with_different_words_are_cut_to_the_same_name() {
        for (name, what) in PROGRAMS {
            let cut = name.get(..COMM).unwrap_or(name);
            assert_eq!(program(cut).map(|w| w.get(..3)), Some(what.get(..3)), "{name}");
        }
    }
}
