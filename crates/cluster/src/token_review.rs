//! Review of a client's bearer token: its user, and that user's right to read one path.
//!
//! A server that is no part of the API server lets the cluster decide so, as kube-rbac-proxy and controller-runtime's
//! filter of metrics do: a TokenReview (authentication.k8s.io/v1), then a SubjectAccessReview
//! (authorization.k8s.io/v1) of `get` for a path. Both are answered with `create`; nothing is stored. The
//! ClusterRole `system:auth-delegator` allows them.

use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::{Api, PostParams};

use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error};
use crate::text::in_line;

const AUTHENTICATE: &str = "reviewing a client's token (create tokenreviews)";
const AUTHORIZE: &str = "reviewing a client's right (create subjectaccessreviews)";

/// Length at which a user's name is cut.
const LONGEST_USER: usize = 200;

/// Outcome of a review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TokenVerdict {
    /// The token is nobody's, or is not valid any more.
    Unauthenticated,
    /// The token is this user's, who may not read the path.
    Forbidden(String),
    /// The token is this user's, who may read the path.
    Allowed(String),
}

impl Cluster {
    /// Asks the cluster for the user of `token`, and for that user's right to `get` the path `path`, which
    /// is none of the API server's own objects (a nonResourceURL).
    ///
    /// # Errors
    /// The API server cannot be asked, or does not let this account ask. The token is in no error.
    pub async fn review_token(&self, token: &str, path: &str) -> Result<TokenVerdict, Error> {
        let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
        let review = TokenReview { spec, ..TokenReview::default() };
        let params = PostParams::default();
        let asked = self.call(AUTHENTICATE, |client| {
            let (review, params) = (review.clone(), params.clone());
            async move { Api::<TokenReview>::all(client).create(&params, &review).await }
        });
        let status = asked.await?.status.unwrap_or_default();
        let user = status.user.filter(|user| user.username.as_ref().is_some_and(|n| !n.is_empty()));
        // An answer with an error authenticates nobody.
        let user = match (status.authenticated, status.error, user) {
            (Some(true), None, Some(user)) => user,
            (Some(true), None, None) => {
                return Err(Error::new(
                    AUTHENTICATE,
                    ApiErrorKind::Garbled,
                    "a user without a name",
                ));
            }
            _ => return Ok(TokenVerdict::Unauthenticated),
        };
        let name = in_line(user.username.as_deref().unwrap_or_default(), LONGEST_USER);
        let allowed = self.may_read(user, path).await?;
        Ok(if allowed { TokenVerdict::Allowed(name) } else { TokenVerdict::Forbidden(name) })
    }

    async fn may_read(&self, user: UserInfo, path: &str) -> Result<bool, Error> {
        let spec = SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some("get".to_owned()),
            }),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        let params = PostParams::default();
        let asked = self.call(AUTHORIZE, |client| {
            let (review, params) = (review.clone(), params.clone());
            async move { Api::<SubjectAccessReview>::all(client).create(&params, &review).await }
        });
        let status = asked.await?.status;
        Ok(status.is_some_and(|status| status.allowed && status.denied != Some(true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Api as Server, SHORT, ScriptedAnswer, refused};
    use rstest::rstest;
    use serde_json::{Value, json};

    const TOKEN_REVIEW: &str = "POST /apis/authentication.k8s.io/v1/tokenreviews";
    const ACCESS_REVIEW: &str = "POST /apis/authorization.k8s.io/v1/subjectaccessreviews";

    fn token(status: &Value) -> ScriptedAnswer {
        let body = json!({
            "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1",
            "metadata": {}, "spec": {}, "status": status,
        });
        ScriptedAnswer::Body(201, body.to_string())
    }

    fn access(status: &Value) -> ScriptedAnswer {
        let body = json!({
            "kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "metadata": {}, "spec": {}, "status": status,
        });
        ScriptedAnswer::Body(201, body.to_string())
    }

    const NAME: &str = "system:serviceaccount:monitoring:prometheus";

    fn known() -> Value {
        let user = json!({ "username": NAME, "uid": "u-1", "groups": ["system:serviceaccounts"],
            "extra": { "example.com/a": ["b"] } });
        json!({ "authenticated": true, "user": user })
    }

    async fn review(answers: Vec<ScriptedAnswer>) -> (Result<TokenVerdict, ApiErrorKind>, Server) {
        let server = Server::with(answers);
        let verdict = server.cluster(SHORT).review_token("a-token", "/metrics").await;
        (verdict.map_err(|error| error.kind), server)
    }

    #[tokio::test]
    async fn a_user_with_the_right_is_allowed_and_each_attribute_of_it_is_judged() {
        let (verdict, server) =
            review(vec![token(&known()), access(&json!({ "allowed": true }))]).await;
        assert_eq!(verdict, Ok(TokenVerdict::Allowed(NAME.to_owned())));
        assert_eq!(server.lines(), [TOKEN_REVIEW, ACCESS_REVIEW]);
        let sent: Vec<Value> = (server.requests().iter())
            .map(|request| serde_json::from_str(&request.body).expect("JSON"))
            .collect();
        assert_eq!(sent[0]["spec"], json!({ "token": "a-token" }));
        let wanted = json!({
            "user": NAME, "uid": "u-1", "groups": ["system:serviceaccounts"],
            "extra": { "example.com/a": ["b"] },
            "nonResourceAttributes": { "path": "/metrics", "verb": "get" },
        });
        assert_eq!(sent[1]["spec"], wanted);
    }

    #[rstest]
    #[case::nobodys(json!({ "authenticated": false, "error": "expired" }))]
    #[case::nothing_said(json!({}))]
    #[case::with_an_error(json!({ "authenticated": true, "error": "x", "user": { "username": "a" } }))]
    #[tokio::test]
    async fn a_token_of_nobody_is_refused_and_no_right_is_asked_for(#[case] status: Value) {
        let (verdict, server) = review(vec![token(&status)]).await;
        assert_eq!(verdict, Ok(TokenVerdict::Unauthenticated));
        assert_eq!(server.lines(), [TOKEN_REVIEW]);
    }

    #[rstest]
    #[case(json!({ "allowed": false }))]
    #[case(json!({ "allowed": true, "denied": true }))]
    #[tokio::test]
    async fn a_user_without_the_right_is_forbidden(#[case] status: Value) {
        let (verdict, _) = review(vec![token(&known()), access(&status)]).await;
        assert_eq!(verdict, Ok(TokenVerdict::Forbidden(NAME.to_owned())));
    }

    /// Answers, and the kind of the error: nothing is allowed without an answer.
    #[rstest]
    #[case::may_not_ask(vec![refused(403)], ApiErrorKind::Forbidden)]
    #[case::may_not_ask_for_rights(vec![token(&known()), refused(403)], ApiErrorKind::Forbidden)]
    #[case::broken(vec![refused(500), refused(500), refused(500)], ApiErrorKind::Status(500))]
    #[case::garbled(vec![token(&json!({ "authenticated": true, "user": {} }))], ApiErrorKind::Garbled)]
    #[tokio::test]
    async fn a_cluster_that_does_not_say_allows_nothing(
        #[case] answers: Vec<ScriptedAnswer>,
        #[case] kind: ApiErrorKind,
    ) {
        assert_eq!(review(answers).await.0, Err(kind));
    }
}
