//! What Linux knows of a process: its processor time, its memory; and where it may run.

use std::fs;
use std::mem::MaybeUninit;

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

/// The processor time of another process, all threads together.
pub struct CpuClock(libc::clockid_t);

impl CpuClock {
    pub fn of(pid: u32) -> Self {
        let mut clock = 0;
        let pid = libc::pid_t::try_from(pid).expect("a pid");
        // SAFETY: out pointer to a live local.
        let error = unsafe { libc::clock_getcpuclockid(pid, &mut clock) };
        assert_eq!(error, 0, "no clock of process {pid}");
        CpuClock(clock)
    }

    /// Microseconds so far.
    pub fn now_us(&self) -> f64 {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: out pointer to a live local.
        let error = unsafe { libc::clock_gettime(self.0, &mut time) };
        assert_eq!(error, 0, "the process is gone");
        time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
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
