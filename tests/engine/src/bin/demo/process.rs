//! Programs that run beside the demo.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// A program, and the shell that ends it when this one is gone, however it went.
pub struct Process {
    shell: Child,
    /// The program runs as long as this is open.
    alive: Option<ChildStdin>,
}

impl Process {
    /// `log` is its standard error; its standard output goes to a file beside it.
    pub fn start(program: &Path, arguments: &[&OsStr], log: &Path) -> Result<Self, String> {
        // The shell ends with the program, and the program when the shell's standard input does: at
        // the latest with this one.
        const WATCH: &str = r#"
            exec 3<&0
            "$@" </dev/null 3<&- &
            program=$!
            { read -r _ <&3; kill "$program"; } 2>/dev/null &
            watch=$!
            wait "$program"
            kill "$watch""#;
        let file = |path: &Path| {
            File::create(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let mut shell = Command::new("sh")
            .args(["-c", WATCH, "sh"])
            .arg(program)
            .args(arguments)
            // Ctrl-C is this program's to act on.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(file(&log.with_extension("out"))?)
            .stderr(file(log)?)
            .spawn()
            .map_err(|error| format!("sh: {error}"))?;
        let alive = shell.stdin.take();
        Ok(Self { shell, alive })
    }

    pub fn ended(&mut self) -> bool {
        !matches!(self.shell.try_wait(), Ok(None))
    }

    pub fn stop(&mut self) {
        self.alive = None;
        let _ = self.shell.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}
