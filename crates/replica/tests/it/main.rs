//! A node's log, its controller of one voter and its partitions, in one process on a simulated disk.

mod appends;
mod bucket;
mod idempotence;
mod look_ups;
mod node;
mod reads;
mod starts;
mod topics;
mod uploads;
