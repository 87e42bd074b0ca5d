//! Scopes of fences and single accesses: what orders threads of a block does not order others.

use tlc_gpusim::{Device, FindingKind, Launch, Module, Options, Report, Schedule};

/// Thread 0 of the first block hands a value on through a flag, and the first thread of the second warp or block takes it.
fn handed_on(scope: &str, blocks: u32, schedule: Schedule) -> Report {
    let text = format!(
        "
.version 8.0
.target sm_80
.address_size 64
.visible .entry hand(.param .u64 data, .param .u64 flag, .param .u64 out)
{{
    .reg .pred %p<4>;
    .reg .b32 %r<8>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [data];
    ld.param.u64 %rd2, [flag];
    ld.param.u64 %rd3, [out];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r4, %r2, %r3, %r1;
    setp.eq.u32 %p1, %r4, 0;
    @%p1 bra GIVE;
    setp.eq.u32 %p2, %r4, 32;
    @%p2 bra TAKE;
    ret;
GIVE:
    st.global.u32 [%rd1], 7;
    fence.acq_rel.{scope};
    st.relaxed.{scope}.global.u32 [%rd2], 1;
    ret;
TAKE:
    ld.relaxed.{scope}.global.u32 %r5, [%rd2];
    setp.eq.u32 %p3, %r5, 0;
    @%p3 bra TAKE;
    fence.acq_rel.{scope};
    ld.global.u32 %r6, [%rd1];
    st.global.u32 [%rd3], %r6;
    ret;
}}
"
    );
    let module = Module::parse(&text).unwrap();
    let mut device = Device::default();
    let mut memory = || {
        let at = device.allocate(4).unwrap();
        device.write(at, &[0; 4]).unwrap();
        at
    };
    let threads = 64 / blocks;
    let launch = Launch::new(blocks, threads).arg(memory()).arg(memory()).arg(memory());
    let options = Options {
        schedule,
        ..Options::default()
    };
    device.launch(&module, "hand", &launch, &options).unwrap()
}

#[test]
fn a_fence_of_the_block_orders_nothing_for_others() {
    for schedule in [Schedule::RoundRobin, Schedule::Random, Schedule::Adversarial] {
        for (scope, blocks, is_right) in [("gpu", 1, true), ("gpu", 2, true), ("cta", 1, true), ("cta", 2, false)] {
            let report = handed_on(scope, blocks, schedule);
            assert_eq!(report.is_clean(), is_right, "{scope} {blocks} {schedule:?}: {report}");
            let races = report.findings.iter().all(|f| f.kind == FindingKind::Race);
            assert!(races, "{report}");
        }
    }
}

#[test]
fn atomic_operations_of_the_block_race_with_those_of_others() {
    for (scope, blocks, is_right) in [("gpu", 2, true), ("sys", 2, true), ("cta", 1, true), ("cta", 2, false)] {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry count(.param .u64 at)\n{{\n.reg .b64 %rd<2>;\n\
             ld.param.u64 %rd1, [at];\nred.relaxed.{scope}.global.add.u32 [%rd1], 1;\nret;\n}}\n"
        );
        let module = Module::parse(&text).unwrap();
        let mut device = Device::default();
        let at = device.allocate(4).unwrap();
        device.write(at, &[0; 4]).unwrap();
        let launch = Launch::new(blocks, 64).arg(at);
        let report = device.launch(&module, "count", &launch, &Options::default()).unwrap();
        assert_eq!(report.is_clean(), is_right, "{scope} {blocks}: {report}");
        let mut bytes = [0; 4];
        device.read(at, &mut bytes).unwrap();
        assert_eq!(u32::from_le_bytes(bytes), 64 * blocks);
    }
}
