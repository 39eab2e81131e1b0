//! Files a second of the prefetch agent, from message to last byte, beside a plain loop that opens and
//! reads the same heads one after the other. `cargo bench -p selective-kv-companion --bench prefetch`.
//!
//! On tmpfs, with files that are all holes: cold, and they stay so. What is measured is the way to the
//! files and the copy, not a store.
#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::disallowed_methods
)]

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use selective_kv_companion::prefetch::Prefetch;
use selective_kv_companion::prefetch::config::Config;
use selective_kv_companion::prefetch::head::{Head, Outcome, Promote, ReadHead};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const DIGEST: &str = "0123456789ab";

struct Case {
    name: &'static str,
    files: u64,
    block_size: usize,
    block_count: usize,
}

const CASES: [Case; 3] = [
    Case {
        name: "head of 4 KiB",
        files: 10_000,
        block_size: 4096,
        block_count: 1,
    },
    Case {
        name: "head of 1 MiB",
        files: 2000,
        block_size: 1 << 20,
        block_count: 1,
    },
    Case {
        name: "head of 3 x 4 MiB, the default",
        files: 400,
        block_size: 4 << 20,
        block_count: 3,
    },
];

/// Gone at the end.
struct Tree(PathBuf);

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Tells of each file that is done with.
struct Telling(Mutex<mpsc::Sender<Outcome>>);

impl Promote for Telling {
    fn promote(&self, path: &Path, head: Head, buffer: &mut [u8]) -> io::Result<Outcome> {
        let outcome = ReadHead.promote(path, head, buffer)?;
        let _ = self.0.lock().unwrap().send(outcome);
        Ok(outcome)
    }
}

fn digest(n: u64) -> String {
    format!("{:016x}{n:048x}", n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn plain_loop(paths: &[PathBuf], case: &Case) -> Duration {
    let mut buffer = vec![0; case.block_size];
    let began = Instant::now();
    for path in paths {
        let mut file = File::open(path).unwrap();
        for _ in 0..case.block_count {
            file.read_exact(&mut buffer).unwrap();
        }
    }
    began.elapsed()
}

#[tokio::main]
async fn main() {
    let root = Path::new("/dev/shm").join(format!("kv-prefetch-bench-{}", std::process::id()));
    let tree = Tree(root);
    println!("files/s, median of {ROUNDS}");
    for case in CASES {
        let paths: Vec<PathBuf> = (0..case.files)
            .map(|n| {
                let digest = digest(n);
                let directory = format!("m_{DIGEST}_r0/{}/{}_g0", &digest[..3], &digest[3..5]);
                let directory = tree.0.join(directory);
                fs::create_dir_all(&directory).unwrap();
                directory.join(format!("{digest}.bin"))
            })
            .collect();
        let head = (case.block_size * case.block_count) as u64;
        for path in &paths {
            File::create(path).unwrap().set_len(head + 4096).unwrap();
        }
        let blocks: Vec<String> = (0..case.files)
            .map(|n| format!("[{n},\"{}\"]", digest(n)))
            .collect();
        let body = Bytes::from(format!("{{\"v\":1,\"blocks\":[{}]}}", blocks.join(",")));

        let (done, each) = mpsc::channel();
        let config = Config::parse(&format!(
            "listen: 127.0.0.1:0\nrootDir: {}\nmodelName: m\ndigest: {DIGEST}\nblockSize: {}\nblockCount: {}\nworkQueueSize: 100000",
            tree.0.display(),
            case.block_size,
            case.block_count
        ))
        .unwrap();
        let agent = Prefetch::start_with(config, Arc::new(Telling(Mutex::new(done))))
            .await
            .unwrap();
        let stream = tokio::net::TcpStream::connect(agent.address())
            .await
            .unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);

        let mut loops = Vec::new();
        let mut agents = Vec::new();
        // One round more, which does not count.
        for _ in 0..=ROUNDS {
            loops.push(plain_loop(&paths, &case));
            let request = hyper::Request::post("/prefetch")
                .header("host", "a")
                .body(Full::new(body.clone()))
                .unwrap();
            let began = Instant::now();
            let answer = sender.send_request(request).await.unwrap();
            answer.into_body().collect().await.unwrap();
            for _ in 0..case.files {
                assert_eq!(each.recv().unwrap(), Outcome::Read(head));
            }
            agents.push(began.elapsed());
        }
        let rate = |mut took: Vec<Duration>| {
            took.remove(0);
            took.sort_unstable();
            case.files as f64 / took[ROUNDS / 2].as_secs_f64()
        };
        println!(
            "{:32} agent {:>8.0}   plain loop {:>8.0}",
            case.name,
            rate(agents),
            rate(loops)
        );
        agent.stop().await;
        fs::remove_dir_all(&tree.0).unwrap();
    }
}
