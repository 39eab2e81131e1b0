//! Readers: pages, cursors, bounds of the log, tokens, what an operator asks.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod support;

use hyper::StatusCode;
use selective_kv_companion::bridge::Bridge;
use std::time::Duration;
use support::bridge;
use support::engine::{Engine, Format};
use support::http::{get, request};
use support::reader::{Item, Page, Reader, batch};

const E: &str = "10.0.0.7:8000";

/// An engine that has published these, and a bridge that follows it.
async fn following(payloads: &[Vec<u8>], more: &str) -> (Engine, Bridge) {
    let mut engine = Engine::start(Format::Four).await;
    for payload in payloads {
        engine.keep(payload.clone());
    }
    let bridge = bridge(
        &format!("- {{endpoint: '{E}', {}}}", engine.ports_of()),
        more,
    )
    .await;
    (engine, bridge)
}

fn history(payloads: &[Vec<u8>]) -> Vec<Item> {
    let mut items = vec![Item::Start(true)];
    items.extend(
        payloads
            .iter()
            .zip(0..)
            .map(|(payload, seq)| batch(seq, payload)),
    );
    items
}

/// The manual's example is what this decoder, which is not the bridge's, reads.
#[test]
fn the_example_of_the_manual_decodes() {
    let text = include_str!("../../docs/kv-events-bridge.md");
    let block = text
        .split("### A page, byte by byte")
        .nth(1)
        .unwrap()
        .split("```")
        .nth(1)
        .unwrap();
    let digits: Vec<u8> = block
        .lines()
        .flat_map(|line| line.split('#').next())
        .flat_map(str::bytes)
        .filter(u8::is_ascii_hexdigit)
        .collect();
    let bytes: Vec<u8> = digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect();
    let page = Page::decode(&bytes);
    assert_eq!(
        (page.cursor.as_str(), page.reset, page.more),
        ("0123456789abcdef-6", false, false)
    );
    let payload = b"\x93\xcb\x41\xda\xc3\x03\x92\x10\0\0\x90\0";
    let first = &page.endpoints[&(E.to_owned(), 0)];
    assert_eq!(
        first.items,
        [
            Item::Start(true),
            batch(0, payload),
            Item::Gap(5),
            batch(5, payload)
        ]
    );
    assert_eq!(
        (
            first.state.as_str(),
            first.silent_ms,
            first.topic.as_deref()
        ),
        ("live", Some(1200), Some("kv@10.0.0.7"))
    );
    let second = &page.endpoints[&("10.0.0.8:8000".to_owned(), 1)];
    assert_eq!(
        (
            second.state.as_str(),
            second.silent_ms,
            second.topic.as_deref()
        ),
        ("connecting", None, None)
    );
    assert_eq!(second.items, []);
}

#[tokio::test]
async fn every_reader_gets_everything() {
    let payloads: Vec<Vec<u8>> = (0..10u8).map(|n| vec![n]).collect();
    let (_engine, bridge) = following(&payloads, "").await;
    let mut readers = [Reader::new(bridge.address()), Reader::new(bridge.address())];
    for reader in &mut readers {
        reader.expect(E, &history(&payloads)).await;
    }
    bridge.stop().await;
}

/// then: no page is longer than configured, and together they are the whole
#[tokio::test]
async fn pages_are_bounded() {
    let payloads: Vec<Vec<u8>> = (0..100usize).map(|n| vec![n as u8; 200 + n * 50]).collect();
    let (_engine, bridge) = following(&payloads, "limits: {maxPageBytes: 65536}").await;
    let mut reader = Reader::new(bridge.address());
    reader.until(|reader| reader.of(E, 0).len() == 101).await;

    let mut fresh = Reader::new(bridge.address());
    let mut pages = Vec::new();
    loop {
        let page = fresh.poll(1000).await;
        assert!(page.bytes <= 65_536, "{}", page.bytes);
        pages.push(page.bytes);
        if !page.more {
            break;
        }
    }
    assert_eq!(fresh.of(E, 0), history(&payloads));
    assert!(pages.len() >= 5, "{pages:?}");
    // and: pages are filled, not one batch each
    assert!(pages[1] > 50_000, "{pages:?}");
    bridge.stop().await;
}

/// A batch that no page can hold is lost, and said to be; what follows is not.
#[tokio::test]
async fn a_batch_that_is_too_long_is_a_gap() {
    let payloads = [vec![0; 10], vec![1; 100_000], vec![2; 10]];
    let (_engine, bridge) = following(&payloads, "limits: {maxPageBytes: 65536}").await;
    let mut reader = Reader::new(bridge.address());
    reader
        .expect(
            E,
            &[
                Item::Start(true),
                batch(0, [0; 10]),
                Item::Gap(2),
                batch(2, [2; 10]),
            ],
        )
        .await;
    bridge.stop().await;
}

/// given: a log of 5 records, a reader that stays away
/// then: what it misses is said; who comes new learns that the history is not whole
#[tokio::test]
async fn a_slow_reader_and_a_late_one_are_told_what_the_log_dropped() {
    let payloads: Vec<Vec<u8>> = (0..2u8).map(|n| vec![n]).collect();
    let (mut engine, bridge) = following(&payloads, "limits: {maxLogBatches: 5}").await;
    let mut slow = Reader::new(bridge.address());
    let mut quick = Reader::new(bridge.address());
    slow.expect(E, &history(&payloads)).await;
    quick.until_state(E, 0, "live").await;
    while quick.of(E, 0).len() < 20 {
        engine.publish(&b"x"[..]).await;
        quick.poll(50).await;
    }
    let page = slow.poll(0).await;
    let items = &page.endpoints[&(E.to_owned(), 0)].items;
    let [Item::Gap(next), Item::Batch(first, _), ..] = items.as_slice() else {
        panic!("{items:?}");
    };
    assert_eq!(next, first);
    assert!(!page.reset && items.len() == 6, "{items:?}");

    let mut late = Reader::new(bridge.address());
    late.poll(0).await;
    assert_eq!(late.of(E, 0)[0], Item::Start(false));
    assert_eq!(late.of(E, 0)[1..], items[1..]);
    // and: who kept up was told of no loss
    assert!(
        quick.of(E, 0)[1..]
            .iter()
            .all(|item| matches!(item, Item::Batch(..)))
    );
    let (_, _, metrics) = get(bridge.address(), "/metrics", None).await;
    let metrics = String::from_utf8(metrics.to_vec()).unwrap();
    assert!(
        metrics
            .contains("kv_events_bridge_log_complete{endpoint=\"10.0.0.7:8000\",rank=\"0\"} 0\n"),
        "{metrics}"
    );
    bridge.stop().await;
}

#[tokio::test]
async fn a_restarted_bridge_is_noticed_and_has_the_history_again() {
    let payloads: Vec<Vec<u8>> = (0..5u8).map(|n| vec![n]).collect();
    let (engine, bridge) = following(&payloads, "").await;
    let mut reader = Reader::new(bridge.address());
    reader.expect(E, &history(&payloads)).await;
    assert!(!reader.poll(0).await.reset);
    let address = bridge.address();
    bridge.stop().await;

    let bridge = support::bridge(
        &format!("- {{endpoint: '{E}', {}}}", engine.ports_of()),
        &format!("# was {address}"),
    )
    .await;
    reader.address = bridge.address();
    let page = reader.poll(0).await;
    assert!(page.reset);
    reader.expect(E, &history(&payloads)).await;
    assert!(!reader.poll(0).await.reset);
    bridge.stop().await;
}

#[tokio::test]
async fn cursors_that_are_none_are_refused_and_strange_ones_begin_anew() {
    let (_engine, bridge) = following(&[vec![1]], "").await;
    let address = bridge.address();
    for target in [
        "/events?after=hello",
        "/events?timeout_ms=soon",
        "/events?afer=1",
        "/events?after=00000000000000ab-zz",
    ] {
        let (status, _, body) = get(address, target, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{target}");
        assert!(
            body.starts_with(target[8..].split('=').next().unwrap().as_bytes()),
            "{body:?}"
        );
    }
    let mut reader = Reader::new(address);
    reader.expect(E, &history(&[vec![1]])).await;
    // Of another run; of this run, but ahead of it.
    let ahead = format!("{}ffff", reader.cursor);
    for cursor in ["0123456789abcdef-1", &ahead] {
        let (status, _, body) = get(
            address,
            &format!("/events?after={cursor}&timeout_ms=60000"),
            None,
        )
        .await;
        assert_eq!(status, StatusCode::OK);
        let page = Page::decode(&body);
        assert!(page.reset);
        assert_eq!(
            page.endpoints[&(E.to_owned(), 0)].items,
            history(&[vec![1]])
        );
    }
    bridge.stop().await;
}

/// then: an engine that has nothing new is heard of in every page
#[tokio::test]
async fn an_idle_engine_is_known_to_be_alive() {
    let (engine, bridge) = following(&[], "").await;
    let mut reader = Reader::new(bridge.address());
    reader.until_state(E, 0, "live").await;
    let page = reader.poll(30).await;
    let section = &page.endpoints[&(E.to_owned(), 0)];
    assert_eq!(
        (section.items.as_slice(), page.more, page.reset),
        (&[][..], false, false)
    );
    assert!(section.silent_ms.is_some());
    // and: one that went away is not
    engine.end().await;
    reader.until_state(E, 0, "connecting").await;
    bridge.stop().await;
}

/// A request that waits is answered by news, and when the bridge stops.
#[tokio::test]
async fn a_waiting_reader_is_woken() {
    let (mut engine, bridge) = following(&[vec![0]], "limits: {maxPollWait: 10m}").await;
    let mut reader = Reader::new(bridge.address());
    reader.expect(E, &history(&[vec![0]])).await;
    reader.until_state(E, 0, "live").await;
    let waiting = tokio::spawn(async move {
        reader.poll(600_000).await;
        reader
    });
    while !waiting.is_finished() {
        engine.publish(&b"news"[..]).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut reader = waiting.await.unwrap();
    assert!(reader.of(E, 0).len() > 2);

    reader
        .until(|reader| {
            reader.last.as_ref().is_some_and(|page| {
                page.endpoints
                    .values()
                    .all(|section| section.items.is_empty())
            })
        })
        .await;
    let waiting = tokio::spawn(async move { reader.poll(600_000).await });
    loop {
        let (_, _, metrics) = get(bridge.address(), "/metrics", None).await;
        let waits = String::from_utf8_lossy(&metrics).contains("kv_events_bridge_readers 1\n");
        // A batch that came late may have answered it.
        if waits || waiting.is_finished() {
            break;
        }
    }
    bridge.stop().await;
    assert!(!waiting.await.unwrap().reset);
}

#[tokio::test]
async fn only_who_has_the_token_reads() {
    let file = std::env::temp_dir().join(format!("kv-events-bridge-token-{}", std::process::id()));
    std::fs::write(&file, "s3cret\n").unwrap();
    let (_engine, bridge) = following(&[vec![1]], &format!("tokenFile: {}", file.display())).await;
    let address = bridge.address();
    for token in [
        None,
        Some("Bearer s3cre"),
        Some("Bearer s3cretx"),
        Some("Bearer S3cret"),
        Some("Basic s3cret"),
        Some("s3cret"),
        Some("Bearer "),
    ] {
        let (status, headers, body) = get(address, "/events", token).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{token:?}");
        assert_eq!(headers["www-authenticate"], "Bearer");
        assert_eq!(body, "a bearer token is needed");
    }
    for token in ["Bearer s3cret", "bearer s3cret"] {
        assert_eq!(get(address, "/events", Some(token)).await.0, StatusCode::OK);
    }
    for path in ["/healthz", "/metrics"] {
        assert_eq!(get(address, path, None).await.0, StatusCode::OK);
    }
    let (_, _, metrics) = get(address, "/metrics", None).await;
    assert!(
        String::from_utf8_lossy(&metrics)
            .contains("kv_events_bridge_requests_total{result=\"unauthorized\"} 7\n")
    );
    bridge.stop().await;
    std::fs::remove_file(file).unwrap();
}

#[tokio::test]
async fn more_readers_than_configured_are_turned_away() {
    let (_engine, bridge) =
        following(&[vec![1]], "limits: {maxReaders: 1, maxPollWait: 10m}").await;
    let mut reader = Reader::new(bridge.address());
    reader.expect(E, &history(&[vec![1]])).await;
    let waiting = tokio::spawn(async move { reader.poll(600_000).await });
    loop {
        let (status, headers, _) = get(bridge.address(), "/events", None).await;
        if status == StatusCode::SERVICE_UNAVAILABLE {
            assert_eq!(headers["retry-after"], "1");
            break;
        }
        assert_eq!(status, StatusCode::OK);
    }
    bridge.stop().await;
    waiting.await.unwrap();
}

#[tokio::test]
async fn what_an_operator_asks() {
    let payloads: Vec<Vec<u8>> = (0..3u8).map(|n| vec![n; 10]).collect();
    let (_engine, bridge) = following(&payloads, "").await;
    let mut reader = Reader::new(bridge.address());
    reader.expect(E, &history(&payloads)).await;
    reader.until_state(E, 0, "live").await;
    let address = bridge.address();
    assert_eq!(get(address, "/healthz", None).await.2, "ok");
    assert_eq!(get(address, "/", None).await.0, StatusCode::NOT_FOUND);
    let (status, headers, _) = request(address, "POST", "/events", None).await;
    assert_eq!(
        (status, headers["allow"].to_str().unwrap()),
        (StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD")
    );

    let (_, headers, body) = get(address, "/metrics", None).await;
    assert_eq!(
        headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    let text = String::from_utf8(body.to_vec()).unwrap();
    let of = "{endpoint=\"10.0.0.7:8000\",rank=\"0\"}";
    for line in [
        format!("kv_events_bridge_connected{of} 1"),
        format!("kv_events_bridge_starts_total{of} 1"),
        format!("kv_events_bridge_gaps_total{of} 0"),
        format!("kv_events_bridge_batch_bytes_total{of} 30"),
        format!("kv_events_bridge_log_records{of} 4"),
        format!("kv_events_bridge_log_bytes{of} 542"),
        format!("kv_events_bridge_log_complete{of} 1"),
        "kv_events_bridge_batches_total{endpoint=\"10.0.0.7:8000\",rank=\"0\",via=\"replay\"} 3"
            .to_owned(),
        "kv_events_bridge_refused_total{endpoint=\"10.0.0.7:8000\",rank=\"0\",reason=\"shape\"} 0"
            .to_owned(),
        "kv_events_bridge_requests_total{result=\"bad_request\"} 0".to_owned(),
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "{line} is not in\n{text}"
        );
    }
    // One, or two if the engine was silent for long enough.
    let replays =
        "kv_events_bridge_replays_total{endpoint=\"10.0.0.7:8000\",rank=\"0\",result=\"ok\"} ";
    let replays = text.lines().find_map(|line| line.strip_prefix(replays));
    assert!(matches!(replays, Some("1" | "2")), "{replays:?}");
    // Every family says what it is, once.
    let families: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "))
        .collect();
    let mut names: Vec<&str> = families
        .iter()
        .map(|family| family.split(' ').next().unwrap())
        .collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), all), (19, 19), "{names:?}");
    bridge.stop().await;
}

/// An Envoy cluster may speak HTTP/2.
#[tokio::test]
async fn http2_is_spoken_too() {
    use bytes::Bytes;
    use http_body_util::{BodyExt, Empty};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let (_engine, bridge) = following(&[vec![1]], "").await;
    Reader::new(bridge.address())
        .expect(E, &history(&[vec![1]]))
        .await;
    let stream = tokio::net::TcpStream::connect(bridge.address())
        .await
        .unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    for _ in 0..3 {
        let request = hyper::Request::get("http://bridge/events")
            .body(Empty::<Bytes>::new())
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let page = Page::decode(&answer.into_body().collect().await.unwrap().to_bytes());
        assert_eq!(
            page.endpoints[&(E.to_owned(), 0)].items,
            history(&[vec![1]])
        );
    }
    bridge.stop().await;
}
