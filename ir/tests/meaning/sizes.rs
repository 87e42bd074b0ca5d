//! The walks over the sizes of nodes: they meet the same ones, and what is replaced is what was met.

use tlc_ir::graph::{NodeKind, SizeRole};
use tlc_ir::index::IndexExpr;
use tlc_ir::testgen::{GenOptions, random_graph};
use tlc_ir::text::{no_data, parse_graph};

fn visited(kind: &NodeKind) -> Vec<IndexExpr> {
    let mut all = Vec::new();
    kind.visit_sizes(&mut |e| all.push(e.clone()));
    all
}

fn mapped(kind: &NodeKind) -> Vec<IndexExpr> {
    let mut all = Vec::new();
    let same = kind.map_sizes(&mut |_, e| {
        all.push(e.clone());
        e.clone()
    });
    assert_eq!(*kind, same, "sizes that stay make the same node");
    all
}

#[test]
fn both_walks_meet_the_same_sizes_in_the_same_order() {
    for seed in 0..300 {
        let graph = random_graph(seed, &GenOptions::default());
        for (_, node) in graph.nodes() {
            assert_eq!(visited(&node.kind), mapped(&node.kind), "seed {seed}: {:?}", node.kind);
        }
    }
}

/// Every node kind that has sizes: the walk meets them all, and distinguishes extents from distances.
#[test]
fn every_size_of_a_node_is_met_with_its_role() {
    let text = "graph @g(%x: f32[n, m], %k: u64[]) where n in 1..=99, m in 1..=98, z upto n*m {
  %iota = iota {axis=0} : i64[n + 1]
  %random = random %k {stream=3} : u32[n + 2]
  %reshape = reshape %x : f32[m, n]
  %expand = expand %x : f32[n + 3, n, m]
  %pad = pad %x {lo=[n, 1], hi=[m, 2], value=0} : f32[m + 2*n, m + 3]
  %slice = slice %x {start=[n - 1, 0], step=[-1, 1]} : f32[n, m]
  %window = window %x {axis=0, size=n, stride=1, dilation=1} : f32[1, m, n]
  %sort = call sort %x {axis=0, count=n, descending} : (f32[n, m], i64[n, m])
  %some = call nonzero %x {count=z} : (i64[2, z], i64[])
  %loop = loop %x {trip=n, carried=1, symbols=[n, m]} body @b(%i: i64[], %h: f32[p, q]) where p, q {
    return %h
  } : (f32[n, m])
  %values = project %sort {result=0} : f32[n, m]
  %places = project %some {result=0} : i64[2, z]
  %last = project %loop {result=0} : f32[n, m]
  return %iota, %random, %reshape, %expand, %pad, %slice, %window, %values, %places, %last
}
";
    let graph = parse_graph(text, &mut no_data).unwrap();
    let mut found = Vec::new();
    for (_, node) in graph.nodes() {
        let mut sizes = Vec::new();
        node.kind.map_sizes(&mut |role, e| {
            let mark = match role {
                SizeRole::Extent => "",
                SizeRole::Distance => "~",
            };
            sizes.push(format!("{mark}{}", graph.dim_text(e)));
            e.clone()
        });
        if !sizes.is_empty() {
            found.push(format!("{}: {}", node.kind.name(), sizes.join(" ")));
        }
    }
    let expected = [
        "input: n m",
        "iota: n + 1",
        "random: n + 2",
        "reshape: m n",
        "expand: n + 3 n m",
        "pad: ~n ~1 ~m ~2",
        "slice: ~n - 1 ~0 n m",
        "window: n",
        "call: n",
        "call: z",
        "loop: n m n",
    ];
    assert_eq!(found, expected);
}
