//! Plans of every captured tree, as text and JSON, over the same catalog.

use super::*;
use crate::kept::{assert_kept, assert_narrow, trees};

#[test]
fn every_tree_gives_its_plan() {
    for tree in trees() {
        let facts = facts(&tree);
        let plan = plan(&judging("535", "auto"), &facts, &archives()).unwrap();
        let text = super::super::render(
            &plan,
            &facts,
            View { form: Form::PLAIN, steps: false, table: built_in() },
        );
        assert_narrow(&text);
        assert_kept(&format!("plan/reports/{tree}.txt"), &text);
        let json = serde_json::to_string_pretty(&plan).unwrap();
        assert_kept(&format!("plan/reports/{tree}.json"), &format!("{json}\n"));
    }
}

#[test]
fn the_steps_of_a_refused_plan_are_listed_on_request() {
    let facts = facts("bookworm-secure-boot");
    let plan = plan(&judging("535", "auto"), &facts, &archives()).unwrap();
    let text = |steps| {
        super::super::render(&plan, &facts, View { form: Form::PLAIN, steps, table: built_in() })
    };
    assert!(plan.refusal().is_some() && text(false).contains("steps (--steps lists them)\n"));
    assert!(!text(false).contains("Then on the host"));
    assert!(text(true).contains("\nThen on the host (not done: refused)\n   1. "));
    assert!(!text(true).contains("--steps"));
}
