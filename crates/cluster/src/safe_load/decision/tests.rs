use rstest::rstest;

use super::*;
use crate::safe_load::holders_value;

const PACE: Pace = Pace {
    change: Duration::from_secs(60),
    again: Duration::from_secs(600),
    refused: Duration::from_secs(300),
};

fn node(request: Request) -> SafeLoadOnNode {
    SafeLoadOnNode { request, upgrades: true, skipped: false, failed: false }
}

fn own(name: &str) -> Request {
    Request::Own(holders_value(&[name.to_owned()]))
}

/// Desired value, node, and the decision: `set`, `remove`, or a state.
#[rstest]
#[case::asks(Some("a"), node(Request::None), Err("set"))]
#[case::asked(Some("a"), node(own("a")), Ok(Standing::Asked))]
#[case::other_users(Some("b"), node(own("a")), Err("set"))]
#[case::of_another(Some("a"), node(Request::Foreign), Ok(Standing::AskedByAnother))]
#[case::no_controller(Some("a"), SafeLoadOnNode { upgrades: false, ..node(Request::None) }, Ok(Standing::NoController))]
#[case::controller_gone(Some("a"), SafeLoadOnNode { upgrades: false, ..node(own("a")) }, Err("remove"))]
#[case::skipped(Some("a"), SafeLoadOnNode { skipped: true, ..node(Request::None) }, Ok(Standing::NodeSkipped))]
#[case::failed(Some("a"), SafeLoadOnNode { failed: true, ..node(own("a")) }, Err("remove"))]
#[case::failed_and_removed(Some("a"), SafeLoadOnNode { failed: true, ..node(Request::None) }, Ok(Standing::UpgradeFailed))]
#[case::leftover(None, node(own("a")), Err("remove"))]
#[case::leftover_without_a_controller(None, SafeLoadOnNode { upgrades: false, ..node(own("a")) }, Err("remove"))]
#[case::nothing(None, node(Request::None), Ok(Standing::NoRequest))]
#[case::foreign_stays(None, node(Request::Foreign), Ok(Standing::NoRequest))]
fn a_decision_follows_the_desired_value_and_the_node(
    #[case] desired: Option<&str>,
    #[case] seen: SafeLoadOnNode,
    #[case] wanted: Result<Standing, &str>,
) {
    let desired = desired.map(|name| Desired::Wanted(holders_value(&[name.to_owned()])));
    let action =
        Past::default().decide(&desired.unwrap_or(Desired::Nothing), &seen, &PACE, Instant::now());
    let found = match action {
        Action::Set(_) => Err("set"),
        Action::Remove => Err("remove"),
        Action::Stay(standing, _) => Ok(standing),
    };
    assert_eq!(found, wanted);
}

/// Seconds after the request, the node then, and the seconds after which the request is made again.
#[rstest]
#[case::other_users_too_soon(10, own("b"), Some(60))]
#[case::other_users(60, own("b"), None)]
#[case::granted(10, Request::None, Some(610))]
#[case::granted_long_ago(300, Request::None, Some(900))]
fn writes_are_limited_in_rate(
    #[case] later: u64,
    #[case] request: Request,
    #[case] due: Option<u64>,
) {
    let (began, mut past) = (Instant::now(), Past::default());
    past.wrote(began);
    let now = began + Duration::from_secs(later);
    past.sees(&node(request.clone()), now);
    let desired = Desired::Wanted(holders_value(&["a".to_owned()]));
    match (past.decide(&desired, &node(request), &PACE, now), due) {
        (Action::Set(_), None) => {}
        (Action::Stay(_, Some(at)), Some(due)) => {
            assert_eq!(at - began, Duration::from_secs(due));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_own_removal_is_no_grant() {
    let (now, mut past) = (Instant::now(), Past::default());
    past.wrote(now);
    past.removes();
    past.sees(&node(Request::None), now);
    assert_eq!(past.granted, None);
    // Wanted again at once, it waits for the pause between two writes.
    let desired = Desired::Wanted(holders_value(&["a".to_owned()]));
    let due = now + PACE.change;
    let action = past.decide(&desired, &node(Request::None), &PACE, now);
    assert_eq!(action, Action::Stay(Standing::Postponed, Some(due)));
}
