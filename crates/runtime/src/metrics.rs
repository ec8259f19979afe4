//! Counters, gauges and histograms, and their Prometheus text.
//!
//! A handle is a cheap clone of the one metric that its name and labels stand for: asked for twice, it is the same.

use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Bounds in seconds for what takes time: 50 µs to 60 s, finest where a produce is decided.
pub const SECONDS: &[f64] = &[
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
    10.0, 30.0, 60.0,
];

/// Bounds in bytes for sizes: 256 B to 256 MiB.
pub const BYTES: &[f64] = &[
    256.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
    268_435_456.0,
];

/// All metrics of a process. Clones are the same registry.
#[derive(Clone, Default)]
pub struct Registry {
    families: Arc<Mutex<BTreeMap<&'static str, Family>>>,
}

struct Family {
    doc: &'static str,
    kind: Kind,
    /// By the labels as they are written.
    members: BTreeMap<String, Member>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Clone)]
enum Member {
    Counter(Counter),
    Gauge(Gauge),
    Computed(Arc<dyn Fn() -> u64 + Send + Sync>),
    Many(&'static [&'static str], Arc<dyn Fn() -> Vec<Sample> + Send + Sync>),
    Histogram(Histogram),
}

/// One value of a family that is computed whole: the values of its labels, and what it is.
pub type Sample = (Vec<String>, u64);

/// A count that only grows.
#[derive(Debug, Clone, Default)]
pub struct Counter {
    value: Arc<AtomicU64>,
}

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `count`.
    pub fn add(&self, count: u64) {
        self.value.fetch_add(count, Ordering::Relaxed);
    }

    /// The count.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// An amount that goes up and down, never below zero.
#[derive(Debug, Clone, Default)]
pub struct Gauge {
    value: Arc<AtomicU64>,
}

impl Gauge {
    /// Sets the amount.
    pub fn set(&self, amount: u64) {
        self.value.store(amount, Ordering::Relaxed);
    }

    /// Raises the amount.
    pub fn add(&self, amount: u64) {
        self.value.fetch_add(amount, Ordering::Relaxed);
    }

    /// Lowers the amount, down to zero.
    pub fn sub(&self, amount: u64) {
        self.value.update(Ordering::Relaxed, Ordering::Relaxed, |value| value.saturating_sub(amount));
    }

    /// The amount.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// How often values fell below each of some bounds, and their sum.
#[derive(Debug, Clone)]
pub struct Histogram {
    shared: Arc<Buckets>,
}

#[derive(Debug)]
struct Buckets {
    bounds: &'static [f64],
    /// One for each bound, and one for what exceeds the last.
    counts: Box<[AtomicU64]>,
    sum_bits: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        assert!(bounds.is_sorted(), "histogram bounds ascend: {bounds:?}");
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { shared: Arc::new(Buckets { bounds, counts, sum_bits: AtomicU64::new(0f64.to_bits()) }) }
    }

    /// Counts a value.
    pub fn observe(&self, value: f64) {
        let Buckets { bounds, counts, sum_bits } = &*self.shared;
        counts[bounds.partition_point(|bound| *bound < value)].fetch_add(1, Ordering::Relaxed);
        sum_bits
            .update(Ordering::Relaxed, Ordering::Relaxed, |bits| (f64::from_bits(bits) + value).to_bits());
    }

    /// Counts a duration, in seconds.
    pub fn observe_duration(&self, duration: std::time::Duration) {
        self.observe(duration.as_secs_f64());
    }

    /// How many values were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.shared.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The sum of the values counted.
    #[must_use]
    pub fn sum(&self) -> f64 {
        f64::from_bits(self.shared.sum_bits.load(Ordering::Relaxed))
    }
}

impl Registry {
    /// No metrics.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The counter of this name.
    ///
    /// # Panics
    /// Like every method that registers: where the name is no metric name or stands for another kind.
    #[must_use]
    pub fn counter(&self, name: &'static str, doc: &'static str) -> Counter {
        self.counter_with(name, doc, &[])
    }

    /// The counter of this name and these labels.
    #[must_use]
    pub fn counter_with(&self, name: &'static str, doc: &'static str, labels: &[(&str, &str)]) -> Counter {
        let member = self.member(name, doc, Kind::Counter, labels, || Member::Counter(Counter::default()));
        match member {
            Member::Counter(counter) => counter,
            _ => unreachable!("members of {name} are counters"),
        }
    }

    /// The gauge of this name.
    #[must_use]
    pub fn gauge(&self, name: &'static str, doc: &'static str) -> Gauge {
        self.gauge_with(name, doc, &[])
    }

    /// The gauge of this name and these labels.
    #[must_use]
    pub fn gauge_with(&self, name: &'static str, doc: &'static str, labels: &[(&str, &str)]) -> Gauge {
        let member = self.member(name, doc, Kind::Gauge, labels, || Member::Gauge(Gauge::default()));
        match member {
            Member::Gauge(gauge) => gauge,
            _ => unreachable!("gauge {name} is not both set and computed"),
        }
    }

    /// A gauge that is computed whenever the metrics are read; it replaces one of the same name and labels.
    pub fn gauge_computed(
        &self,
        name: &'static str,
        doc: &'static str,
        labels: &[(&str, &str)],
        compute: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        let computed = Member::Computed(Arc::new(compute));
        self.family(name, doc, Kind::Gauge, |members| members.insert(written_labels(labels), computed));
    }

    /// A family of gauges that is computed whole whenever the metrics are read, with whatever values of `labels` there are then.
    /// It replaces one of the same name.
    pub fn family_computed(
        &self,
        name: &'static str,
        doc: &'static str,
        labels: &'static [&'static str],
        compute: impl Fn() -> Vec<Sample> + Send + Sync + 'static,
    ) {
        let computed = Member::Many(labels, Arc::new(compute));
        self.family(name, doc, Kind::Gauge, |members| members.insert(String::new(), computed));
    }

    /// The histogram of this name over [`SECONDS`].
    #[must_use]
    pub fn histogram(&self, name: &'static str, doc: &'static str) -> Histogram {
        self.histogram_with(name, doc, SECONDS, &[])
    }

    /// The histogram of this name and these labels over `bounds`, ascending.
    #[must_use]
    pub fn histogram_with(
        &self,
        name: &'static str,
        doc: &'static str,
        bounds: &'static [f64],
        labels: &[(&str, &str)],
    ) -> Histogram {
        let make = || Member::Histogram(Histogram::new(bounds));
        match self.member(name, doc, Kind::Histogram, labels, make) {
            Member::Histogram(histogram) => histogram,
            _ => unreachable!("members of {name} are histograms"),
        }
    }

    /// Forgets one member of a metric, when what its labels name is gone.
    pub fn remove(&self, name: &'static str, labels: &[(&str, &str)]) {
        if let Some(family) = self.lock().get_mut(name) {
            family.members.remove(&written_labels(labels));
        }
    }

    /// Everything in Prometheus' text format, sorted by name and labels.
    #[must_use]
    pub fn encode(&self) -> String {
        // Members are cloned out: a computed gauge may take locks under which metrics are registered.
        let copy = |(name, family): (&&'static str, &Family)| {
            (*name, family.doc, family.kind, family.members.clone())
        };
        let families: Vec<_> =
            self.lock().iter().map(copy).filter(|(.., members)| !members.is_empty()).collect();
        let mut text = String::new();
        for (name, doc, kind, members) in families {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let doc = doc.replace('\\', "\\\\").replace('\n', "\\n");
            push(&mut text, format_args!("# HELP {name} {doc}\n# TYPE {name} {kind}\n"));
            for (labels, member) in members {
                match member {
                    Member::Counter(counter) => push_sample(&mut text, name, "", &labels, counter.get()),
                    Member::Gauge(gauge) => push_sample(&mut text, name, "", &labels, gauge.get()),
                    Member::Computed(compute) => push_sample(&mut text, name, "", &labels, compute()),
                    Member::Many(names, compute) => {
                        for (values, value) in compute() {
                            let labels: Vec<(&str, &str)> =
                                names.iter().copied().zip(values.iter().map(String::as_str)).collect();
                            push_sample(&mut text, name, "", &written_labels(&labels), value);
                        }
                    }
                    Member::Histogram(histogram) => push_histogram(&mut text, name, &labels, &histogram),
                }
            }
        }
        text
    }

    fn member(
        &self,
        name: &'static str,
        doc: &'static str,
        kind: Kind,
        labels: &[(&str, &str)],
        make: impl FnOnce() -> Member,
    ) -> Member {
        self.family(name, doc, kind, |members| {
            members.entry(written_labels(labels)).or_insert_with(make).clone()
        })
    }

    fn family<T>(
        &self,
        name: &'static str,
        doc: &'static str,
        kind: Kind,
        act: impl FnOnce(&mut BTreeMap<String, Member>) -> T,
    ) -> T {
        let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        assert!(name.bytes().all(valid) && !name.is_empty(), "{name:?} is a metric name");
        let mut families = self.lock();
        let family = families.entry(name).or_insert_with(|| Family { doc, kind, members: BTreeMap::new() });
        assert!(family.kind == kind, "{name} is one kind of metric, not {:?} and {kind:?}", family.kind);
        act(&mut family.members)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Family>> {
        self.families.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({} metrics)", self.lock().len())
    }
}

/// Labels as they stand between the braces, in the order given.
fn written_labels(labels: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in labels {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let comma = if text.is_empty() { "" } else { "," };
        push(&mut text, format_args!("{comma}{name}=\"{value}\""));
    }
    text
}

fn push(text: &mut String, arguments: fmt::Arguments<'_>) {
    text.write_fmt(arguments).expect("writing to a String does not fail");
}

fn push_sample(text: &mut String, name: &str, suffix: &str, labels: &str, value: impl fmt::Display) {
    if labels.is_empty() {
        push(text, format_args!("{name}{suffix} {value}\n"));
    } else {
        push(text, format_args!("{name}{suffix}{{{labels}}} {value}\n"));
    }
}

fn push_histogram(text: &mut String, name: &str, labels: &str, histogram: &Histogram) {
    let comma = if labels.is_empty() { "" } else { "," };
    let mut total = 0;
    let bounds = histogram.shared.bounds.iter().copied().chain([f64::INFINITY]);
    for (bound, count) in bounds.zip(&histogram.shared.counts) {
        total += count.load(Ordering::Relaxed);
        let bound = if bound.is_infinite() { "+Inf".to_owned() } else { bound.to_string() };
        push_sample(text, name, "_bucket", &format!("{labels}{comma}le=\"{bound}\""), total);
    }
    push_sample(text, name, "_sum", labels, histogram.sum());
    push_sample(text, name, "_count", labels, total);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let registry = Registry::new();
        registry
            .counter_with("api_requests_total", "Requests.", &[("api", "produce"), ("error", "a\"b\\c\nd")])
            .add(3);
        registry.counter_with("api_requests_total", "Requests.", &[("api", "fetch")]).inc();
        registry.gauge("log_tail_bytes", "Bytes\nheld.").set(17);
        registry.gauge_computed("budget_bytes", "Held.", &[], || 5);
        let lags =
            || vec![(vec!["a\"b".to_owned(), "0".to_owned()], 7), (vec!["c".to_owned(), "1".to_owned()], 0)];
        registry.family_computed("lag", "Behind.", &["group", "partition"], lags);
        let histogram = registry.histogram_with("sync_seconds", "Time.", &[0.5, 1.0], &[("disk", "0")]);
        for value in [0.25, 0.5, 0.75, 3.0] {
            histogram.observe(value);
        }
        let expected = "\
# HELP api_requests_total Requests.
# TYPE api_requests_total counter
api_requests_total{api=\"fetch\"} 1
api_requests_total{api=\"produce\",error=\"a\\\"b\\\\c\\nd\"} 3
# HELP budget_bytes Held.
# TYPE budget_bytes gauge
budget_bytes 5
# HELP lag Behind.
# TYPE lag gauge
lag{group=\"a\\\"b\",partition=\"0\"} 7
lag{group=\"c\",partition=\"1\"} 0
# HELP log_tail_bytes Bytes\\nheld.
# TYPE log_tail_bytes gauge
log_tail_bytes 17
# HELP sync_seconds Time.
# TYPE sync_seconds histogram
sync_seconds_bucket{disk=\"0\",le=\"0.5\"} 2
sync_seconds_bucket{disk=\"0\",le=\"1\"} 3
sync_seconds_bucket{disk=\"0\",le=\"+Inf\"} 4
sync_seconds_sum{disk=\"0\"} 4.5
sync_seconds_count{disk=\"0\"} 4
";
        assert_eq!(registry.encode(), expected);
    }

    #[test]
    fn asked_for_twice_a_metric_is_the_same() {
        let registry = Registry::new();
        registry.counter("requests_total", "Requests.").inc();
        registry.clone().counter("requests_total", "Requests.").add(2);
        assert_eq!(registry.counter("requests_total", "Requests.").get(), 3);
    }

    #[test]
    fn a_gauge_does_not_go_below_zero_and_a_removed_member_is_gone() {
        let registry = Registry::new();
        let gauge = registry.gauge_with("lag_bytes", "Lag.", &[("topic", "a")]);
        gauge.add(2);
        gauge.sub(5);
        assert_eq!(gauge.get(), 0);
        registry.remove("lag_bytes", &[("topic", "a")]);
        assert_eq!(registry.encode(), "");
    }

    #[test]
    #[should_panic(expected = "one kind of metric")]
    fn a_name_stands_for_one_kind() {
        let registry = Registry::new();
        let _ = registry.counter("requests_total", "Requests.");
        let _ = registry.gauge("requests_total", "Requests.");
    }
}
