//! Kernels that are broken once each: what is wrong is found, at every schedule, and their right twins give nothing.

use tlc_gpusim::{Device, Finding, FindingKind, Launch, Module, Options, Report, Schedule};

const BROKEN: &str = include_str!("kernels/broken.sm_80.ptx");
const RIGHT: &str = include_str!("kernels/right.sm_80.ptx");
const SOURCE: &str = include_str!("kernels/broken.cu");

/// What a kernel takes.
#[derive(Clone, Copy)]
enum Arg {
    /// Memory that was written, so many ints of 0.
    In(usize),
    /// Memory that was not.
    Out(usize),
    /// Written memory of so many ints, every fourth of which is not written.
    Vectors(usize),
    Int(i32),
}

fn run(text: &str, kernel: &str, (blocks, threads): (u32, u32), args: &[Arg], schedule: Schedule, seed: u64) -> Report {
    let module = Module::parse(text).unwrap();
    let mut device = Device::default();
    let mut launch = Launch::new(blocks, threads);
    for &arg in args {
        launch = match arg {
            In(len) | Out(len) | Vectors(len) => {
                let at = device.allocate(4 * len as u64).unwrap();
                match arg {
                    In(_) => device.write(at, &vec![0; 4 * len]).unwrap(),
                    Vectors(_) => {
                        for i in (0..len).filter(|i| i % 4 != 3) {
                            device.write(at + 4 * i as u64, &[1, 0, 0, 0]).unwrap();
                        }
                    }
                    Out(_) | Int(_) => {}
                }
                launch.arg(at)
            }
            Int(value) => launch.arg(value),
        };
    }
    let options = Options {
        schedule,
        seed,
        patience: 300_000,
        ..Options::default()
    };
    device.launch(&module, kernel, &launch, &options).unwrap()
}

/// The first finding of a kind, the same for all schedules; and nothing of the right twin.
fn check(kernel: &str, size: (u32, u32), args: &[Arg], kind: FindingKind) -> Finding {
    let mut first = None;
    let schedules = [
        (Schedule::RoundRobin, 0),
        (Schedule::Random, 1),
        (Schedule::Random, 2),
        (Schedule::Random, 3),
        (Schedule::Adversarial, 0),
    ];
    for (schedule, seed) in schedules {
        let right = run(RIGHT, kernel, size, args, schedule, seed);
        assert!(right.is_clean(), "the right twin at {schedule:?}: {right}");
        let broken = run(BROKEN, kernel, size, args, schedule, seed);
        let found = broken.findings.iter().find(|f| f.kind == kind).cloned();
        assert!(found.is_some(), "{kernel} at {schedule:?}: {broken}");
        first = first.or(found);
    }
    let found = first.unwrap();
    assert_eq!(found.kernel, kernel);
    assert!(
        found.site.line > 0 && found.site.file.as_deref() == Some("broken.cu"),
        "{found}"
    );
    // The source line is one of the kernel's.
    let start = SOURCE
        .lines()
        .position(|l| l.contains(&format!("void {kernel}(")))
        .unwrap()
        + 1;
    let end = start
        + SOURCE
            .lines()
            .skip(start)
            .position(|l| l.starts_with("extern"))
            .unwrap_or(40);
    assert!(
        (start..=end + 1).contains(&(found.site.source.line as usize)),
        "{found}: not within {start} to {end}"
    );
    found
}

use Arg::{In, Int, Out, Vectors};

#[test]
fn missing_barrier() {
    let found = check("missing_barrier", (1, 128), &[In(128), Out(128)], FindingKind::Race);
    let other = found.other.clone().unwrap();
    assert_ne!(other.thread, found.site.thread);
    assert!(
        found.to_string().contains("race in missing_barrier at PTX line"),
        "{found}"
    );
    // The guide shows it.
    let guide = include_str!("../../src/guide/gpu.md");
    assert!(guide.contains(&found.to_string()), "{found}");
}

#[test]
fn missing_second_barrier() {
    check("missing_second_barrier", (1, 64), &[Out(192)], FindingKind::Race);
}

#[test]
fn missing_syncwarp() {
    check("missing_syncwarp", (1, 32), &[Out(32)], FindingKind::Race);
}

#[test]
fn same_element() {
    check("same_element", (1, 64), &[Out(64)], FindingKind::Race);
}

#[test]
fn counter_without_atomic() {
    check("counter_without_atomic", (4, 32), &[In(1), In(1)], FindingKind::Race);
}

#[test]
fn blocks_without_fence() {
    check(
        "blocks_without_fence",
        (2, 32),
        &[In(1), In(1), Out(1)],
        FindingKind::Race,
    );
}

#[test]
fn past_the_end() {
    let found = check(
        "past_the_end",
        (4, 32),
        &[In(100), Out(100), Int(100)],
        FindingKind::OutOfBounds,
    );
    assert!(
        found.detail.contains("0 bytes past an allocation of 400 bytes"),
        "{found}"
    );
    assert_eq!((found.site.block, found.site.thread), ([3, 0, 0], [4, 0, 0]));
}

#[test]
fn shared_past_the_end() {
    check("shared_past_the_end", (1, 32), &[Out(32)], FindingKind::OutOfBounds);
}

#[test]
fn unwritten_shared() {
    let found = check("unwritten_shared", (1, 64), &[Out(64)], FindingKind::Unwritten);
    assert_eq!(found.site.thread, [58, 0, 0]);
}

#[test]
fn unwritten_global() {
    // One element of the memory behind what is written: the twin reads only what was.
    let module = |text| Module::parse(text).unwrap();
    for (text, wrong) in [(BROKEN, true), (RIGHT, false)] {
        let mut device = Device::default();
        let (x, y) = (device.allocate(4 * 33).unwrap(), device.allocate(4 * 32).unwrap());
        device.write(x, &[1; 4 * 32]).unwrap();
        let launch = Launch::new(1, 32).arg(x).arg(y);
        let report = device
            .launch(&module(text), "unwritten_global", &launch, &Options::default())
            .unwrap();
        assert_eq!(
            report.findings.iter().any(|f| f.kind == FindingKind::Unwritten),
            wrong,
            "{report}"
        );
        assert_eq!(report.findings.len(), usize::from(wrong));
    }
}

#[test]
fn unwritten_vector() {
    check(
        "unwritten_vector",
        (1, 32),
        &[Vectors(128), Out(32)],
        FindingKind::Unwritten,
    );
}

#[test]
fn misaligned_vector() {
    check(
        "misaligned_vector",
        (1, 32),
        &[In(132), Out(128)],
        FindingKind::Misaligned,
    );
}

#[test]
fn divergent_barrier() {
    check("divergent_barrier", (1, 64), &[Out(64)], FindingKind::DivergentBarrier);
}

#[test]
fn wrong_mask() {
    check("wrong_mask", (1, 32), &[Out(32)], FindingKind::WarpMask);
}

#[test]
fn unequal_barriers() {
    check("unequal_barriers", (1, 64), &[Out(64)], FindingKind::Deadlock);
}

#[test]
fn missing_wait() {
    check("missing_wait", (1, 32), &[In(32), Out(32)], FindingKind::Race);
}

#[test]
fn waits_forever() {
    check("waits_forever", (1, 1), &[In(1), Out(1)], FindingKind::Deadlock);
}

#[test]
fn use_after_free() {
    let module = Module::parse(RIGHT).unwrap();
    let mut device = Device::default();
    let (x, y) = (device.allocate(128).unwrap(), device.allocate(128).unwrap());
    device.write(x, &[0; 128]).unwrap();
    let launch = Launch::new(1, 32).arg(x).arg(y);
    assert!(
        device
            .launch(&module, "unwritten_global", &launch, &Options::default())
            .unwrap()
            .is_clean()
    );
    device.free(x).unwrap();
    let report = device
        .launch(&module, "unwritten_global", &launch, &Options::default())
        .unwrap();
    assert_eq!(report.findings[0].kind, FindingKind::UseAfterFree, "{report}");
    assert!(device.free(x).is_err());
}
