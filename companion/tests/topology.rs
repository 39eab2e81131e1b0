//! Where publishers are: dialled or dialling in, one rank or several, found by asking.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use support::engine::{Engine, Format};
use support::reader::{Item, Reader, batch};
use support::{bridge, ports};
use tokio::net::TcpListener;

#[tokio::test]
async fn a_publisher_that_connects_out() {
    let port = ports(1).await;
    let bridge = bridge(
        &format!("- {{endpoint: '10.0.0.7:8000', bind: 'tcp://127.0.0.1:{port}'}}"),
        "",
    )
    .await;
    let mut reader = Reader::new(bridge.address());
    reader.until_state("10.0.0.7:8000", 0, "connecting").await;
    let mut engine = Engine::connect(port, None, "").await;
    reader.until_state("10.0.0.7:8000", 0, "live").await;
    while reader.of("10.0.0.7:8000", 0).is_empty() {
        engine.publish(&b"x"[..]).await;
        reader.poll(50).await;
    }
    let items = reader.of("10.0.0.7:8000", 0);
    // Whether the very first batch overtook the subscription is chance; what is said of it is not.
    let Item::Batch(first, _) = items[1] else {
        panic!("{items:?}")
    };
    assert_eq!(items[0], Item::Start(first == 0));

    // and: its next process, seen from its first batch on or not
    engine.end().await;
    reader.until_state("10.0.0.7:8000", 0, "connecting").await;
    let mut engine = Engine::connect(port, None, "").await;
    let before = reader.of("10.0.0.7:8000", 0).len();
    while reader.of("10.0.0.7:8000", 0).len() <= before {
        engine.publish(&b"y"[..]).await;
        reader.poll(50).await;
    }
    assert!(!matches!(
        reader.of("10.0.0.7:8000", 0)[before],
        Item::Batch(..)
    ));
    bridge.stop().await;
}

/// Engines that share an address are told apart by topic; a topic of nobody's is not taken.
#[tokio::test]
async fn several_publishers_at_one_address() {
    let port = ports(1).await;
    let bridge = bridge(
        &format!(
            "- {{endpoint: '10.0.0.7:8000', bind: 'tcp://127.0.0.1:{port}', topic: 'kv@10.0.0.7'}}\n\
             - {{endpoint: '10.0.0.70:8000', bind: 'tcp://127.0.0.1:{port}', topic: 'kv@10.0.0.70'}}\n\
             - {{endpoint: SHARED_STORAGE, bind: 'tcp://127.0.0.1:{port}', topic: 'kv@SHARED_STORAGE'}}"
        ),
        "",
    )
    .await;
    let mut reader = Reader::new(bridge.address());
    for (endpoint, topic) in [
        ("10.0.0.7:8000", "kv@10.0.0.7@m"),
        ("10.0.0.70:8000", "kv@10.0.0.70@m"),
        ("SHARED_STORAGE", "kv@SHARED_STORAGE@m"),
    ] {
        let mut engine = Engine::connect(port, None, topic).await;
        while reader.of(endpoint, 0).is_empty() {
            engine.publish(endpoint).await;
            reader.poll(50).await;
        }
        assert!(
            matches!(&reader.of(endpoint, 0)[1], Item::Batch(_, payload) if payload == endpoint.as_bytes())
        );
    }
    bridge.stop().await;
}

#[tokio::test]
async fn ranks_publish_at_consecutive_ports() {
    for per_rank in [false, true] {
        let (port, replay) = (ports(3).await, ports(3).await);
        for rank in 0..3u16 {
            let mut engine = Engine::at(port + rank, replay + rank, Some(Format::Four), "").await;
            engine.keep(rank.to_string());
            // Lives until the test ends.
            tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(engine);
            });
        }
        let bridge = bridge(
            &format!(
                "- {{endpoint: '10.0.0.7:8000', connect: 'tcp://127.0.0.1:{port}', replay: 'tcp://127.0.0.1:{replay}', \
                 dataParallelRanks: 3, endpointPerRank: {per_rank}}}"
            ),
            "",
        )
        .await;
        let mut reader = Reader::new(bridge.address());
        for rank in 0..3u64 {
            let endpoint = if per_rank {
                format!("10.0.0.7:{}", 8000 + rank)
            } else {
                "10.0.0.7:8000".into()
            };
            reader
                .until(|reader| reader.of(&endpoint, rank).len() == 2)
                .await;
            assert_eq!(
                reader.of(&endpoint, rank),
                [Item::Start(true), batch(0, rank.to_string())]
            );
        }
        bridge.stop().await;
    }
}

/// An engine's API server that answers `GET /kv_event_sources` with what it is given.
async fn api(answer: Arc<Mutex<String>>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                let body = answer.lock().unwrap().clone();
                async move {
                    assert_eq!(request.uri().path(), "/kv_event_sources");
                    Ok::<_, Infallible>(Response::new(Full::new(Bytes::from(body))))
                }
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    port
}

fn sources(engines: &[&Engine]) -> String {
    let listed = engines.iter().enumerate().map(|(rank, engine)| {
        format!(
            r#""{rank}":{{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:{}","replay_endpoint":"tcp://*:{}","topic":"{}"}}"#,
            engine.port, engine.replay_port, engine.topic
        )
    });
    format!("{{{}}}", listed.collect::<Vec<_>>().join(","))
}

/// given: an engine that says where it publishes, first not at all, then elsewhere after a restart
#[tokio::test]
async fn an_engine_is_asked_where_it_publishes() {
    let answer = Arc::new(Mutex::new("{}".to_owned()));
    let api = api(answer.clone()).await;
    let bridge = bridge(
        &format!("- {{endpoint: '10.0.0.7:8000', discover: 'http://127.0.0.1:{api}'}}"),
        "",
    )
    .await;
    let mut reader = Reader::new(bridge.address());
    assert!(reader.poll(0).await.endpoints.is_empty());

    let mut ranks = [
        Engine::at(0, 0, Some(Format::Four), "kv@a").await,
        Engine::at(0, 0, Some(Format::Four), "kv@b").await,
    ];
    for (rank, engine) in ranks.iter_mut().enumerate() {
        engine.keep(rank.to_string());
    }
    *answer.lock().unwrap() = sources(&[&ranks[0], &ranks[1]]);
    for rank in 0..2u64 {
        reader
            .until(|reader| reader.of("10.0.0.7:8000", rank).len() == 2)
            .await;
        assert_eq!(
            reader.of("10.0.0.7:8000", rank),
            [Item::Start(true), batch(0, rank.to_string())]
        );
    }

    let [first, second] = ranks;
    first.end().await;
    let mut first = Engine::at(0, 0, Some(Format::Four), "kv@a").await;
    first.keep("new");
    *answer.lock().unwrap() = sources(&[&first, &second]);
    reader
        .until(|reader| reader.of("10.0.0.7:8000", 0).len() == 4)
        .await;
    assert_eq!(
        reader.of("10.0.0.7:8000", 0)[2..],
        [Item::Start(true), batch(0, "new")]
    );
    assert_eq!(reader.of("10.0.0.7:8000", 1).len(), 2);
    bridge.stop().await;
}

/// Losing one engine loses nothing of another.
#[tokio::test]
async fn engines_do_not_depend_on_each_other() {
    let lost = Engine::start(Format::Four).await;
    let mut kept = Engine::start(Format::Four).await;
    let nowhere = ports(1).await;
    let bridge = bridge(
        &format!(
            "- {{endpoint: '10.0.0.1:8000', {}}}\n- {{endpoint: '10.0.0.2:8000', {}}}\n- {{endpoint: '10.0.0.3:8000', connect: 'tcp://127.0.0.1:{nowhere}'}}",
            lost.ports_of(),
            kept.ports_of()
        ),
        "",
    )
    .await;
    let mut reader = Reader::new(bridge.address());
    reader.until_state("10.0.0.1:8000", 0, "live").await;
    reader.until_state("10.0.0.2:8000", 0, "live").await;
    reader.until_state("10.0.0.3:8000", 0, "connecting").await;
    lost.end().await;
    reader.until_state("10.0.0.1:8000", 0, "connecting").await;
    while reader.of("10.0.0.2:8000", 0).is_empty() {
        kept.publish(&b"x"[..]).await;
        reader.poll(50).await;
    }
    assert_eq!(
        reader.of("10.0.0.2:8000", 0)[..2],
        [Item::Start(true), batch(0, "x")]
    );
    bridge.stop().await;
}
