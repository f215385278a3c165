//! Boots real kernels with a simulated NVIDIA GPU and runs the longshore image in them.
//!
//! matrix.toml ([`matrix`]) declares the cells. The [`workbench`] makes their files: [`kernel`],
//! [`rootfs`], the agent's [`image`] and its store ([`seed`]), all kept in the [`cache`]; a
//! [`delivery`] is a guest's source of the driver. A [`cell`] boots a [`vm`] in a [`qemu`] whose
//! devices are a [`gpu`] behind a backend that this QEMU has; the guest's scripts (guest/) only report [`records`],
//! a [`transcript`] keeps them within bounds, and [`judge`] decides from these alone. [`trials`] judges agents that
//! are killed repeatedly,
//! [`upgrade`] the change from one driver to another. [`secure_boot`] makes guests whose kernel
//! requires signed modules. Progress is a stream of [`event`]s; [`show`] and [`report`] consume
//! them. [`results`] are a whole matrix as a file, and [`matrix_report`] is its page for people.
//!
//! rules.toml ([`rules`]) declares the matrix of kernels and drivers. [`rules::resolve`] looks each of them up
//! in the archives for a [`rules::lock`] file, [`rules::filter`] selects cells, [`build_run`] compiles them, and
//! [`boot_run`] boots those that have a scenario. Each verdict goes to the [`build_run::log`] at once, and all of
//! them to [`build_run::results`] in the end. Outcomes of earlier runs stand for cells of the same key ([`reuse`]);
//! [`push`] fills a registry with the sets that passed, and [`published`] finds them there.

pub mod apt;
pub mod attacked;
pub mod bad_input;
pub mod bits;
pub mod boot_run;
pub mod bounded_output;
pub mod build_run;
pub mod cache;
pub mod capture;
pub mod cdi;
pub mod cell;
pub mod checkout;
pub mod checks;
pub mod cluster;
pub mod cluster_upgrade;
pub mod compile;
pub mod confinement;
pub mod console;
pub mod cpio;
pub mod dead_disk;
pub mod delivery;
pub mod deployed;
pub mod disk;
pub mod drm;
pub mod ending;
pub mod error;
pub mod event;
pub mod gates;
pub mod gpu;
pub mod guest;
pub mod guests;
pub mod heartbeat;
pub mod hot_plug;
pub mod identity;
pub mod ima;
pub mod image;
pub mod in_use;
pub mod initramfs;
pub mod judge;
pub mod kernel;
mod manifest;
pub mod matrix;
pub mod matrix_report;
pub mod next_kernel;
pub mod nouveau;
pub mod operator;
pub mod operator_pod;
pub mod peermem;
pub mod platform;
pub mod power;
pub mod process;
pub mod published;
pub mod push;
pub mod qemu;
pub mod records;
pub mod registry;
pub mod relay;
pub mod reload;
pub mod report;
pub mod rest;
pub mod restored;
pub mod results;
pub mod reuse;
pub mod rootfs;
pub mod roots;
pub mod rules;
pub mod runfile;
pub mod said;
pub mod scene;
pub mod secure_boot;
pub mod seed;
pub mod selinux;
pub mod served;
pub mod shaped;
pub mod show;
pub mod sockets;
pub mod stand_in;
pub mod start_times;
mod tainted;
pub mod timing;
pub mod transcript;
pub mod trials;
pub mod upgrade;
pub mod vm;
pub mod warns;
pub mod workbench;
