//! Text of one key of a ConfigMap that is there already, which several writers may replace.
//!
//! The API server compares and swaps: a write names the version that it replaces, and is refused (409) after any other
//! change of the object. Other keys stay as they are. The account needs `get` and `patch` for the one object.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, Patch, PatchParams};
use serde_json::json;

use crate::client::Cluster;
use crate::error::{ApiErrorKind, Error, check_names};

const READ: &str = "reading the ConfigMap (get configmaps)";
const WRITE: &str = "writing the ConfigMap (patch configmaps)";
/// Name of the writer in the object's `managedFields`, which a server-side apply of another program compares.
const MANAGER: &str = "longshore-builder";

/// Place of a text: a key of a ConfigMap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMapKey {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// The key.
    pub key: &'static str,
}

/// A text as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigMapText {
    /// The text, unchecked, of at most an object's size; None where the object has not the key.
    pub text: Option<String>,
    /// The write of the object that was read.
    version: String,
}

impl Cluster {
    /// Reads a key of a ConfigMap.
    ///
    /// # Errors
    /// A name that is none; a refusal (403); no such object (404); no answer, or none of the API, after all tries.
    pub async fn read_config_map(&self, place: &ConfigMapKey) -> Result<ConfigMapText, Error> {
        let ConfigMapKey { namespace, name, key } = place;
        check_names(READ, &[namespace, name])?;
        let read = self.call(READ, |client| {
            let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
            async move { maps.get(name).await }
        });
        let found = read.await?;
        let version = found.metadata.resource_version.filter(|version| !version.is_empty());
        let garbled =
            || Error::new(READ, ApiErrorKind::Garbled, "an answer that is not of the API");
        let version = version.ok_or_else(garbled)?;
        Ok(ConfigMapText { text: found.data.unwrap_or_default().remove(*key), version })
    }

    /// Replaces the text that was read `over`. False where another writer was faster: nothing is written then.
    ///
    /// # Errors
    /// As [`Cluster::read_config_map`].
    pub async fn write_config_map(
        &self,
        place: &ConfigMapKey,
        text: &str,
        over: &ConfigMapText,
    ) -> Result<bool, Error> {
        let ConfigMapKey { namespace, name, key } = place;
        check_names(WRITE, &[namespace, name])?;
        let metadata = json!({ "resourceVersion": over.version });
        let patch = &Patch::Merge(json!({ "metadata": metadata, "data": { *key: text } }));
        let params =
            &PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let write = self.call(WRITE, |client| {
            let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
            async move { maps.patch(name, params, patch).await }
        });
        match write.await {
            Ok(_) => Ok(true),
            Err(error) if error.kind == ApiErrorKind::Status(409) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Api as Server, SHORT, ScriptedAnswer, refused};
    use rstest::rstest;
    use serde_json::Value;

    const OBJECT: &str = "/api/v1/namespaces/gpu/configmaps/longshore-index";

    fn place() -> ConfigMapKey {
        ConfigMapKey {
            namespace: "gpu".into(),
            name: "longshore-index".into(),
            key: "index-minimum",
        }
    }

    fn object(metadata: &Value, data: &Value) -> ScriptedAnswer {
        let body =
            json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": data });
        ScriptedAnswer::Body(200, body.to_string())
    }

    fn read() -> ConfigMapText {
        ConfigMapText { text: None, version: "7".into() }
    }

    #[rstest]
    #[case::without_data(Value::Null, None)]
    #[case::other_keys(json!({ "other": "a" }), None)]
    #[case::the_key(json!({ "other": "a", "index-minimum": "b" }), Some("b"))]
    #[tokio::test]
    async fn the_text_of_the_key_is_read(#[case] data: Value, #[case] expected: Option<&str>) {
        let server = Server::with([object(&json!({ "resourceVersion": "7" }), &data)]);
        let found = server.cluster(SHORT).read_config_map(&place()).await.expect("reads");
        assert_eq!((found.text.as_deref(), found.version.as_str()), (expected, "7"));
        assert_eq!(server.lines(), [format!("GET {OBJECT}")]);
    }

    #[rstest]
    #[case::forbidden(vec![refused(403)], ApiErrorKind::Forbidden)]
    #[case::missing(vec![refused(404)], ApiErrorKind::Missing)]
    #[case::broken(vec![refused(500), refused(500), refused(500)], ApiErrorKind::Status(500))]
    #[case::without_a_version(
        vec![object(&json!({}), &Value::Null)],
        ApiErrorKind::Garbled
    )]
    #[tokio::test]
    async fn a_failure_is_told_by_its_kind(
        #[case] answers: Vec<ScriptedAnswer>,
        #[case] kind: ApiErrorKind,
    ) {
        let server = Server::with(answers);
        let failed = server.cluster(SHORT).read_config_map(&place()).await.expect_err("refused");
        assert_eq!(failed.kind, kind);
    }

    #[tokio::test]
    async fn a_write_names_the_version_that_it_replaces_and_the_key_alone() {
        let written = object(&json!({ "resourceVersion": "8" }), &Value::Null);
        let server = Server::with([refused(503), written]);
        let cluster = server.cluster(SHORT);
        assert_eq!(cluster.write_config_map(&place(), "a 1\n", &read()).await.ok(), Some(true));
        let wanted = format!("PATCH {OBJECT}");
        assert_eq!(server.lines(), [wanted.clone(), wanted], "it is repeated");
        let request = server.requests().pop().expect("a request");
        assert!(request.line.contains("fieldManager=longshore-builder"), "{}", request.line);
        let sent: Value = serde_json::from_str(&request.body).expect("JSON");
        let wanted =
            json!({ "metadata": { "resourceVersion": "7" }, "data": { "index-minimum": "a 1\n" } });
        assert_eq!(sent, wanted);
    }

    #[rstest]
    #[case::another_was_faster(409, Ok(false))]
    #[case::missing(404, Err(ApiErrorKind::Missing))]
    #[case::forbidden(403, Err(ApiErrorKind::Forbidden))]
    #[tokio::test]
    async fn a_refused_write_is_not_repeated(
        #[case] code: u16,
        #[case] expected: Result<bool, ApiErrorKind>,
    ) {
        let server = Server::with([refused(code)]);
        let written = server.cluster(SHORT).write_config_map(&place(), "a", &read()).await;
        assert_eq!(written.map_err(|error| error.kind), expected);
        assert_eq!(server.lines().len(), 1);
    }

    #[tokio::test]
    async fn a_name_that_is_none_is_never_sent() {
        let server = Server::with([]);
        let cluster = server.cluster(SHORT);
        for (namespace, name) in [("a/b", "a"), ("gpu", "../x"), ("", "a"), ("gpu", "c?x")] {
            let place = ConfigMapKey { namespace: namespace.into(), name: name.into(), ..place() };
            let failed = cluster.read_config_map(&place).await.expect_err("refused");
            assert_eq!(failed.kind, ApiErrorKind::Name);
            let failed = cluster.write_config_map(&place, "a", &read()).await.expect_err("refused");
            assert_eq!(failed.kind, ApiErrorKind::Name);
        }
        assert!(server.requests().is_empty());
    }
}
