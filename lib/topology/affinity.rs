//! Which processors threads run on. In: sets. Out: the kernel's masks. Guarantee: what is asked for is set exactly, or it
//! is an error; a thread that ended meanwhile is none.

use super::CpuSet;
use nix::errno::Errno;
use nix::sched::{CpuSet as Mask, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// This thread, to the kernel.
const THIS: Pid = Pid::from_raw(0);

/// Processors that this thread may run on.
pub fn of_thread() -> nix::Result<CpuSet> {
    let mask = sched_getaffinity(THIS)?;
    Ok((0..Mask::count())
        .filter(|&cpu| mask.is_set(cpu) == Ok(true))
        .filter_map(|cpu| u32::try_from(cpu).ok())
        .collect())
}

/// Binds this thread; threads and programs that it starts inherit the set.
pub fn bind_thread(cpus: &CpuSet) -> nix::Result<()> {
    sched_setaffinity(THIS, &mask(cpus)?)
}

/// Binds all threads of this process.
pub fn bind_process(cpus: &CpuSet) -> nix::Result<()> {
    let mask = mask(cpus)?;
    for thread in threads() {
        match sched_setaffinity(thread, &mask) {
            // It may have ended since it was listed.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Every processor that a mask can name, of which the kernel takes away what the process must not have.
pub fn everywhere() -> CpuSet {
    CpuSet::range(0, Mask::count() as u32 - 1)
}

fn mask(cpus: &CpuSet) -> nix::Result<Mask> {
    let mut mask = Mask::new();
    for cpu in cpus.iter() {
        mask.set(cpu as usize)?;
    }
    Ok(mask)
}

/// All threads of this process.
fn threads() -> Vec<Pid> {
    let Ok(entries) = std::fs::read_dir("/proc/self/task") else { return vec![THIS] };
    let ids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    ids.map(Pid::from_raw).collect()
}
