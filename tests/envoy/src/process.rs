//! Programs under test, and where they keep their files.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Of this test's own, below the temporary directory.
pub fn new_folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("envoy-tests-{}-{count}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    folder
}

/// Starts a child that dies with this process, even on Ctrl-C or an abort. The kernel ties that to
/// the *thread* that forks, and a test's thread ends early: one thread forks for all.
pub fn spawn(command: Command) -> Child {
    static FORKER: LazyLock<Sender<(Command, Sender<Child>)>> = LazyLock::new(|| {
        let (send, receive) = channel::<(Command, Sender<Child>)>();
        thread::spawn(move || {
            for (mut command, answer) in receive {
                let _ = answer.send(command.spawn().expect("the program starts"));
            }
        });
        send
    });
    let mut command = command;
    // SAFETY: prctl is async-signal-safe and touches no memory of ours.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
    let (send, receive) = channel();
    FORKER
        .send((command, send))
        .expect("the forking thread lives");
    receive.recv().expect("the program starts")
}
