//! A node of a stand-in cluster that keeps its annotations.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Api, ScriptedAnswer, refused};
use crate::names::{EVICT_REQUEST, EVICTIONS};

/// Annotations of a node.
type Annotations = BTreeMap<String, String>;

/// A node named `n`, and the API server that answers for it.
#[derive(Debug)]
pub struct AnnotatedNode {
    /// The server.
    pub api: Api,
    annotations: Arc<Mutex<Annotations>>,
}

impl Default for AnnotatedNode {
    fn default() -> Self {
        let annotations = Arc::new(Mutex::new(Annotations::new()));
        let kept = Arc::clone(&annotations);
        let api = Api::by(move |request| {
            let mut annotations = kept.lock().expect("annotations");
            let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
            match request.line.trim_end_matches('?') {
                "GET /api/v1/nodes/n" => {}
                "PATCH /api/v1/nodes/n" => {
                    let changes = body["metadata"]["annotations"].as_object();
                    for (key, value) in changes.into_iter().flatten() {
                        match value.as_str() {
                            Some(text) => drop(annotations.insert(key.clone(), text.to_owned())),
                            None => drop(annotations.remove(key)),
                        }
                    }
                }
                _ => return refused(403),
            }
            let metadata = json!({ "name": "n", "annotations": *annotations });
            let node = json!({ "kind": "Node", "apiVersion": "v1", "metadata": metadata });
            ScriptedAnswer::Body(200, node.to_string())
        });
        Self { api, annotations }
    }
}

impl AnnotatedNode {
    fn annotations(&self) -> MutexGuard<'_, Annotations> {
        self.annotations.lock().expect("annotations")
    }

    /// Returns an annotation.
    ///
    /// # Panics
    /// If the server has panicked.
    pub fn annotation(&self, key: &str) -> Option<String> {
        self.annotations().get(key).cloned()
    }

    /// Sets an annotation, or removes it.
    ///
    /// # Panics
    /// If the server has panicked.
    pub fn annotate(&self, key: &str, value: Option<&str>) {
        match value {
            Some(value) => drop(self.annotations().insert(key.to_owned(), value.to_owned())),
            None => drop(self.annotations().remove(key)),
        }
    }

    /// Returns the request for evictions, once there is one.
    ///
    /// # Panics
    /// If it is no JSON.
    pub async fn request(&self) -> Value {
        loop {
            if let Some(text) = self.annotation(EVICT_REQUEST) {
                return serde_json::from_str(&text).expect("a request");
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// Answers the request as a controller does, with these fields of the state.
    ///
    /// # Panics
    /// As [`AnnotatedNode::request`].
    pub async fn answer(&self, fields: Value) {
        let mut status = json!({ "format": 1, "request": self.request().await["id"] });
        if let (Some(status), Some(fields)) = (status.as_object_mut(), fields.as_object()) {
            status.extend(fields.clone());
        }
        self.annotate(EVICTIONS, Some(&status.to_string()));
    }
}
