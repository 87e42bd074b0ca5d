//! Where a new worker begins.
//!
//! A system may start a thread on the core of the one that made it, though others are free, and moves it only when it next
//! looks how even its cores are: a tenth of a second on two threads then runs as on one. So a worker that finds itself there
//! goes to another core, once. It is not kept there: which cores it may run on is what it was.

/// The core that the calling thread runs on, where the system tells.
#[cfg(target_os = "linux")]
pub(super) fn core() -> Option<usize> {
    // SAFETY: the function has no conditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// Moves the calling thread, the worker of that number, off a core, if it is there and may run elsewhere.
#[cfg(target_os = "linux")]
pub(super) fn leave(core: Option<usize>, worker: usize) {
    let (Some(core), Some(mask)) = (core, allowed()) else {
        return;
    };
    if self::core() != Some(core) {
        return;
    }
    // SAFETY: cores of a mask are in its range.
    let others = (0..libc::CPU_SETSIZE as usize).filter(|&c| c != core && unsafe { libc::CPU_ISSET(c, &mask) });
    let others: Vec<usize> = others.collect();
    if others.is_empty() {
        return;
    }
    // Workers follow each other, from the core behind that one on.
    let behind = others.partition_point(|&other| other < core);
    let chosen = others[(behind + worker - 1) % others.len()];
    // SAFETY: a mask is plain numbers, of which none is set.
    let mut only: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the core is of a mask, so in its range.
    unsafe { libc::CPU_SET(chosen, &mut only) };
    if allow(&only) {
        allow(&mask);
    }
}

/// The cores that the calling thread may run on; `None` where there are more than a mask of this size has.
#[cfg(target_os = "linux")]
fn allowed() -> Option<libc::cpu_set_t> {
    // SAFETY: a mask is plain numbers.
    let mut mask: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the mask is valid for writes of its size.
    let got = unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut mask) };
    (got == 0).then_some(mask)
}

/// Has the calling thread run on these cores alone; false if the system refuses.
#[cfg(target_os = "linux")]
fn allow(mask: &libc::cpu_set_t) -> bool {
    // SAFETY: the mask is valid for reads of its size.
    unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), mask) == 0 }
}

/// Not told here.
#[cfg(not(target_os = "linux"))]
pub(super) fn core() -> Option<usize> {
    None
}

/// Leaves where workers begin to the system.
#[cfg(not(target_os = "linux"))]
pub(super) fn leave(_: Option<usize>, _: usize) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::{allowed, core, leave};

    fn cores(mask: &libc::cpu_set_t) -> Vec<usize> {
        // SAFETY: cores of a mask are in its range.
        let set = |&c: &usize| unsafe { libc::CPU_ISSET(c, mask) };
        (0..libc::CPU_SETSIZE as usize).filter(set).collect()
    }

    #[test]
    fn a_worker_may_run_where_it_might_before() {
        let before = cores(&allowed().unwrap());
        for worker in 1..5 {
            leave(core(), worker);
            assert_eq!(cores(&allowed().unwrap()), before);
        }
        leave(None, 1);
        leave(Some(usize::MAX), 1);
        assert_eq!(cores(&allowed().unwrap()), before);
    }

    #[test]
    fn a_thread_that_is_kept_on_one_core_stays_there() {
        std::thread::spawn(|| {
            let here = core().unwrap();
            // SAFETY: a mask is plain numbers, and the core is in its range.
            let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            // SAFETY: as above.
            unsafe { libc::CPU_SET(here, &mut one) };
            if super::allow(&one) {
                leave(core(), 1);
                assert_eq!(cores(&allowed().unwrap()), [here]);
            }
        })
        .join()
        .unwrap();
    }
}
