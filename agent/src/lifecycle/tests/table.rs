//! Another support table at its place: followed alone, and asked for again until it is followed.

use rstest::rstest;
use tokio::sync::Notify;

use super::*;

/// Stand-in for the place of the support table: a table shows as another number of jobs.
#[derive(Default)]
pub(super) struct Tables {
    /// The place has another one.
    pub(super) changed: Notify,
    /// Tables in the order in which they are fetched; None cannot be.
    pub(super) next: Mutex<VecDeque<Option<usize>>>,
    /// Tables of the configurations that the agent follows.
    pub(super) followed: Mutex<Vec<Option<usize>>>,
}

impl Tables {
    pub(super) fn next_of(&self, running: &Config) -> Result<Config, Failure> {
        let next = self.next.lock().unwrap().pop_front().expect("a table to fetch");
        let jobs = next.ok_or_else(|| Failure::new(FailureKind::Download, "no route to host"))?;
        Ok(Config { jobs: Some(jobs), ..running.clone() })
    }
}

/// Runs an agent that is Ready with 535 and has to fetch these tables, one after the other.
async fn with_tables(
    scene: &Scene,
    tables: &[Option<usize>],
    plans: Vec<Result<Plan, FailureKind>>,
) {
    scene.tables.next.lock().unwrap().extend(tables);
    let asking = async {
        scene.until_ready().await;
        for left in (0..tables.len()).rev() {
            scene.tables.changed.notify_one();
            while scene.tables.next.lock().unwrap().len() > left {
                tokio::task::yield_now().await;
            }
            scene.until_ready().await;
        }
        while scene.gathered.load(Ordering::Relaxed) < plans_of(tables) {
            tokio::task::yield_now().await;
        }
        scene.until_ready().await;
        scene.stop.set();
    };
    let plans = std::iter::once(Ok(plan("535"))).chain(plans).collect();
    let ended = tokio::join!(scene.live(At::Never, plans), asking).0;
    assert_eq!(ended.unwrap(), ExitCode::Done);
}

/// Returns the number of plans: the first one, and one for each table that was fetched.
fn plans_of(tables: &[Option<usize>]) -> usize {
    1 + tables.iter().flatten().count()
}

/// No configuration is there to be read: doing so would panic.
#[tokio::test]
async fn a_table_is_followed_with_the_rest_of_the_configuration_as_it_was() {
    let scene = Scene::new();
    with_tables(&scene, &[Some(7)], vec![Ok(plan("535"))]).await;
    assert_eq!(*scene.tables.followed.lock().unwrap(), [Some(7)]);
    assert!(scene.configs.lock().unwrap().is_empty());
}

#[rstest]
#[case::cannot_be_fetched(&[None, Some(7)], vec![Ok(plan("535"))])]
#[case::cannot_be_planned_with(
    &[Some(7), Some(7)],
    vec![Err(FailureKind::Download), Ok(plan("535"))]
)]
#[tokio::test]
async fn a_table_is_not_followed_while_it(
    #[case] tables: &[Option<usize>],
    #[case] plans: Vec<Result<Plan, FailureKind>>,
) {
    let scene = Scene::new();
    with_tables(&scene, tables, plans).await;
    assert_eq!(*scene.tables.followed.lock().unwrap(), [Some(7)]);
}

/// A request of SIGHUP is not lost in one of a table.
#[tokio::test]
async fn a_signal_beside_a_table_reads_the_whole_configuration() {
    let renewal = Renewal::default();
    assert!(!renewal.take_whole());
    renewal.ask();
    renewal.ask_for_table();
    renewal.asked().await;
    assert!(renewal.take_whole());
    renewal.ask_for_table();
    renewal.asked().await;
    assert!(!renewal.take_whole());
}
