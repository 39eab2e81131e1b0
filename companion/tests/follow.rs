//! One engine and its history: what is published, replayed, lost, restarted.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod support;

use support::engine::{Engine, FORMATS, Format};
use support::reader::{Item, Reader, batch};
use support::{Proxy, bridge};

const E: &str = "10.0.0.7:8000";

fn engine(from: &str) -> String {
    format!("- {{endpoint: '{E}', {from}}}")
}

/// Publishes until the reader has something: before that a subscription may still be on its way.
async fn publish_until_seen(engine: &mut Engine, reader: &mut Reader) {
    reader.until_state(E, 0, "live").await;
    for _ in 0..1000 {
        engine.publish(&b"first"[..]).await;
        reader.poll(50).await;
        if !reader.of(E, 0).is_empty() {
            return;
        }
    }
    panic!("nothing arrives");
}

/// Publishes until the reader has so many items: a first batch may overtake the subscription, and
/// only a later one shows the bridge that it is missing.
async fn publish_until(engine: &mut Engine, reader: &mut Reader, items: usize) {
    for _ in 0..1000 {
        if reader.of(E, 0).len() >= items {
            return;
        }
        reader.poll(50).await;
        engine.publish(&b"later"[..]).await;
    }
    panic!("it does not arrive: {:?}", reader.of(E, 0));
}

/// given: payloads as vLLM encodes them, of five versions, and recorded ones
/// then: a reader gets the same bytes, and that it has the whole history
#[tokio::test]
async fn recorded_payloads_pass_untouched() {
    let vectors: serde_json::Value =
        serde_json::from_str(include_str!("../../testdata/kv_events.json")).unwrap();
    let hex = |text: &str| -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    };
    let constructed = vectors["constructed"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| hex(case["batch_hex_dp0"].as_str().unwrap()));
    let live = vectors["live"]
        .as_array()
        .unwrap()
        .iter()
        .map(|case| hex(case["payload_hex"].as_str().unwrap()));
    let payloads: Vec<Vec<u8>> = constructed.chain(live).collect();
    assert_eq!(payloads.len(), 25);

    let mut publisher = Engine::at(0, 0, Some(Format::Four), "kv@10.0.0.7@tiny").await;
    let bridge = bridge(&engine(&publisher.ports_of()), "").await;
    let mut reader = Reader::new(bridge.address());
    reader.until_state(E, 0, "live").await;
    for payload in &payloads {
        publisher.publish(payload.clone()).await;
    }
    let mut expected = vec![Item::Start(true)];
    expected.extend(
        payloads
            .iter()
            .zip(0..)
            .map(|(payload, seq)| batch(seq, payload)),
    );
    publish_until(&mut publisher, &mut reader, expected.len()).await;
    assert_eq!(reader.of(E, 0)[..expected.len()], expected);
    let section = reader.poll(0).await.endpoints[&(E.to_owned(), 0)].clone();
    assert_eq!(section.topic.as_deref(), Some("kv@10.0.0.7@tiny"));
    bridge.stop().await;
}

#[tokio::test]
async fn what_was_published_before_the_bridge_came_is_replayed() {
    for format in FORMATS {
        let mut publisher = Engine::start(format).await;
        for seq in 0..20u8 {
            publisher.keep(vec![seq]);
        }
        let bridge = bridge(&engine(&publisher.ports_of()), "").await;
        let mut reader = Reader::new(bridge.address());
        let mut expected = vec![Item::Start(true)];
        expected.extend((0..20u8).map(|seq| batch(seq.into(), [seq])));
        reader.expect(E, &expected).await;

        reader.until_state(E, 0, "live").await;
        publisher.publish(&b"live"[..]).await;
        publisher.publish(&b"more"[..]).await;
        expected.extend([batch(20, "live"), batch(21, "more")]);
        publish_until(&mut publisher, &mut reader, expected.len()).await;
        assert_eq!(reader.of(E, 0)[..expected.len()], expected);
        bridge.stop().await;
    }
}

#[tokio::test]
async fn a_buffer_that_turned_over_vouches_for_nothing() {
    let mut publisher = Engine::start(Format::Four).await;
    for seq in 0..5u8 {
        publisher.keep(vec![seq]);
    }
    publisher.forget(3);
    let bridge = bridge(&engine(&publisher.ports_of()), "").await;
    let mut reader = Reader::new(bridge.address());
    reader
        .expect(E, &[Item::Start(false), batch(3, [3]), batch(4, [4])])
        .await;
    bridge.stop().await;
}

#[tokio::test]
async fn an_engine_that_keeps_nothing_for_replay_is_believed_from_its_first_batch_only() {
    // given: an engine whose buffer is empty though it has published
    let mut publisher = Engine::start(Format::Four).await;
    publisher.next = 3;
    let bridge = bridge(&engine(&publisher.ports_of()), "").await;
    let mut reader = Reader::new(bridge.address());
    reader.until_state(E, 0, "live").await;
    assert_eq!(reader.of(E, 0), []);
    // then: what it publishes next begins a history that is not whole
    loop {
        let (seq, payload) = (publisher.next, bytes::Bytes::from_static(b"x"));
        publisher.next += 1;
        publisher.send(seq, payload).await;
        reader.poll(50).await;
        if let [first, ..] = reader.of(E, 0) {
            assert_eq!(*first, Item::Start(false));
            break;
        }
    }
    bridge.stop().await;
}

#[tokio::test]
async fn a_gap_is_filled_by_a_replay() {
    for format in FORMATS {
        let mut publisher = Engine::start(format).await;
        publisher.keep(&b"0"[..]);
        let bridge = bridge(&engine(&publisher.ports_of()), "").await;
        let mut reader = Reader::new(bridge.address());
        reader.expect(E, &[Item::Start(true), batch(0, "0")]).await;
        reader.until_state(E, 0, "live").await;

        publisher.keep(&b"1"[..]);
        publisher.keep(&b"2"[..]);
        publisher.publish(&b"3"[..]).await;
        let mut last = 3;
        // The first ones may overtake the subscription.
        while reader.of(E, 0).len() < 5 {
            last += 1;
            publisher.publish(last.to_string()).await;
            reader.poll(50).await;
        }
        let mut expected = vec![Item::Start(true)];
        expected.extend((0..=last).map(|seq| batch(seq, seq.to_string())));
        reader.expect(E, &expected).await;
        bridge.stop().await;
    }
}

/// The last batch before a silence has no successor that would show that it is missing.
#[tokio::test]
async fn what_is_lost_before_a_silence_is_asked_for() {
    for format in FORMATS {
        let mut publisher = Engine::start(format).await;
        let bridge = bridge(&engine(&publisher.ports_of()), "").await;
        let mut reader = Reader::new(bridge.address());
        publish_until_seen(&mut publisher, &mut reader).await;
        publisher.publish(&b"heard"[..]).await;
        let lost = publisher.keep(&b"lost"[..]);

        reader
            .until(|reader| reader.of(E, 0).last() == Some(&batch(lost, "lost")))
            .await;
        let items = reader.of(E, 0);
        assert_eq!(items[0], Item::Start(true));
        assert_eq!(items.len() as u64, lost + 2, "{items:?}");
        bridge.stop().await;
    }
}

#[tokio::test]
async fn a_gap_that_the_engine_no_longer_has_is_marked() {
    let mut publisher = Engine::start(Format::Four).await;
    publisher.keep(&b"0"[..]);
    let bridge = bridge(&engine(&publisher.ports_of()), "").await;
    let mut reader = Reader::new(bridge.address());
    reader.expect(E, &[Item::Start(true), batch(0, "0")]).await;
    reader.until_state(E, 0, "live").await;

    publisher.keep(&b"1"[..]);
    publisher.keep(&b"2"[..]);
    publisher.forget(2);
    while reader.of(E, 0).len() < 3 {
        publisher.publish(&b"x"[..]).await;
        reader.poll(50).await;
    }
    reader.until(|reader| reader.of(E, 0).len() > 3).await;
    assert_eq!(reader.of(E, 0)[2..4], [Item::Gap(2), batch(2, "2")]);
    bridge.stop().await;
}

#[tokio::test]
async fn replies_that_the_engine_dropped_are_asked_for_again() {
    let mut publisher = Engine::start(Format::Four).await;
    for seq in 0..10u8 {
        publisher.keep(vec![seq]);
    }
    publisher.buffer.lock().unwrap().drop_once = vec![4, 5, 8];
    let bridge = bridge(&engine(&publisher.ports_of()), "").await;
    let mut reader = Reader::new(bridge.address());
    let mut expected = vec![Item::Start(true)];
    expected.extend((0..10u8).map(|seq| batch(seq.into(), [seq])));
    reader.expect(E, &expected).await;
    // And once more if it was silent for long enough meanwhile.
    let replays = publisher.buffer.lock().unwrap().replays;
    assert!((2..=3).contains(&replays), "{replays}");
    bridge.stop().await;
}

#[tokio::test]
async fn without_replay_the_beginning_is_lost_and_said_to_be() {
    let mut publisher = Engine::without_replay().await;
    publisher.next = 7;
    let bridge = bridge(&engine(&publisher.port_of()), "").await;
    let mut reader = Reader::new(bridge.address());
    publish_until_seen(&mut publisher, &mut reader).await;
    assert_eq!(reader.of(E, 0)[0], Item::Start(false));
    // and: a gap stays one
    let next = publisher.next + 2;
    publisher.next = next;
    publisher.publish(&b"later"[..]).await;
    reader
        .until(|reader| reader.of(E, 0).last() == Some(&batch(next, "later")))
        .await;
    assert!(reader.of(E, 0).contains(&Item::Gap(next)));
    bridge.stop().await;
}

#[tokio::test]
async fn a_restarted_engine_begins_anew_and_whole() {
    for format in FORMATS {
        let mut publisher = Engine::start(format).await;
        for seq in 0..3u8 {
            publisher.keep(vec![seq]);
        }
        let bridge = bridge(&engine(&publisher.ports_of()), "").await;
        let mut reader = Reader::new(bridge.address());
        let expected = vec![
            Item::Start(true),
            batch(0, [0]),
            batch(1, [1]),
            batch(2, [2]),
        ];
        reader.expect(E, &expected).await;

        // when: the next process published fewer batches before the bridge is back, or more
        for (round, batches) in [1u8, 9].into_iter().enumerate() {
            publisher = publisher.restart(format).await;
            let payload = |seq: u8| vec![round as u8 + 1, seq];
            for seq in 0..batches {
                publisher.keep(payload(seq));
            }
            // then: its history begins at 0, whole, whatever was said before it was found out
            let first = batch(0, payload(0));
            for _ in 0..1000 {
                if reader.of(E, 0).contains(&first) {
                    break;
                }
                // The bridge may have come before the batches did.
                let next = publisher.next as u8;
                publisher.publish(payload(next)).await;
                reader.poll(50).await;
            }
            let wanted: Vec<Item> = (0..batches)
                .map(|seq| batch(seq.into(), payload(seq)))
                .collect();
            reader
                .until(|reader| reader.of(E, 0).contains(&wanted[wanted.len() - 1]))
                .await;
            let items = reader.of(E, 0);
            let start = items.iter().position(|item| *item == first).unwrap();
            assert_eq!(items[start - 1], Item::Start(true));
            assert_eq!(items[start..start + wanted.len()], wanted);
        }
        bridge.stop().await;
    }
}

/// given: a connection that breaks while the engine goes on
/// then: its history goes on too, without a mark
#[tokio::test]
async fn a_lost_connection_to_the_same_process_loses_nothing() {
    let mut publisher = Engine::start(Format::Four).await;
    let proxy = Proxy::to(publisher.port).await;
    publisher.keep(&b"0"[..]);
    let from = format!(
        "connect: 'tcp://127.0.0.1:{}', replay: 'tcp://127.0.0.1:{}'",
        proxy.port, publisher.replay_port
    );
    let bridge = bridge(&engine(&from), "").await;
    let mut reader = Reader::new(bridge.address());
    let mut expected = vec![Item::Start(true), batch(0, "0")];
    reader.expect(E, &expected).await;
    for round in 1..4u64 {
        publisher.keep(round.to_string());
        proxy.cut();
        expected.push(batch(round, round.to_string()));
        reader.expect(E, &expected).await;
    }
    bridge.stop().await;
}

/// Without replay nobody can tell a lost connection from a restart.
#[tokio::test]
async fn a_lost_connection_without_replay_is_a_gap() {
    let mut publisher = Engine::without_replay().await;
    let proxy = Proxy::to(publisher.port).await;
    let bridge = bridge(
        &engine(&format!("connect: 'tcp://127.0.0.1:{}'", proxy.port)),
        "",
    )
    .await;
    let mut reader = Reader::new(bridge.address());
    publish_until_seen(&mut publisher, &mut reader).await;
    reader.until_state(E, 0, "live").await;
    let before = reader.of(E, 0).len();
    proxy.cut();
    let again = format!("kv_events_bridge_connections_total{{endpoint=\"{E}\",rank=\"0\"}} 2");
    support::http::metric(bridge.address(), &again).await;
    while !reader.of(E, 0)[before..]
        .iter()
        .any(|item| matches!(item, Item::Gap(_)))
    {
        publisher.publish(&b"again"[..]).await;
        reader.poll(50).await;
    }
    assert!(!reader.of(E, 0)[before..].contains(&Item::Start(true)));
    bridge.stop().await;
}

#[tokio::test]
async fn a_replay_socket_that_is_not_there_does_not_hold_up_what_is_published() {
    let mut publisher = Engine::without_replay().await;
    let from = format!(
        "{}, replay: 'tcp://127.0.0.1:{}'",
        publisher.port_of(),
        support::ports(1).await
    );
    let bridge = bridge(&engine(&from), "").await;
    let mut reader = Reader::new(bridge.address());
    publish_until_seen(&mut publisher, &mut reader).await;
    assert!(matches!(reader.of(E, 0)[0], Item::Start(_)));
    bridge.stop().await;
}

/// given: a configuration that names the replay socket of another engine
/// then: what is published wins, and nothing is called whole
#[tokio::test]
async fn a_replay_of_another_engine_is_found_out() {
    let mut publisher = Engine::start(Format::Four).await;
    let mut other = Engine::start(Format::Four).await;
    for seq in 0..3u8 {
        other.keep(vec![seq]);
    }
    let from = format!(
        "{}, replay: 'tcp://127.0.0.1:{}'",
        publisher.port_of(),
        other.replay_port
    );
    let bridge = bridge(&engine(&from), "").await;
    let mut reader = Reader::new(bridge.address());
    reader
        .expect(
            E,
            &[
                Item::Start(true),
                batch(0, [0]),
                batch(1, [1]),
                batch(2, [2]),
            ],
        )
        .await;
    publisher.next = 2;
    let mut rounds = 0;
    while !reader.of(E, 0).contains(&Item::Start(false)) && rounds < 1000 {
        // Its batch 2, which is not the other's.
        publisher.send(2, "published".into()).await;
        reader.poll(50).await;
        rounds += 1;
    }
    let items = reader.of(E, 0);
    let start = items
        .iter()
        .position(|item| *item == Item::Start(false))
        .unwrap();
    assert_eq!(items[start + 1], batch(2, "published"));
    bridge.stop().await;
}
