use std::sync::Arc;

use hyper::header::HeaderValue;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use longshore_cluster::testing::{Api, Request, SHORT, ScriptedAnswer, pass, refused};

const PATH: &str = "/metrics";

fn review(kind: &str, group: &str, status: &Value) -> ScriptedAnswer {
    let body = json!({ "kind": kind, "apiVersion": format!("{group}.k8s.io/v1"), "metadata": {},
        "spec": {}, "status": status });
    ScriptedAnswer::Body(201, body.to_string())
}

/// API server of a cluster in which `reader` may read, `other` may not, and any other token is nobody's.
pub(in crate::serve) fn answer(request: &Request) -> ScriptedAnswer {
    let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
    if request.line.contains("/subjectaccessreviews") {
        let allowed = body["spec"]["user"] == "reader";
        return review("SubjectAccessReview", "authorization", &json!({ "allowed": allowed }));
    }
    let status = match body["spec"]["token"].as_str() {
        Some(name @ ("reader" | "other")) => {
            json!({ "authenticated": true, "user": { "username": name } })
        }
        _ => json!({ "authenticated": false }),
    };
    review("TokenReview", "authentication", &status)
}

pub(in crate::serve) fn reviews(api: &Arc<Api>) -> TokenReviews {
    let api = Arc::clone(api);
    TokenReviews::by(move || Ok(Some(api.cluster(SHORT))))
}

pub(in crate::serve) fn headers(authorization: &[&str]) -> HeaderMap {
    let values = authorization.iter().map(|value| HeaderValue::from_str(value).expect("a value"));
    values.map(|value| (AUTHORIZATION, value)).collect()
}

#[rstest]
#[case("Bearer reader", Access::Allowed, 2)]
#[case("bearer  reader ", Access::Allowed, 2)]
#[case("Bearer other", Access::Forbidden("other".into()), 2)]
#[case("Bearer invented", Access::Unauthenticated, 1)]
#[tokio::test]
async fn the_cluster_decides_and_its_answer_holds_for_a_minute(
    #[case] authorization: &str,
    #[case] access: Access,
    #[case] calls: usize,
) {
    let api = Arc::new(Api::by(answer));
    let (reviews, headers) = (reviews(&api), headers(&[authorization]));
    for _ in 0..3 {
        assert_eq!(reviews.access(&headers, PATH).await, access);
    }
    assert_eq!(api.requests().len(), calls);
    // Of one path, it says nothing about another.
    reviews.access(&headers, "/other").await;
    assert_eq!(api.requests().len(), 2 * calls);
    pass(FRESH).await;
    assert_eq!(reviews.access(&headers, PATH).await, access);
    assert_eq!(api.requests().len(), 3 * calls);
}

#[rstest]
#[case::none(&[])]
#[case::another_scheme(&["Basic cmVhZGVyOg=="])]
#[case::no_token(&["Bearer "])]
#[case::no_space(&["Bearerreader"])]
#[case::two_words(&["Bearer reader reader"])]
#[case::two_headers(&["Bearer reader", "Bearer reader"])]
#[tokio::test]
async fn without_one_token_nothing_is_asked(#[case] authorization: &[&str]) {
    let api = Arc::new(Api::by(answer));
    let access = reviews(&api).access(&headers(authorization), PATH).await;
    assert_eq!(access, Access::Unauthenticated);
    assert_eq!(api.requests().len(), 0);
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_allows_nobody_and_is_asked_again() {
    let api = Arc::new(Api::with([refused(403), refused(403)]));
    let (reviews, headers) = (reviews(&api), headers(&["Bearer reader"]));
    for asked in 1..=2 {
        assert_eq!(reviews.access(&headers, PATH).await, Access::Unknown);
        assert_eq!(api.requests().len(), asked);
    }
    let nowhere = TokenReviews::by(|| Ok(None));
    assert_eq!(nowhere.access(&headers, PATH).await, Access::Unknown);
}

#[tokio::test]
async fn invented_tokens_do_not_displace_one_that_is_allowed_and_are_bounded() {
    let api = Arc::new(Api::by(answer));
    let reviews = reviews(&api);
    let reader = headers(&["Bearer reader"]);
    assert_eq!(reviews.access(&reader, PATH).await, Access::Allowed);
    {
        let mut kept = reviews.kept.lock().expect("kept");
        for n in 0..10 * KEPT {
            let key: Key = Sha256::digest(n.to_string()).into();
            kept[1].keep(key, Access::Unauthenticated);
        }
        assert_eq!((kept[0].0.len(), kept[1].0.len()), (1, KEPT));
    }
    let before = api.requests().len();
    assert_eq!(reviews.access(&reader, PATH).await, Access::Allowed);
    assert_eq!(api.requests().len(), before);
}

/// Each of them is a call of the API server.
#[tokio::test(start_paused = true)]
async fn invented_tokens_are_reviewed_at_a_bounded_pace() {
    let asked = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    // Fails before any connection: only the pace is of interest.
    let reviews = Arc::new(TokenReviews::by(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(None)
    }));
    let since = Instant::now();
    let asking: Vec<_> = (0..20)
        .map(|n| {
            let reviews = Arc::clone(&reviews);
            tokio::spawn(async move {
                let headers = headers(&[&format!("Bearer invented-{n}")]);
                reviews.access(&headers, PATH).await
            })
        })
        .collect();
    for one in asking {
        assert_eq!(one.await.expect("ends"), Access::Unknown);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 20);
    let (took, wanted) = (since.elapsed(), PAUSE * 20 / 4);
    assert!(took >= wanted && took < 2 * wanted, "{took:?}");
}
