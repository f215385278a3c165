//! Record of the registry's highest index in a ConfigMap of the cluster, which agents read as a file
//! (`index-minimum-file`): a node with an empty store refuses an older index by it.
//!
//! The builder alone may write it, with its own account. A failure is a warning: sets and index are in the registry, and
//! nodes that have seen the index refuse an older one without the record.

use std::time::Duration;

use longshore_cluster::{Cluster, ConfigMapKey};
use longshore_core::image_reference::Repository;
use longshore_modules::registry::set_index::IndexSummary;
use longshore_modules::signature::index_minimums::IndexMinimums;
use tokio::time::Instant;

/// Key of the ConfigMap, and name of the agents' file.
const KEY: &str = "index-minimum";
/// Interval of writing it again: it may have failed, or somebody may have removed or replaced the object.
const AGAIN: Duration = Duration::from_secs(300);
/// Number of writes that another writer may be faster than.
const TRIES: u32 = 5;

/// Record of the highest version that was published.
#[derive(Debug)]
pub(crate) struct IndexRecord {
    cluster: Cluster,
    place: ConfigMapKey,
    /// HOST/REPOSITORY of the index.
    registry: String,
    /// Version that this builder wrote last; None before the first one.
    version: Option<u64>,
    /// Time at which the record is compared again.
    again: Instant,
    /// Warning that was logged last; None while all is well.
    said: Option<String>,
}

impl IndexRecord {
    /// Makes a record of the index of `registry` in the ConfigMap `name`.
    pub(crate) fn new(
        cluster: Cluster,
        namespace: String,
        name: String,
        registry: &Repository,
    ) -> Self {
        let place = ConfigMapKey { namespace, name, key: KEY };
        let again = Instant::now();
        Self { cluster, place, registry: registry.name(), version: None, again, said: None }
    }

    /// Returns the time at which the record is compared again; None before an index was written.
    pub(super) fn due(&self) -> Option<Instant> {
        self.version.map(|_| self.again)
    }

    /// Records an index that was written.
    pub(super) async fn add(&mut self, written: &IndexSummary) {
        self.version = Some(written.version);
        self.keep(Some(written)).await;
    }

    /// Compares the record again where that is due.
    pub(super) async fn keep_where_due(&mut self) {
        if self.due().is_some_and(|due| due <= Instant::now()) {
            self.keep(None).await;
        }
    }

    /// Raises the record to the version that this builder wrote last, and warns once where that fails, or where the
    /// record was above the index.
    async fn keep(&mut self, written: Option<&IndexSummary>) {
        let Some(version) = self.version else { return };
        let raised = self.raise(version).await;
        self.again = Instant::now() + AGAIN;
        let doubt = match raised {
            Ok(before) => self.doubt(before, version, written),
            Err(why) => Some(format!(
                "the index {version} of {} was not recorded in {}: {why}; nodes with an empty store may take an older \
                 one meanwhile; it is tried again",
                self.registry,
                self.shown()
            )),
        };
        if let Some(line) = doubt.as_ref().filter(|_| doubt != self.said) {
            tracing::warn!("{line}");
        }
        self.said = doubt;
    }

    /// Writes `version` unless a higher one is there; returns the one that was there.
    async fn raise(&self, version: u64) -> Result<Option<u64>, String> {
        for _ in 0..TRIES {
            let there = self.cluster.read_config_map(&self.place).await;
            let there = there.map_err(|error| error.to_string())?;
            let text = there.text.as_deref().unwrap_or_default();
            let mut minimums = IndexMinimums::parse(text).map_err(|why| {
                format!("{why}, and every node refuses the registry by it; remove the key {KEY}")
            })?;
            let before = minimums.minimum(&self.registry);
            if !minimums.raise(&self.registry, version) {
                return Ok(before);
            }
            let written =
                self.cluster.write_config_map(&self.place, &minimums.to_string(), &there).await;
            if written.map_err(|error| error.to_string())? {
                tracing::debug!("the index {version} is recorded in {}", self.shown());
                return Ok(before);
            }
        }
        Err(format!("another writer was faster {TRIES} times"))
    }

    /// Returns a warning about a registry or a clock that is behind the record.
    fn doubt(
        &self,
        before: Option<u64>,
        version: u64,
        written: Option<&IndexSummary>,
    ) -> Option<String> {
        let (registry, before) = (&self.registry, before?);
        if version < before {
            return Some(format!(
                "nodes refuse the index {version} of {registry}: {} has the version {before}; set the clock that was \
                 wrong, or remove the key {KEY} there if that one was never right",
                self.shown()
            ));
        }
        let replaced = written?.replaced;
        if replaced.is_some_and(|replaced| replaced >= before) {
            return None;
        }
        let had = replaced.map_or("none by this key".to_owned(), |version| version.to_string());
        Some(format!(
            "the registry {registry} was restored, or shows an older state: its index was {had}, and {} has the version \
             {before}; look which sets the index {version} lists, and take back outdated ones (denied-sets)",
            self.shown()
        ))
    }

    fn shown(&self) -> String {
        format!("the ConfigMap {}/{}", self.place.namespace, self.place.name)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use jiff::Timestamp;
    use longshore_cluster::testing::{Api, Request, SHORT, ScriptedAnswer, refused};
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const REGISTRY: &str = "registry.example.com/gpu/modules";

    /// ConfigMap of the server: its text, the number of its writes, and the answers that its next requests get instead.
    #[derive(Debug, Default)]
    struct Map {
        text: Option<String>,
        writes: u64,
        faults: Vec<ScriptedAnswer>,
    }

    type Shared = Arc<Mutex<Map>>;

    fn server(map: &Shared) -> Api {
        let map = map.clone();
        Api::by(move |request| answer(&mut map.lock().expect("the map"), request))
    }

    fn answer(map: &mut Map, request: &Request) -> ScriptedAnswer {
        if let Some(fault) = map.faults.pop() {
            return fault;
        }
        if request.line.starts_with("PATCH ") {
            let patch: Value = serde_json::from_str(&request.body).expect("JSON");
            if patch["metadata"]["resourceVersion"] != json!(map.writes.to_string()) {
                return refused(409);
            }
            map.text = patch["data"][KEY].as_str().map(str::to_owned);
            map.writes += 1;
        }
        let metadata = json!({ "name": "index", "resourceVersion": map.writes.to_string() });
        let data = map.text.as_ref().map(|text| json!({ KEY: text }));
        let body =
            json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": data });
        ScriptedAnswer::Body(200, body.to_string())
    }

    fn record(server: &Api) -> IndexRecord {
        let registry = REGISTRY.parse().expect("a repository");
        IndexRecord::new(server.cluster(SHORT), "gpu".into(), "index".into(), &registry)
    }

    fn written(version: u64, replaced: Option<u64>) -> IndexSummary {
        let digest = format!("sha256:{}", "0".repeat(64));
        IndexSummary { version, replaced, expires: Timestamp::UNIX_EPOCH, sets: 0, digest }
    }

    fn map(text: &str) -> Shared {
        let text = (!text.is_empty()).then(|| text.to_owned());
        Arc::new(Mutex::new(Map { text, ..Map::default() }))
    }

    fn text(map: &Shared) -> String {
        map.lock().expect("the map").text.clone().unwrap_or_default()
    }

    #[rstest]
    #[case::first("", "registry.example.com/gpu/modules 7\n")]
    #[case::raised("registry.example.com/gpu/modules 6\n", "registry.example.com/gpu/modules 7\n")]
    #[case::the_same("registry.example.com/gpu/modules 7", "registry.example.com/gpu/modules 7")]
    #[case::never_lowered(
        "registry.example.com/gpu/modules 8\n",
        "registry.example.com/gpu/modules 8\n"
    )]
    #[case::others_are_kept(
        "a.example.com/a 9\n",
        "a.example.com/a 9\nregistry.example.com/gpu/modules 7\n"
    )]
    #[case::garbage_is_left("garbage", "garbage")]
    #[tokio::test]
    async fn the_record_is_raised_and_nothing_else(#[case] before: &str, #[case] after: &str) {
        let map = map(before);
        record(&server(&map)).add(&written(7, None)).await;
        assert_eq!(text(&map), after);
    }

    /// Answers that the first requests get instead, the last one first, and whether the record has the version then.
    #[rstest]
    #[case::busy(vec![refused(503), refused(429)], true)]
    #[case::deleted(vec![refused(404)], false)]
    #[case::forbidden(vec![refused(403)], false)]
    #[tokio::test]
    async fn a_failure_is_a_warning_and_the_next_try_records_it(
        #[case] faults: Vec<ScriptedAnswer>,
        #[case] is_recorded: bool,
    ) {
        let map = map("");
        map.lock().expect("the map").faults = faults;
        let server = server(&map);
        let mut record = record(&server);
        assert_eq!(record.due(), None, "no index was written");
        record.add(&written(7, None)).await;
        assert_eq!((text(&map).is_empty(), record.said.is_none()), (!is_recorded, is_recorded));
        assert!(record.due().is_some_and(|due| due > Instant::now()));
        record.keep_where_due().await;
        assert_eq!(text(&map).is_empty(), !is_recorded, "it is not due");
        record.again = Instant::now();
        record.keep_where_due().await;
        assert_eq!(
            (text(&map).as_str(), record.said),
            ("registry.example.com/gpu/modules 7\n", None)
        );
    }

    #[tokio::test]
    async fn a_conflict_is_tried_again_with_what_the_other_one_wrote() {
        let map = map("");
        let other = map.clone();
        let is_first = Mutex::new(true);
        let server = Api::by(move |request| {
            let mut map = other.lock().expect("the map");
            let is_write = request.line.starts_with("PATCH ");
            if is_write && std::mem::take(&mut *is_first.lock().expect("the flag")) {
                map.text = Some("a.example.com/a 9\n".into());
                map.writes += 1;
            }
            answer(&mut map, request)
        });
        record(&server).add(&written(7, None)).await;
        assert_eq!(text(&map), "a.example.com/a 9\nregistry.example.com/gpu/modules 7\n");
        let methods = server.lines();
        let methods: Vec<_> = methods.iter().filter_map(|line| line.split(' ').next()).collect();
        assert_eq!(methods, ["GET", "PATCH", "GET", "PATCH"]);
    }

    #[tokio::test]
    async fn conflicts_without_end_are_given_up() {
        let server = Api::by(|request| match request.line.starts_with("PATCH ") {
            true => refused(409),
            false => answer(&mut Map::default(), request),
        });
        let mut record = record(&server);
        record.add(&written(7, None)).await;
        assert_eq!(server.lines().len(), 2 * TRIES as usize);
        assert!(record.said.is_some_and(|line| line.contains("faster 5 times")));
    }

    #[rstest]
    #[case::first(None, 7, Some(None), "")]
    #[case::as_before(Some(6), 7, Some(Some(6)), "")]
    #[case::not_recorded_before(Some(5), 7, Some(Some(6)), "")]
    #[case::nothing_new(Some(7), 7, None, "")]
    #[case::replayed(
        Some(6),
        7,
        Some(Some(5)),
        "its index was 5, and the ConfigMap gpu/index has the version 6"
    )]
    #[case::emptied(Some(6), 7, Some(None), "its index was none by this key")]
    #[case::clock_behind(Some(8), 7, Some(Some(6)), "nodes refuse the index 7")]
    #[case::clock_behind_still(Some(8), 7, None, "nodes refuse the index 7")]
    #[tokio::test]
    async fn doubts(
        #[case] before: Option<u64>,
        #[case] version: u64,
        #[case] replaced: Option<Option<u64>>,
        #[case] expected: &str,
    ) {
        let record = record(&server(&map("")));
        let written = replaced.map(|replaced| written(version, replaced));
        let doubt = record.doubt(before, version, written.as_ref());
        match expected {
            "" => assert_eq!(doubt, None),
            _ => assert!(doubt.as_ref().is_some_and(|line| line.contains(expected)), "{doubt:?}"),
        }
    }
}
