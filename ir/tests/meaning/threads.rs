//! Block and thread loops, barriers: kernels that threads may run, as texts. What they may not run is in `verifier_texts`.

use tlc_ir::kernel::verify::{Report, Rule, verify};
use tlc_ir::text::{no_data, parse_module};

fn report(text: &str) -> Report {
    let module = parse_module(text, &mut no_data).unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
    verify(&module.kernels[0].1)
}

#[test]
fn the_same_thread_needs_no_barrier() {
    let text = "\
kernel (p0: f32[256] read, p1: f32[256] write) {
  scratch r0: f32[64] shared
  for i0 in 0..4 block {
    for i1 in 0..64 thread {
      %0: f32 = load p0[64*i0 + i1]
      store r0[i1], %0
    }
    for i2 in 0..64 thread {
      %1: f32 = load r0[i2]
      store p1[64*i0 + i2], %1
    }
  }
}
";
    assert_eq!(report(text), Report::default());
}

#[test]
fn a_barrier_orders_phases() {
    let text = "\
kernel (p0: f32[256] read, p1: f32[256] write) {
  scratch r0: f32[64] shared
  for i0 in 0..4 block {
    for i1 in 0..64 thread {
      %0: f32 = load p0[64*i0 + i1]
      store r0[i1], %0
    }
    barrier
    for i2 in 0..64 thread {
      %1: f32 = load r0[63 - i2]
      store p1[64*i0 + i2], %1
    }
  }
}
";
    assert_eq!(report(text), Report::default());
}

#[test]
fn a_barrier_at_the_end_orders_iterations() {
    let text = "\
kernel (p0: f32[256] read, p1: f32[256] write) {
  scratch r0: f32[64] shared
  for i0 in 0..4 block {
    for i3 in 0..2 serial {
      for i1 in 0..32 thread {
        %0: f32 = load p0[64*i0 + 32*i3 + i1]
        store r0[i1], %0
      }
      barrier
      for i2 in 0..32 thread {
        %1: f32 = load r0[31 - i2]
        store p1[64*i0 + 32*i3 + i2], %1
      }
      barrier
    }
  }
}
";
    assert_eq!(report(text), Report::default());
}

#[test]
fn registers_are_written_by_all() {
    let text = "\
kernel (p0: f32[256] read, p1: f32[256] write) {
  scratch r0: f32[1] register
  for i0 in 0..4 block {
    %0: f32 = load p0[i0]
    store r0[0], %0
    for i1 in 0..64 thread {
      %1: f32 = load r0[0]
      store p1[64*i0 + i1], %1
    }
  }
}
";
    assert_eq!(report(text), Report::default());
}

#[test]
fn a_condition_may_leave_one_thread_so_it_proves_nothing() {
    let text = "\
kernel (p0: f32[256] read, p1: f32[256] write) {
  scratch r0: f32[64] shared
  for i0 in 0..4 block {
    for i1 in 0..64 thread {
      %0: i64 = index i1
      %1: i64 = const 1
      %2: bool = lt %0, %1
      %3: f32 = load p0[64*i0 + i1]
      if %2 {
        store r0[0], %3
      }
    }
  }
}
";
    let found = report(text);
    assert_eq!(found.errors, []);
    assert!(matches!(&found.unproven[..], [v] if matches!(v.rule, Rule::ThreadConflict { .. })));
}

#[test]
fn threads_of_warps_are_those_of_the_block() {
    // What a warp's thread writes, thread 32*w + t of the block reads without a barrier, and any other behind one.
    let text = "\
kernel (p0: f32[256] read, p1: f32[256] write) {
  scratch r0: f32[128] shared
  scratch r1: f32[1] thread
  for i0 in 0..2 block {
    for i1 in 0..4 warp {
      for i2 in 0..32 thread {
        %0: f32 = load p0[128*i0 + 32*i1 + i2]
        store r0[32*i1 + i2], %0
        store r1[0], %0
      }
      reduce max warp r1[0]
    }
    for i3 in 0..128 thread {
      %1: f32 = load r0[i3]
      accumulate add r1[0] with %1
    }
    barrier
    for i4 in 0..4 warp {
      %2: f32 = load r0[32*i4]
      for i5 in 0..32 thread {
        %3: f32 = load r0[127 - 32*i4 - i5]
        %4: f32 = load r1[0]
        %5: f32 = add %3, %4
        %6: f32 = add %5, %2
        store p1[128*i0 + 32*i4 + i5], %6
      }
    }
  }
}
";
    assert_eq!(report(text), Report::default());
    let crossed = text.replace("load r0[i3]", "load r0[127 - i3]");
    let rules: Vec<Rule> = report(&crossed).errors.into_iter().map(|v| v.rule).collect();
    assert!(matches!(rules[..], [Rule::ThreadConflict { .. }]), "{rules:?}");
}

#[test]
fn what_is_proven_of_interleaved_digits_holds() {
    // Threads as two digits among those of two loops, in any order of strides, over so many blocks that nothing is enumerated.
    let strides = [1, 2, 3, 4, 5, 8, 12, 16, 20, 32, 48, 64];
    let (mut proven, mut refuted) = (0, 0);
    let mut state = 7u64;
    let mut pick = |n: usize| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for _ in 0..600 {
        let [a, b, c, d] = [0; 4].map(|_| strides[pick(strides.len())]);
        let sign = [1i64, -1][pick(2)];
        let (rows, columns) = (1 + pick(4) as i64, 1 + pick(4) as i64);
        let text = format!(
            "\
kernel (p0: f32[4096*s0] write) where s0 in 1..=100000 {{
  for i0 in 0..s0 block {{
    for i1 in 0..16 thread {{
      for i2 in 0..{rows} serial {{
        for i3 in 0..{columns} serial {{
          %0: f32 = const 1.0
          store p0[4096*i0 + {a}*mod(i1, 4) + {b}*div(i1, 4) + {c}*i2 {sign_text} {d}*i3 + 1024], %0
        }}
      }}
    }}
  }}
}}
",
            sign_text = if sign < 0 { "-" } else { "+" }
        );
        let conflict = |r: &Rule| matches!(r, Rule::ThreadConflict { .. });
        let report = report(&text);
        let mut owners = std::collections::HashMap::new();
        let mut apart = true;
        for (t, i, j) in (0..16).flat_map(|t| (0..rows).flat_map(move |i| (0..columns).map(move |j| (t, i, j)))) {
            let at = a * (t % 4) + b * (t / 4) + c * i + sign * d * j;
            apart &= *owners.entry(at).or_insert(t) == t;
        }
        if !report.errors.iter().chain(&report.unproven).any(|v| conflict(&v.rule)) {
            assert!(apart, "{text}");
            proven += 1;
        }
        if report.errors.iter().any(|v| conflict(&v.rule)) {
            assert!(!apart, "{text}");
            refuted += 1;
        }
    }
    assert!(proven > 20 && refuted > 20, "{proven} proven, {refuted} refuted");
}
