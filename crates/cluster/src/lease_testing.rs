//! API server in memory that keeps Lease objects as a real one does: versions, conflicts and
//! preconditions; and faults in its answers.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tower_service::Service;

use crate::testing::status;
use crate::{Account, Cluster, Limits};

/// Namespace of the pods that ask.
pub const NAMESPACE: &str = "gpu";

/// Fault in the answer to one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// This status, and nothing is done.
    Status(u16),
    /// The request is carried out, and answered with status 500.
    LostAnswer,
    /// No answer, and nothing is done.
    Silence,
}

/// Choice of the fault of a request by its method; None answers it as asked.
type Chosen = Box<dyn FnMut(&str) -> Option<Fault> + Send>;

#[derive(Default)]
struct Kept {
    objects: BTreeMap<String, Value>,
    version: u64,
    faults: VecDeque<Fault>,
    chosen: Option<Chosen>,
    requests: Vec<String>,
}

/// The server.
#[derive(Clone, Default)]
pub struct Leases(Arc<Mutex<Kept>>);

impl std::fmt::Debug for Leases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Leases").finish_non_exhaustive()
    }
}

impl Leases {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a client of it, in namespace `gpu`. It needs a tokio runtime.
    ///
    /// # Panics
    /// If the files of a service account cannot be written.
    pub fn cluster(&self, limits: Limits) -> Cluster {
        let files = tempfile::tempdir().expect("a directory");
        for (name, text) in [("token", "t"), ("ca.crt", "c"), ("namespace", NAMESPACE)] {
            std::fs::write(files.path().join(name), text).expect("written");
        }
        let env = |name: &str| (name == "KUBERNETES_SERVICE_HOST").then(|| "127.0.0.1".to_owned());
        let account = Account::of_pod(&env, files.path()).expect("an account").expect("in a pod");
        Cluster::asking(account, limits, kube::Client::new(self.clone(), NAMESPACE))
    }

    /// Answers the next requests with these faults.
    pub fn fail(&self, faults: impl IntoIterator<Item = Fault>) {
        self.kept().faults.extend(faults);
    }

    /// Answers each request with the fault that `choose` returns for its method.
    pub fn fail_by(&self, choose: impl FnMut(&str) -> Option<Fault> + Send + 'static) {
        self.kept().chosen = Some(Box::new(choose));
    }

    /// Methods and paths of the requests so far.
    pub fn requests(&self) -> Vec<String> {
        self.kept().requests.clone()
    }

    /// Names and objects that are there.
    pub fn objects(&self) -> BTreeMap<String, Value> {
        self.kept().objects.clone()
    }

    /// Puts an object there, as another program does.
    pub fn put(&self, name: &str, mut object: Value) {
        let mut kept = self.kept();
        kept.stamp(name, &mut object);
        kept.objects.insert(name.to_owned(), object);
    }

    fn answer(&self, method: &Method, path: &str, body: &[u8]) -> Option<(u16, String)> {
        let mut kept = self.kept();
        kept.requests.push(format!("{method} {path}"));
        let fault = kept.faults.pop_front();
        let fault = fault.or_else(|| kept.chosen.as_mut()?(method.as_str()));
        match fault {
            Some(Fault::Silence) => None,
            Some(Fault::Status(code)) => Some((code, status(code, "the test says so"))),
            Some(Fault::LostAnswer) => {
                kept.serve(method, path, body);
                Some((500, status(500, "the answer is lost")))
            }
            None => Some(kept.serve(method, path, body)),
        }
    }
}

impl Kept {
    /// Gives an object the name and the next version, and a UID where it is new.
    fn stamp(&mut self, name: &str, object: &mut Value) {
        self.version += 1;
        let there = self.objects.get(name).map(|there| there["metadata"]["uid"].clone());
        let uid = there.unwrap_or_else(|| json!(format!("uid-{}", self.version)));
        object["metadata"]["name"] = json!(name);
        object["metadata"]["namespace"] = json!(NAMESPACE);
        object["metadata"]["uid"] = uid;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    fn serve(&mut self, method: &Method, path: &str, body: &[u8]) -> (u16, String) {
        let all = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
        let Some(rest) = path.strip_prefix(&all) else { return failed(404) };
        let given: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let of_path = rest.trim_start_matches('/');
        let name = match of_path {
            "" => given["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            name => name.to_owned(),
        };
        let there = self.objects.get(&name).map(|there| there["metadata"].clone());
        let differs = |wanted: &Value, there: &Value| {
            ["uid", "resourceVersion"].iter().any(|key| {
                wanted.get(key).is_some_and(|value| !value.is_null() && *value != there[*key])
            })
        };
        match (method.as_str(), there) {
            ("GET", Some(_)) => (200, self.objects[&name].to_string()),
            ("POST", Some(_)) => failed(409),
            ("POST", None) => self.store(&name, given),
            ("PUT", Some(there)) if differs(&given["metadata"], &there) => failed(409),
            ("PUT", Some(_)) => self.store(&name, given),
            ("DELETE", Some(there)) if differs(&given["preconditions"], &there) => failed(409),
            ("DELETE", Some(_)) => {
                self.objects.remove(&name);
                (
                    200,
                    json!({"kind": "Status", "apiVersion": "v1", "status": "Success"}).to_string(),
                )
            }
            (_, None) => failed(404),
            _ => failed(405),
        }
    }

    fn store(&mut self, name: &str, mut object: Value) -> (u16, String) {
        self.stamp(name, &mut object);
        self.objects.insert(name.to_owned(), object.clone());
        (200, object.to_string())
    }
}

fn failed(code: u16) -> (u16, String) {
    (code, status(code, "as a real server answers"))
}

impl Service<Request<Body>> for Leases {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap_or_default();
            match server.answer(&parts.method, parts.uri.path(), &body) {
                Some((code, text)) => {
                    let mut response = Response::new(Body::from(text.into_bytes()));
                    *response.status_mut() = http::StatusCode::from_u16(code).unwrap_or_default();
                    Ok(response)
                }
                None => std::future::pending().await,
            }
        })
    }
}
