use super::*;
use longshore_cluster::testing::{Api, ScriptedAnswer, refused};
use longshore_core::failure::ExitCode;
use rstest::rstest;

const SHORT: Limits = Limits {
    call: Duration::from_secs(5),
    tries: 2,
    first_pause: Duration::from_millis(1),
    longest_pause: Duration::from_millis(1),
    watch: Duration::from_secs(1),
    answer: Limits::ANSWER,
};

pub(super) fn pod(api: &Api) -> Result<Option<Pod>, Failure> {
    let env = |name: &str| match name {
        "POD_NAME" => Some("driver-x7k2p".to_owned()),
        name => api.variable(name),
    };
    Pod::from_env(&env, api.files.path(), SHORT)
}

/// The pod as the API server has it, with this image of this container.
fn with_image(container: &str, image: &str) -> ScriptedAnswer {
    let containers = serde_json::json!([{ "name": container, "image": image }]);
    let body = serde_json::json!({
        "kind": "Pod", "apiVersion": "v1", "metadata": { "name": "driver-x7k2p" },
        "spec": { "containers": containers },
    });
    ScriptedAnswer::Body(200, body.to_string())
}

fn driver(image: &str) -> ScriptedAnswer {
    with_image("nvidia-driver-ctr", image)
}

/// Answers of the API server, and the result under the operator: the version, or the refusal's text
/// and a part of its remedy, or none where the question is repeated. Without the operator each failure
/// means the newest driver.
#[rstest]
#[case::tag(vec![driver("r.example.com/l:535.261.03-debian12")], Ok("535.261.03"))]
#[case::digest(vec![driver("r.example.com/l@sha256:aa")], Err(Some(("r.example.com/l@sha256:aa names no driver version: it is named by its digest", "DRIVER_VERSION"))))]
#[case::own_tag(vec![driver("r.example.com/l:1.2")], Err(Some(("its tag is not VERSION-SYSTEM", "DRIVER_VERSION"))))]
#[case::no_tag(vec![driver("r.example.com/l")], Err(Some(("it has no tag", "DRIVER_VERSION"))))]
#[case::other_container(vec![with_image("side", "a:535.261.03-debian12")], Err(Some(("no container", "DRIVER_VERSION"))))]
#[case::forbidden(vec![refused(403)], Err(Some(("answered 403", "resources: [pods], verbs: [get]"))))]
#[case::missing(vec![refused(404)], Err(Some(("answered 404", "POD_NAME"))))]
#[case::broken(vec![refused(500), refused(503)], Err(None))]
#[case::token(vec![refused(401), refused(401)], Err(None))]
#[case::conflict(vec![refused(409)], Err(None))]
#[case::garbage(vec![ScriptedAnswer::Body(200, "<html>".into()), ScriptedAnswer::Cut(vec![])], Err(None))]
#[tokio::test]
async fn an_answer_gives_the_version_or_the_reason(
    #[case] answers: Vec<ScriptedAnswer>,
    #[case] wanted: Result<&str, Option<(&str, &str)>>,
    #[values(true, false)] operator: bool,
) {
    let api = Api::with(answers);
    match (version_of(pod(&api), false, operator).await, wanted, operator) {
        (Ok(found), Ok(wanted), _) => assert_eq!(found.as_deref(), Some(wanted)),
        (Ok(None), Err(_), false) | (Err(VersionUnknown::Unanswered(_)), Err(None), true) => {}
        (
            Err(VersionUnknown::Refused(failure) | VersionUnknown::Denied(failure)),
            Err(Some((cause, remedy))),
            true,
        ) => {
            assert_eq!(failure.code(), ExitCode::Preflight);
            let text = failure.one_line();
            assert!(text.starts_with("driver-version-unknown: ") && text.contains(cause), "{text}");
            assert!(failure.remedy_text().is_some_and(|text| text.contains(remedy)), "{failure}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_service_account_that_cannot_be_read_is_asked_for_again() {
    let api = Api::with([]);
    std::fs::write(api.files.path().join("ca.crt"), "no certificate").unwrap();
    let found = version_of(pod(&api), true, true).await;
    assert!(matches!(found, Err(VersionUnknown::Unanswered(_))), "{found:?}");
}

#[tokio::test]
async fn a_huge_reference_is_cut() {
    let api = Api::with([driver(&format!("r.example.com/{}\n@sha256:aa", "x".repeat(100_000)))]);
    let found = version_of(pod(&api), true, true).await.unwrap_err().into_failure();
    assert!(found.one_line().len() < 600, "{}", found.one_line().len());
}

#[test]
fn the_page_about_deadlines_has_the_limit_of_a_call() {
    let row = "An answer of the cluster's API server";
    longshore_core::testing::assert_in_page(row, LIMITS.call);
}

#[tokio::test]
async fn outside_of_a_cluster_nothing_is_asked() {
    let none = |_: &str| None;
    assert!(Pod::of_process(&none).unwrap().is_none());
    for operator in [true, false] {
        assert_eq!(driver_version(&none, operator).await.unwrap(), None);
    }
}

/// A pod of the operator without a token would get another driver than the tag's.
#[rstest]
#[case::digest("DRIVER_CONFIG_DIGEST", true, true)]
#[case::other_pod("DRIVER_CONFIG_DIGEST", false, false)]
#[case::cluster("KUBERNETES_SERVICE_HOST", true, true)]
#[case::no_pod("HOSTNAME", true, false)]
#[tokio::test]
async fn a_pod_without_a_service_account_is_refused_under_the_operator(
    #[case] variable: &str,
    #[case] operator: bool,
    #[case] is_refused: bool,
) {
    let env = |name: &str| (name == variable).then(|| "10.0.0.1".to_owned());
    let answer = driver_version(&env, operator).await;
    assert_eq!(matches!(answer, Err(VersionUnknown::Refused(_))), is_refused, "{answer:?}");
    assert!(is_refused || matches!(answer, Ok(None)), "{answer:?}");
}

#[tokio::test]
async fn a_pod_that_does_not_know_its_node_asks_for_nothing() {
    let api = Api::with([]);
    let pod = pod(&api).unwrap().unwrap();
    assert!(pod.requests(|_| {}).unwrap().is_none());
}
