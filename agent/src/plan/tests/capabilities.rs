//! Capabilities that preflight asks for.

use super::*;
use longshore_core::privileges::NEEDS;

#[test]
fn what_preflight_asks_for_is_what_is_required() {
    let required = NEEDS.iter().filter(|need| need.required).map(|need| need.name);
    let mut required: Vec<&str> = required.collect();
    let mut asked = NEEDED.to_vec();
    required.sort_unstable();
    asked.sort_unstable();
    assert_eq!(required, asked);
}
