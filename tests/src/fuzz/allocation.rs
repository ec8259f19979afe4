//! Counts what a thread allocates: the bounds of the decoders are asserted with it.
#![allow(
    unsafe_code,
    reason = "a global allocator is an unsafe trait; it only counts and passes on to the system's"
)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static TOTAL: Cell<usize> = const { Cell::new(0) };
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, counted by thread. A binary that runs targets installs it as its global one. What C code
/// allocates (zstd's window) does not pass through it.
#[derive(Debug)]
pub struct Counting;

fn add(bytes: usize) {
    // A thread that is ending has no counter any more, and nobody asks for it.
    let _ = TOTAL.try_with(|total| total.set(total.get().saturating_add(bytes)));
    let _ = LIVE.try_with(|live| {
        live.set(live.get().saturating_add(bytes));
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
    });
}

fn remove(bytes: usize) {
    // What another thread allocated may be freed here.
    let _ = LIVE.try_with(|live| live.set(live.get().saturating_sub(bytes)));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        remove(layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`, and `alloc` above is the system's.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Old and new lie side by side while they are copied.
        add(size);
        remove(layout.size());
        // SAFETY: the caller keeps the contract of `realloc`, and `alloc` above is the system's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What a piece of work took of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spent {
    /// The sum of all allocations, freed or not; a reallocation counts whole.
    pub total: usize,
    /// The most that was allocated at one time beyond what was before.
    pub peak: usize,
}

/// Runs `work`, and tells what this thread allocated meanwhile.
pub fn measured<T>(work: impl FnOnce() -> T) -> (T, Spent) {
    let (total, live) = (TOTAL.get(), LIVE.get());
    PEAK.set(live);
    let answer = work();
    let spent = Spent { total: TOTAL.get().saturating_sub(total), peak: PEAK.get().saturating_sub(live) };
    (answer, spent)
}

/// Checks that the allocator is installed: without it every bound would hold.
///
/// # Panics
/// Where it is not.
pub fn assert_counting() {
    let (kept, spent) = measured(|| std::hint::black_box(vec![1_u8; 1000]));
    assert!(spent.total >= kept.len() && spent.peak >= kept.len(), "no counting allocator is installed");
}
