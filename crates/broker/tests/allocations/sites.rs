//! Where the counted bytes are asked for: with `ALLOCATION_SITES` set, the call paths of every allocation between [`begin`]
//! and [`end`], the largest sums first. What a bound that broke is mended with; it slows the run, and changes no count.

use std::{
    backtrace::Backtrace,
    cell::Cell,
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Names of this product's functions that a path is made of, innermost first.
const FRAMES: usize = 5;

static ON: AtomicBool = AtomicBool::new(false);

/// Bytes and allocations by path.
static SITES: Mutex<BTreeMap<String, (usize, usize)>> = Mutex::new(BTreeMap::new());

thread_local! {
    /// Whether this thread is noting already: what noting allocates is not noted.
    static NOTING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this allocation is one of the measurement's own.
pub(crate) fn noting() -> bool {
    NOTING.try_with(Cell::get).unwrap_or(true)
}

pub(crate) fn begin() {
    ON.store(std::env::var_os("ALLOCATION_SITES").is_some(), Ordering::Relaxed);
}

/// Notes an allocation of `bytes`.
pub(crate) fn note(bytes: usize) {
    if !ON.load(Ordering::Relaxed) || noting() {
        return;
    }
    NOTING.set(true);
    let path = path(&Backtrace::force_capture().to_string());
    let mut sites = SITES.lock().unwrap_or_else(PoisonError::into_inner);
    let (sum, count) = sites.entry(path).or_default();
    *sum += bytes;
    *count += 1;
    drop(sites);
    NOTING.set(false);
}

/// The product's functions on the way to an allocation, and the library's function that was nearest.
fn path(backtrace: &str) -> String {
    let mut names = backtrace
        .lines()
        .filter_map(|line| line.trim_start().split_once(": ").map(|(_, name)| name))
        .skip_while(|name| name.contains("allocations::") || name.contains("Backtrace"));
    let is_ours = |name: &&str| name.contains("tidelog_");
    let library: Vec<&str> = names.clone().take_while(|name| !is_ours(name)).collect();
    let mut path: Vec<&str> = library.iter().rev().take(2).rev().copied().collect();
    path.extend(names.by_ref().filter(is_ours).take(FRAMES));
    path.join(" < ")
}

#[allow(clippy::print_stdout, reason = "asked for")]
pub(crate) fn end(requests: usize) {
    ON.store(false, Ordering::Relaxed);
    let mut sites: Vec<_> =
        std::mem::take(&mut *SITES.lock().unwrap_or_else(PoisonError::into_inner)).into_iter().collect();
    sites.sort_by_key(|(_, (bytes, _))| std::cmp::Reverse(*bytes));
    for (path, (bytes, count)) in sites {
        println!(
            "{:5} bytes, {:.2} allocations per request: {path}",
            bytes / requests,
            count as f64 / requests as f64
        );
    }
}
