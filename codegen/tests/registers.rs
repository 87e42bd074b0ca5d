//! What the wide emitter keeps in registers, counted in its code. No machine of that level is needed.

use std::fmt::Write;

use tlc_codegen::clif::EmitText;
use tlc_codegen::wide::{Level, compile};
use tlc_ir::text::{no_data, parse_module};

/// A tile of so many vectors that a sum of two loops adds products to, and behind it a polynomial of so many coefficients.
fn tile(vectors: usize, lanes: usize, coefficients: usize) -> String {
    let elements = vectors * lanes;
    let mut polynomial = String::new();
    let mut last = 3;
    for i in 0..coefficients {
        let (c, next) = (4 + 2 * i, 5 + 2 * i);
        let _ = writeln!(polynomial, "        %{c}: f32 = const {}.5", i + 1);
        let _ = writeln!(polynomial, "        %{next}: f32 = fma %{last}, %3, %{c}");
        last = next;
    }
    format!(
        "kernel (p0: f32[{}] read, p1: f32[{}] read, p2: f32[{}] write) {{
  scratch r0: f32[{elements}] register
  for i0 in 0..8 parallel {{
    %0: f32 = const 0.0
    for i1 in 0..{vectors} unroll {{
      for i2 in 0..{lanes} lanes {{
        store r0[{lanes}*i1 + i2], %0
      }}
    }}
    for i8 in 0..10 serial {{
      for i3 in 0..10 serial {{
        for i4 in 0..{vectors} unroll {{
          %1: f32 = load p0[{vectors}*(10*i8 + i3) + i4]
          for i5 in 0..{lanes} lanes {{
            %2: f32 = load p1[{lanes}*(10*i8 + i3) + i5]
            accumulate add r0[{lanes}*i4 + i5] with %1, %2
          }}
        }}
      }}
    }}
    for i6 in 0..{vectors} unroll {{
      for i7 in 0..{lanes} lanes {{
        %3: f32 = load r0[{lanes}*i6 + i7]
{polynomial}        store p2[{elements}*i0 + {lanes}*i6 + i7], %{last}
      }}
    }}
  }}
}}
",
        100 * vectors,
        100 * lanes,
        8 * elements,
    )
}

/// What is computed behind a loop leaves the loop its registers: neither coefficients nor results are in their place.
#[test]
fn a_tile_stays_in_registers_whatever_is_computed_behind_it() {
    for (level, lanes, vectors) in [(Level::Avx512, 16, 28), (Level::Avx2, 8, 12)] {
        for coefficients in [0, 14] {
            let mut module = parse_module(&tile(vectors, lanes, coefficients), &mut no_data)
                .unwrap_or_else(|e| panic!("{}\n{}", e[0], tile(vectors, lanes, coefficients)));
            let (_, kernel) = module.kernels.remove(0);
            let text = EmitText {
                listing: false,
                disasm: true,
            };
            let code = compile(&kernel, level, text).unwrap_or_else(|e| panic!("{e}"));
            let listing = code.disasm.expect("it was asked for");
            let lines: Vec<&str> = listing.lines().collect();
            let adds: Vec<usize> = (0..lines.len()).filter(|&i| lines[i].contains("vfmadd231ps")).collect();
            assert_eq!(adds.len(), vectors, "{listing}");
            // Results are copied behind the outer loop alone.
            let copies = lines
                .iter()
                .filter(|l| l.contains("vmovdqu") && !l.contains('['))
                .count();
            assert!(
                (1..=vectors).contains(&copies),
                "{}, {coefficients}: {copies} copies\n{listing}",
                level.name()
            );
            let inside = &lines[adds[0]..=adds[vectors - 1]];
            let spilled = inside.iter().filter(|l| l.contains("[rsp")).count();
            // The allocator may give up two of them; where coefficients live through the loop it is half.
            assert!(spilled <= 2, "{}, {coefficients}: {spilled}\n{listing}", level.name());
        }
    }
}
