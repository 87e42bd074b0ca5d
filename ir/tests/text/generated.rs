//! What random graphs are made of: shapes of graphs that once were never drawn, each drawn again and again.

use std::collections::BTreeMap;

use tlc_ir::graph::{Graph, HostFunction, Labels, NodeId, NodeKind, Operands, Output, Semiring, View};
use tlc_ir::index::IndexNode;
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

/// Sizes that data decides, and bodies that hold what graphs do: what calls find and what is made with it, in every form.
#[test]
fn counted_and_deep_forms_are_generated() {
    let options = GenOptions {
        counted: true,
        deep: true,
        ..GenOptions::default()
    };
    let mut seen = Seen::default();
    for seed in 0..6000 {
        let graph = random_graph(seed, &options);
        see_counted(&mut seen, &graph);
        see_bodies(&mut seen, &graph, "top");
    }
    let mut forms: Vec<String> = ["nonzero", "suppress", "unique of elements", "unique along an axis"]
        .iter()
        .flat_map(|call| [format!("call {call}"), format!("{call} in order")])
        .filter(|f| !f.ends_with("in order") || f.starts_with("unique"))
        .collect();
    let behind = [
        "map", "convert", "einsum", "reduce", "gather", "scatter", "scan", "loop", "region", "sort", "nonzero",
        "unique", "reshape", "permute", "expand", "pad", "slice", "window", "copy", "random", "iota", "output",
    ];
    forms.extend(behind.iter().map(|k| format!("{k} of a size that data decides")));
    let also = [
        "size that follows from one that data decides",
        "two sizes that data decides in one shape",
        "size that data decides within one that data decides",
        "size that data decides twice",
        "size that is always zero",
        "loop over a size that data decides",
        "loop that carries a size that data decides",
        "loop that stacks a size that data decides",
    ];
    forms.extend(also.iter().map(ToString::to_string));
    for outside in ["loop", "region"] {
        let inside = [
            "loop", "region", "sort", "einsum", "scan", "scatter", "gather", "reduce", "random", "window", "product",
        ];
        forms.extend(inside.iter().map(|k| format!("{k} in a {outside}")));
    }
    for form in [
        "three loops and regions, one in another",
        "value that two loops read",
        "random bits of a computed key",
    ] {
        forms.push(form.to_string());
    }
    let forms: Vec<&str> = forms.iter().map(String::as_str).collect();
    seen.expect(&forms, 3);
}

fn see_counted(seen: &mut Seen, graph: &Graph) {
    let data = |d: &IndexExpr| graph.is_data_bound(d);
    let plain = |d: &IndexExpr| matches!(d.as_node(), Some(IndexNode::Sym(_)));
    for s in graph.symbols().iter().filter(|s| s.upper.is_some()) {
        let upper = s.upper.as_ref().expect("an upper bound");
        seen.see_if(data(upper), "size that data decides within one that data decides");
        seen.see_if(s.hi == 0, "size that is always zero");
    }
    let mut nonzeros = Vec::new();
    for (_, n) in graph.nodes() {
        let shapes = || n.results.iter().chain([&n.ty]).flat_map(|t| &t.shape);
        let operands = || n.operands.iter().flat_map(|&o| &graph.ty(o).shape);
        match &n.kind {
            NodeKind::Call(HostFunction::Unique { axis, sorted, .. }) => {
                let form = if axis.is_some() { "along an axis" } else { "of elements" };
                seen.see(format!("call unique {form}"));
                seen.see_if(*sorted, &format!("unique {form} in order"));
            }
            NodeKind::Call(function) => seen.see(format!("call {}", function.name())),
            NodeKind::Loop(l) => {
                seen.see_if(l.trip.as_ref().is_some_and(data), "loop over a size that data decides");
                for (k, t) in n.results.iter().enumerate() {
                    let form = if k < l.carried { "carries" } else { "stacks" };
                    seen.see_if(
                        t.shape.iter().any(data),
                        &format!("loop that {form} a size that data decides"),
                    );
                }
            }
            NodeKind::Random { .. } => {
                let key = &graph.node(n.operands[0]).kind;
                seen.see_if(matches!(key, NodeKind::Convert(_)), "random bits of a computed key");
            }
            _ => {}
        }
        if let NodeKind::Call(HostFunction::NonZero { .. }) = n.kind {
            seen.see_if(nonzeros.contains(&n.operands[0]), "size that data decides twice");
            nonzeros.push(n.operands[0]);
        }
        // What a call makes of values of other sizes has a size of its own.
        let reads = match n.operands.is_empty() {
            true => shapes().any(data),
            false => operands().any(data),
        };
        let name = match &n.kind {
            NodeKind::Call(function) => function.name(),
            NodeKind::View(view) => view.kind().name(),
            NodeKind::Map(_) => "map",
            kind => kind.name(),
        };
        seen.see_if(
            reads || (name == "random" && shapes().any(data)),
            &format!("{name} of a size that data decides"),
        );
        let several = n.ty.shape.iter().filter(|d| data(d)).count() > 1;
        seen.see_if(several, "two sizes that data decides in one shape");
        seen.see_if(
            n.ty.shape.iter().any(|d| data(d) && !plain(d)),
            "size that follows from one that data decides",
        );
    }
    let of_data = |o: &Output| graph.ty(o.node).shape.iter().any(data);
    seen.see_if(
        graph.outputs().iter().any(of_data),
        "output of a size that data decides",
    );
}

fn see_bodies(seen: &mut Seen, graph: &Graph, outside: &str) {
    let mut loops: Vec<NodeId> = Vec::new();
    for (_, n) in graph.nodes() {
        let inside = match &n.kind {
            NodeKind::Loop(_) => "loop",
            NodeKind::Region(_) => "region",
            NodeKind::Call(function) => function.name(),
            NodeKind::View(view) => view.kind().name(),
            kind => kind.name(),
        };
        let around = outside.rsplit(' ').next().unwrap_or(outside);
        seen.see_if(around != "top", &format!("{inside} in a {around}"));
        if let NodeKind::Einsum { inputs, .. } = &n.kind {
            let terms = |labels: &Labels, id: NodeId| {
                let shape = &graph.ty(id).shape;
                labels
                    .iter()
                    .copied()
                    .zip(shape.iter().map(|d| d.as_const().unwrap_or(1)))
                    .collect::<Vec<_>>()
            };
            let mut all: Vec<(u16, i64)> = inputs.iter().zip(&n.operands).flat_map(|(l, &o)| terms(l, o)).collect();
            all.sort();
            all.dedup_by_key(|l| l.0);
            let product = all.iter().map(|l| l.1).product::<i64>() >= 8192;
            seen.see_if(product && around != "top", &format!("product in a {around}"));
        }
        let body = match &n.kind {
            NodeKind::Loop(l) => {
                seen.see_if(
                    n.operands.iter().any(|o| loops.contains(o)),
                    "value that two loops read",
                );
                loops.extend(&n.operands);
                &l.body.0
            }
            NodeKind::Region(r) => &r.body.0,
            _ => continue,
        };
        let nested = format!("{outside} {inside}");
        seen.see_if(nested.split(' ').count() > 3, "three loops and regions, one in another");
        see_bodies(seen, body, &nested);
    }
}
