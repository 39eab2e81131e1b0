//! Peers that do not behave: nothing they send stops the bridge or grows it.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod support;

use bytes::Bytes;
use support::engine::{Engine, Format};
use support::http::{get, metric};
use support::reader::{Item, Reader, batch};
use support::{bridge, ports};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const E: &str = "10.0.0.7:8000";

fn greeting(minor: u8) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, minor];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    bytes
}

fn ready(socket: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend_from_slice(&(socket.len() as u32).to_be_bytes());
    body.extend_from_slice(socket.as_bytes());
    frame(4, &body)
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = if body.len() < 256 {
        vec![flags, body.len() as u8]
    } else {
        let mut head = vec![flags | 2];
        head.extend_from_slice(&(body.len() as u64).to_be_bytes());
        head
    };
    bytes.extend_from_slice(body);
    bytes
}

fn message(parts: &[&[u8]]) -> Vec<u8> {
    let last = parts.len() - 1;
    parts
        .iter()
        .enumerate()
        .flat_map(|(index, part)| frame(u8::from(index < last), part))
        .collect()
}

/// Messages that are none of vLLM's are counted and passed over; the next good one is taken.
#[tokio::test]
async fn messages_of_another_shape() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = format!("- {{endpoint: '{E}', connect: 'tcp://127.0.0.1:{port}', topic: kv}}");
    let bridge = bridge(&config, "limits: {maxBatchBytes: 1024}").await;
    let (mut peer, _) = listener.accept().await.unwrap();
    peer.write_all(&greeting(0)).await.unwrap();
    peer.write_all(&ready("PUB")).await.unwrap();

    let seq = |seq: u64| seq.to_be_bytes();
    let mut bytes = Vec::new();
    bytes.extend(message(&[b"kv", &seq(0), b"good"]));
    for parts in [
        &[&b"kv"[..]][..],
        &[b"kv", &seq(1)],
        &[b"kv", &seq(1), b"x", b"y"],
        &[b"kv", b"\x01", b"x"],
        &[b"kv", &[0; 9], b"x"],
        &[b"kv", &seq(1), b""],
        &[b"kv", &seq(u64::MAX), b"x"],
        &[&[b'k'; 5000], &seq(1), b"x"],
        &[b"", b"", b""],
    ] {
        bytes.extend(message(parts));
    }
    bytes.extend(message(&[b"other", &seq(1), b"x"]));
    bytes.extend(message(&[b"kv", &seq(1), &[7; 100_000]]));
    bytes.extend(message(&[b"kv", &seq(2), b"good too"]));
    peer.write_all(&bytes).await.unwrap();

    let mut reader = Reader::new(bridge.address());
    reader
        .expect(
            E,
            &[
                Item::Start(true),
                batch(0, "good"),
                Item::Gap(2),
                batch(2, "good too"),
            ],
        )
        .await;
    let of = format!("kv_events_bridge_refused_total{{endpoint=\"{E}\",rank=\"0\",reason=");
    metric(bridge.address(), &format!("{of}\"shape\"}} 8")).await;
    metric(bridge.address(), &format!("{of}\"topic\"}} 2")).await;
    metric(bridge.address(), &format!("{of}\"too_long\"}} 1")).await;
    bridge.stop().await;
}

/// Whoever connects and is no publisher is dropped, without a trace in what is followed.
#[tokio::test]
async fn connections_that_are_no_publishers() {
    let port = ports(1).await;
    let mut good = Engine::start(Format::Four).await;
    good.keep(&b"good"[..]);
    let config = format!(
        "- {{endpoint: '{E}', bind: 'tcp://127.0.0.1:{port}'}}\n- {{endpoint: '10.0.0.8:8000', {}}}",
        good.ports_of()
    );
    let bridge = bridge(&config, "").await;
    let mut endless = greeting(0);
    endless.extend(ready("PUB"));
    endless.extend((0..9).flat_map(|_| frame(1, b"x")));
    let after = |more: &[u8]| [greeting(0), ready("PUB"), more.to_vec()].concat();
    let attacks: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nhost: a\r\n\r\n padding so that there are sixty-four bytes of it"
            .to_vec(),
        vec![0xff; 64],
        {
            let mut old = greeting(0);
            old[10] = 2;
            old
        },
        {
            let mut curve = greeting(0);
            curve[12..17].copy_from_slice(b"CURVE");
            curve
        },
        [greeting(0), ready("ROUTER")].concat(),
        [greeting(0), frame(4, b"\x05ERROR\x02no")].concat(),
        [
            greeting(0),
            frame(4, b"\x05READY\x0bSocket-Type\xff\xff\xff\xff"),
        ]
        .concat(),
        [greeting(0), frame(4, b"\x05READY")].concat(),
        [greeting(0), message(&[b"", b"", b""])].concat(),
        // A command, and a part, as long as a header can claim.
        [
            greeting(0),
            vec![6, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        ]
        .concat(),
        after(&[2, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        after(&[0xf8, 1, 0]),
        after(&frame(5, b"\x04PING\0\0")),
        after(&frame(4, b"\x04PING")),
        after(&frame(4, &[&b"\x04PING\0\0"[..], &[0; 17]].concat())),
        endless,
    ];
    for (index, attack) in attacks.iter().enumerate() {
        let mut peer = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let _ = peer.write_all(attack).await;
        // then: the bridge hangs up
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(support::PATIENCE, peer.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "attack {index} is still connected");
    }
    // A long part that is allowed to come is read past; that it was announced costs nothing.
    let mut peer = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    peer.write_all(&after(&[2, 0, 0, 0, 0, 0x3f, 0, 0, 0]))
        .await
        .unwrap();
    peer.write_all(&[0; 1000]).await.unwrap();

    let mut reader = Reader::new(bridge.address());
    reader
        .expect("10.0.0.8:8000", &[Item::Start(true), batch(0, "good")])
        .await;
    assert_eq!(reader.of(E, 0), []);
    bridge.stop().await;
}

/// An answer of the replay socket that makes no sense is as good as none.
#[tokio::test]
async fn a_replay_that_makes_no_sense() {
    let replies: Vec<Vec<u8>> = vec![
        message(&[b"", &1u64.to_be_bytes()]),
        message(&[b"x", &1u64.to_be_bytes(), b"x"]),
        message(&[b"", b"", b"", b"", b""]),
        [
            message(&[b"", &5u64.to_be_bytes(), b"x"]),
            message(&[b"", &5u64.to_be_bytes(), b"y"]),
        ]
        .concat(),
    ];
    for (index, reply) in replies.into_iter().enumerate() {
        let router = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let replay = router.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut peer, _)) = router.accept().await {
                let bytes = [greeting(0), ready("ROUTER"), reply.clone()].concat();
                tokio::spawn(async move {
                    let _ = peer.write_all(&bytes).await;
                    let _ = peer.read_to_end(&mut Vec::new()).await;
                });
            }
        });
        let mut engine = Engine::without_replay().await;
        let config = format!(
            "- {{endpoint: '{E}', {}, replay: 'tcp://127.0.0.1:{replay}'}}",
            engine.port_of()
        );
        let bridge = bridge(&config, "replayTimeout: 100ms").await;
        let mut reader = Reader::new(bridge.address());
        metric(
            bridge.address(),
            &format!(
                "kv_events_bridge_replays_total{{endpoint=\"{E}\",rank=\"0\",result=\"failed\"}} 5"
            ),
        )
        .await;
        reader.until_state(E, 0, "live").await;
        engine.next = 10;
        loop {
            engine.publish(&b"live"[..]).await;
            reader.poll(50).await;
            if reader
                .of(E, 0)
                .iter()
                .any(|item| matches!(item, Item::Batch(10.., _)))
            {
                break;
            }
        }
        assert_eq!(reader.of(E, 0)[0], Item::Start(false), "{index}");
        bridge.stop().await;
    }
}

/// A peer of ZMTP 3.1 is asked for signs of life, and one that stops giving them is left.
#[tokio::test]
async fn heartbeats_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let bridge = bridge(
        &format!("- {{endpoint: '{E}', connect: 'tcp://127.0.0.1:{port}'}}"),
        "",
    )
    .await;
    let (mut peer, _) = listener.accept().await.unwrap();
    peer.write_all(&greeting(1)).await.unwrap();
    peer.write_all(&ready("PUB")).await.unwrap();
    let mut theirs = vec![0; 64];
    peer.read_exact(&mut theirs).await.unwrap();
    assert_eq!(theirs, greeting(0));
    assert_eq!(next(&mut peer).await, (4, ready("SUB")[2..].to_vec()));
    // The subscription to everything.
    assert_eq!(next(&mut peer).await, (0, vec![1]));
    // Its PING is answered, with its context.
    peer.write_all(&frame(4, b"\x04PING\0\x10context"))
        .await
        .unwrap();
    let mut seen = Vec::new();
    while !(seen.contains(&b"\x04PONGcontext".to_vec()) && seen.contains(&b"\x04PING\0\0".to_vec()))
    {
        let (flags, body) = next(&mut peer).await;
        assert_eq!(flags, 4);
        seen.push(body);
    }
    peer.write_all(&frame(4, b"\x04PONG")).await.unwrap();
    // Silent from now on: it is dialled anew.
    tokio::time::timeout(support::PATIENCE, listener.accept())
        .await
        .unwrap()
        .unwrap();
    bridge.stop().await;
}

async fn next(peer: &mut TcpStream) -> (u8, Vec<u8>) {
    let mut head = [0; 2];
    peer.read_exact(&mut head).await.unwrap();
    let mut body = vec![0; head[1].into()];
    peer.read_exact(&mut body).await.unwrap();
    (head[0], body)
}

/// Requests that are too long, or never end, do not hold a place for others.
#[tokio::test]
async fn http_requests_that_are_too_long() {
    let bridge = bridge(
        &format!(
            "- {{endpoint: '{E}', bind: 'tcp://127.0.0.1:{}'}}",
            ports(1).await
        ),
        "",
    )
    .await;
    let mut peer = TcpStream::connect(bridge.address()).await.unwrap();
    let mut head = b"GET /events?after=".to_vec();
    head.resize(100_000, b'a');
    let _ = peer.write_all(&head).await;
    let mut answer = Vec::new();
    let _ = peer.read_to_end(&mut answer).await;
    assert!(
        answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"),
        "{}",
        String::from_utf8_lossy(&answer)
    );
    assert_eq!(
        get(bridge.address(), "/healthz", None).await.2,
        Bytes::from_static(b"ok")
    );
    bridge.stop().await;
}
