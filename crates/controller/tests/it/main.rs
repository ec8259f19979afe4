//! The controller against openraft's own suite, a disk that crashes, and others of its kind.

mod crash;
mod group;
mod single;
mod suite;
mod support;
