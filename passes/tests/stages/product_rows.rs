//! Norms of the rows of a product on a GPU are part of its kernel where a block's tile has whole rows, and give what the graph means; and are not
//! where they must not be, or where it does not pay.

use crate::oracle::generate::Case;
use crate::oracle::stages::{check, gpu_alone};
use tlc_ir::text::{no_data, parse_graph};
use tlc_ir::{HostTensor, Scalar};
use tlc_passes::cluster::ClusterKind;
use tlc_passes::compile;
use tlc_passes::pipeline::{Compiled, Pipeline};
use tlc_passes::reason::{FusionReason, FusionStage, ProductRowsRefusal};
use tlc_passes::schedule::Directive;

/// A product of `[m, k]` and `[k, n]` with a bias, and a norm of its rows.
fn text(dtype: &str, [m, k, n]: [&str; 3], symbols: &str, results: &str) -> String {
    let acc = if dtype.ends_with("16") { "; acc=f32" } else { "" };
    format!(
        "graph @norm(%x: {dtype}[{m}, {k}], %w: {dtype}[{k}, {n}], %b: f32[{n}], %u: f32[{n}]){symbols} {{
           %p0 = einsum %x, %w {{ab,bc->ac{acc}}} : f32[{m}, {n}]
           %b1 = expand %b : f32[{m}, {n}]
           %p = add %p0, %b1 : f32[{m}, {n}]
           %s = reduce max %p {{axes=[1]}} : f32[{m}]
           %s1 = reshape %s : f32[{m}, 1]
           %s2 = expand %s1 : f32[{m}, {n}]
           %d = sub %p, %s2 : f32[{m}, {n}]
           %e = exp %d : f32[{m}, {n}]
           %v = reduce add %e {{axes=[1]}} : f32[{m}]
           %v1 = reshape %v : f32[{m}, 1]
           %v2 = expand %v1 : f32[{m}, {n}]
           %y = div %e, %v2 : f32[{m}, {n}]
           %u1 = expand %u : f32[{m}, {n}]
           %q = mul %p, %u1 : f32[{m}, {n}]
           {results}
         }}"
    )
}

fn case(text: &str, symbols: &[i64]) -> Case {
    let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}"));
    let mut inputs = Vec::new();
    for (number, &i) in graph.inputs().iter().enumerate() {
        let ty = graph.ty(i);
        let sizes = ty.shape.iter().map(|d| d.eval_symbols(symbols).unwrap() as usize);
        let mut x = HostTensor::zeros(ty.dtype, &sizes.collect::<Vec<_>>()).unwrap();
        for k in 0..x.len() {
            let value = ((k * 37 + 11 + number * 5) % 101) as f64 / 50.0 - 1.0;
            x.set(k, Scalar::from_f64(x.dtype(), value));
        }
        inputs.push(x);
    }
    Case {
        tolerance: vec![Some(1e-4); graph.outputs().len()],
        graph,
        inputs,
        symbols: symbols.to_vec(),
    }
}

fn compiled(text: &str, symbols: &[i64]) -> Compiled {
    check(&case(text, symbols), &Pipeline::default(), gpu_alone()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Whether blocks of one kernel have tiles of whole rows, which are not what it falls back on.
fn has_tiles(compiled: &Compiled) -> bool {
    let joined = |c: &tlc_passes::cluster::Cluster| matches!(c.kind, ClusterKind::ProductRows(_));
    let mut directives = compiled.planned.launches.iter().flat_map(|l| &l.schedule.applied);
    compiled.clusters.clusters.iter().any(joined)
        && directives.any(|a| matches!(a.directive, Directive::TileRows { .. }))
}

#[test]
fn a_norm_is_part_of_the_kernel_of_its_product_whatever_the_sizes() {
    for dtype in ["f32", "f16", "bf16"] {
        for (sizes, symbols, values) in [
            (["40", "16", "64"], "", &[][..]),
            (["40", "20", "33"], "", &[]),
            (["16", "17", "16"], "", &[]),
            (["20", "8", "130"], "", &[]),
            (["17", "16", "256"], "", &[]),
            (["m", "24", "48"], " where m in 0..=4096", &[37]),
        ] {
            let compiled = compiled(&text(dtype, sizes, symbols, "return %y"), values);
            assert_eq!(compiled.planned.launches.len(), 1, "{dtype} {sizes:?}");
            assert!(has_tiles(&compiled), "{dtype} {sizes:?}");
        }
    }
}

#[test]
fn what_others_need_of_the_products_is_stored_by_the_kernel() {
    let stored = compiled(&text("f16", ["64", "32", "64"], "", "return %y, %p"), &[]);
    assert!(has_tiles(&stored));
    assert_eq!(stored.planned.launches.len(), 1);
}

fn refusal(text: &str, symbols: &[i64]) -> Option<ProductRowsRefusal> {
    let compiled = compiled(text, symbols);
    assert!(!has_tiles(&compiled));
    compiled.clusters.ledger.entries().iter().find_map(|d| match d.reason {
        FusionReason::NoProductRows(refusal) if d.stage == FusionStage::ProductRows => Some(refusal),
        _ => None,
    })
}

#[test]
fn a_norm_is_a_kernel_of_its_own_where_tiles_would_not_do() {
    let of = |sizes, symbols, values: &[i64]| refusal(&text("f16", sizes, symbols, "return %y"), values);
    assert_eq!(
        of(["16", "16", "300"], "", &[]),
        Some(ProductRowsRefusal::Columns { columns: 300 })
    );
    assert_eq!(
        of(["16", "16", "n"], " where n in 1..=64", &[20]),
        Some(ProductRowsRefusal::Columns { columns: 64 })
    );
    assert_eq!(
        of(["5", "16", "64"], "", &[]),
        Some(ProductRowsRefusal::FewRows { rows: 5 })
    );
}

/// Of few rows and a long sum, blocks that divide the columns among them have multiplied before one that has all of them has.
#[test]
fn few_rows_of_a_long_sum_are_not_left_to_few_blocks() {
    let text = text("f16", ["16", "65536", "256"], "", "return %y");
    let graph = parse_graph(&text, &mut no_data).expect("a graph");
    let compiled = compile(&graph, &gpu_alone()).expect("a plan");
    let slower = |r: &FusionReason| matches!(r, FusionReason::NoProductRows(ProductRowsRefusal::Slower { together_ns, apart_ns }) if together_ns > apart_ns);
    assert!(compiled.clusters.ledger.entries().iter().any(|d| slower(&d.reason)));
    assert!(!has_tiles(&compiled));
}
