//! A random legal schedule keeps the result: directives are applied at random to naive nests, and the kernels run in place
//! of the planner's, before and after legalization.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::oracle::generate::{Case, Rng, graph};
use crate::oracle::stages::{describe, difference, naive_plan};
use tlc_ir::kernel::verify::{structure, verify};
use tlc_ir::kernel::visit::walk;
use tlc_ir::kernel::{Bind, Kernel, Scope, Stmt, ValueId};
use tlc_ir::plan::interp::interpret_bound;
use tlc_ir::target::Cpu;
use tlc_ir::text::{no_data, parse_graph, parse_module};
use tlc_ir::{HostTensor, IndexExpr, Precision, Scalar, VarId};
use tlc_passes::schedule::directives::fuse_clean;
use tlc_passes::schedule::{Directive, apply};
use tlc_passes::tree::{count_divisions, loop_body};
use tlc_passes::{Options, compile};

/// Loops with their depth, outermost first, and the bindings.
fn loops(body: &[Stmt], out: &mut Vec<(VarId, Bind)>) {
    for s in body {
        match s {
            Stmt::Loop { var, bind, body } => {
                out.push((*var, *bind));
                loops(body, out);
            }
            Stmt::If { body, .. } => loops(body, out),
            _ => {}
        }
    }
}

/// A side of a tile for a loop: as long as the loop, or not.
fn side(rng: &mut Rng, kernel: &Kernel, var: VarId) -> i64 {
    let most = kernel.extents[var.0 as usize].interval(kernel).hi;
    match most {
        1..=64 => rng.pick(&[most, most, most + 1, 16]),
        _ => rng.pick(&[4, 16, 0]),
    }
}

fn random_directive(rng: &mut Rng, kernel: &Kernel, all: &[(VarId, Bind)]) -> Directive {
    let var = rng.pick(all).0;
    let other = rng.pick(all).0;
    let next = all.iter().position(|l| l.0 == var).and_then(|i| all.get(i + 1));
    let next = next.map_or(other, |l| l.0);
    let before = all
        .iter()
        .position(|l| l.0 == var)
        .and_then(|i| all.get(i.checked_sub(1)?))
        .map(|l| l.0);
    match rng.below(34) {
        0 | 1 => Directive::Split {
            var,
            factor: rng.pick(&[1i64, 2, 3, 4, 8]),
        },
        2 => Directive::Block {
            var,
            factor: rng.pick(&[1i64, 2, 5, 16]),
        },
        3 => Directive::Fuse {
            outer: var,
            inner: next,
        },
        4 => Directive::Interchange {
            outer: var,
            inner: next,
        },
        5 | 6 => Directive::RFactor {
            var,
            around: if rng.chance(50) { var } else { other },
        },
        7 => {
            let lanes = all.iter().find(|l| l.1 == Bind::Lanes).map(|l| l.0);
            Directive::Privatize { var, lanes }
        }
        8 => Directive::Across {
            var,
            lanes: rng.pick(&[2i64, 4]),
            masked: rng.chance(40),
        },
        9 => Directive::Narrow {
            var,
            lanes: rng.pick(&[1i64, 2, 4]),
            vectors: rng.pick(&[1i64, 2, 3]),
            squares: rng.pick(&[false, true]),
        },
        10 => Directive::Peel {
            var,
            from: rng.pick(&[0i64, 1, 2]),
            behind: rng.pick(&[0i64, 1, 2, 3]),
        },
        11 if rng.chance(50) => Directive::Cases { var },
        11 => Directive::StageRows {
            var,
            pitch: rng.pick(&[4i64, 16, 64]),
        },
        12 => Directive::Pieces {
            var,
            factor: rng.pick(&[2i64, 3, 4]),
            again: rng.pick(&[false, true]),
        },
        13 => Directive::Inward { var },
        14 if rng.chance(50) => Directive::Cover {
            var,
            factor: rng.pick(&[2i64, 3, 4, 8]),
        },
        14 => Directive::InwardMasked {
            var,
            lanes: rng.pick(&[2i64, 4, 8]),
        },
        15 | 16 => Directive::TileColumns {
            var,
            width: rng.pick(&[1i64, 3, 4, 8, 64]),
        },
        17 | 18 => {
            let values: Vec<ValueId> = kernel.statements().filter_map(Stmt::defined_value).collect();
            let value = if values.is_empty() {
                ValueId(0)
            } else {
                rng.pick(&values)
            };
            // The loop that it is in, if there is one.
            let around = all.iter().rev().find(|l| {
                let body = loop_body(&kernel.body, l.0);
                body.is_some_and(|b| walk(b).any(|s| s.defined_value() == Some(value)))
            });
            let var = around.map_or(var, |l| l.0);
            Directive::Keep { var, value }
        }
        n @ 19..=22 => {
            // Few loops are around sums: the first nest from a random one on, if there is any.
            let start = rng.below(all.len());
            let nests = (0..all.len())
                .map(|i| (start + i) % all.len())
                .filter_map(|i| all.get(i..i + 3));
            let scope = rng.pick(&[Scope::Cache, Scope::Cache, Scope::Register, Scope::Thread]);
            let block = rng.pick(&[1i64, 2, 5, 64]);
            let sizes: Vec<_> = nests
                .map(|l| {
                    let vars = [l[0].0, l[1].0, l[2].0];
                    (vars, side(rng, kernel, vars[0]), side(rng, kernel, vars[1]))
                })
                .collect();
            let contract = |&([outer, inner, sum], rows, columns): &([VarId; 3], i64, i64)| Directive::Contract {
                outer,
                inner,
                sum,
                rows,
                columns,
                block,
                precision: Precision::Exact,
            };
            let tile_sum = |&([outer, inner, sum], rows, columns): &([VarId; 3], i64, i64)| Directive::TileSum {
                outer,
                inner,
                sum,
                rows,
                columns,
                scope,
            };
            let hold = |&([outer, inner, sum], rows, columns): &([VarId; 3], i64, i64)| Directive::Hold {
                outer,
                inner,
                sum,
                rows,
                columns,
            };
            let mut nests: Vec<Directive> = sizes.iter().map(contract).collect();
            nests.extend(sizes.iter().map(hold));
            nests.extend(sizes.iter().map(tile_sum));
            if n > 20 {
                nests.reverse();
            }
            let applies = |d: &Directive| apply(&mut kernel.clone(), d).is_ok();
            nests.into_iter().find(applies).unwrap_or(Directive::Inward { var })
        }
        23 | 24 => Directive::StageRegion {
            var,
            param: rng.below(kernel.params.len().max(1)) as u32,
            scope: rng.pick(&[Scope::Cache, Scope::Cache, Scope::Register]),
        },
        25..=27 => {
            let computed = |l: &(VarId, Bind)| {
                let body = loop_body(&kernel.body, l.0).map_or(&[][..], |b| &b[..]);
                walk(body).filter_map(Stmt::defined_value).collect::<Vec<ValueId>>()
            };
            let values = computed(&(var, Bind::Serial));
            let value = if values.is_empty() {
                ValueId(0)
            } else {
                rng.pick(&values)
            };
            Directive::Pack {
                var,
                value,
                scope: rng.pick(&[Scope::Cache, Scope::Cache, Scope::Register, Scope::Shared]),
                turned: rng.chance(50),
                padded: rng.chance(30),
            }
        }
        30 if rng.chance(15) => Directive::Reside {
            blocks: rng.pick(&[0i64, 1, 3, 40]),
        },
        30 if rng.chance(30) => Directive::Swizzle {
            scratch: rng.below(kernel.scratch.len().max(1)) as u32,
            row: rng.pick(&[16i64, 32, 64, 128]),
        },
        30 if rng.chance(40) => Directive::Over {
            var,
            scratch: (kernel.scratch.len() as u32).saturating_sub(1),
            place: rng.below(kernel.scratch.len().max(1)) as u32,
        },
        30 if rng.chance(40) => {
            let piece = rng.pick(&[1i64, 2, 4]);
            Directive::Rotate {
                scratch: rng.below(kernel.scratch.len().max(1)) as u32,
                row: piece * rng.pick(&[1i64, 2, 3, 8]),
                piece,
            }
        }
        30 if rng.chance(40) => Directive::TileRows {
            var,
            scratch: rng.below(kernel.scratch.len().max(1)) as u32,
            rows: side(rng, kernel, var),
            pitch: rng.pick(&[3i64, 16, 64, 300]),
        },
        30 => Directive::Apart {
            scratch: rng.below(kernel.scratch.len().max(1)) as u32,
            row: rng.pick(&[1i64, 2, 3, 4, 6]),
            gap: rng.pick(&[0i64, 1, 8]),
        },
        31 | 32 => {
            let fills = rng.chance(40);
            let mut lengths: Vec<Directive> = Vec::new();
            for l in all.windows(3) {
                let (outer, inner, sum) = (l[0].0, l[1].0, l[2].0);
                lengths.push(match fills {
                    true => Directive::FillColumns {
                        outer,
                        inner,
                        sum,
                        rows: side(rng, kernel, outer),
                        columns: side(rng, kernel, inner),
                    },
                    false => Directive::Lengthen {
                        outer,
                        inner,
                        sum,
                        length: rng.pick(&[9i64, 10, 16]),
                    },
                });
            }
            let applies = |d: &Directive| apply(&mut kernel.clone(), d).is_ok();
            lengths.into_iter().find(applies).unwrap_or(Directive::Inward { var })
        }
        33 if rng.chance(50) => Directive::Prefetch {
            var,
            by: before.unwrap_or(other),
            param: rng.below(kernel.params.len().max(1)) as u32,
            ahead: rng.pick(&[1i64, 16, 1 << 40]),
            shares: rng.pick(&[1i64, 2]),
        },
        33 if rng.chance(50) => Directive::PrefetchIteration {
            var,
            param: rng.below(kernel.params.len().max(1)) as u32,
            ahead: rng.pick(&[1i64, 2, 1 << 40]),
        },
        33 if rng.chance(30) => Directive::Slide {
            var,
            held: rng.chance(50),
        },
        33 => Directive::Cascade {
            var,
            factor: rng.pick(&[1i64, 2, 3, 16]),
        },
        _ => Directive::Bind {
            var,
            bind: rng.pick(&[Bind::Unroll, Bind::Lanes, Bind::Lanes, Bind::Parallel, Bind::Serial]),
        },
    }
}

/// The most elements that are packed in all iterations of whatever is around, which the interpreter goes through.
const MOST_PACKED: i64 = 1 << 10;

/// Fused where no division may come of it, loops are as they are fused anyway, `fused`, or as they were, if indices are divided there that were not.
fn fuses_cleanly(before: &Kernel, outer: VarId, inner: VarId, fused: Option<&Kernel>) {
    let mut clean = before.clone();
    let made = fuse_clean(&mut clean, outer, inner);
    let divided = count_divisions(&before.body);
    match fused.filter(|k| count_divisions(&k.body) <= divided) {
        Some(fused) => assert_eq!(*fused, clean, "{made:?}"),
        None => assert_eq!(*before, clean, "{made:?}"),
    }
}

/// Applies directives; returns those that applied, or what one of them broke.
fn scramble(kernel: &mut Kernel, rng: &mut Rng) -> Result<Vec<Directive>, String> {
    let mut applied = Vec::new();
    for _ in 0..8 {
        let mut all = Vec::new();
        loops(&kernel.body, &mut all);
        if all.is_empty() {
            break;
        }
        let directive = random_directive(rng, kernel, &all);
        // Loops already bound to lanes or copies stay as they are.
        let bound = |v: VarId| all.iter().any(|l| l.0 == v && l.1 != Bind::Serial);
        let keeps = match &directive {
            Directive::Split { var, .. } | Directive::Block { var, .. } | Directive::Peel { var, .. } => bound(*var),
            Directive::Pieces { var, .. } | Directive::TileColumns { var, .. } => bound(*var),
            Directive::Fuse { outer, inner } => bound(*outer) || bound(*inner),
            Directive::Interchange { outer, inner } => bound(*outer) || bound(*inner),
            Directive::Bind { var, .. } | Directive::Narrow { var, .. } => bound(*var),
            _ => false,
        };
        if keeps {
            continue;
        }
        let before = kernel.clone();
        let refused = apply(kernel, &directive).is_err();
        if let Directive::Fuse { outer, inner } = directive {
            fuses_cleanly(&before, outer, inner, (!refused).then_some(&*kernel));
        }
        if refused {
            assert_eq!(before, *kernel, "{directive:?} refuses, but changes the kernel");
            continue;
        }
        let long = |l: &IndexExpr| l.as_const().is_some_and(|n| n > MOST_PACKED);
        let fills = matches!(directive, Directive::Pack { .. } | Directive::StageRegion { .. });
        if fills && kernel.scratch.iter().any(|s| long(&s.len)) {
            *kernel = before;
            continue;
        }
        let report = verify(kernel);
        let unsure = !report.errors.is_empty() || !report.unproven.is_empty();
        if let Directive::Bind { bind, .. } = directive
            && unsure
            && bind != Bind::Serial
        {
            // Iterations that depend on each other, or are not innermost: binding is for the policy to get right.
            *kernel = before;
            continue;
        }
        if directive.to_string().parse() != Ok(directive.clone()) {
            return Err(format!("`{directive}` does not read as {directive:?}"));
        }
        applied.push(directive);
        if let Some(e) = report.errors.first() {
            return Err(format!("after {applied:?}: {e}\n{before}\n{kernel}"));
        }
    }
    match rng.chance(20) {
        true => by_threads(kernel, rng, &mut applied)?,
        false => by_warps(kernel, rng, &mut applied)?,
    }
    assert!(structure(kernel).is_empty());
    Ok(applied)
}

/// Gives the iterations of the outermost loop of a kernel to threads, which share what they load alike in a loop inside, if that can be done.
fn by_threads(kernel: &mut Kernel, rng: &mut Rng, applied: &mut Vec<Directive>) -> Result<(), String> {
    let [Stmt::Loop { var, ref body, .. }] = kernel.body[..] else {
        return Ok(());
    };
    let Some(&Stmt::Loop { var: inside, .. }) = body.last() else {
        return Ok(());
    };
    let before = kernel.clone();
    let factor = rng.pick(&[1i64, 5, 32]);
    let mut made = vec![Directive::Block { var, factor }];
    let Ok(&[block, thread]) = apply(kernel, &made[0]).as_deref() else {
        return Ok(());
    };
    let of_block = [(block, Bind::Block), (thread, Bind::Thread)];
    made.extend(of_block.map(|(var, bind)| Directive::Bind { var, bind }));
    let length = rng.pick(&[1i64, 3, 16]);
    made.push(Directive::ShareLoads {
        thread,
        var: inside,
        length,
    });
    made.push(Directive::Synchronize { block });
    let all = made[1..].iter().all(|d| apply(kernel, d).is_ok());
    // Iterations that depend on each other are for the policy to know.
    if !all || !verify(kernel).errors.is_empty() {
        *kernel = before;
        return Ok(());
    }
    applied.extend(made);
    Ok(())
}

/// Gives the rows of a kernel to warps, each thread of which has what it alone touches of scratch to itself, if that can be done.
fn by_warps(kernel: &mut Kernel, rng: &mut Rng, applied: &mut Vec<Directive>) -> Result<(), String> {
    let [Stmt::Loop { var, .. }] = kernel.body[..] else {
        return Ok(());
    };
    let (before, warps) = (kernel.clone(), rng.pick(&[1i64, 2, 3, 32, 33]));
    let threads = rng.pick(&[32i64, 32, 16, 8, 4, 2, 1]);
    let mut all = vec![Directive::RowsByWarps { var, warps, threads }];
    all.extend((0..kernel.scratch.len() as u32).map(|scratch| Directive::Own { scratch }));
    let mut made = Vec::new();
    for directive in all {
        let unchanged = kernel.clone();
        match apply(kernel, &directive) {
            Ok(_) => made.push(directive),
            Err(_) => assert_eq!(unchanged, *kernel, "{directive:?} refuses, but changes the kernel"),
        }
    }
    // What threads share is for the policy to place.
    let shares = kernel.scratch.iter().any(|s| s.scope == Scope::Cache);
    if rng.chance(30) || shares || made.is_empty() {
        *kernel = before;
        return Ok(());
    }
    applied.extend(made);
    match verify(kernel).errors.first() {
        Some(e) => Err(format!("after {applied:?}: {e}\n{before}\n{kernel}")),
        None => Ok(()),
    }
}

/// The names of directives.
fn names(applied: &[Vec<Directive>]) -> Vec<String> {
    let name = |d: &Directive| d.to_string().split(' ').next().unwrap_or_default().to_string();
    applied.iter().flatten().map(name).collect()
}

fn check(seed: u64, nodes: usize, elements: usize, symbolic: bool) -> Result<Vec<String>, String> {
    check_case(seed, &graph(seed, nodes, elements, symbolic))
}

/// The names of the directives that applied.
fn check_case(seed: u64, case: &Case) -> Result<Vec<String>, String> {
    let compiled = compile(
        &case.graph,
        &Options::new(Cpu::modest(Arc::new(tlc_codegen::clif::emitter(true)))),
    )
    .map_err(|e| e.to_string())?;
    let expected = crate::oracle::evaluate(&case.graph, &case.inputs, &case.symbols);
    let mut rng = Rng(seed.wrapping_mul(77) | 1);
    let mut total = Vec::new();
    for _ in 0..4 {
        let mut plan = naive_plan(&compiled);
        let mut applied = Vec::new();
        for kernel in &mut plan.kernels {
            applied.push(scramble(kernel, &mut rng)?);
        }
        total.extend(names(&applied));
        for legal in [false, true] {
            if legal {
                let emitter = tlc_codegen::clif::emitter(true);
                plan.kernels
                    .iter_mut()
                    .for_each(|k| tlc_passes::legalize::legalize(k, &emitter));
            }
            let text = plan.to_string();
            match parse_module(&text, &mut no_data) {
                Ok(m) if m.plans == [plan.clone()] => {}
                Ok(_) => return Err(format!("another plan after {applied:?}\n{text}")),
                Err(e) => return Err(format!("{} after {applied:?}\n{text}", e[0])),
            }
            let found = interpret_bound(&plan, None, &case.inputs, &case.symbols);
            let kernels = || plan.kernels.iter().map(Kernel::to_string).collect::<String>();
            let found = found.map_err(|e| format!("{e} (legalized: {legal}) after {applied:?}\n{}", kernels()))?;
            for (k, (f, e)) in found.iter().zip(&expected).enumerate() {
                if let Some(d) = difference(f, e, case.tolerance[k]) {
                    return Err(format!(
                        "output {k} (legalized: {legal}): {d} after {applied:?}\n{}",
                        kernels()
                    ));
                }
            }
        }
    }
    Ok(total)
}

#[test]
fn a_random_legal_schedule_keeps_the_result() {
    let seeds = match std::env::var("TLC_SEEDS").ok().and_then(|s| {
        let (a, b) = s.split_once("..")?;
        Some(a.parse().ok()?..b.parse().ok()?)
    }) {
        Some(range) => range,
        None => 0..200u64,
    };
    let mut failures = Vec::new();
    let mut applied = 0;
    for seed in seeds {
        for (nodes, elements, symbolic) in [(3, 300, false), (4, 300, true)] {
            let result = std::panic::catch_unwind(|| check(seed, nodes, elements, symbolic)).unwrap_or_else(|e| {
                let text = e.downcast_ref::<String>().cloned();
                let text = text.or_else(|| e.downcast_ref::<&str>().map(|s| s.to_string()));
                Err(format!("panic: {}", text.unwrap_or_default()))
            });
            match result {
                Ok(names) => applied += names.len(),
                Err(e) => failures.push((e.len(), seed, symbolic, e)),
            }
        }
    }
    failures.sort();
    for (_, seed, symbolic, e) in failures.iter().take(30) {
        println!(
            "seed {seed} symbolic {symbolic}: {}",
            e.lines().next().unwrap_or_default()
        );
    }
    if let Some((_, seed, symbolic, e)) = failures.first() {
        let case = graph(*seed, if *symbolic { 4 } else { 3 }, 300, *symbolic);
        panic!(
            "{} cases fail; the smallest is seed {seed}: {e}\n{}",
            failures.len(),
            describe(&case.graph)
        );
    }
    assert!(applied > 100, "only {applied} directives applied");
}

/// Forms that random graphs seldom have: products, reductions along columns that come back to them, and windows.
const FORMS: [&str; 9] = [
    "graph @integer_product(%x: i8[6, 9], %y: i8[9, 5]) {
       %0 = einsum %x, %y {ab,bc->ac; acc=i32} : i32[6, 5]
       %1 = add %0, %0 : i32[6, 5]
       return %1, %0
     }",
    "graph @half_product(%x: f16[2, 6, 9], %y: f16[2, 5, 9], %z: u8[2, 6, 5]) {
       %0 = einsum %x, %y {hab,hcb->hac; acc=f32} : f16[2, 6, 5]
       %1 = convert %z : f16[2, 6, 5]
       %2 = mul %0, %1 : f16[2, 6, 5]
       return %2
     }",
    "graph @unpacked_product(%x: u8[4, 7], %scale: f32[7], %y: u8[7, 6]) {
       %0 = convert %x : i64[4, 7]
       %1 = convert %scale : i64[7]
       %2 = expand %1 : i64[4, 7]
       %3 = mul %0, %2 : i64[4, 7]
       %4 = convert %y : i64[7, 6]
       %5 = einsum %3, %4 {ab,bc->ac} : i64[4, 6]
       return %5
     }",
    "graph @outer_sums(%x: f32[4, 6, 3], %y: f32[4, 3]) {
       %0 = sin %y : f32[4, 3]
       %1 = einsum %x, %0 {abc,ac->bc} : f32[6, 3]
       %2 = exp %1 : f32[6, 3]
       return %2
     }",
    "graph @softmax(%x: f32[7, 22]) {
       %0 = reduce max %x {axes=[0]} : f32[22]
       %1 = expand %0 : f32[7, 22]
       %2 = sub %x, %1 : f32[7, 22]
       %3 = exp %2 : f32[7, 22]
       %4 = reduce add %3 {axes=[0]} : f32[22]
       %5 = expand %4 : f32[7, 22]
       %6 = div %3, %5 : f32[7, 22]
       return %6
     }",
    "graph @log_sum(%x: f32[2, 5, 3, 4]) {
       %0 = exp %x : f32[2, 5, 3, 4]
       %1 = reduce add %0 {axes=[1]} : f32[2, 3, 4]
       %2 = log %1 : f32[2, 3, 4]
       %3 = reshape %2 : f32[2, 1, 3, 4]
       %4 = expand %3 : f32[2, 5, 3, 4]
       %5 = sub %x, %4 : f32[2, 5, 3, 4]
       return %5, %2
     }",
    "graph @gradient(%y: f32[9, 18], %g: f32[9, 18]) {
       %0 = mul %y, %g : f32[9, 18]
       %1 = reduce add %0 {axes=[0]} : f32[18]
       return %0, %1
     }",
    "graph @max_pool(%x: f32[2, 8, 12]) {
       %0 = window %x {axis=1, size=2, stride=2, dilation=1} : f32[2, 4, 12, 2]
       %1 = window %0 {axis=2, size=2, stride=2, dilation=1} : f32[2, 4, 6, 2, 2]
       %2 = reduce max %1 {axes=[3, 4]} : f32[2, 4, 6]
       return %2
     }",
    "graph @padded_sums(%x: f32[3, 5, 9]) {
       %0 = pad %x {lo=[0, 1, 1], hi=[0, 1, 1], value=0.0} : f32[3, 7, 11]
       %1 = window %0 {axis=1, size=3, stride=1, dilation=1} : f32[3, 5, 11, 3]
       %2 = window %1 {axis=2, size=3, stride=1, dilation=1} : f32[3, 5, 9, 3, 3]
       %3 = reduce add %2 {axes=[3, 4]} : f32[3, 5, 9]
       return %3
     }",
];

#[test]
fn a_random_legal_schedule_keeps_columns_windows_and_products() {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for text in FORMS {
        let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
        let inputs: Vec<HostTensor> = graph
            .inputs()
            .iter()
            .map(|&i| {
                let shape: Vec<usize> = graph
                    .ty(i)
                    .shape
                    .iter()
                    .map(|d| d.as_const().unwrap() as usize)
                    .collect();
                let mut x = HostTensor::zeros(graph.ty(i).dtype, &shape).unwrap();
                for k in 0..x.len() {
                    let value = ((k * 37 + 11) % 101) as f64 / 25.0 - 2.0;
                    x.set(k, Scalar::from_f64(x.dtype(), value));
                }
                x
            })
            .collect();
        let case = Case {
            tolerance: vec![Some(1e-4); graph.outputs().len()],
            graph,
            inputs,
            symbols: Vec::new(),
        };
        for seed in 0..120 {
            let names = check_case(seed, &case).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            names.into_iter().for_each(|n| *counts.entry(n).or_default() += 1);
        }
    }
    for name in [
        "tile-sum",
        "hold",
        "contract",
        "pack",
        "lengthen",
        "apart",
        "stage-region",
        "interchange",
        "tile-columns",
    ] {
        let count = counts.get(name).copied().unwrap_or(0);
        assert!(count >= 10, "{name} applied {count} times: {counts:?}");
    }
}
