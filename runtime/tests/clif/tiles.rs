//! Naive nests around products, taken apart, packed and contracted by directives: everything about the kernels is proven, and what
//! they compute is what the nests compute, interpreted, legalized and as machine code.

use tlc_ir::kernel::verify::verify;
use tlc_ir::kernel::{Bind, Kernel, Scope};
use tlc_ir::{DType, Precision, VarId};
use tlc_passes::directive::{Directive, DirectiveRefusal};
use tlc_passes::schedule::apply;

use crate::contract::parse;
use crate::products::*;

#[test]
fn products_of_any_size_become_contractions() {
    let sizes: Vec<&[i64]> = SIZES.iter().map(|s| &s[..]).collect();
    for tile in [[4, 8], [16, 16], [1, 3], [5, 1]] {
        every_way(&PRODUCT, LOOPS, tile, &sizes);
    }
}

#[test]
fn operands_may_be_transposed_strided_and_in_batches() {
    let sizes: [&[i64]; 4] = [&[3, 5, 4], &[8, 16, 3], &[1, 17, 9], &[2, 1, 0]];
    // p0[k, m] and p1[n, k].
    let turned = Nest {
        factors: "%1: f32 = load p0[s0*i2 + i0]
          %2: f32 = load p1[s2*i1 + i2]",
        ..PRODUCT
    };
    every_way(&turned, LOOPS, [4, 8], &sizes);
    // Every other row, from the last column to the first.
    let strided = Nest {
        params: "p0: f32[2*s0*s2] read, p1: f32[s1*s2] read, p2: f32[s0*s1] write",
        factors: "%1: f32 = load p0[2*s2*i0 + i2]
          %2: f32 = load p1[s1*i2 + s1 - i1 - 1]",
        ..PRODUCT
    };
    every_way(&strided, LOOPS, [4, 8], &sizes);
    let batched = Nest {
        params: "p0: f64[s0*s1*s3] read, p1: f64[s0*s2*s3] read, p2: f64[s0*s1*s2] write",
        symbols: "where s0 in 0..=9, s1 in 0..=100, s2 in 0..=100, s3 in 0..=100",
        around: "for i3 in 0..s0 serial {",
        extents: ["s1", "s2", "s3"],
        accumulator: "f64",
        factors: "%1: f64 = load p0[s1*s3*i3 + s3*i0 + i2]
          %2: f64 = load p1[s2*s3*i3 + s2*i2 + i1]",
        behind: "store p2[s1*s2*i3 + s2*i0 + i1], %5",
        ..PRODUCT
    };
    every_way(&batched, LOOPS, [4, 8], &[&[2, 5, 9, 4], &[3, 4, 8, 16], &[0, 3, 3, 3]]);
}

#[test]
fn a_convolution_is_a_product_of_windows() {
    // p2[16, 4*4] = p1[16, 2*3*3] * windows of p0[2, 6, 6]: the sum goes through channels, rows and columns of a window.
    let naive = Nest {
        params: "p0: f32[72] read, p1: f32[288] read, p2: f32[256] write",
        symbols: "",
        extents: ["16", "16", "18"],
        factors: "%1: f32 = load p1[18*i0 + i2]
          %2: f32 = load p0[36*div(i2, 9) + 6*div(mod(i2, 9), 3) + mod(i2, 3) + 6*div(i1, 4) + mod(i1, 4)]",
        behind: "store p2[16*i0 + i1], %5",
        ..PRODUCT
    };
    for tile in [[16, 12], [5, 7]] {
        every_way(&naive, LOOPS, tile, &[&[]]);
    }
}

#[test]
fn accumulators_are_wider_than_operands() {
    for (operand, accumulator, convert) in [
        ("f16", "f32", "convert"),
        ("bf16", "f32", "convert"),
        ("i8", "i32", "convert"),
        ("u8", "i64", "convert"),
        ("f32", "f64", "convert"),
        ("i64", "i64", ""),
        ("i32", "i32", ""),
    ] {
        let load = |p: u32, at: &str, from: u32, to: u32| match convert {
            "" => format!("%{to}: {operand} = load p{p}[{at}]\n"),
            _ => format!("%{from}: {operand} = load p{p}[{at}]\n%{to}: {accumulator} = convert %{from}\n"),
        };
        let factors = load(0, "s2*i0 + i2", 20, 1) + &load(1, "s1*i2 + i1", 21, 2);
        let nest = Nest {
            params: &format!("p0: {operand}[s0*s2] read, p1: {operand}[s1*s2] read, p2: {accumulator}[s0*s1] write"),
            accumulator,
            factors: &factors,
            ..PRODUCT
        };
        let sizes: [&[i64]; 3] = [&[9, 5, 7], &[4, 8, 16], &[1, 3, 0]];
        every_way(&nest, LOOPS, [4, 8], &sizes);
    }
}

#[test]
fn what_follows_a_sum_goes_through_the_tile() {
    // A bias that differs by rows, a residual, a maximum with zero and a second, narrower result.
    let nest = Nest {
        params: "p0: f32[s0*s2] read, p1: f32[s1*s2] read, p2: f32[s0] read, p3: f32[s0*s1] read, p4: f32[s0*s1] write, \
p5: bf16[s0*s1] write",
        before: "%10: f32 = load p2[i0]
      %11: f32 = add %10, %10",
        behind: "%30: f32 = add %5, %11
      %31: f32 = load p3[s1*i0 + i1]
      %32: f32 = add %30, %31
      %33: f32 = const 0.0
      %34: f32 = max %32, %33
      store p4[s1*i0 + i1], %34
      %35: bf16 = convert %30
      store p5[s1*i0 + i1], %35",
        ..PRODUCT
    };
    every_way(
        &nest,
        LOOPS,
        [4, 8],
        &[&[9, 5, 7], &[4, 16, 3], &[17, 1, 1], &[2, 3, 0]],
    );
    // An accumulator that starts at what is in memory.
    let more = Nest {
        params: "p0: i32[s0*s2] read, p1: i32[s1*s2] read, p2: i32[s0*s1] readwrite",
        accumulator: "i32",
        factors: "%1: i32 = load p0[s2*i0 + i2]
          %2: i32 = load p1[s1*i2 + i1]",
        ..PRODUCT
    };
    let mut naive = more.kernel();
    let text = naive.to_string();
    naive = parse(&text.replace("= const 0\n", "= load p2[i1 + s1*i0]\n"));
    // What is updated in place is not known to be apart from other iterations' results.
    let refused = refusal(&naive, tile_sum(LOOPS, [128, 128]));
    assert_eq!(refused, DirectiveRefusal::NotASum(SUM));
    let apart = text.replace("= const 0\n", "= load p3[i1 + s1*i0]\n");
    let naive = parse(&apart.replace("p2: i32[s0*s1] readwrite", "p2: i32[s0*s1] write, p3: i32[s0*s1] read"));
    for way in ways(4, 8) {
        let kernel = way.apply(&naive, LOOPS);
        for symbols in [[9, 5, 7], [4, 8, 3], [1, 1, 0]] {
            same_as_naive(&naive, &kernel, &symbols);
        }
    }
}

#[test]
fn what_is_computed_of_operands_is_packed_first() {
    // Bytes with a scale and an offset for each column of the sum, and rows that data chooses.
    let nest = Nest {
        params: "p0: u8[s0*s2] read, p1: f32[s2] read, p2: i64[s2] read, p3: f32[s1*s3] read, p4: f32[s0*s1] write",
        symbols: "where s0 in 0..=100, s1 in 0..=100, s2 in 0..=100, s3 in 1..=100",
        factors: "%20: u8 = load p0[s2*i0 + i2]
        %21: f32 = convert %20
        %22: f32 = load p1[i2]
        %23: f32 = mul %21, %22
        %24: i64 = load p2[i2]
        clamp i3 in 0..s3 = %24
        %2: f32 = load p3[s1*i3 + i1]
        %1: f32 = add %23, %22",
        behind: "store p4[s1*i0 + i1], %5",
        ..PRODUCT
    };
    let naive = nest.kernel();
    for way in ways(4, 8).into_iter().filter(|w| w.packed.iter().all(Option::is_some)) {
        let kernel = way.apply(&naive, LOOPS);
        for symbols in [[9, 5, 7, 3], [4, 8, 16, 1], [1, 1, 0, 2]] {
            same_as_naive(&naive, &kernel, &symbols);
        }
    }
    for (packed, left) in [([None, Some(false)], 1), ([Some(false), None], 2)] {
        let mut kernel = naive.clone();
        let made = done(&mut kernel, tile_sum(LOOPS, [128, 128]));
        let [.., m, n, k, _, _] = made[..] else {
            panic!("{made:?}")
        };
        let [a, b] = factors(&kernel, k);
        let (value, other) = if packed[0].is_some() { (a, b) } else { (b, a) };
        let pack = Directive::Pack {
            var: m,
            value,
            scope: Scope::Cache,
            turned: false,
            padded: false,
        };
        done(&mut kernel, pack);
        let contract = Directive::Contract {
            outer: m,
            inner: n,
            sum: k,
            rows: 128,
            columns: 128,
            block: 8,
            precision: Precision::Exact,
        };
        assert_eq!(refusal(&kernel, contract), DirectiveRefusal::NotPacked(other), "{left}");
    }
}

#[test]
fn a_tile_may_be_registers() {
    let naive = Nest {
        params: "p0: f32[6*s0] read, p1: f32[8*s0] read, p2: f32[48] write",
        symbols: "where s0 in 0..=100",
        extents: ["6", "8", "s0"],
        factors: "%1: f32 = load p0[s0*i0 + i2]
        %2: f32 = load p1[8*i2 + i1]",
        behind: "store p2[8*i0 + i1], %5",
        ..PRODUCT
    }
    .kernel();
    let registers = Plan {
        scope: Scope::Register,
        ..Plan::of(3, 4)
    };
    let mut halves = naive.clone();
    let split = |k: &mut Kernel, var, factor| done(k, Directive::Split { var, factor });
    let [rows, columns] = [split(&mut halves, ROWS, 3), split(&mut halves, COLUMNS, 4)];
    let (outer, inner) = (rows[1], columns[0]);
    done(&mut halves, Directive::Interchange { outer, inner });
    // The parts are blocks of their own now, of which each is one tile.
    let kernel = registers.apply_inside(&halves, [rows[1], columns[1], SUM]);
    for symbols in [[0], [1], [17]] {
        same_as_naive(&naive, &kernel, &symbols);
    }
    // Loops that may be shorter leave registers over.
    let mut ragged = naive;
    let blocks = done(&mut ragged, Directive::Block { var: ROWS, factor: 4 });
    let directive = Directive::TileSum {
        outer: blocks[1],
        inner: COLUMNS,
        sum: SUM,
        rows: 4,
        columns: 8,
        scope: Scope::Register,
    };
    assert_eq!(
        refusal(&ragged, directive),
        DirectiveRefusal::ScratchScope(Scope::Register)
    );
}

/// A kernel for blocks of 64 threads, each with a tile of 16 by 32, of which a thread holds 4 by 2; both operands go through
/// shared memory, 8 steps at a time.
fn for_threads(naive: &Kernel, vars: [VarId; 3]) -> Kernel {
    let mut k = naive.clone();
    let [rows, columns] = [16, 32];
    let tiles =
        [(vars[0], rows), (vars[1], columns)].map(|(var, factor)| done(&mut k, Directive::Block { var, factor }));
    let [down, across] = [tiles[0][1], tiles[1][1]];
    done(
        &mut k,
        Directive::Interchange {
            outer: down,
            inner: tiles[1][0],
        },
    );
    let (outer, inner) = (tiles[0][0], tiles[1][0]);
    let block = done(&mut k, Directive::FuseGuarded { outer, inner })[0];
    let bind = Bind::Block;
    done(&mut k, Directive::Bind { var: block, bind });
    let made = done(&mut k, tile_sum([down, across, vars[2]], [rows, columns]));
    let [.., m, n, sum, _, _] = made[..] else {
        panic!("{made:?}")
    };
    let steps = done(&mut k, Directive::Block { var: sum, factor: 8 });
    for outer in [n, m] {
        done(&mut k, Directive::Interchange { outer, inner: steps[0] });
    }
    let mut filling = Vec::new();
    for (side, value) in factors(&k, steps[1]).into_iter().enumerate() {
        let pack = Directive::Pack {
            var: m,
            value,
            scope: Scope::Shared,
            turned: side == 1,
            padded: true,
        };
        filling.push(done(&mut k, pack));
    }
    let contract = Directive::Contract {
        outer: m,
        inner: n,
        sum: steps[1],
        rows,
        columns,
        block: 4,
        precision: Precision::Exact,
    };
    done(&mut k, contract);
    let spread = Directive::Spread {
        block,
        rows,
        columns,
        down: 4,
        across: 2,
    };
    assert_eq!(done(&mut k, spread).len(), 3);
    for loops in filling {
        let (outer, inner) = (loops[0], loops[1]);
        let var = done(&mut k, Directive::Fuse { outer, inner })[0];
        let threads = 64;
        done(
            &mut k,
            Directive::Distribute {
                around: var,
                var,
                threads,
            },
        );
    }
    done(&mut k, Directive::Synchronize { block });
    k
}

#[test]
fn threads_of_a_block_share_packed_operands() {
    // Rows and columns over what blocks take.
    let product = Nest {
        params: "p0: f32[40*s0] read, p1: f32[64*s0] read, p2: f32[64] read, p3: f32[2560] write",
        symbols: "where s0 in 0..=100",
        extents: ["40", "64", "s0"],
        factors: "%1: f32 = load p0[s0*i0 + i2]
        %2: f32 = load p1[64*i2 + i1]",
        behind: "%30: f32 = load p2[i1]
      %31: f32 = add %5, %30
      store p3[64*i0 + i1], %31",
        ..PRODUCT
    }
    .kernel();
    let kernel = for_threads(&product, LOOPS);
    for symbols in [[0], [1], [8], [35]] {
        same_as_naive(&product, &kernel, &symbols);
    }
    assert_eq!(
        kernel.grid().map(|g| (g.threads, g.shared_bytes)),
        Some((64, 4 * (128 + 256)))
    );
    // Which results blocks of symbolic sizes write is too much to prove, but nothing is wrong.
    let product = PRODUCT.kernel();
    let kernel = for_threads(&product, LOOPS);
    assert_eq!(verify(&kernel).errors, [], "{kernel}");
    for symbols in SIZES {
        same_results(&product, &kernel, &symbols);
    }
}

#[test]
fn what_threads_would_write_together_stays_with_the_block() {
    let spread = |block, down, across| Directive::Spread {
        block,
        rows: 16,
        columns: 8,
        down,
        across,
    };
    let tiled = |behind: &str| {
        let nest = Nest {
            params: "p0: f32[192] read, p1: f32[96] read, p2: f32[128] write",
            symbols: "",
            extents: ["16", "8", "12"],
            factors: "%1: f32 = load p0[12*i0 + i2]
        %2: f32 = load p1[8*i2 + i1]",
            behind,
            ..PRODUCT
        };
        let mut kernel = nest.kernel();
        let block = done(&mut kernel, Directive::Enclose {})[0];
        let bind = Bind::Block;
        done(&mut kernel, Directive::Bind { var: block, bind });
        done(&mut kernel, tile_sum(LOOPS, [16, 8]));
        (nest.kernel(), kernel, block)
    };
    // Each iteration has a result of its own, and every thread its sums.
    let (naive, mut kernel, block) = tiled("store p2[8*i0 + i1], %5");
    assert_eq!(refusal(&kernel, spread(ROWS, 2, 2)), DirectiveRefusal::NotInBlock(ROWS));
    let (rows, columns) = (3, 2);
    assert_eq!(
        refusal(&kernel, spread(block, 3, 2)),
        DirectiveRefusal::NoTile { rows, columns }
    );
    assert_eq!(done(&mut kernel, spread(block, 2, 2)).len(), 3);
    same_as_naive(&naive, &kernel, &[]);
    // The last column counts.
    let (_, kernel, block) = tiled("store p2[i0], %5");
    let (rows, columns) = (16, 8);
    assert_eq!(
        refusal(&kernel, spread(block, 2, 2)),
        DirectiveRefusal::NoTile { rows, columns }
    );
}

#[test]
fn what_is_no_sum_of_products_stays_a_loop() {
    let tiled = |nest: &Nest<'_>| {
        let mut kernel = nest.kernel();
        let made = done(&mut kernel, tile_sum(LOOPS, [128, 128]));
        let [.., m, n, k, _, _] = made[..] else {
            panic!("{made:?}")
        };
        (kernel, [m, n, k])
    };
    let contract = |[outer, inner, sum]: [VarId; 3], rows, block| Directive::Contract {
        outer,
        inner,
        sum,
        rows,
        columns: 128,
        block,
        precision: Precision::Exact,
    };
    let (kernel, vars) = tiled(&PRODUCT);
    let [outer, inner, sum] = vars;
    let most = 64;
    let too_long = DirectiveRefusal::TooLong { var: outer, most };
    assert_eq!(refusal(&kernel, contract(vars, 64, 4)), too_long);
    assert_eq!(refusal(&kernel, contract(vars, 128, 0)), DirectiveRefusal::Factor(0));
    let (rows, columns) = (0, 128);
    assert_eq!(
        refusal(&kernel, contract(vars, 0, 4)),
        DirectiveRefusal::NoTile { rows, columns }
    );
    let rows = 512;
    assert_eq!(
        refusal(&kernel, contract(vars, 512, 4)),
        DirectiveRefusal::NoTile { rows, columns }
    );
    assert_eq!(
        refusal(&kernel, contract([inner, sum, outer], 128, 4)),
        DirectiveRefusal::NotNested(sum, outer)
    );
    // Without a product, or with one of what differs in rows and columns at once.
    let no_product = DirectiveRefusal::NotAProduct { sum, outer, inner };
    for factors in [
        "%1: f32 = load p0[s2*i0 + i2]
        %2: f32 = load p0[s2*i0 + i2]",
        "%20: f32 = load p0[s2*i0 + i2]
        %2: f32 = load p1[s1*i2 + i1]
        %1: f32 = add %20, %2",
    ] {
        let (kernel, vars) = tiled(&Nest { factors, ..PRODUCT });
        let refused = refusal(&kernel, contract(vars, 128, 4));
        assert!(matches!(refused, DirectiveRefusal::NotAProduct { .. }), "{refused}");
    }
    let naive = PRODUCT.kernel().to_string();
    let largest = parse(&naive.replace("accumulate add", "accumulate max"));
    let mut kernel = largest.clone();
    done(&mut kernel, tile_sum(LOOPS, [128, 128]));
    assert_eq!(refusal(&kernel, contract(vars, 128, 4)), no_product);
    same_as_naive(&largest, &kernel, &[9, 5, 7]);
    let wide = Nest {
        params: "p0: u32[s0*s2] read, p1: u32[s1*s2] read, p2: u32[s0*s1] write",
        accumulator: "u32",
        factors: "%1: u32 = load p0[s2*i0 + i2]
        %2: u32 = load p1[s1*i2 + i1]",
        ..PRODUCT
    };
    let (kernel, vars) = tiled(&wide);
    assert_eq!(
        refusal(&kernel, contract(vars, 128, 4)),
        DirectiveRefusal::Accumulator(DType::U32)
    );
    // A tile of which only a part is set.
    let (kernel, vars) = tiled(&PRODUCT);
    let text = kernel
        .to_string()
        .replace("for i3 in 0..128 serial", "for i3 in 0..100 serial");
    let kernel = parse(&text);
    assert_eq!(
        refusal(&kernel, contract(vars, 128, 4)),
        DirectiveRefusal::NotSet(vars[0])
    );
}

#[test]
fn a_sum_that_others_need_stays_where_it_is() {
    let refused = |text: &str, size: [i64; 2]| refusal(&parse(text), tile_sum(LOOPS, size));
    let naive = PRODUCT.kernel().to_string();
    let most = 99;
    assert_eq!(
        refused(&naive, [99, 128]),
        DirectiveRefusal::TooLong { var: ROWS, most }
    );
    let (rows, columns) = (128, -1);
    assert_eq!(refused(&naive, [128, -1]), DirectiveRefusal::NoTile { rows, columns });
    // The next sum begins with what the last one has come to.
    let carried = naive.replace("%0: f32 = const 0.0", "%0: f32 = load r0[0]");
    assert_eq!(refused(&carried, [128, 128]), DirectiveRefusal::NotASum(SUM));
    let running = naive.replace("%3: f32 = mul %1, %2", "%3: f32 = load r0[0]");
    assert_eq!(refused(&running, [128, 128]), DirectiveRefusal::NotASum(SUM));
    let stored = naive.replace(
        "store p2[i1 + s1*i0], %4",
        "store p2[i1 + s1*i0], %4\n accumulate add p2[0] with %4",
    );
    assert_eq!(
        apply(&mut parse(&stored), &tile_sum(LOOPS, [128, 128])).map(|v| v.len()),
        Ok(7)
    );
}

#[test]
fn what_windows_read_is_copied_once() {
    // Windows of 3 by 3 over 9 by 10 elements, two apart down and one apart across, in blocks of 2 by 4 results.
    let naive = parse(&numbered(
        "\
kernel (p0: f32[s0*90] read, p1: f32[9] read, p2: f32[32*s0] write) where s0 in 0..=1000000 {
  scratch r0: f32[1] register
  for i0 in 0..s0 serial {
    for i1 in 0..4 serial {
      for i2 in 0..8 serial {
        %0: f32 = const 0.0
        store r0[0], %0
        for i3 in 0..3 serial {
          for i4 in 0..3 serial {
            %1: f32 = load p0[90*i0 + 10*(2*i1 + i3) + i2 + i4]
            %2: f32 = load p1[3*i3 + i4]
            %3: f32 = mul %1, %2
            accumulate add r0[0] with %3
          }
        }
        %5: f32 = load r0[0]
        store p2[32*i0 + 8*i1 + i2], %5
      }
    }
  }
}
",
    ));
    let stage = |var, scope| Directive::StageRegion { var, param: 0, scope };
    let mut kernel = naive.clone();
    let rows = done(
        &mut kernel,
        Directive::Block {
            var: VarId(1),
            factor: 3,
        },
    );
    let columns = done(
        &mut kernel,
        Directive::Block {
            var: VarId(2),
            factor: 4,
        },
    );
    let (outer, inner) = (rows[1], columns[0]);
    done(&mut kernel, Directive::Interchange { outer, inner });
    assert_eq!(done(&mut kernel, stage(rows[1], Scope::Cache)).len(), 2);
    for symbols in [[0], [1], [3]] {
        same_results(&naive, &kernel, &symbols);
    }
    assert_eq!(verify(&kernel).errors, [], "{kernel}");
    // Seven rows, not three of three, of six columns.
    assert_eq!(kernel.scratch[1].len, 42.into(), "{kernel}");
    // A loop over what is not known to end reads no box; neither is shared memory there without a block.
    let var = VarId(0);
    assert_eq!(
        refusal(&naive, stage(var, Scope::Cache)),
        DirectiveRefusal::NoRegion { var, param: 0 }
    );
    assert_eq!(
        refusal(&naive, stage(VarId(1), Scope::Shared)),
        DirectiveRefusal::ScratchScope(Scope::Shared)
    );
    assert_eq!(
        refusal(&naive, stage(VarId(1), Scope::Register)),
        DirectiveRefusal::ScratchScope(Scope::Register)
    );
    let unread = Directive::StageRegion {
        var,
        param: 2,
        scope: Scope::Cache,
    };
    assert_eq!(refusal(&naive, unread), DirectiveRefusal::NoRegion { var, param: 2 });
}
