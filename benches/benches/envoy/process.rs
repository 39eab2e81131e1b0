//! What Linux knows of a process: its processor time, its memory; and where it may run.

use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Keeps this process and those it starts from now on to one core, the last that it may use.
pub fn pin_to_one_core() {
    // SAFETY: the set is plain data, written by the first call before it is read; both calls get its
    // true size.
    unsafe {
        let mut cores = MaybeUninit::<libc::cpu_set_t>::zeroed().assume_init();
        let size = size_of::<libc::cpu_set_t>();
        assert_eq!(libc::sched_getaffinity(0, size, &mut cores), 0);
        let allowed = |core: &usize| libc::CPU_ISSET(*core, &cores);
        let count = usize::try_from(libc::CPU_SETSIZE).expect("a count");
        let last = (0..count).rev().find(allowed).expect("a core");
        libc::CPU_ZERO(&mut cores);
        libc::CPU_SET(last, &mut cores);
        assert_eq!(libc::sched_setaffinity(0, size, &cores), 0);
    }
}

/// The processor time of one thread of another process.
pub struct CpuClock(File);

impl CpuClock {
    pub fn of(pid: u32, thread: &str) -> Self {
        let named = |task: &PathBuf| {
            let name = fs::read_to_string(task.join("comm"));
            name.is_ok_and(|name| name.trim_end() == thread)
        };
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
        let mut tasks = tasks.flatten().map(|task| task.path());
        let task = tasks.find(named).expect("the thread lives");
        CpuClock(File::open(task.join("schedstat")).expect("Linux keeps the time of threads"))
    }

    /// Microseconds so far; it stands still while the thread waits.
    pub fn now_us(&self) -> f64 {
        let mut text = [0; 64];
        let length = self.0.read_at(&mut text, 0).expect("the thread is gone");
        let text = str::from_utf8(&text[..length]).expect("numbers");
        let ran_ns = text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok());
        ran_ns.expect("nanoseconds") / 1e3
    }
}

/// From now on the peak counts.
pub fn forget_peak(pid: u32) {
    const RESET_PEAK: &str = "5";
    fs::write(format!("/proc/{pid}/clear_refs"), RESET_PEAK).expect("Linux takes it");
}

/// The most memory that was resident, MiB.
pub fn peak_mib(pid: u32) -> f64 {
    status_mib(pid, "VmHWM:")
}

/// Resident memory, MiB.
pub fn resident_mib(pid: u32) -> f64 {
    status_mib(pid, "VmRSS:")
}

fn status_mib(pid: u32, field: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let value = status.lines().find_map(|line| line.strip_prefix(field));
    let kib = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<f64>().ok());
    kib.expect("a size in kB") / 1024.0
}
