//! The runner: one thread, virtual time, one seed.

use std::{future::Future, sync::Arc, time::Duration};

use tidelog_runtime::{RandomIds, Rng, SeededRng, Supervisor};

use crate::{SimClock, SimDisk, SimDiskConfig, Trace};

/// The variable that runs one seed alone.
const SEED_VARIABLE: &str = "TIDELOG_SIM_SEED";

/// The variable that says how many seeds to run.
const SEEDS_VARIABLE: &str = "TIDELOG_SIM_SEEDS";

/// What a simulated run is made of. Everything in it is determined by the seed.
#[derive(Clone)]
pub struct Context {
    /// The seed.
    pub seed: u64,
    /// Random numbers for the workload; the disk has a sequence of its own.
    pub rng: SeededRng,
    /// The clock.
    pub clock: SimClock,
    /// An empty disk.
    pub disk: SimDisk,
    /// What happens: on the disk, and whatever else is noted.
    pub trace: Trace,
}

impl Context {
    /// Unique ids that the seed determines.
    #[must_use]
    pub fn ids(&self) -> RandomIds {
        RandomIds::new(Arc::new(self.rng.clone()))
    }

    /// Runs one life of a process on `disk`: until `process` ends, or the disk halts under it (`None`). Then every task
    /// that it spawned is gone.
    ///
    /// ```
    /// # use tidelog_runtime::{Disk, Lane, OpenMode};
    /// # use std::path::Path;
    /// tidelog_sim::run(7, |context| async move {
    ///     context.disk.crash_at(2);
    ///     let acknowledged = context
    ///         .life(&context.disk, |_supervisor| async {
    ///             let file = context.disk.open(Path::new("f"), OpenMode::CreateNew, Lane::Journal).await.unwrap();
    ///             file.write_at(0, vec!["record".into()]).await.unwrap();
    ///         })
    ///         .await;
    ///     assert_eq!(acknowledged, None);
    ///     let survived = context.disk.reopen();
    ///     assert!(survived.list_dir(Path::new("/")).await.is_ok());
    /// });
    /// ```
    pub async fn life<T, F>(&self, disk: &SimDisk, process: impl FnOnce(Supervisor) -> F) -> Option<T>
    where
        F: Future<Output = T>,
    {
        let supervisor = Supervisor::for_test();
        let ended = tokio::select! {
            // The halt first: what the process did in the instant of its death is not observed.
            biased;
            () = disk.halted() => None,
            ended = process(supervisor.clone()) => Some(ended),
        };
        // Aborted tasks are not polled again, so nothing of this life acts in the next one.
        supervisor.abort_all();
        let left = supervisor.shutdown(Duration::from_secs(1)).await;
        assert!(left.is_empty(), "aborted tasks end at once, these did not: {left:?}");
        ended
    }
}

/// Runs `scenario` on one thread in virtual time; `seed` determines the disk's behaviour and every random number.
///
/// A panic passes through, after the seed and how to run it alone were printed.
pub fn run<T, F>(seed: u64, scenario: impl FnOnce(Context) -> F) -> T
where
    F: Future<Output = T>,
{
    let _announcement = Announcement { seed };
    let trace = Trace::default();
    let stepping = trace.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_unpark(move || stepping.step())
        .build()
        .expect("a runtime without IO needs nothing of the system");
    runtime.block_on(async {
        let rng = SeededRng::new(seed);
        let disk = SimDisk::traced(SimDiskConfig::seeded(rng.next_u64()), trace.clone());
        scenario(Context { seed, rng, clock: SimClock::new(), disk, trace }).await
    })
}

/// Prints the seed when the scenario panics.
struct Announcement {
    seed: u64,
}

impl Drop for Announcement {
    #[allow(clippy::print_stderr, reason = "what a person needs to replay a failed simulation")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("simulation failed with seed {0}; {SEED_VARIABLE}={0} runs it alone", self.seed);
        }
    }
}

/// The seeds to run: `0..count`; as many as `TIDELOG_SIM_SEEDS` says; or `TIDELOG_SIM_SEED` alone.
///
/// # Panics
/// Where one of the variables is no number.
pub fn seeds(count: u64) -> impl Iterator<Item = u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} is a number, not {text:?}")))
    };
    match number(SEED_VARIABLE) {
        Some(seed) => seed..seed.saturating_add(1),
        None => 0..number(SEEDS_VARIABLE).unwrap_or(count),
    }
}
