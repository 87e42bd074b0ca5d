//! Lines of the source that PTX was compiled from: findings are said with their words, and counters are of each.

use tlc_gpusim::{Device, FindingKind, Launch, LineCounters, Module, Options, Report};

/// Thread `t` of a warp loads element `8 t` and stores it to shared memory, all in one bank, and to element `t + off` of another memory.
const TEXT: &str = r#"
.version 8.0
.target sm_80
.address_size 64
.visible .entry scatter(.param .u64 from, .param .u64 to)
{
    .reg .b32 %r<8>;
    .reg .b64 %rd<8>;
    .shared .align 4 .b8 tile[4096];
    .loc 1 2 0
    ld.param.u64 %rd1, [from];
    ld.param.u64 %rd2, [to];
    mov.u32 %r1, %tid.x;
    .loc 1 3 0
    mul.wide.u32 %rd3, %r1, 32;
    add.u64 %rd4, %rd1, %rd3;
    ld.global.u32 %r2, [%rd4];
    .loc 1 4 0
    mov.u32 %r3, tile;
    mad.lo.u32 %r4, %r1, 128, %r3;
    st.shared.u32 [%r4], %r2;
    .loc 2 7 0
    mul.wide.u32 %rd5, %r1, 4;
    add.u64 %rd6, %rd2, %rd5;
    st.global.u32 [%rd6], %r2;
    ret;
}
.file 1 "/where/it/was/compiled/scatter.cu"
.file 2 "elsewhere.cu"
//= scatter.cu
//| void scatter(const int* from, int* to) {
//|     int t = threadIdx.x;
//|     int x = from[8 * t]; // "one of eight"
//|     tile[32 * t] = x;
"#;

fn launched(elements: u64) -> Report {
    let module = Module::parse(TEXT).unwrap();
    let mut device = Device::default();
    let from = device.allocate(32 * 32).unwrap();
    device.write(from, &[1; 32 * 32]).unwrap();
    let to = device.allocate(4 * elements).unwrap();
    let launch = Launch::new(1, 32).arg(from).arg(to);
    let options = Options {
        lines: true,
        ..Options::default()
    };
    device.launch(&module, "scatter", &launch, &options).unwrap()
}

#[test]
fn counters_are_of_single_lines() {
    let report = launched(32);
    assert!(report.is_clean(), "{report}");
    let line = |file: &str, line: u32, text: Option<&str>, counts: [u64; 3]| LineCounters {
        file: Some(file.into()),
        line,
        text: text.map(Into::into),
        lane_instructions: 32 * counts[0],
        sectors: counts[1],
        bank_conflicts: counts[2],
    };
    let expected = [
        line("elsewhere.cu", 7, None, [4, 4, 0]),
        line("scatter.cu", 2, Some("int t = threadIdx.x;"), [3, 0, 0]),
        line(
            "scatter.cu",
            3,
            Some("int x = from[8 * t]; // \"one of eight\""),
            [3, 32, 0],
        ),
        line("scatter.cu", 4, Some("tile[32 * t] = x;"), [3, 0, 31]),
    ];
    assert_eq!(report.counters.lines, expected);
    let sum: u64 = report.counters.lines.iter().map(|l| l.lane_instructions).sum();
    assert_eq!(sum, report.counters.lane_instructions());
}

#[test]
fn findings_have_the_words_of_their_line() {
    let report = launched(31);
    let found = &report.findings[0];
    assert_eq!(found.kind, FindingKind::OutOfBounds);
    assert_eq!(
        (found.site.file.as_deref(), found.site.source.line),
        (Some("elsewhere.cu"), 7)
    );
    assert_eq!(found.site.text, None);
    // A source that is known says what is in the line.
    let module = Module::parse(TEXT).unwrap();
    let mut device = Device::default();
    let from = device.allocate(31 * 32).unwrap();
    device.write(from, &[1; 31 * 32]).unwrap();
    let to = device.allocate(4 * 32).unwrap();
    let launch = Launch::new(1, 32).arg(from).arg(to);
    let report = device.launch(&module, "scatter", &launch, &Options::default()).unwrap();
    let said = report.findings[0].to_string();
    assert!(
        said.contains("(scatter.cu:3: int x = from[8 * t]; // \"one of eight\")"),
        "{said}"
    );
    assert!(report.counters.lines.is_empty());
}
