//! `build-root inspect`: kernels and compilers in a build root.

use std::fmt::Write;

use super::{print, print_json};
use crate::config::Config;
use crate::supplier::Provisioner;
use longshore_build::build_root::{BuildRootSource, Contents};
use longshore_core::failure::{ExitCode, Failure};

/// Arguments of `build-root`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum BuildRootCommand {
    /// Unpack a build root into the store, and list the kernels and compilers in it
    Inspect {
        /// Image (oci://HOST/REPOSITORY@sha256:...), directory, image layout or tar file; by default the
        /// configured one
        #[arg(value_name = "BUILD-ROOT")]
        place: Option<BuildRootSource>,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

pub(super) async fn build_root(
    config: &Config,
    asked: BuildRootCommand,
) -> Result<ExitCode, Failure> {
    let BuildRootCommand::Inspect { place, json } = asked;
    let mut config = config.clone();
    config.build_root = place.or(config.build_root);
    let contents = Provisioner::new(&config).inspect_build_root().await?;
    if json {
        print_json(&contents)?;
    } else {
        print(&render(&contents))?;
    }
    Ok(ExitCode::Done)
}

fn render(contents: &Contents) -> String {
    let mut text = format!("build root {} (sha256 {})\n", contents.place, contents.digest);
    // Writing to a string does not fail.
    let mut line = |args: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "  {args}");
    };
    if let Some(toolkit) = &contents.driver_toolkit {
        line(format_args!("{toolkit}, RHEL {}", toolkit.rhel_version));
    }
    if contents.kernels.is_empty() {
        line(format_args!("no kernel's headers"));
    }
    for kernel in &contents.kernels {
        line(format_args!("headers for {}", kernel.release));
        if let (Some(version), Some(compiler)) = (&kernel.version, &kernel.compiler) {
            line(format_args!("  of {version}, built with {compiler}"));
        }
        if let Some(why) = &kernel.unusable {
            line(format_args!("  unusable: {why}"));
        }
    }
    if contents.compilers.is_empty() {
        line(format_args!("no compiler that runs"));
    }
    for compiler in &contents.compilers {
        line(format_args!("compiler {}: {}", compiler.program, compiler.version));
    }
    if !contents.lacking.is_empty() {
        line(format_args!("lacks {}", contents.lacking.join(", ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use longshore_build::build_root::{Compiler, Kernel};

    #[test]
    fn contents_are_told_line_by_line() {
        let kernel = |release: &str, unusable: Option<&str>| Kernel {
            release: release.to_owned(),
            version: Some("#1 SMP".to_owned()),
            compiler: Some("gcc (GCC) 11.4.1".to_owned()),
            unusable: unusable.map(str::to_owned),
        };
        let contents = Contents {
            place: "/srv/root".to_owned(),
            digest: "a".repeat(64),
            kernels: vec![kernel("5.14.0-427.el9.x86_64", None), kernel("6.1", Some("other"))],
            compilers: vec![Compiler { program: "gcc".into(), version: "gcc (GCC) 11.4.1".into() }],
            driver_toolkit: None,
            lacking: vec!["make"],
        };
        let text = render(&contents);
        for line in [
            "  headers for 5.14.0-427.el9.x86_64\n    of #1 SMP, built with gcc (GCC) 11.4.1\n  headers",
            "    unusable: other\n  compiler gcc: gcc (GCC) 11.4.1\n",
            "  lacks make\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
        let empty = Contents { kernels: vec![], compilers: vec![], lacking: vec![], ..contents };
        let text = render(&empty);
        assert!(text.ends_with("  no kernel's headers\n  no compiler that runs\n"), "{text}");
    }
}
