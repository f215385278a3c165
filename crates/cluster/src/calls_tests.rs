//! Calls against a stand-in API server: refusals, faults of the connection, and a renewed token.

use std::fs;
use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use crate::testing::{Api, SHORT, ScriptedAnswer, cluster_at, refused};
use crate::{Account, ApiErrorKind, Cluster, Limits, OwnImage};

const NAMES: [&str; 2] = ["nvidia-driver-ctr", "longshore"];
const POD: &str = "GET /api/v1/namespaces/gpu-operator/pods/driver-x7k2p";

fn pod(container: &str) -> ScriptedAnswer {
    let image = "registry.example.com/gpu/longshore:535.261.03-debian12";
    let body = json!({
        "kind": "Pod", "apiVersion": "v1", "metadata": { "name": "driver-x7k2p", "uid": "a" },
        "spec": {
            "initContainers": [{ "name": "nvidia-driver-ctr", "image": "registry.example.com/init:1" }],
            "containers": [
                { "name": "side", "image": "registry.example.com/side:2" },
                { "name": container, "image": image, "args": ["init"] },
            ],
        },
        "status": { "phase": "Running" },
    });
    ScriptedAnswer::Body(200, body.to_string())
}

async fn own_image(api: &Api, limits: Limits) -> Result<Option<OwnImage>, ApiErrorKind> {
    let cluster = api.cluster(limits);
    let namespace = cluster.namespace().unwrap();
    cluster.own_image(namespace, "driver-x7k2p", &NAMES).await.map_err(|error| error.kind)
}

#[tokio::test]
async fn the_driver_version_is_that_of_the_own_container_s_tag() {
    for name in NAMES {
        let api = Api::with([pod(name)]);
        let image = own_image(&api, SHORT).await.unwrap().unwrap();
        assert_eq!(image.driver_version(), Some("535.261.03"));
        assert_eq!(api.lines(), [POD]);
        assert_eq!(api.requests()[0].authorization, "Bearer first");
    }
}

#[tokio::test]
async fn a_pod_without_such_a_container_has_no_image() {
    let api = Api::with([pod("another")]);
    assert_eq!(own_image(&api, SHORT).await, Ok(None));
}

/// Answers, the result (true: an image), and the number of requests.
#[rstest]
#[case::forbidden([refused(403)], Err(ApiErrorKind::Forbidden), 1)]
#[case::missing([refused(404)], Err(ApiErrorKind::Missing), 1)]
#[case::conflict([refused(409)], Err(ApiErrorKind::Status(409)), 1)]
#[case::busy([refused(429), refused(503), pod("longshore")], Ok(true), 3)]
#[case::broken([refused(500), refused(502), refused(504)], Err(ApiErrorKind::Status(504)), 3)]
#[case::no_json([ScriptedAnswer::Body(200, "<html>".into()), pod("longshore")], Ok(true), 2)]
#[case::no_status([ScriptedAnswer::Body(403, "<html>".into())], Err(ApiErrorKind::Forbidden), 1)]
#[case::another_shape([ScriptedAnswer::Body(200, r#"{"spec":{"containers":7}}"#.into()), pod("longshore")], Ok(true), 2)]
#[case::cut([ScriptedAnswer::Cut(vec!["{".into()]), pod("longshore")], Ok(true), 2)]
#[case::too_large([ScriptedAnswer::Body(200, " ".repeat(9 << 20)), pod("longshore")], Err(ApiErrorKind::TooLarge), 1)]
#[tokio::test]
async fn an_answer_leads_to_its_result<const N: usize>(
    #[case] answers: [ScriptedAnswer; N],
    #[case] wanted: Result<bool, ApiErrorKind>,
    #[case] requests: usize,
) {
    let api = Api::with(answers);
    let found = own_image(&api, SHORT).await.map(|image| image.is_some());
    assert_eq!(found, wanted);
    assert_eq!(api.lines(), vec![POD; requests]);
}

#[tokio::test]
async fn a_message_of_the_server_is_one_short_line() {
    let api = Api::with([refused(409)]);
    let cluster = api.cluster(SHORT);
    let error = cluster.own_image("gpu-operator", "driver-x7k2p", &NAMES).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("answered 409: the test\\n\\u{1b}[2Jsays so"), "{text}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let api = Api::with([ScriptedAnswer::Silence, ScriptedAnswer::Silence]);
    let limits = Limits { call: Duration::from_millis(300), tries: 2, ..SHORT };
    assert_eq!(own_image(&api, limits).await, Err(ApiErrorKind::Late));
}

#[tokio::test]
async fn a_server_that_is_away_is_unreachable() {
    let api = Api::with([]);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    let cluster = cluster_at(&port, api.files.path(), SHORT);
    let error = cluster.own_image("a", "b", &NAMES).await.unwrap_err();
    assert_eq!(error.kind, ApiErrorKind::Unreachable);
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn a_server_with_a_foreign_certificate_is_not_asked() {
    let (api, other) = (Api::with([pod("longshore")]), Api::with([]));
    fs::copy(other.files.path().join("ca.crt"), api.files.path().join("ca.crt")).unwrap();
    assert_eq!(own_image(&api, SHORT).await, Err(ApiErrorKind::Unreachable));
    assert!(api.requests().is_empty());
}

#[tokio::test]
async fn a_refused_token_is_read_again() {
    let api = Api::with([refused(401), pod("longshore")]);
    let cluster = api.cluster(SHORT);
    fs::write(api.files.path().join("token"), "second").unwrap();
    let image = cluster.own_image("gpu-operator", "driver-x7k2p", &NAMES).await.unwrap();
    assert!(image.is_some());
    let tokens: Vec<String> = api.requests().into_iter().map(|r| r.authorization).collect();
    assert_eq!(tokens, ["Bearer first", "Bearer second"]);
}

/// Content of the token's file, and the header of a call, or the failure at once.
#[rstest]
#[case::as_the_kubelet("abc", Ok("Bearer abc"))]
#[case::newline("abc\n", Ok("Bearer abc"))]
#[case::spaces(" abc \r\n", Ok("Bearer abc"))]
#[case::two_lines("abc\nabc\n", Err(ApiErrorKind::Account))]
#[tokio::test]
async fn a_token_is_sent_without_the_newline_of_its_file(
    #[case] content: &str,
    #[case] wanted: Result<&str, ApiErrorKind>,
) {
    let api = Api::with([pod("longshore")]);
    fs::write(api.files.path().join("token"), content).unwrap();
    let env = |name: &str| api.variable(name);
    let account = Account::of_pod(&env, api.files.path()).unwrap().unwrap();
    let cluster = match Cluster::new(account, SHORT) {
        Ok(cluster) => cluster,
        Err(error) => return assert_eq!(Err(error.kind), wanted),
    };
    cluster.own_image("gpu-operator", "driver-x7k2p", &NAMES).await.unwrap();
    assert_eq!(Ok(api.requests()[0].authorization.as_str()), wanted);
}

#[tokio::test]
async fn a_name_that_is_none_is_never_sent() {
    let api = Api::with([]);
    let cluster = api.cluster(SHORT);
    for (namespace, pod) in [("a/b", "c"), ("a", "../secrets/x"), ("", "c"), ("a", "c?x=y")] {
        let error = cluster.own_image(namespace, pod, &NAMES).await.unwrap_err();
        assert_eq!(error.kind, ApiErrorKind::Name);
    }
    assert!(api.requests().is_empty());
}
