//! A newer kernel that is installed on the host.

use super::*;
use crate::config::NextKernelMode::{self, Off, Prepare, Report};

const NEXT: &str = "6.1.0-51-amd64";

#[rstest]
#[case::none(&["6.1.0-50-amd64"], Prepare, false, None)]
#[case::newer(&[NEXT], Prepare, false, Some((false, true)))]
#[case::stored(&[NEXT], Prepare, true, Some((true, false)))]
#[case::only_reported(&[NEXT], Report, false, Some((false, false)))]
#[case::switched_off(&[NEXT], Off, false, None)]
fn a_newer_kernel_is_in_the_plan(
    #[case] installed: &[&str],
    #[case] mode: NextKernelMode,
    #[case] stored: bool,
    #[case] wanted: Option<(bool, bool)>,
) {
    let mut facts = facts("bookworm-t4");
    facts.installed_kernels = installed.iter().map(|release| (*release).to_owned()).collect();
    let mut config = config("535.261.03", "proprietary");
    config.next_kernel = Some(mode);
    let mut catalog = stocked(&facts, Flavour::Proprietary);
    if stored {
        let mut next = set(&facts, Flavour::Proprietary, SetPlace::store());
        next.set.key.kernel_release = NEXT.to_owned();
        catalog.sets.push(next);
    }
    let plan = plan(&config, &facts, &catalog).unwrap();
    let found = plan.next_kernel.as_ref().map(|next| (next.stored, next.prepares));
    assert_eq!(found, wanted);
    let line = "fetch or compile everything for kernel 6.1.0-51-amd64";
    let text = render(&plan, &facts);
    assert_eq!(text.contains(line), wanted == Some((false, true)), "{text}");
}
