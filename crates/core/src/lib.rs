//! Values and helpers of every other crate.
//!
//! Failures with their exit codes ([`failure`]) and findings about a host ([`finding`]); small values of drivers, their
//! sources and kernels ([`driver_version`], [`source_id`],
//! [`package_origin`], [`flavour`], [`machine`], [`kernel_id`], [`kernel_image`]);
//! careful reading and writing of files ([`root`], [`bounded_read`], [`ownership`], [`durable`], [`disk`], [`locks`]); capabilities
//! of threads ([`privileges`]), and the end of all rights ([`confinement`]); progress, and escaping of text from
//! elsewhere ([`progress`], [`sanitize`], [`redact`]). [`store`] is a private content-addressed directory, [`scratch`] its
//! locked temporary directories; their contents are not this crate's concern.

pub mod bounded_call;
pub mod bounded_read;
pub mod cancel;
pub mod confinement;
pub mod day;
pub mod deadlines;
pub mod digest;
pub mod disk;
pub mod driver_modules;
pub mod driver_version;
pub mod durable;
pub mod environment;
pub mod failure;
pub mod finding;
pub mod flavour;
pub mod image_reference;
pub mod kernel_id;
pub mod kernel_image;
pub mod locks;
pub mod machine;
pub mod module_dir;
pub mod module_parameters;
pub mod ownership;
pub mod package_origin;
pub mod paths;
pub mod pci_id;
pub mod privileges;
pub mod program_version;
pub mod progress;
pub mod read_ahead;
pub mod redact;
pub mod root;
pub mod sanitize;
pub mod scratch;
pub mod small_stacks;
pub mod source_id;
pub mod space;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod value;
