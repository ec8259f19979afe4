//! The parts of a bench as programs of their own: `cargo xtask bench` runs them; each prints one JSON document.

#![allow(clippy::print_stdout, reason = "figures go to standard output, for the program that asked")]

use std::{fs, io::Read as _, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use tidelog_benches::{
    canned, get_loop, groups, journal, probe, put_loop,
    s3::{Get, Knobs, Server},
    sender,
};

/// Parts of Tidelog's benches.
#[derive(Parser)]
#[command(name = "tidelog-bench")]
struct CommandLine {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// The S3 stand-in, until standard input ends.
    S3(S3),
    /// A broker whose topic `canned` is made of the same batches again and again, until standard input ends.
    Canned {
        /// Partitions.
        #[arg(long, default_value_t = 1)]
        partitions: i32,
        /// Records of each partition.
        #[arg(long, default_value_t = 2_097_152)]
        records: u64,
        /// Bytes of a record.
        #[arg(long, default_value_t = 1024)]
        size: usize,
        /// Bytes of a batch.
        #[arg(long, default_value_t = 262_144)]
        batch: usize,
    },
    /// The raw GET loop.
    Get(GetLoop),
    /// The raw PUT loop.
    Put {
        /// The server.
        #[arg(long)]
        server: SocketAddr,
        /// The bucket.
        #[arg(long)]
        bucket: String,
        /// Bytes of an object.
        #[arg(long, default_value_t = 67_108_864)]
        object: usize,
        /// Bytes in all.
        #[arg(long, default_value_t = 1_073_741_824)]
        bytes: u64,
        /// Connections.
        #[arg(long, default_value_t = 4)]
        concurrency: usize,
    },
    /// Sends bytes from memory, or a file from the page cache, to a socket that discards them.
    Send {
        /// This file, once, in pieces of 1 MiB.
        #[arg(long, conflicts_with_all = ["bytes", "slice", "slices"])]
        file: Option<PathBuf>,
        /// Bytes in all.
        #[arg(long, default_value_t = 2_147_483_648)]
        bytes: u64,
        /// Bytes of one slice.
        #[arg(long, default_value_t = 262_144)]
        slice: usize,
        /// Slices of one write.
        #[arg(long, default_value_t = 8)]
        slices: usize,
    },
    /// Rounds of the journal beside rounds of a bare file.
    Journal {
        /// Where to measure.
        #[arg(long)]
        folder: PathBuf,
        /// Dirty partitions of a round.
        #[arg(long, value_delimiter = ',', default_value = "1,16,256,1000")]
        partitions: Vec<usize>,
        /// Bytes of a batch.
        #[arg(long, default_value_t = 4096)]
        batch: usize,
        /// Pairs of blocks.
        #[arg(long, default_value_t = 5)]
        pairs: usize,
        /// Rounds of a block.
        #[arg(long, default_value_t = 50)]
        rounds: usize,
    },
    /// Many consumer groups with one member each.
    Groups(groups::Many),
    /// One consumer group with many members.
    Group(groups::One),
    /// Many offset commits of many groups.
    Commits(groups::Commits),
    /// Waits until a broker takes appends on every partition of a topic.
    Probe {
        /// The broker.
        #[arg(long)]
        broker: SocketAddr,
        /// The topic.
        #[arg(long)]
        topic: String,
        /// Its partitions.
        #[arg(long, default_value_t = 1)]
        partitions: i32,
        /// As a producer's.
        #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
        acks: i16,
        /// When to give up.
        #[arg(long, default_value_t = 120)]
        seconds: u64,
    },
}

#[derive(Args)]
struct S3 {
    /// The port; 0 is any.
    #[arg(long, default_value_t = 0)]
    port: u16,
    /// Buckets that are there from the start.
    #[arg(long, default_value = "bench")]
    bucket: Vec<String>,
    /// Knobs, as `name=value`: `first_byte_us`, `connection_rate`, `total_rate`, `busy_per_mille`, `hang_per_mille`, `cut_per_mille`.
    #[arg(long)]
    knob: Vec<String>,
}

#[derive(Args)]
struct GetLoop {
    /// The server.
    #[arg(long)]
    server: SocketAddr,
    /// A file with lines of `bucket/key start length`.
    #[arg(long, conflicts_with = "path")]
    ranges: Option<PathBuf>,
    /// One object, `bucket/key`, read again and again in ranges of `--range`.
    #[arg(long)]
    path: Option<String>,
    /// The object's bytes.
    #[arg(long, default_value_t = 67_108_864)]
    object: u64,
    /// Bytes of a range.
    #[arg(long, default_value_t = 8_388_608)]
    range: u64,
    /// Bytes in all.
    #[arg(long, default_value_t = 1_073_741_824)]
    bytes: u64,
    /// Connections.
    #[arg(long, default_value_t = 4)]
    concurrency: usize,
}

fn main() -> ExitCode {
    match run(CommandLine::parse().part) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidelog-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(part: Part) -> Result<()> {
    match part {
        Part::S3(options) => serve(&options),
        Part::Canned { partitions, records, size, batch } => {
            let shape = canned::Shape { partitions, records, record_bytes: size, batch_bytes: batch };
            print(&serde_json::json!({ "address": canned::start(shape)?.to_string() }))?;
            until_input_ends()
        }
        Part::Get(options) => print(&get_loop::run(options.server, &gets(&options)?, options.concurrency)?),
        Part::Put { server, bucket, object, bytes, concurrency } => {
            print(&put_loop::run(server, &bucket, object, bytes, concurrency)?)
        }
        Part::Send { file: Some(file), .. } => print(&sender::run_file(&file)?),
        Part::Send { file: None, bytes, slice, slices } => print(&sender::run(bytes, slice, slices)?),
        Part::Journal { folder, partitions, batch, pairs, rounds } => {
            let plan = journal::Plan { partitions, batch_bytes: batch, pairs, rounds };
            print(&journal::run(&folder, &plan)?)
        }
        Part::Groups(plan) => print(&one_thread()?.block_on(groups::run_many(plan))?),
        Part::Group(plan) => print(&one_thread()?.block_on(groups::run_one(plan))?),
        Part::Commits(plan) => print(&one_thread()?.block_on(groups::run_commits(plan))?),
        Part::Probe { broker, topic, partitions, acks, seconds } => {
            let limit = Duration::from_secs(seconds);
            print(&one_thread()?.block_on(probe::run(broker, &topic, partitions, acks, limit))?)
        }
    }
}

fn one_thread() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")
}

fn print(outcome: &impl serde::Serialize) -> Result<()> {
    println!("{}", serde_json::to_string(outcome)?);
    Ok(())
}

fn serve(options: &S3) -> Result<()> {
    let mut knobs = Knobs::default();
    for knob in &options.knob {
        let (name, value) = knob.split_once('=').with_context(|| format!("`{knob}` is not name=value"))?;
        knobs.set(name, value).map_err(anyhow::Error::msg)?;
    }
    let server = Server::start(options.port, knobs, &options.bucket).context("start the stand-in")?;
    print(&serde_json::json!({ "address": server.address().to_string() }))?;
    until_input_ends()
}

/// Whoever started it holds the other end; a server without its bench must not stay.
fn until_input_ends() -> Result<()> {
    let mut rest = Vec::new();
    std::io::stdin().read_to_end(&mut rest).context("wait for the end of standard input")?;
    Ok(())
}

fn gets(options: &GetLoop) -> Result<Vec<Get>> {
    if let Some(file) = &options.ranges {
        let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        return get_loop::parse_gets(&text);
    }
    let path = options.path.as_deref().context("--ranges or --path is needed")?;
    let range = options.range.clamp(1, options.object.max(1));
    let per_object = (options.object / range).max(1);
    let count = options.bytes.div_ceil(range);
    let get = |number: u64| Get { path: path.to_owned(), start: number % per_object * range, length: range };
    Ok((0..count).map(get).collect())
}
