//! Device memory: what a launch accessed, what was written, slots, and memory that the host does not have.

use tlc_gpusim::{Device, FindingKind, Launch, MemoryError, Module, Options, Report, SlotEvent};

/// Each thread of a block copies a word: `to[i] = from[2 * i]`.
const PTX: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .entry evens(.param .u64 to, .param .u64 from)
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [from];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    mul.wide.u32 %rd3, %r1, 8;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.u32 %r2, [%rd5];
    st.global.u32 [%rd4], %r2;
    ret;
}
";

fn run(device: &mut Device, to: u64, from: u64, threads: u32) -> Report {
    let module = Module::parse(PTX).unwrap();
    let options = Options {
        footprint: true,
        ..Options::default()
    };
    let launch = Launch::new(1, threads).arg(to).arg(from);
    device.launch(&module, "evens", &launch, &options).unwrap()
}

#[test]
fn a_launch_says_which_bytes_it_accessed() {
    let mut device = Device::default();
    let (to, from) = (device.allocate(1 << 20).unwrap(), device.allocate(1 << 20).unwrap());
    // Across the end of a chunk.
    let (to, from) = (to + 65_536 - 64, from + 65_536 - 16);
    device.write(from, &[1; 256]).unwrap();
    let report = run(&mut device, to, from, 32);
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.footprint.writes, [(to, to + 128)]);
    let reads: Vec<(u64, u64)> = (0..32).map(|i| (from + 8 * i, from + 8 * i + 4)).collect();
    assert_eq!(report.footprint.reads, reads);
    assert_eq!(
        device.unwritten(to - 8, 140).unwrap(),
        [(to - 8, to), (to + 128, to + 132)]
    );
    device.forget(to + 4, 8).unwrap();
    assert_eq!(device.unwritten(to, 128).unwrap(), [(to + 4, to + 12)]);
    // Nothing is left of it for the next launch.
    let report = run(&mut device, to, from, 1);
    assert_eq!(report.footprint.writes, [(to, to + 4)]);
}

#[test]
fn memory_is_taken_of_the_host_where_it_is_used() {
    let mut device = Device::new(1 << 50);
    let at = device.allocate(1 << 38).unwrap();
    let far = at + (1 << 37);
    device.write(far, &[7; 8]).unwrap();
    let mut bytes = [0; 9];
    device.read(far, &mut bytes).unwrap();
    assert_eq!(bytes[..8], [7; 8]);
    assert_eq!(device.unwritten(far, 9).unwrap(), [(far + 8, far + 9)]);
    assert_eq!(device.used(), 1 << 38);
    device.free(at).unwrap();
    assert_eq!(device.used(), 0);
}

#[test]
fn memory_is_where_it_is_asked_for_unless_that_is_taken() {
    let mut device = Device::new(1 << 20);
    let at = device.allocate(1024).unwrap();
    assert_eq!(device.allocate_at(at + 1000, 8), Err(MemoryError::Taken(at + 1000)));
    assert_eq!(device.allocate_at(at - 8, 16), Err(MemoryError::Taken(at - 8)));
    assert_eq!(device.allocate_at(u64::MAX, 16), Err(MemoryError::Taken(u64::MAX)));
    device.allocate_at(at - 4096, 1024).unwrap();
    device.write(at - 4096, &[1; 1024]).unwrap();
    assert_eq!(device.used(), 1024, "who chose the address accounts the memory");
    let report = run(&mut device, at, at - 4096, 32);
    assert!(report.is_clean(), "{report}");
    device.free(at - 4096).unwrap();
    assert_eq!(device.allocate_at(at - 4096, 16), Err(MemoryError::Taken(at - 4096)));
    let report = run(&mut device, at, at - 4096, 32);
    assert_eq!(report.findings[0].kind, FindingKind::UseAfterFree);
}

#[test]
fn a_launch_accesses_the_slots_of_its_parameters_alone() {
    let mut device = Device::default();
    let arena = device.allocate(4096).unwrap();
    device.write(arena, &[1; 4096]).unwrap();
    let (a, b) = (arena, arena + 1024);
    device.slot(SlotEvent::Birth, a, 128, "a").unwrap();
    device.slot(SlotEvent::Adoption, b, 256, "b").unwrap();
    // Those without bytes are none, and end nothing.
    device.slot(SlotEvent::Birth, a, 0, "empty").unwrap();
    device.slot(SlotEvent::Death, a, 0, "empty").unwrap();
    assert!(run(&mut device, a, b, 32).is_clean());
    let detail = |report: &Report, kind| {
        assert_eq!(report.findings[0].kind, kind, "{report}");
        report.findings[0].detail.clone()
    };
    let past = run(&mut device, a, b, 33);
    assert_eq!(past.findings.len(), 2, "{past}");
    let expected = "0 bytes past slot `b` of 256 bytes";
    assert_eq!(detail(&past, FindingKind::OutOfBounds), expected);
    device.slot(SlotEvent::Birth, b, 256, "c").unwrap();
    let unwritten = run(&mut device, a, b, 1);
    assert!(detail(&unwritten, FindingKind::Unwritten).ends_with("0 bytes into slot `c` of 256 bytes"));
    device.slot(SlotEvent::Death, b, 256, "").unwrap();
    let dead = run(&mut device, a, b, 1);
    assert_eq!(
        detail(&dead, FindingKind::OutOfBounds),
        "0 bytes into slot `c`, which is dead"
    );
    let twice = device.slot(SlotEvent::Death, b, 256, "");
    assert_eq!(twice, Err(MemoryError::NotAllocated(b)));
    let nowhere = device.slot(SlotEvent::Birth, arena + 4000, 128, "d");
    assert!(nowhere.is_err());
    assert_eq!(device.outside_of_slots(a, 128), None);
    let outside = device.outside_of_slots(a + 64, 128).unwrap();
    assert_eq!(outside, "0 bytes past slot `a` of 128 bytes");
}
