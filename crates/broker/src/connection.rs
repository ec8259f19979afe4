//! One connection: frames in, answers out, in the order in which the requests came.
//!
//! **Owns** the socket, the order of its requests, and their number in flight.
//!
//! **Does not own** what a request means ([`crate::handlers`]).
//!
//! One task reads and writes:
//!
//! ```text
//! socket -> read_frame -> start -> [ queue of at most 9 ] -> finish -> write -> socket
//! ```
//!
//! A Produce is *started* (its batches appended) by the reading half as soon as its frame is there, and *finished* (acks
//! awaited) by the writing half: several of one connection share a sync, and their batches are appended in the order in
//! which they came. Every other request runs when all before it are answered, as Kafka does, and so does a Produce behind
//! one: what a connection sees is as if its requests ran one after the other.
//!
//! An idle connection holds its socket and this task, no buffer. A panic in a handler ends this task, and with it this
//! connection alone.

mod admission;
mod in_work;
mod read;
mod turns;
mod write;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use tidelog_runtime::{CancellationToken, Permit};
use tidelog_types::limits::CONNECTION_REQUESTS_IN_FLIGHT_MAX;
use tidelog_wire::Str;
use tokio::{
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::mpsc,
};

pub(crate) use self::{
    admission::{FrameBudget, FramePermit},
    in_work::InWork,
};
use self::{
    in_work::Counted,
    read::{Head, ReadEnd, ReadLimits, read_frame},
    write::{WriteFailure, write_slices},
};
use crate::{
    api::{self, produce::Started},
    handlers::{self, Request},
    listener::Endpoint,
    node::Node,
};

/// A socket that takes or sends no byte for this long, with an answer or a frame half done, is closed: what it pins is
/// memory that others wait for.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Produces that are answered by one write: until it is done, they are in flight beside those in the queue.
const WRITTEN_TOGETHER_MAX: usize = 6;

/// Requests in the queue: with those that are written and the one that was taken behind them they are as many as may be in flight.
const QUEUED_MAX: usize = CONNECTION_REQUESTS_IN_FLIGHT_MAX - WRITTEN_TOGETHER_MAX - 1;

/// What a handler knows of the connection that a request came on.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// The listener.
    pub endpoint: Arc<Endpoint>,
    /// The peer's address.
    pub address: SocketAddr,
    /// How the client calls itself in this request; empty where it does not.
    pub client_id: Str,
    /// Cancelled when the connection or the broker ends: waits for news end, what is begun is finished.
    pub ended: CancellationToken,
    /// What the connection has in work.
    pub in_work: Arc<InWork>,
}

impl Caller {
    /// The same, in a request that names its client.
    pub(crate) fn named(&self, client_id: Option<Str>) -> Self {
        Self { client_id: client_id.unwrap_or_default(), ..self.clone() }
    }
}

/// What goes back to the client for one request.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// The frame; empty for acks=0.
    pub slices: Vec<Bytes>,
    /// What the slices pin in memory, given back when they are sent.
    pub permit: Option<Permit>,
    /// The connection is closed after it: the one way to tell an error to a producer that wants no answer.
    pub close: bool,
}

/// A request in the queue.
enum Pending {
    /// Its batches are appended; the acks are to be awaited.
    Produce(Box<Started>),
    /// It runs when its turn comes: what is behind it must not be started before.
    Whole(Box<Request>),
}

/// Serves a connection until it ends.
pub(crate) async fn serve(node: Arc<Node>, mut stream: TcpStream, caller: Caller) {
    // Answers are written whole: waiting for more to send would only add a delayed acknowledgement's 40 ms.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(peer = %caller.address, %error, "no TCP_NODELAY");
    }
    let (queue, work) = mpsc::channel(QUEUED_MAX);
    let (mut reader, mut writer) = stream.split();
    let reading = async {
        let end = read_requests(&node, &mut reader, &caller, queue).await;
        report(&node, &caller, &end);
        if matches!(end, End::Read(ReadEnd::Closed | ReadEnd::Lost(_))) {
            // Nobody waits for news any more; what was begun is finished, for a peer may have closed one way only.
            caller.ended.cancel();
        }
    };
    let writing = write_answers(&node, &mut writer, &caller, work);
    tokio::join!(reading, writing);
}

/// Why a connection's requests ended.
enum End {
    Read(ReadEnd),
    BadRequest(handlers::BadRequest),
    /// The writing half ended, and said why.
    Unwritable,
    Shutdown,
}

fn report(node: &Node, caller: &Caller, end: &End) {
    let (peer, listener) = (caller.address, caller.endpoint.name.as_str());
    let reason = match end {
        End::Read(ReadEnd::Closed) | End::Unwritable | End::Shutdown => return,
        End::Read(end @ ReadEnd::Lost(_)) => {
            return tracing::debug!(%peer, listener, %end, "connection lost");
        }
        End::Read(end @ ReadEnd::Idle) => {
            node.metrics.idle_sockets.inc();
            return tracing::debug!(%peer, listener, %end, "connection closed");
        }
        End::Read(end @ (ReadEnd::Stalled(_) | ReadEnd::Slow { .. })) => {
            node.metrics.slow_sockets.inc();
            if let Some(suppressed) = node.connection_lines.pass("slow") {
                tracing::info!(%peer, listener, %end, suppressed, "connection closed");
            }
            return;
        }
        End::Read(ReadEnd::NotKafka(_)) => {
            node.metrics.not_kafka.inc();
            "not kafka"
        }
        End::Read(ReadEnd::Size(_) | ReadEnd::TooShort(_)) => {
            node.metrics.bad_frames.inc();
            "frame size"
        }
        End::BadRequest(_) => {
            node.metrics.bad_frames.inc();
            "bad request"
        }
    };
    let Some(suppressed) = node.connection_lines.pass(reason) else { return };
    match end {
        End::Read(end) => tracing::warn!(%peer, listener, %end, suppressed, "connection closed"),
        End::BadRequest(error) => tracing::warn!(%peer, listener, %error, suppressed, "connection closed"),
        End::Unwritable | End::Shutdown => {}
    }
}

async fn read_requests(
    node: &Arc<Node>,
    reader: &mut ReadHalf<'_>,
    caller: &Caller,
    queue: mpsc::Sender<(Pending, Counted)>,
) -> End {
    let in_work = &*caller.in_work;
    let limits = ReadLimits {
        request_bytes_max: node.limits.request_bytes_max,
        idle: node.limits.idle,
        silence: SILENCE_MAX,
        produce: &node.produce_budget,
        reserve: &node.request_budget,
        turns: &node.copy_turns,
    };
    let mut head = Head::new();
    loop {
        let slot = tokio::select! {
            biased;
            () = caller.ended.cancelled() => return End::Shutdown,
            slot = queue.reserve() => match slot {
                Ok(slot) => slot,
                Err(_) => return End::Unwritable,
            },
        };
        let frame = tokio::select! {
            biased;
            () = caller.ended.cancelled() => return End::Shutdown,
            () = queue.closed() => return End::Unwritable,
            frame = read_frame(reader, &mut head, limits, in_work) => match frame {
                Ok(frame) => frame,
                Err(end) => return End::Read(end),
            },
        };
        node.metrics.bytes_in.add(u64::try_from(frame.bytes.len()).unwrap_or(0));
        let hurried = frame.hurried;
        if frame.bytes.len() > turns::LARGE_COPY {
            // Its checksums are to come: others first, or who floods would have this thread for as long as his frames come.
            tokio::task::yield_now().await;
        }
        let request = match Request::decode(frame.bytes, frame.permit) {
            Ok(request) => request,
            Err(error) => return End::BadRequest(error),
        };
        let barrier = !request.is_produce() || in_work.any_barrier();
        let counted = Counted { barrier, hurried };
        in_work.begin(counted);
        let pending = if barrier {
            Pending::Whole(Box::new(request))
        } else {
            match handlers::start_produce(node, request).await {
                Ok(started) => Pending::Produce(started),
                Err(error) => return End::BadRequest(error),
            }
        };
        slot.send((pending, counted));
    }
}

async fn write_answers(
    node: &Arc<Node>,
    writer: &mut WriteHalf<'_>,
    caller: &Caller,
    mut work: mpsc::Receiver<(Pending, Counted)>,
) {
    let (peer, listener) = (caller.address, caller.endpoint.name.as_str());
    let mut next = None;
    loop {
        let first = match next.take() {
            Some(first) => first,
            None => match work.recv().await {
                Some(first) => first,
                None => return,
            },
        };
        let together = answer_together(node, caller, first, &mut work).await;
        next = together.next;
        let (slices, permit) = (&together.answer.slices, together.answer.permit.as_ref());
        let written = write_slices(writer, slices, permit, &node.copy_turns, SILENCE_MAX).await;
        together.counted.into_iter().for_each(|counted| caller.in_work.end(counted));
        match written {
            Ok(bytes) => node.metrics.bytes_out.add(u64::try_from(bytes).unwrap_or(0)),
            Err(failure @ (WriteFailure::Silent(_) | WriteFailure::Slow(_))) => {
                node.metrics.slow_sockets.inc();
                if let Some(suppressed) = node.connection_lines.pass("slow answer") {
                    tracing::info!(%peer, listener, %failure, suppressed, "connection closed");
                }
                return;
            }
            Err(WriteFailure::Gone(error)) => {
                tracing::debug!(%peer, listener, %error, "connection lost");
                return;
            }
        }
        if let Some(error) = together.bad {
            return report(node, caller, &End::BadRequest(error));
        }
        if together.answer.close {
            return;
        }
    }
}

/// Answers that are written together.
#[derive(Default)]
struct Together {
    /// All of them, one behind the other.
    answer: Answer,
    counted: Vec<Counted>,
    /// The one behind them that is no answer.
    bad: Option<handlers::BadRequest>,
    /// What was taken from the queue, and is not answered with them.
    next: Option<(Pending, Counted)>,
}

/// Answers a request; with a Produce those behind it that a round of the journal has acknowledged as well, which are one write
/// then.
async fn answer_together(
    node: &Arc<Node>,
    caller: &Caller,
    first: (Pending, Counted),
    work: &mut mpsc::Receiver<(Pending, Counted)>,
) -> Together {
    let mut together = Together::default();
    let (pending, counted) = first;
    together.counted.push(counted);
    let mut started = match pending {
        Pending::Produce(started) => started,
        Pending::Whole(request) => {
            match handlers::run(node, caller, request).await {
                Ok(answer) => together.answer = answer,
                Err(error) => together.bad = Some(error),
            }
            return together;
        }
    };
    loop {
        match api::produce::finish(node, caller, started).await {
            Ok(answer) => {
                together.answer.slices.extend(answer.slices);
                together.answer.close = answer.close;
            }
            Err(error) => together.bad = Some(error),
        }
        if together.answer.close || together.bad.is_some() || together.counted.len() == WRITTEN_TOGETHER_MAX {
            return together;
        }
        match work.try_recv() {
            Ok((Pending::Produce(behind), counted)) if behind.is_done() => {
                together.counted.push(counted);
                started = behind;
            }
            behind => {
                together.next = behind.ok();
                return together;
            }
        }
    }
}
