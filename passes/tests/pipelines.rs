//! Products whose blocks of operands are copied several iterations ahead: the same bits however many stages there are, one barrier an
//! iteration, and no wait that leaves a group more under way than it may.

use tlc_ir::kernel::interp::interpret;
use tlc_ir::kernel::verify::verify;
use tlc_ir::kernel::visit::walk_mut;
use tlc_ir::kernel::{Access, Bind, Kernel, Stmt};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::random_tensor;
use tlc_ir::text::{no_data, parse_module};
use tlc_ir::{DType, HostTensor};
use tlc_passes::directive::DirectiveRefusal;
use tlc_passes::schedule::{Directive, apply};

/// A product of 48 by 8 s0 and 8 s0 by 32, and directives that make tiles of it, whose blocks of steps are 32 long.
const PRODUCT: &str = include_str!("filetests/schedule-warps.tlir");

/// The product with sums of a known length or of one that calls decide, and its directives but for the pipeline.
fn product(length: Option<i64>) -> (Kernel, Vec<Directive>) {
    let text = match length {
        None => PRODUCT.to_string(),
        Some(k) => PRODUCT
            .replace("384*s0", &(48 * k).to_string())
            .replace("256*s0", &(32 * k).to_string())
            .replace("8*s0", &k.to_string())
            .replace(" where s0 in 0..=1000", ""),
    };
    let directives = text.lines().filter_map(|l| l.strip_prefix("// apply:"));
    let directives = directives.map(|d| d.parse().expect("a directive"));
    let directives = directives
        .filter(|d| !matches!(d, Directive::Pipeline { .. }))
        .collect();
    let module = parse_module(&text, &mut no_data).expect("a kernel");
    (module.kernels[0].1.clone(), directives)
}

/// What directives make of a kernel, and the loop over blocks of steps that a pipeline is for.
fn tiled(length: Option<i64>) -> Kernel {
    let (mut kernel, directives) = product(length);
    for d in &directives {
        // A length that is a whole number of blocks needs no zeros behind it.
        match (apply(&mut kernel, d), d) {
            (Ok(_), _) | (Err(_), Directive::Lengthen { .. }) => {}
            (Err(refusal), _) => panic!("{d}: {refusal}"),
        }
    }
    kernel
}

fn staged(kernel: &Kernel, stages: i64) -> Result<Kernel, DirectiveRefusal> {
    let waits = |body: &[Stmt]| body.iter().any(|s| matches!(s, Stmt::Barrier));
    let steps = kernel.statements().find_map(|s| match s {
        Stmt::Loop {
            var,
            bind: Bind::Serial,
            body,
        } if waits(body) => Some(*var),
        _ => None,
    });
    let var = steps.expect("a loop over blocks of steps");
    let mut kernel = kernel.clone();
    apply(&mut kernel, &Directive::Pipeline { var, stages })?;
    Ok(kernel)
}

/// Bits of what a kernel computes; those of any NaN are the same.
fn results(kernel: &Kernel, symbols: &[i64], seed: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    let mut buffers: Vec<HostTensor> = kernel
        .params
        .iter()
        .map(|p| {
            let len = p.len.eval_symbols(symbols).expect("a length") as usize;
            match p.access {
                Access::Read => random_tensor(&mut rng, p.dtype, &[len]),
                _ => HostTensor::zeros(p.dtype, &[len]).expect("a tensor"),
            }
        })
        .collect();
    interpret(kernel, &mut buffers, symbols).unwrap_or_else(|e| panic!("{e}\n{kernel}"));
    let out = buffers.last().expect("a result");
    assert_eq!(out.dtype(), DType::F16);
    let bits = |i| match out.get(i) {
        x if x.as_f64().is_nan() => u64::MAX,
        x => x.bits(),
    };
    (0..out.len()).map(bits).collect()
}

/// The bodies of loops of a kernel that have a wait among their statements, and how many waits and barriers each has.
fn waits_and_barriers(kernel: &Kernel) -> Vec<(usize, usize)> {
    let bodies = kernel.statements().filter_map(|s| match s {
        Stmt::Loop {
            bind: Bind::Serial,
            body,
            ..
        } => Some(body),
        _ => None,
    });
    let count = |body: &Vec<Stmt>| {
        let waits = body.iter().filter(|s| matches!(s, Stmt::Wait(_))).count();
        let barriers = body.iter().filter(|s| matches!(s, Stmt::Barrier)).count();
        (waits, barriers)
    };
    bodies.map(count).filter(|c| c.0 > 0).collect()
}

#[test]
fn a_product_has_the_same_bits_in_any_number_of_stages() {
    // Lengths of whole blocks, and others; of one that calls decide, none too.
    let known = [64, 72, 96, 160, 224, 280].map(|k| (Some(k), vec![vec![]]));
    let sizes = [0, 1, 12, 21].map(|s| vec![s]).to_vec();
    for (length, sizes) in known.into_iter().chain([(None, sizes)]) {
        let plain = tiled(length);
        for stages in 2..=4 {
            let kernel = match staged(&plain, stages) {
                Ok(kernel) => kernel,
                Err(DirectiveRefusal::FewIterations { least, .. }) => {
                    assert!(length.is_some_and(|k| (k + 31) / 32 < least), "{length:?} in {stages}");
                    continue;
                }
                Err(refusal) => panic!("{length:?} in {stages}: {refusal}"),
            };
            let report = verify(&kernel);
            assert!(report.errors.is_empty(), "{:?}\n{kernel}", report.errors);
            // One barrier an iteration, as many iterations a round as there are stages.
            let each = (stages as usize, stages as usize);
            let rounds = waits_and_barriers(&kernel);
            assert!(rounds.iter().all(|r| *r == each), "{rounds:?}\n{kernel}");
            for symbols in &sizes {
                let (found, expected) = (results(&kernel, symbols, 7), results(&plain, symbols, 7));
                assert!(found == expected, "{length:?} {symbols:?} in {stages} stages\n{kernel}");
            }
        }
    }
}

#[test]
fn a_wait_that_leaves_one_group_more_is_found() {
    for (length, stages) in [(Some(96), 2), (Some(256), 3), (Some(288), 4), (None, 3), (None, 4)] {
        let right = staged(&tiled(length), stages).expect("a pipeline");
        let waits = right.statements().filter(|s| matches!(s, Stmt::Wait(_))).count();
        // What is last waited for where the length is not known are zeros, which nobody uses.
        let used = waits - usize::from(length.is_none());
        for wrong in 0..used {
            let mut kernel = right.clone();
            let mut at = 0;
            walk_mut(&mut kernel.body, &mut |s| {
                if let Stmt::Wait(pending) = s {
                    *pending += u32::from(at == wrong);
                    at += 1;
                }
            });
            let errors = verify(&kernel).errors;
            assert!(
                errors
                    .iter()
                    .any(|e| e.to_string().contains("where a copy to it may be under way")),
                "{length:?} in {stages} stages, wait {wrong}: {errors:?}"
            );
        }
        for missing in ["commit", "barrier"] {
            let mut kernel = right.clone();
            let mut first = true;
            walk_mut(&mut kernel.body, &mut |s| {
                let found = match missing {
                    "commit" => matches!(s, Stmt::Commit),
                    _ => matches!(s, Stmt::Barrier),
                };
                if found && std::mem::take(&mut first) {
                    // A wait for all but the most groups does nothing.
                    *s = Stmt::Wait(7);
                }
            });
            assert!(
                !verify(&kernel).errors.is_empty(),
                "{length:?} in {stages} stages without a {missing}"
            );
        }
    }
}

#[test]
fn there_are_two_to_four_stages() {
    let kernel = tiled(Some(288));
    for stages in [-1, 0, 1, 5, i64::MAX] {
        assert_eq!(staged(&kernel, stages), Err(DirectiveRefusal::Stages(stages)));
    }
}
