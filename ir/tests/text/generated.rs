//! What random graphs are made of: shapes of graphs that once were never drawn, each drawn again and again.

use std::collections::BTreeMap;

use tlc_ir::graph::{Graph, Labels, NodeId, NodeKind, Operands, Semiring, View};
use tlc_ir::testgen::{GenKind, GenOptions, random_graph};
use tlc_ir::{DType, IndexExpr};

/// How often what was seen.
#[derive(Default)]
struct Seen(BTreeMap<String, usize>);

impl Seen {
    fn see(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }

    fn see_if(&mut self, is: bool, what: &str) {
        if is {
            self.see(what);
        }
    }

    #[track_caller]
    fn expect(&self, all: &[&str], least: usize) {
        let rare = all.iter().filter(|w| self.0.get(**w).is_none_or(|&n| n < least));
        let rare: Vec<_> = rare.map(|w| (*w, self.0.get(*w).unwrap_or(&0))).collect();
        assert!(rare.is_empty(), "fewer than {least}: {rare:?}");
    }
}

/// What a chain of views begins with, and how long it is.
fn behind_views(graph: &Graph, mut id: NodeId) -> (NodeId, usize) {
    let mut length = 0;
    while let NodeKind::View(_) = graph.node(id).kind {
        id = graph.node(id).operands[0];
        length += 1;
    }
    (id, length)
}

/// Labels of a product of two operands, as rows and columns of matrices in a batch are named.
struct Product {
    batch: Labels,
    summed: Labels,
    rows: Labels,
    columns: Labels,
}

fn product(inputs: &[Labels], output: &Labels) -> Option<Product> {
    let [left, right] = inputs else {
        return None;
    };
    let mut of = Product {
        batch: Labels::new(),
        summed: Labels::new(),
        rows: Labels::new(),
        columns: Labels::new(),
    };
    for l in left {
        match (right.contains(l), output.contains(l)) {
            (true, true) => of.batch.push(*l),
            (true, false) => of.summed.push(*l),
            (false, true) => of.rows.push(*l),
            (false, false) => {}
        }
    }
    of.columns = right
        .iter()
        .filter(|l| !left.contains(l) && output.contains(l))
        .copied()
        .collect();
    let matrices = !of.summed.is_empty() && !of.rows.is_empty() && !of.columns.is_empty();
    matrices.then_some(of)
}

fn see_product(seen: &mut Seen, graph: &Graph, id: NodeId, users: &[Vec<NodeId>]) {
    let node = graph.node(id);
    let NodeKind::Einsum {
        inputs,
        output,
        dtype,
        semiring,
        ..
    } = &node.kind
    else {
        return;
    };
    let Some(of) = product(inputs, output) else {
        return;
    };
    let operands: &Operands = &node.operands;
    let last = |labels: &Labels| labels.last().copied();
    let summed_last = |labels: &Labels| last(labels).is_some_and(|l| of.summed.contains(&l));
    seen.see("product");
    seen.see_if(of.batch.len() == 1, "batch of one axis");
    seen.see_if(of.batch.len() > 1, "batch of several axes");
    seen.see_if(of.summed.len() > 1, "several summed axes");
    seen.see_if(of.rows.len() > 1, "several axes of rows");
    seen.see_if(of.columns.len() > 1, "several axes of columns");
    seen.see_if(summed_last(&inputs[0]), "left as it is written");
    seen.see_if(
        last(&inputs[0]).is_some_and(|l| of.rows.contains(&l)),
        "left transposed",
    );
    seen.see_if(
        last(&inputs[1]).is_some_and(|l| of.columns.contains(&l)),
        "right as it is written",
    );
    seen.see_if(summed_last(&inputs[1]), "right transposed");
    seen.see_if(last(output).is_some_and(|l| of.rows.contains(&l)), "result transposed");
    seen.see_if(last(output).is_some_and(|l| of.batch.contains(&l)), "batch last");
    seen.see_if(*semiring != Semiring::AddMul, "another semiring");
    let mut extents: BTreeMap<u16, IndexExpr> = BTreeMap::new();
    for (labels, &x) in inputs.iter().zip(operands) {
        for (l, d) in labels.iter().zip(&graph.ty(x).shape) {
            extents.insert(*l, d.clone());
        }
    }
    for (name, group) in [
        ("batch", &of.batch),
        ("sum", &of.summed),
        ("rows", &of.rows),
        ("columns", &of.columns),
    ] {
        for l in group {
            match extents[l].as_const() {
                None => seen.see(format!("symbolic {name}")),
                Some(n) => seen.see(format!("{name} of {n}")),
            }
        }
    }
    for &x in operands {
        let (from, views) = behind_views(graph, x);
        seen.see_if(views > 1, "operand behind several views");
        let from = graph.node(from);
        match &from.kind {
            NodeKind::Map(_) | NodeKind::Reduce { .. } | NodeKind::Einsum { .. } => seen.see("computed operand"),
            NodeKind::Convert(_) => seen.see("converted operand"),
            NodeKind::Input { .. } => seen.see("operand that comes in"),
            NodeKind::Data(_) => seen.see("operand that never changes"),
            _ => {}
        }
        seen.see_if(graph.ty(x).dtype != *dtype, "wider result");
    }
    seen.see(format!("product of {}", dtype.name()));
    let own = &users[id.index()];
    let is_output = |id: NodeId| graph.outputs().iter().any(|o| o.node == id);
    let map = |id: &NodeId| matches!(graph.node(*id).kind, NodeKind::Map(_));
    seen.see_if(own.iter().any(map), "epilogue");
    seen.see_if(
        own.iter().any(map) && is_output(id),
        "epilogue of a product that is returned as well",
    );
    let chained = |u: &NodeId| map(u) && users[u.index()].iter().any(map);
    seen.see_if(own.iter().any(chained), "epilogue of several operations");
    let of_kind = |is: &dyn Fn(&NodeKind) -> bool| own.iter().any(|u| is(&graph.node(*u).kind));
    seen.see_if(
        of_kind(&|k| matches!(k, NodeKind::Reduce { .. })),
        "reduction of a product",
    );
    seen.see_if(of_kind(&|k| matches!(k, NodeKind::View(_))), "view of a product");
    seen.see_if(own.len() > 1, "product of several uses");
}

fn users(graph: &Graph) -> Vec<Vec<NodeId>> {
    let mut users = vec![Vec::new(); graph.len()];
    for (id, n) in graph.nodes() {
        n.operands.iter().for_each(|o| users[o.index()].push(id));
    }
    users
}

#[test]
fn products_of_every_form_are_generated() {
    let mut options = GenOptions::default();
    options.kinds.extend([GenKind::Product; 12]);
    let mut seen = Seen::default();
    for seed in 0..600 {
        let graph = random_graph(seed, &options);
        let users = users(&graph);
        for (id, _) in graph.nodes() {
            see_product(&mut seen, &graph, id, &users);
        }
    }
    let forms = [
        "batch of one axis",
        "batch of several axes",
        "several summed axes",
        "several axes of rows",
        "several axes of columns",
        "left as it is written",
        "left transposed",
        "right as it is written",
        "right transposed",
        "result transposed",
        "batch last",
        "another semiring",
        "symbolic batch",
        "symbolic sum",
        "symbolic rows",
        "symbolic columns",
        "operand behind several views",
        "computed operand",
        "converted operand",
        "operand that comes in",
        "operand that never changes",
        "wider result",
        "epilogue",
        "epilogue of several operations",
        "epilogue of a product that is returned as well",
        "reduction of a product",
        "view of a product",
        "product of several uses",
        "product of f32",
        "product of f64",
        "product of f16",
        "product of bf16",
        "product of i32",
    ];
    seen.expect(&forms, 8);
    for name in ["batch", "sum", "rows", "columns"] {
        let few = [format!("{name} of 0"), format!("{name} of 1")];
        seen.expect(&few.each_ref().map(String::as_str), 3);
    }
    for extent in [15, 17, 31, 33, 63, 65, 129] {
        for name in ["sum", "rows", "columns"] {
            seen.expect(&[format!("{name} of {extent}").as_str()], 3);
        }
    }
}

#[test]
fn structures_of_every_form_are_generated() {
    let mut seen = Seen::default();
    for seed in 0..4000 {
        let graph = random_graph(seed, &GenOptions::default());
        let users = users(&graph);
        for (id, n) in graph.nodes() {
            see_structure(&mut seen, &graph, id, &users[id.index()]);
            let rank = n.ty.rank();
            seen.see_if(rank >= 5, "rank 5 and more");
            seen.see_if(rank == 6, "rank 6");
            for d in &n.ty.shape {
                seen.see_if(
                    d.as_const().is_none() && d.size() > 3,
                    "extent that is computed of symbols",
                );
            }
        }
    }
    let forms = [
        "rank 5 and more",
        "rank 6",
        "extent that is computed of symbols",
        "view of a view of a view",
        "sum over several axes of symbolic extent",
        "reduction over no axis",
        "scan behind a view",
        "scan of a symbolic axis",
        "gather of three axes",
        "gather by computed indices",
        "gather by indices that are negative",
        "scatter by computed indices",
        "concatenation",
        "concatenation of views",
        "softmax",
        "window of symbolic size",
        "windows of two axes",
        "pool",
        "loop of three states and more",
        "loop of states of several types",
        "loop over no iteration",
        "use of a sorted value",
        "use of a loop's result",
    ];
    seen.expect(&forms, 5);
}

fn see_structure(seen: &mut Seen, graph: &Graph, id: NodeId, users: &[NodeId]) {
    let node = graph.node(id);
    let operand = |k: usize| graph.node(node.operands[k]);
    let is_view = |id: NodeId| matches!(graph.node(id).kind, NodeKind::View(_));
    let computed = |id: NodeId| {
        let (from, _) = behind_views(graph, id);
        matches!(
            graph.node(from).kind,
            NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::Reduce { .. } | NodeKind::Gather { .. }
        )
    };
    match &node.kind {
        NodeKind::View(view) => {
            seen.see_if(behind_views(graph, id).1 >= 3, "view of a view of a view");
            if let View::Window { size, .. } = view {
                seen.see_if(size.as_const().is_none(), "window of symbolic size");
                let again = matches!(operand(0).kind, NodeKind::View(View::Window { .. }));
                seen.see_if(again, "windows of two axes");
            }
        }
        NodeKind::Reduce { axes, .. } => {
            let extents = &operand(0).ty.shape;
            let symbolic = axes.iter().filter(|a| extents[usize::from(**a)].as_const().is_none());
            seen.see_if(
                axes.len() > 1 && symbolic.count() > 1,
                "sum over several axes of symbolic extent",
            );
            seen.see_if(axes.is_empty() && node.ty.rank() > 0, "reduction over no axis");
            let pool = matches!(operand(0).kind, NodeKind::View(View::Window { .. }));
            seen.see_if(pool, "pool");
        }
        NodeKind::Scan { axis, .. } => {
            seen.see_if(is_view(node.operands[0]), "scan behind a view");
            let extent = &operand(0).ty.shape[usize::from(*axis)];
            seen.see_if(extent.as_const().is_none(), "scan of a symbolic axis");
        }
        NodeKind::Gather { axes } => {
            seen.see_if(axes.len() >= 3, "gather of three axes");
            let indices = &node.operands[1..];
            seen.see_if(indices.iter().any(|&i| computed(i)), "gather by computed indices");
            let negative = |&i: &NodeId| match &graph.node(i).kind {
                NodeKind::Data(d) => (0..d.0.len()).any(|k| d.0.get(k).as_f64() < 0.0),
                _ => false,
            };
            seen.see_if(indices.iter().any(negative), "gather by indices that are negative");
        }
        NodeKind::Scatter { .. } => {
            let indices = &node.operands[2..];
            seen.see_if(indices.iter().any(|&i| computed(i)), "scatter by computed indices");
        }
        NodeKind::Map(tlc_ir::ScalarOp::Select) => {
            let padded = |k: usize| matches!(operand(k).kind, NodeKind::View(View::Pad { .. }));
            let is = padded(1) && padded(2) && graph.ty(node.operands[0]).dtype == DType::Bool;
            seen.see_if(is, "concatenation");
            let part = |k: usize| is_view(graph.node(node.operands[k]).operands[0]);
            seen.see_if(is && (part(1) || part(2)), "concatenation of views");
        }
        NodeKind::Map(tlc_ir::ScalarOp::Div) => {
            let exp = |id: NodeId| matches!(graph.node(id).kind, NodeKind::Map(tlc_ir::ScalarOp::Exp));
            seen.see_if(exp(node.operands[0]) && is_view(node.operands[1]), "softmax");
        }
        NodeKind::Loop(l) => {
            seen.see_if(l.carried >= 3, "loop of three states and more");
            let first = usize::from(l.counted) + usize::from(l.conditional);
            let states = &node.operands[first..first + l.carried];
            let mut dtypes: Vec<DType> = states.iter().map(|&s| graph.ty(s).dtype).collect();
            dtypes.sort();
            dtypes.dedup();
            seen.see_if(dtypes.len() > 1, "loop of states of several types");
            let none = l.trip.as_ref().and_then(IndexExpr::as_const) == Some(0);
            seen.see_if(none, "loop over no iteration");
        }
        NodeKind::Project(_) => {
            let what = match operand(0).kind {
                NodeKind::Call(_) => "use of a sorted value",
                _ => "use of a loop's result",
            };
            seen.see_if(!users.is_empty(), what);
        }
        _ => {}
    }
}
