//! Cycles that are lost where lanes of a warp meet in a bank of shared memory.

use tlc_gpusim::{Device, Launch, Module, Options};

/// A store of 16 or 8 bytes of shared memory by each thread `t` of a warp whose number within `group` is below `some`, `step` bytes behind that of
/// the thread before in a group, `row` behind that of the group before.
const TEXT: &str = r#"
.version 8.0
.target sm_80
.address_size 64
.visible .entry store(.param .u32 group, .param .u32 some, .param .u32 step, .param .u32 row, .param .u32 wide)
{
    .reg .b32 %r<16>;
    .reg .pred %p<3>;
    .shared .align 16 .b8 tile[16384];
    ld.param.u32 %r1, [group];
    ld.param.u32 %r2, [some];
    ld.param.u32 %r3, [step];
    ld.param.u32 %r4, [row];
    ld.param.u32 %r5, [wide];
    mov.u32 %r6, %tid.x;
    rem.u32 %r7, %r6, %r1;
    div.u32 %r8, %r6, %r1;
    mov.u32 %r9, tile;
    mad.lo.u32 %r10, %r7, %r3, %r9;
    mad.lo.u32 %r11, %r8, %r4, %r10;
    setp.ge.u32 %p1, %r7, %r2;
    @%p1 bra done;
    setp.ne.u32 %p2, %r5, 0;
    @%p2 bra wider;
    st.shared.v2.u32 [%r11], {%r6, %r6};
    bra done;
wider:
    st.shared.v4.u32 [%r11], {%r6, %r6, %r6, %r6};
done:
    ret;
}
"#;

/// The cycles that such a store loses.
fn lost([group, some, step, row]: [u32; 4], wide: bool) -> u64 {
    let module = Module::parse(TEXT).unwrap();
    let mut device = Device::default();
    let launch = Launch::new(1, 32)
        .arg(group)
        .arg(some)
        .arg(step)
        .arg(row)
        .arg(u32::from(wide));
    let report = device.launch(&module, "store", &launch, &Options::default()).unwrap();
    assert!(report.is_clean(), "{report}");
    report.counters.bank_conflicts
}

#[test]
fn a_quarter_of_a_warp_stores_sixteen_bytes_each_at_a_time() {
    // Rows of eight pieces, all of them or some: what is left out of one row is no place for the next one's.
    for some in 1..=8 {
        assert_eq!(lost([8, some, 16, 128], true), 0, "{some} of 8");
    }
    // All of a quarter in the same banks, and two halves of a quarter.
    assert_eq!(lost([32, 32, 128, 0], true), 4 * 7);
    assert_eq!(lost([4, 4, 16, 128], true), 4);
    assert_eq!(lost([4, 4, 16, 64], true), 0);
    // Of four rows in a quarter two meet.
    assert_eq!(lost([2, 1, 16, 64], true), 4);
}

#[test]
fn half_of_a_warp_stores_eight_bytes_each_at_a_time() {
    for some in 1..=16 {
        assert_eq!(lost([16, some, 8, 128], false), 0, "{some} of 16");
    }
    // Rows of four pairs, whole or cut off, that begin 32 bytes further on in the banks.
    for some in 1..=4 {
        assert_eq!(lost([4, some, 8, 160], false), 0, "{some} of 4");
    }
    assert_eq!(lost([32, 32, 128, 0], false), 2 * 15);
    assert_eq!(lost([4, 4, 8, 128], false), 2 * 3);
}
