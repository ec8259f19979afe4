//! The admin listener.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::json;
use tidelog_broker::{AdminAnswer, AdminError, AdminListener, AdminSource, LiftFence, SegmentsQuery};
use tidelog_runtime::{Registry, Supervisor};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::node::DEADLINE;

#[derive(Default)]
struct Source {
    ready: AtomicBool,
}

impl AdminSource for Source {
    fn waits_for(&self) -> Vec<String> {
        if self.ready.load(Ordering::Relaxed) { Vec::new() } else { vec!["the controller".to_owned()] }
    }

    fn cluster(&self) -> AdminAnswer {
        Box::pin(async { Ok(json!({ "brokers": [1] })) })
    }

    fn tier_status(&self) -> AdminAnswer {
        Box::pin(async { Err(AdminError::Unavailable("no bucket yet".to_owned())) })
    }

    fn tier_segments(&self, query: SegmentsQuery) -> AdminAnswer {
        Box::pin(async move { Err(AdminError::NotFound(format!("no topic {}", query.topic))) })
    }

    fn fences(&self) -> AdminAnswer {
        Box::pin(async { Ok(json!({ "fences": [] })) })
    }

    fn lift_fence(&self, lift: LiftFence) -> AdminAnswer {
        Box::pin(async move {
            match lift.accept_loss_from {
                7 => Ok(json!({ "lifted": lift.topic })),
                other => Err(AdminError::Conflict(format!("not at {other}"))),
            }
        })
    }
}

async fn get(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream
        .write_all(format!("{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut answer = String::new();
    tokio::time::timeout(DEADLINE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_answer_for_the_node() {
    let (registry, supervisor, source) =
        (Registry::new(), Supervisor::for_test(), Arc::new(Source::default()));
    registry.counter("things_total", "Things.").add(3);
    let listener = AdminListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.address();
    listener.serve(source.clone(), registry, &supervisor);
    let (status, metrics) = get(address, "GET /metrics").await;
    assert_eq!((status, metrics.contains("things_total 3\n")), (200, true), "{metrics}");
    assert_eq!(get(address, "GET /healthz").await, (200, "ok\n".to_owned()));
    assert_eq!(get(address, "GET /readyz").await, (503, "waiting for the controller\n".to_owned()));
    source.ready.store(true, Ordering::Relaxed);
    assert_eq!(get(address, "GET /readyz").await, (200, "ready\n".to_owned()));
    assert_eq!(get(address, "GET /v1/cluster").await, (200, "{\"brokers\":[1]}\n".to_owned()));
    assert_eq!(
        get(address, "GET /v1/tier/status").await,
        (503, "{\"error\":\"no bucket yet\"}\n".to_owned())
    );
    assert_eq!(get(address, "GET /v1/tier/segments?topic=t").await.0, 404);
    assert_eq!(get(address, "GET /v1/tier/segments").await.0, 400);
    assert_eq!(get(address, "GET /nowhere").await.0, 404);
    assert_eq!(get(address, "POST /metrics").await.0, 405);
    assert_eq!(get(address, "GET /v1/fences").await, (200, "{\"fences\":[]}\n".to_owned()));
    // A look never lifts anything, and neither does half of what is needed.
    let lift = "/v1/fences/lift?topic=t&partition=0&accept_loss_from=";
    assert_eq!(get(address, &format!("GET {lift}7")).await.0, 404);
    assert_eq!(get(address, "POST /v1/fences/lift?topic=t&partition=0").await.0, 400);
    assert_eq!(get(address, &format!("POST {lift}8")).await, (409, "{\"error\":\"not at 8\"}\n".to_owned()));
    assert_eq!(get(address, &format!("POST {lift}7")).await, (200, "{\"lifted\":\"t\"}\n".to_owned()));
    assert_eq!(get(address, &format!("GET /{}", "x".repeat(20_000))).await.0, 431);
    assert_eq!(supervisor.shutdown(DEADLINE).await, Vec::<&str>::new());
}
