//! The prefetch agent: which files it reads, and what it does when there are too many, too slow ones,
//! or none.
#![allow(clippy::indexing_slicing, clippy::panic, clippy::unwrap_used)]

mod support;

use hyper::StatusCode;
use rustix::fs::{FallocateFlags, Mode, fallocate};
use selective_kv_companion::prefetch::Prefetch;
use selective_kv_companion::prefetch::config::Config;
use selective_kv_companion::prefetch::head::{Head, Outcome, Promote, ReadHead};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};
use support::PATIENCE;
use support::http::{get, metric, request, send};
use support::tree::{DIGEST, MODEL, Tree, block, config, message};
use tokio::time::{Instant, timeout};

/// 3 reads of 4 KiB.
const HEAD: u64 = 12_288;

fn settings(tree: &Tree, more: &str) -> Config {
    let text = format!(
        "listen: 127.0.0.1:0\nrootDir: {}\nmodelName: {MODEL}\nblockSize: 4096\ncheckInterval: 100ms\n{more}",
        tree.root.display()
    );
    Config::parse(&text).unwrap()
}

async fn agent(tree: &Tree, more: &str) -> Prefetch {
    Prefetch::start(settings(tree, more)).await.unwrap()
}

async fn post(address: SocketAddr, body: String) -> (StatusCode, String) {
    let (status, _, body) = send(address, "POST", "/prefetch", None, body).await;
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn answer(submitted: u64, duplicates: u64, dropped: u64) -> (StatusCode, String) {
    let text =
        format!("{{\"submitted\":{submitted},\"duplicates\":{duplicates},\"dropped\":{dropped}}}");
    (StatusCode::ACCEPTED, text)
}

fn files(digest: &str, result: &str, count: u64) -> String {
    format!("kv_prefetch_agent_files_total{{digest=\"{digest}\",result=\"{result}\"}} {count}")
}

/// Reads as the agent does, and remembers what.
#[derive(Default)]
struct Remember(Mutex<Vec<(PathBuf, Outcome)>>);

impl Promote for Remember {
    fn promote(&self, path: &Path, head: Head, buffer: &mut [u8]) -> io::Result<Outcome> {
        let outcome = ReadHead.promote(path, head, buffer)?;
        self.0.lock().unwrap().push((path.to_owned(), outcome));
        Ok(outcome)
    }
}

/// given: files of 16 blocks, of which the 3 first are cold, cold and long, and warm
/// when: the blocks of a prompt come, all or some
/// then: the head of each cold file is read, in the prompt's order, and nothing else
#[tokio::test]
async fn the_heads_of_cold_files_are_read() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(16));
    let ends: Vec<String> = [15, 31, 47, 63].map(block).to_vec();
    let short = tree.cold(DIGEST, 0, &ends[0], 5000);
    let long = tree.cold(DIGEST, 0, &ends[1], 1 << 30);
    let warm = tree.warm(DIGEST, 0, &ends[2], 200_000);
    let missing = tree.path(DIGEST, 0, 0, &ends[3]);
    let seen = Arc::new(Remember::default());
    let agent = Prefetch::start_with(settings(&tree, "maxConcurrentFiles: 1"), seen.clone())
        .await
        .unwrap();

    let all: Vec<String> = (0..70).map(block).collect();
    let body = message((0..).zip(all.iter().map(String::as_str)));
    assert_eq!(post(agent.address(), body).await, answer(4, 0, 0));
    metric(agent.address(), &files(DIGEST, "missing", 1)).await;
    assert_eq!(
        *seen.0.lock().unwrap(),
        [
            (short, Outcome::Read(5000)),
            (long, Outcome::Read(HEAD)),
            (warm, Outcome::Resident),
            (missing, Outcome::Missing),
        ]
    );
    for line in [
        files(DIGEST, "read", 2),
        files(DIGEST, "resident", 1),
        files(DIGEST, "failed", 0),
        format!("kv_prefetch_agent_read_bytes_total {}", 5000 + HEAD),
        "kv_prefetch_agent_read_seconds_count 2".into(),
        "kv_prefetch_agent_queue_seconds_count 4".into(),
        "kv_prefetch_agent_digests_total 70".into(),
        "kv_prefetch_agent_submitted_total 4".into(),
    ] {
        metric(agent.address(), &line).await;
    }

    // Some of a prompt's blocks, of which one ends a file.
    let body = message((10..20).zip(all[10..20].iter().map(String::as_str)));
    assert_eq!(post(agent.address(), body).await, answer(1, 0, 0));
    // A stop drops what still waits.
    metric(agent.address(), &files(DIGEST, "read", 3)).await;
    agent.stop().await;
    assert_eq!(seen.0.lock().unwrap().len(), 5);
}

/// The same file, as its file system makes it cold and warm.
#[tokio::test]
async fn a_hole_is_cold_and_what_is_written_is_warm() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(1));
    let path = tree.warm(DIGEST, 0, &block(1), 65_536);
    let agent = agent(&tree, "").await;
    let ask = || post(agent.address(), message([(0, block(1).as_str())]));

    ask().await;
    metric(agent.address(), &files(DIGEST, "resident", 1)).await;
    let file = fs::File::options().write(true).open(&path).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 0, 65_536).unwrap();
    ask().await;
    metric(agent.address(), &files(DIGEST, "read", 1)).await;
    // As much as one head is here: it may be the stub's own.
    fs::File::options()
        .write(true)
        .open(&path)
        .map(|file| std::os::unix::fs::FileExt::write_all_at(&file, &[1; HEAD as usize], 0))
        .unwrap()
        .unwrap();
    file.sync_all().unwrap();
    ask().await;
    metric(agent.address(), &files(DIGEST, "read", 2)).await;
    // More than that is here.
    std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], HEAD).unwrap();
    file.sync_all().unwrap();
    ask().await;
    metric(agent.address(), &files(DIGEST, "resident", 2)).await;
    agent.stop().await;
}

/// Ranks and groups from the agent's own configuration; a digest that is given.
#[tokio::test]
async fn every_rank_and_group_has_a_file() {
    let tree = Tree::new();
    let seen = Arc::new(Remember::default());
    let config = settings(
        &tree,
        "digest: abcdef123456\ntpSize: 2\nppSize: 2\nkvCacheGroupCount: 2\nmaxConcurrentFiles: 1",
    );
    let agent = Prefetch::start_with(config, seen.clone()).await.unwrap();
    let body = message([(0, block(9).as_str())]);
    assert_eq!(post(agent.address(), body).await, answer(8, 0, 0));
    metric(agent.address(), &files("abcdef123456", "missing", 8)).await;
    agent.stop().await;
    let expected: Vec<PathBuf> = (0..4)
        .flat_map(|rank| (0..2).map(move |group| (rank, group)))
        .map(|(rank, group)| tree.path("abcdef123456", rank, group, &block(9)))
        .collect();
    let seen: Vec<PathBuf> = seen
        .0
        .lock()
        .unwrap()
        .iter()
        .map(|it| it.0.clone())
        .collect();
    assert_eq!(seen, expected);
}

/// What is no file is not opened: a pipe would hold a reader for ever, a link may lead anywhere.
#[tokio::test]
async fn only_regular_files_are_opened() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(1));
    let secret = tree.root.join("secret");
    fs::write(&secret, "s").unwrap();
    let places: Vec<PathBuf> = (0..4).map(|n| tree.cold(DIGEST, 0, &block(n), 0)).collect();
    for place in &places {
        fs::remove_file(place).unwrap();
    }
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &places[0],
        rustix::fs::FileType::Fifo,
        Mode::RUSR | Mode::WUSR,
        0,
    )
    .unwrap();
    std::os::unix::fs::symlink(&secret, &places[1]).unwrap();
    fs::create_dir(&places[2]).unwrap();
    // A file where a directory should be.
    let parent = places[3].parent().unwrap();
    fs::remove_dir_all(parent).unwrap();
    fs::write(parent, "").unwrap();

    let agent = agent(&tree, "").await;
    let blocks: Vec<String> = (0..4).map(block).collect();
    let body = message((0..).zip(blocks.iter().map(String::as_str)));
    assert_eq!(post(agent.address(), body).await, answer(4, 0, 0));
    metric(agent.address(), &files(DIGEST, "failed", 3)).await;
    metric(agent.address(), &files(DIGEST, "missing", 1)).await;
    metric(agent.address(), &files(DIGEST, "read", 0)).await;
    agent.stop().await;
}

/// A file system that takes as long as the test wants.
#[derive(Default)]
struct Slow {
    at: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Slow {
    /// Until so many readers are at a file.
    async fn until_at(&self, readers: usize) {
        let waited = timeout(PATIENCE, async {
            while self.at.lock().unwrap().0 < readers {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        });
        waited.await.unwrap();
    }

    fn release(&self) {
        self.at.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

impl Promote for Slow {
    fn promote(&self, _: &Path, _: Head, _: &mut [u8]) -> io::Result<Outcome> {
        let mut at = self.at.lock().unwrap();
        at.0 += 1;
        while !at.1 {
            at = self.changed.wait(at).unwrap();
        }
        Ok(Outcome::Read(1))
    }
}

async fn slow_agent(tree: &Tree, more: &str) -> (Prefetch, Arc<Slow>) {
    let slow = Arc::new(Slow::default());
    let agent = Prefetch::start_with(settings(tree, more), slow.clone())
        .await
        .unwrap();
    (agent, slow)
}

/// given: readers that hang, a queue of 4
/// then: what finds no room is dropped at once and counted; nothing waits, and nothing comes twice
#[tokio::test]
async fn a_full_queue_drops_at_once() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(1));
    let (agent, slow) = slow_agent(&tree, "maxConcurrentFiles: 2\nworkQueueSize: 4").await;
    let address = agent.address();
    let blocks: Vec<String> = (0..20).map(block).collect();
    let of = |range: std::ops::Range<usize>| {
        message((0..).zip(blocks[range].iter().map(String::as_str)))
    };
    assert_eq!(post(address, of(0..2)).await, answer(2, 0, 0));
    slow.until_at(2).await;

    // Being read.
    assert_eq!(post(address, of(0..2)).await, answer(0, 2, 0));
    assert_eq!(post(address, of(2..5)).await, answer(3, 0, 0));
    // Waiting.
    assert_eq!(post(address, of(1..5)).await, answer(0, 4, 0));
    // One more has room; the others are not looked at.
    assert_eq!(post(address, of(4..20)).await, answer(1, 1, 14));
    assert_eq!(post(address, of(5..20)).await, answer(0, 0, 15));
    for line in [
        "kv_prefetch_agent_submitted_total 6",
        "kv_prefetch_agent_dropped_total 29",
        "kv_prefetch_agent_duplicates_total 7",
        "kv_prefetch_agent_queue_length 4",
        "kv_prefetch_agent_readers_busy 2",
    ] {
        metric(address, line).await;
    }

    slow.release();
    metric(address, &files(DIGEST, "read", 6)).await;
    metric(address, "kv_prefetch_agent_readers_busy 0").await;
    // Read again, now that it is done with.
    assert_eq!(post(address, of(0..2)).await, answer(2, 0, 0));
    agent.stop().await;
}

/// then: an answer takes no longer for it, and the program ends all the same
#[tokio::test]
async fn a_file_system_that_hangs_holds_nobody() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(1));
    let (agent, slow) = slow_agent(&tree, "maxConcurrentFiles: 2").await;
    let blocks: Vec<String> = (0..100).map(block).collect();
    let began = Instant::now();
    for chunk in blocks.chunks(10) {
        let body = message((0..).zip(chunk.iter().map(String::as_str)));
        assert_eq!(post(agent.address(), body).await, answer(10, 0, 0));
    }
    slow.until_at(2).await;
    assert!(
        began.elapsed() < Duration::from_secs(2),
        "{:?}",
        began.elapsed()
    );
    let began = Instant::now();
    agent.stop().await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(8), "{took:?}");
    slow.release();
}

#[tokio::test]
async fn thousands_of_missing_files_are_skipped() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(1));
    let agent = agent(&tree, "workQueueSize: 20000").await;
    let blocks: Vec<String> = (0..10_000).map(block).collect();
    let body = message((0..).zip(blocks.iter().map(String::as_str)));
    assert_eq!(post(agent.address(), body).await, answer(10_000, 0, 0));
    metric(agent.address(), &files(DIGEST, "missing", 10_000)).await;
    metric(agent.address(), "kv_prefetch_agent_read_seconds_count 0").await;
    agent.stop().await;
}

/// then: refused as a whole, by name, and no file is looked at
#[tokio::test]
async fn hostile_messages_are_refused() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(1));
    fs::write(tree.root.join("secret"), "s").unwrap();
    let seen = Arc::new(Remember::default());
    let config = settings(&tree, "limits: {maxDigests: 3, maxBodyBytes: 1024}");
    let agent = Prefetch::start_with(config, seen.clone()).await.unwrap();
    let address = agent.address();
    let good = block(1);
    for bad in [
        "../../../secret",
        "..%2f..%2fsecret",
        "/etc/passwd",
        "",
        &good[1..],
        &format!("{good}0"),
        &good.to_uppercase().replace('0', "A"),
        &"é".repeat(32),
        &format!("{}٣", &good[..62]),
        &format!("{}/", &good[..63]),
        &format!("{}\\u0000", &good[..63]),
        &good.replacen("00", "..", 1),
    ] {
        let (status, text) = post(address, message([(0, good.as_str()), (1, bad)])).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{bad}");
        assert!(text.contains("64 lower-case hexadecimal digits"), "{text}");
    }
    let four: Vec<String> = (0..4).map(block).collect();
    let (status, text) = post(address, message((0..).zip(four.iter().map(String::as_str)))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(
        text.starts_with("blocks: more than limits.maxDigests, which is 3"),
        "{text}"
    );
    let (status, text) = post(address, format!("{:2000}", message([]))).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(text, "more than limits.maxBodyBytes, which is 1024");
    for line in [
        "kv_prefetch_agent_requests_total{result=\"bad_request\"} 13",
        "kv_prefetch_agent_requests_total{result=\"too_large\"} 1",
        "kv_prefetch_agent_requests_total{result=\"accepted\"} 0",
        "kv_prefetch_agent_submitted_total 0",
    ] {
        metric(address, line).await;
    }
    agent.stop().await;
    assert_eq!(*seen.0.lock().unwrap(), []);
}

/// A body without a length, that is longer than allowed, or never ends.
#[tokio::test]
async fn bodies_of_unknown_length_are_bounded_too() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let tree = Tree::new();
    tree.configure(DIGEST, &config(1));
    let agent = agent(&tree, "limits: {maxBodyBytes: 1024}").await;
    let mut stream = tokio::net::TcpStream::connect(agent.address())
        .await
        .unwrap();
    let chunk = format!("200\r\n{}\r\n", " ".repeat(512));
    let head = "POST /prefetch HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    for _ in 0..3 {
        stream.write_all(chunk.as_bytes()).await.unwrap();
    }
    let mut text = vec![0; 12];
    stream.read_exact(&mut text).await.unwrap();
    assert_eq!(text, b"HTTP/1.1 413");
    agent.stop().await;
}

/// The agent begins before the engine; the engine changes what it writes.
#[tokio::test]
async fn directories_are_found_when_they_come_and_when_they_change() {
    let tree = Tree::new();
    let agent = agent(&tree, "").await;
    let address = agent.address();
    let ask = |n: u64| post(address, message([(15, block(n).as_str())]));
    assert_eq!(ask(0).await, answer(0, 0, 0));
    metric(
        address,
        "kv_prefetch_agent_requests_total{result=\"no_directory\"} 1",
    )
    .await;

    tree.configure(DIGEST, &config(16));
    let info = |digest: &str, blocks: u32| {
        format!(
            "kv_prefetch_agent_directory_info{{digest=\"{digest}\",ranks=\"1\",groups=\"1\",blocks_per_file=\"{blocks}\",config_json=\"true\"}} 1"
        )
    };
    metric(address, &info(DIGEST, 16)).await;
    tree.cold(DIGEST, 0, &block(1), 100);
    assert_eq!(ask(1).await, answer(1, 0, 0));
    metric(address, &files(DIGEST, "read", 1)).await;

    // Another engine, beside it: its directory is read from too, by its own name.
    tree.configure("0123456789ab", &config(8));
    metric(address, &info("0123456789ab", 8)).await;
    tree.cold("0123456789ab", 0, &block(2), 100);
    assert_eq!(ask(2).await, answer(2, 0, 0));
    metric(address, &files("0123456789ab", "read", 1)).await;
    metric(address, &files(DIGEST, "missing", 1)).await;

    // The first one's files become others.
    tree.configure(DIGEST, &config(32));
    metric(address, &info(DIGEST, 32)).await;
    assert_eq!(ask(3).await, answer(1, 0, 0));

    // A pipe is not waited for.
    let pipe = tree.root.join("config.json");
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // What is none of this model's is passed over.
    for (digest, text) in [
        ("aaaaaaaaaaaa", config(1).replace(MODEL, "another/model")),
        ("bbbbbbbbbbbb", "{".into()),
        ("cccccccccccc", config(0)),
        ("DDDDDDDDDDDD", config(1)),
    ] {
        tree.configure(digest, &text);
    }
    fs::remove_dir_all(
        tree.root
            .join(format!("{}_{DIGEST}", MODEL.replace('/', "_"))),
    )
    .unwrap();
    let waited = timeout(PATIENCE, async {
        while ask(4).await != answer(1, 0, 0) || {
            let (_, _, text) = get(address, "/metrics", None).await;
            String::from_utf8_lossy(&text)
                .matches("directory_info{")
                .count()
                != 1
        } {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    waited.await.unwrap();
    metric(address, &info("0123456789ab", 8)).await;
    agent.stop().await;
}

#[tokio::test]
async fn an_agent_that_restarts_reads_on() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(1));
    tree.cold(DIGEST, 0, &block(1), 100);
    let first = agent(&tree, "").await;
    let address = first.address();
    let body = || message([(0, block(1).as_str())]);
    assert_eq!(post(address, body()).await, answer(1, 0, 0));
    first.stop().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err());

    let mut config = settings(&tree, "");
    config.listen = address;
    let second = Prefetch::start(config).await.unwrap();
    assert_eq!(post(address, body()).await, answer(1, 0, 0));
    metric(address, &files(DIGEST, "read", 1)).await;
    second.stop().await;
}

/// given: an engine that writes 8 blocks a file, of another hash
#[tokio::test]
async fn what_the_engine_says_is_compared() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(16));
    let engine = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = engine.local_addr().unwrap().port();
    let says = Arc::new(Mutex::new((8, "sha256")));
    let answers = says.clone();
    tokio::spawn(async move {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        while let Ok((mut stream, _)) = engine.accept().await {
            let mut head = [0; 4096];
            let read = stream.read(&mut head).await.unwrap();
            assert!(head[..read].starts_with(b"GET /metrics HTTP/1.1"));
            let (blocks, algorithm) = *answers.lock().unwrap();
            let body = format!(
                "vllm:kv_offload_config_info{{cpu_blocks_per_chunk=\"{blocks}\",engine=\"0\"}} 1.0\n\
                 vllm:cache_config_info{{hash_block_size=\"16\",prefix_caching_hash_algo=\"{algorithm}\"}} 1.0\n"
            );
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let agent = agent(&tree, &format!("engine: http://127.0.0.1:{port}")).await;
    let line = |field: &str, wrong: u8| {
        format!("kv_prefetch_agent_engine_mismatch{{field=\"{field}\"}} {wrong}")
    };
    for (field, wrong) in [
        ("gpuBlocksPerFile", 1),
        ("tokens_per_hash", 0),
        ("prefix_caching_hash_algo", 1),
    ] {
        metric(agent.address(), &line(field, wrong)).await;
    }
    *says.lock().unwrap() = (16, "sha256_cbor");
    for field in ["gpuBlocksPerFile", "prefix_caching_hash_algo"] {
        metric(agent.address(), &line(field, 0)).await;
    }
    agent.stop().await;
}

#[tokio::test]
async fn only_who_has_the_token_is_heard() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(1));
    let file = tree.root.join("token");
    fs::write(&file, "s3cret\n").unwrap();
    let agent = agent(&tree, &format!("tokenFile: {}", file.display())).await;
    let address = agent.address();
    let body = message([(0, block(1).as_str())]);
    for token in [None, Some("Bearer s3cre"), Some("Basic s3cret")] {
        let (status, headers, _) = send(address, "POST", "/prefetch", token, body.clone()).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{token:?}");
        assert_eq!(headers["www-authenticate"], "Bearer");
    }
    let token = Some("Bearer s3cret");
    let (status, ..) = send(address, "POST", "/prefetch", token, body).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    metric(
        address,
        "kv_prefetch_agent_requests_total{result=\"unauthorized\"} 3",
    )
    .await;
    agent.stop().await;
}

#[tokio::test]
async fn what_an_operator_asks() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(1));
    let agent = agent(&tree, "").await;
    let address = agent.address();
    assert_eq!(get(address, "/healthz", None).await.2, "ok");
    assert_eq!(get(address, "/", None).await.0, StatusCode::NOT_FOUND);
    for (method, path, allow) in [
        ("GET", "/prefetch", "POST"),
        ("PUT", "/prefetch", "POST"),
        ("POST", "/metrics", "GET, HEAD"),
        ("POST", "/healthz", "GET, HEAD"),
    ] {
        let (status, headers, _) = request(address, method, path, None).await;
        assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        assert_eq!(headers["allow"], allow);
    }
    let (_, headers, text) = get(address, "/metrics", None).await;
    assert_eq!(
        headers["content-type"],
        "text/plain; version=0.0.4; charset=utf-8"
    );
    // Every family says what it is, once, and the manual knows it.
    let text = String::from_utf8(text.to_vec()).unwrap();
    let manual = include_str!("../../docs/kv-prefetch-agent.md");
    let mut names: Vec<&str> = text
        .lines()
        .filter_map(|line| {
            line.strip_prefix("# TYPE kv_prefetch_agent_")?
                .split(' ')
                .next()
        })
        .collect();
    assert_eq!(names.len(), 15);
    for name in &names {
        assert!(
            manual.contains(&format!("`{name}")),
            "{name} is not in the manual"
        );
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 15);
    agent.stop().await;
}

/// An Envoy cluster may speak HTTP/2.
#[tokio::test]
async fn http2_is_spoken_too() {
    use bytes::Bytes;
    use http_body_util::Full;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let tree = Tree::new();
    tree.configure(DIGEST, &config(1));
    let agent = agent(&tree, "").await;
    let stream = tokio::net::TcpStream::connect(agent.address())
        .await
        .unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    for n in 0..3 {
        let body = Bytes::from(message([(0, block(n).as_str())]));
        let request = hyper::Request::post("http://agent/prefetch")
            .body(Full::new(body))
            .unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::ACCEPTED);
    }
    metric(agent.address(), &files(DIGEST, "missing", 3)).await;
    agent.stop().await;
}

/// Reading leaves a trace in the file itself, its access time, where the file system keeps it.
#[tokio::test]
async fn what_is_warm_is_not_even_opened() {
    let tree = Tree::new();
    tree.configure(DIGEST, &config(1));
    let cold = tree.cold(DIGEST, 0, &block(1), 100_000);
    let warm = tree.warm(DIGEST, 0, &block(2), 100_000);
    let witness = tree.warm(DIGEST, 0, &block(3), 1);
    let past = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for path in [&cold, &warm, &witness] {
        let times = fs::FileTimes::new().set_accessed(past).set_modified(past);
        let file = fs::File::options().write(true).open(path).unwrap();
        file.set_times(times).unwrap();
    }
    let agent = agent(&tree, "").await;
    let body = message([(0, block(1).as_str()), (1, block(2).as_str())]);
    assert_eq!(post(agent.address(), body).await, answer(2, 0, 0));
    metric(agent.address(), &files(DIGEST, "read", 1)).await;
    metric(agent.address(), &files(DIGEST, "resident", 1)).await;
    agent.stop().await;

    let was_read = |path: &Path| fs::metadata(path).unwrap().accessed().unwrap() > past;
    fs::read(&witness).unwrap();
    if was_read(&witness) {
        assert_eq!((was_read(&cold), was_read(&warm)), (true, false));
    }
}

#[test]
fn every_key_is_in_the_manual() {
    let error = Config::parse("path: /etc/passwd\nrootDir: /\nmodelName: m")
        .unwrap_err()
        .to_string();
    let (_, keys) = error.split_once("expected one of ").unwrap();
    let manual = include_str!("../../docs/kv-prefetch-agent.md");
    let (_, section) = manual.split_once("\n## Configuration\n").unwrap();
    let section = section.split("\n## ").next().unwrap();
    let mut tried = 0;
    for key in keys.split('`').skip(1).step_by(2) {
        // `limits` and `log` are there with their members.
        let named = format!("`{key}`");
        let inside = format!("`{key}.");
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let found = rows.filter(|row| row.contains(&named) || row.contains(&inside));
        assert!(found.count() > 0, "{key}");
        tried += 1;
    }
    assert_eq!(tried, 19);
}
