//! The lowered form of small kernels, word for word, and what its verifier finds.

use tlc_codegen::clif::EmitText;
use tlc_codegen::flat::{Capability, Flat, Item, Op, Varies, flatten, verify};
use tlc_codegen::wide::Level;
use tlc_ir::target::Emitter;
use tlc_ir::text::{no_data, parse_module};
use tlc_ir::{DType, Kernel};

/// An emitter of a processor with vectors of 128 bits that lie side by side, or of a GPU.
struct Made {
    table: Emitter,
    masks: bool,
}

fn processor() -> Made {
    Made {
        table: tlc_codegen::clif::emitter(true),
        masks: false,
    }
}

fn gpu() -> Made {
    Made {
        table: tlc_codegen::cuda::emitter(),
        masks: true,
    }
}

impl Capability for Made {
    fn table(&self) -> &Emitter {
        &self.table
    }
    fn loads_lanes(&self, _: DType, offsets: &[u8]) -> bool {
        offsets.iter().enumerate().all(|(i, o)| i == usize::from(*o))
    }
    fn stores_lanes(&self, dtype: DType, offsets: &[u8]) -> bool {
        self.loads_lanes(dtype, offsets)
    }
    fn masks_scalars(&self) -> bool {
        self.masks
    }
    fn copies_blocks(&self) -> bool {
        false
    }
}

fn kernel(text: &str) -> Kernel {
    let mut module = parse_module(text, &mut no_data).unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
    module.kernels.remove(0).1
}

fn lowered<'k>(kernel: &'k Kernel, for_whom: &Made) -> Flat<'k> {
    let flat = flatten(kernel, for_whom).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
    assert_eq!(verify(&flat), Ok(()), "{flat}");
    flat
}

fn expect(text: &str, for_whom: &Made, expected: &str) {
    let kernel = kernel(text);
    let flat = lowered(&kernel, for_whom).to_string();
    assert!(flat.trim() == expected.trim(), "{flat}");
}

const SUM: &str = "
kernel @sum(p0: f32[4*s0*s1] read, p1: f32[s0] write) where s0 in 0..=100, s1 in 0..=100 {
  scratch r0: f32[4] register
  for i0 in 0..s0 parallel {
    for i1 in 0..4 lanes {
      %0: f32 = const 0.0
      store r0[i1], %0
    }
    for i2 in 0..s1 serial {
      for i3 in 0..4 lanes {
        %1: f32 = load p0[4*(i0*s1 + i2) + i3]
        accumulate add r0[i3] with %1
      }
    }
    for i4 in 0..2 unroll {
      %2: f32 = load r0[i4]
      store p1[i0], %2
    }
  }
}
";

#[test]
fn registers_are_carried_and_what_does_not_change_stands_in_front_of_the_loop() {
    expect(
        SUM,
        &processor(),
        "
for %2: i64 in 0..s0 parallel {
  %8: i64 = product s1, %2
  %9: i64 = 4*%8
  for %6: i64 in 0..s1 serial
    carry %7: f32x4 = 0.0 then %12 giving %13 {
    %10: i64 = %9 + 4*%6
    %11: f32x4 = load p0[%10]
    %12: f32x4 = add %7, %11
  }
  %14: f32 = lane 0 of %13
  store p1[%2], %14
  %15: f32 = lane 1 of %13
  store p1[%2], %15
}
",
    );
}

const TAIL: &str = "
kernel @tail(p0: f32[s0] read, p1: f32[s0] write) where s0 in 0..=100 {
  for i0 in 0..div(s0 + 3, 4) serial {
    for i1 in 0..4 lanes {
      %0: i64 = index 4*i0 + i1
      %1: i64 = index s0
      %2: bool = lt %0, %1
      %3: f32 = load p0[4*i0 + i1] if %2
      store p1[4*i0 + i1], %3 if %2
    }
  }
}
";

#[test]
fn masked_lanes_are_all_at_once_or_one_by_one() {
    expect(
        TAIL,
        &processor(),
        "
%1: i64 = s0 + 3
%3: i64 = div %1, 4
for %4: i64 in 0..%3 serial {
  %5: i64 = 4*%4
  %6: i64 = %5 + 1
  %7: i64 = %5 + 2
  %8: i64 = %5 + 3
  %9: bool = lt %5, s0
  %10: bool = lt %6, s0
  %11: bool = lt %7, s0
  %12: bool = lt %8, s0
  %13: bool = and %9, %10
  %14: bool = and %13, %11
  %15: bool = and %14, %12
  if %15 guard
    merge %31: f32x4 = %16 else %30 {
    %16: f32x4 = load p0[%5]
  } else {
    if %9 guard
      merge %21: f32x4 = %20 else 0.0 {
      %19: f32 = load p0[%5]
      %20: f32x4 = insert %19 in lane 0 of 0.0
    }
    if %10 guard
      merge %24: f32x4 = %23 else %21 {
      %22: f32 = load p0[%5 + 1]
      %23: f32x4 = insert %22 in lane 1 of %21
    }
    if %11 guard
      merge %27: f32x4 = %26 else %24 {
      %25: f32 = load p0[%5 + 2]
      %26: f32x4 = insert %25 in lane 2 of %24
    }
    if %12 guard
      merge %30: f32x4 = %29 else %27 {
      %28: f32 = load p0[%5 + 3]
      %29: f32x4 = insert %28 in lane 3 of %27
    }
  }
  if %15 guard {
    store p1[%5], %31
  } else {
    %32: f32 = lane 0 of %31
    if %9 guard {
      store p1[%5], %32
    }
    %33: f32 = lane 1 of %31
    if %10 guard {
      store p1[%5 + 1], %33
    }
    %34: f32 = lane 2 of %31
    if %11 guard {
      store p1[%5 + 2], %34
    }
    %35: f32 = lane 3 of %31
    if %12 guard {
      store p1[%5 + 3], %35
    }
  }
}
",
    );
}

const BLOCKS: &str = "
kernel @blocks(p0: f32[s0] read, p1: f32[64] write) where s0 in 0..=1000 {
  scratch r0: f32[64] shared
  for i0 in 0..1 block {
    for i1 in 0..64 thread {
      %0: i64 = index i1
      %1: i64 = index s0
      %2: bool = lt %0, %1
      %3: f32 = load p0[i1] if %2
      store r0[i1], %3
    }
    barrier
    for i2 in 0..64 thread {
      %4: f32 = load r0[63 - i2]
      store p1[i2], %4
    }
  }
}
";

#[test]
fn values_know_the_loops_that_they_vary_with() {
    expect(
        BLOCKS,
        &gpu(),
        "
for %1: i64 ~b in 0..1 block {
  for %3: i64 ~t in 0..64 thread {
    %5: bool ~t = lt %3, s0
    %6: f32 ~t = load p0[~%3] if %5
    store r0[~%3], %6
  }
  barrier
  for %7: i64 ~t in 0..64 thread {
    %8: i64 ~t = -1*%7
    %9: f32 ~t = load r0[~%8 + 63]
    store p1[~%7], %9
  }
}
",
    );
}

/// What the verifier says of a lowered form in which something was changed.
fn broken(text: &str, for_whom: &Made, change: impl FnOnce(&mut Flat<'_>)) -> String {
    let kernel = kernel(text);
    let mut flat = lowered(&kernel, for_whom);
    change(&mut flat);
    verify(&flat).expect_err("the change breaks it")
}

fn inside(item: &mut Item) -> &mut Vec<Item> {
    match item {
        Item::Loop(l) => &mut l.body,
        Item::If(i) => &mut i.then,
        _ => panic!("not a region"),
    }
}

#[test]
fn a_value_used_in_front_of_its_definition_is_found() {
    let found = broken(SUM, &processor(), |flat| inside(&mut flat.body[0]).swap(0, 1));
    assert!(found.contains("used where it is not defined"), "{found}");
}

#[test]
fn a_value_defined_twice_is_found() {
    let found = broken(SUM, &processor(), |flat| {
        let body = inside(&mut flat.body[0]);
        let first = body[0].clone();
        body.push(first);
    });
    assert!(found.contains("defined twice"), "{found}");
}

#[test]
fn what_is_carried_has_one_type() {
    let found = broken(SUM, &processor(), |flat| {
        for info in flat.values.iter_mut().filter(|i| i.op == Op::Carried) {
            info.dtype = DType::I32;
        }
    });
    assert!(
        found.contains("other types") || found.contains("differ in type"),
        "{found}"
    );
}

#[test]
fn an_address_says_which_part_of_it_varies() {
    let found = broken(BLOCKS, &gpu(), |flat| {
        for info in &mut flat.values {
            if let Op::Load { address, .. } = &mut info.op {
                std::mem::swap(&mut address.uniform, &mut address.varying);
            }
        }
    });
    assert!(found.contains("the uniform part of an address of p0 varies"), "{found}");
}

#[test]
fn a_value_varies_at_least_as_its_operands() {
    let found = broken(BLOCKS, &gpu(), |flat| {
        for info in flat.values.iter_mut().filter(|i| i.dtype == DType::F32) {
            info.varies = Varies::NOTHING;
        }
    });
    assert!(found.contains("varies less than its operands"), "{found}");
}

#[test]
fn a_barrier_where_some_threads_come_is_found() {
    let found = broken(BLOCKS, &gpu(), |flat| {
        let block = inside(&mut flat.body[0]);
        inside(&mut block[0]).push(Item::Barrier);
    });
    assert!(found.contains("a barrier that some threads may not reach"), "{found}");
}

#[test]
fn registers_of_a_thread_do_not_leave_its_loop() {
    let kernel = kernel(
        "
kernel @escape(p0: f32[64] write) {
  scratch r0: f32[1] register
  for i0 in 0..1 block {
    for i1 in 0..64 thread {
      %0: f32 = const 1.0
      store r0[0], %0
    }
    for i2 in 0..64 thread {
      %1: f32 = load r0[0]
      store p0[i2], %1
    }
  }
}
",
    );
    let refused = flatten(&kernel, &gpu()).map(|f| f.to_string());
    assert!(
        refused
            .as_ref()
            .is_err_and(|e| e.to_string().contains("scratch 0 is written in a thread loop")),
        "{refused:?}"
    );
}

/// A row of a tile that is two squares of registers long takes a column of both for each of its columns: each square is turned once, by an
/// instruction for a quarter of a register.
#[test]
fn both_squares_of_a_long_tile_are_turned_once() {
    let text = "
kernel @turned(p0: f32[512] read, p1: f32[512] write) {
  scratch r0: f32[512] register
  for i0 in 0..1 parallel {
    for i1 in 0..32 unroll {
      for i2 in 0..16 lanes {
        %0: f32 = load p0[16*i1 + i2]
        store r0[16*i1 + i2], %0
      }
    }
    for i3 in 0..16 unroll {
      for i4 in 0..2 unroll {
        for i5 in 0..16 lanes {
          %1: f32 = load r0[i3 + 16*i5 + 256*i4]
          store p1[32*i3 + 16*i4 + i5], %1
        }
      }
    }
  }
}";
    let kernel = kernel(text);
    let flat = tlc_codegen::wide::flatten(&kernel, Level::Avx512).expect("flat");
    assert_eq!(verify(&flat), Ok(()), "{flat}");
    let turned = flat.values.iter().filter(|v| matches!(v.op, Op::Interleave(..)));
    assert_eq!(turned.count(), 2 * 64, "{flat}");
}

/// The conversion to an integer rounds by itself, also of a number that is converted twice; what something else reads is rounded apart.
#[test]
fn numbers_are_rounded_as_they_are_converted() {
    let text = |also: &str| {
        format!(
            "
kernel @bytes(p0: f32[64] read, p1: u8[64] write, p2: i32[64] write, p3: f32[64] write) {{
  for i0 in 0..4 parallel {{
    for i1 in 0..16 lanes {{
      %0: f32 = load p0[16*i0 + i1]
      %1: f32 = round %0
      %2: u8 = convert %1
      %3: i32 = convert %1
      store p1[16*i0 + i1], %2
      store p2[16*i0 + i1], %3
      store p3[16*i0 + i1], {also}
    }}
  }}
}}"
        )
    };
    for (also, apart) in [("%0", 0), ("%1", 1)] {
        let kernel = kernel(&text(also));
        let code = tlc_codegen::wide::compile(
            &kernel,
            Level::Avx512,
            EmitText {
                disasm: true,
                ..EmitText::default()
            },
        )
        .expect("code");
        let asm = code.disasm.expect("its text");
        assert_eq!(asm.matches("vrndscaleps").count(), apart, "{asm}");
        assert_eq!(asm.matches("vcvtps2").count(), 2 * (1 - apart), "{asm}");
    }
}

/// A kernel that takes the low bits of bytes twice, in the copies of a loop that is unrolled, and puts them somewhere.
fn low_bits_twice(scratch: &str, put: &str, behind: &str) -> String {
    format!(
        "
kernel @twice(p0: u8[4*s0] read, p1: i32[4*s0] readwrite) where s0 in 0..=100 {{
  {scratch}
  for i0 in 0..s0 parallel {{
    for i1 in 0..2 unroll {{
      for i2 in 0..4 lanes {{
        %0: u8 = load p0[4*i0 + i2]
        %1: i32 = convert %0
        %2: i32 = const 15
        %3: i32 = and %1, %2
        {put}
      }}
    }}
    {behind}
  }}
}}"
    )
}

#[test]
fn what_is_repeated_is_computed_once_unless_memory_may_have_changed() {
    let counts = |text: &str| {
        let kernel = kernel(text);
        let flat = lowered(&kernel, &processor()).to_string();
        ["load p0", "convert", "and ", "load r0"].map(|words| flat.matches(words).count())
    };
    // One parameter may lie where another does: what is loaded behind a store is loaded anew.
    let stored = low_bits_twice("", "store p1[4*i0 + i2], %3", "");
    assert_eq!(counts(&stored), [2, 2, 2, 0]);
    // Scratch lies where nothing else does.
    let sum = "for i3 in 0..4 lanes {
      %4: i32 = load r0[i3]
      store p1[4*i0 + i3], %4
    }";
    let added = |scope: &str| {
        let scratch = format!("scratch r0: i32[4] {scope}");
        low_bits_twice(&scratch, "accumulate add r0[i2] with %3", sum)
    };
    assert_eq!(counts(&added("cache")), [1, 1, 1, 3]);
    assert_eq!(counts(&added("register")), [1, 1, 1, 0]);
}
