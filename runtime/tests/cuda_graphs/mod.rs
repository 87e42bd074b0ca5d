//! Graphs that between them use every node kind and dtype.

use smallvec::smallvec;
use tlc_ir::graph::{Axes, Monoid, Origin, ScatterOp, Semiring, Shape, View};
use tlc_ir::testgen::{GenOptions, random_case};
use tlc_ir::text::{no_data, parse_graph};
use tlc_ir::{DType, Graph, IndexExpr, NodeId, NodeKind, Precision, Scalar, ScalarOp, TensorType};

/// A graph with values for its symbols.
pub struct Case {
    pub name: String,
    pub graph: Graph,
    pub symbols: Vec<i64>,
    /// How exactly products are to be computed.
    pub precision: Precision,
    /// Whether a library multiplies what it can where that is to be exact.
    pub library: bool,
}

/// Records nodes without ceremony.
pub struct Builder(pub Graph);

impl Builder {
    pub fn new(name: &str) -> Builder {
        Builder(Graph::new(name))
    }
    pub fn input(&mut self, name: &str, dtype: DType, shape: &[i64]) -> NodeId {
        self.input_of(name, dtype, shape.iter().map(|&d| IndexExpr::from(d)).collect())
    }
    pub fn input_of(&mut self, name: &str, dtype: DType, shape: Shape) -> NodeId {
        let ty = TensorType { dtype, shape };
        self.0.add_input(name, ty, Origin::Unknown).expect("an input")
    }
    pub fn add(&mut self, kind: NodeKind, operands: &[NodeId]) -> NodeId {
        self.0
            .add(kind, operands, Origin::Unknown)
            .unwrap_or_else(|e| panic!("{e}"))
    }
    pub fn map(&mut self, op: ScalarOp, operands: &[NodeId]) -> NodeId {
        self.add(NodeKind::Map(op), operands)
    }
    pub fn view(&mut self, view: View, x: NodeId) -> NodeId {
        self.add(NodeKind::View(view), &[x])
    }
    pub fn reduce(&mut self, monoid: Monoid, axes: &[u8], x: NodeId) -> NodeId {
        let axes: Axes = axes.into();
        self.add(NodeKind::Reduce { monoid, axes }, &[x])
    }
    pub fn convert(&mut self, to: DType, x: NodeId) -> NodeId {
        self.add(NodeKind::Convert(to), &[x])
    }
    /// A constant of the type of `like`, everywhere.
    pub fn constant(&mut self, value: f64, like: NodeId) -> NodeId {
        let ty = self.0.ty(like).clone();
        let c = self.add(NodeKind::Const(Scalar::from_f64(ty.dtype, value)), &[]);
        self.view(View::Expand(ty.shape), c)
    }
    /// A row value (last axis reduced) repeated over the last axis.
    pub fn over_row(&mut self, row: NodeId, like: NodeId) -> NodeId {
        let shape = self.0.ty(like).shape.clone();
        let mut with_one = shape.clone();
        if let Some(last) = with_one.last_mut() {
            *last = IndexExpr::ONE;
        }
        let kept = self.view(View::Reshape(with_one), row);
        self.view(View::Expand(shape), kept)
    }
    pub fn softmax(&mut self, x: NodeId) -> NodeId {
        let last = self.0.ty(x).rank() as u8 - 1;
        let m = self.reduce(Monoid::Max, &[last], x);
        let m = self.over_row(m, x);
        let d = self.map(ScalarOp::Sub, &[x, m]);
        let e = self.map(ScalarOp::Exp, &[d]);
        let s = self.reduce(Monoid::Add, &[last], e);
        let s = self.over_row(s, x);
        self.map(ScalarOp::Div, &[e, s])
    }
    pub fn layer_norm(&mut self, x: NodeId, n: f64) -> NodeId {
        let last = self.0.ty(x).rank() as u8 - 1;
        let count = self.constant(n, x);
        let sum = self.reduce(Monoid::Add, &[last], x);
        let sum = self.over_row(sum, x);
        let mean = self.map(ScalarOp::Div, &[sum, count]);
        let d = self.map(ScalarOp::Sub, &[x, mean]);
        let sq = self.map(ScalarOp::Mul, &[d, d]);
        let var = self.reduce(Monoid::Add, &[last], sq);
        let var = self.over_row(var, x);
        let var = self.map(ScalarOp::Div, &[var, count]);
        let eps = self.constant(1e-5, x);
        let var = self.map(ScalarOp::Add, &[var, eps]);
        let r = self.map(ScalarOp::Rsqrt, &[var]);
        self.map(ScalarOp::Mul, &[d, r])
    }
    pub fn done(self, out: NodeId) -> Case {
        self.done_all(&[out])
    }
    pub fn done_all(mut self, out: &[NodeId]) -> Case {
        out.iter().for_each(|&o| self.0.add_output("", o));
        Case {
            name: self.0.name.clone(),
            symbols: Vec::new(),
            precision: Precision::Exact,
            library: true,
            graph: self.0,
        }
    }
    pub fn done_with(self, out: NodeId, symbols: &[i64]) -> Case {
        let mut c = self.done(out);
        c.symbols = symbols.into();
        c
    }
}

/// `relu(a * b + c)`.
pub fn chain() -> Case {
    let mut b = Builder::new("chain");
    let (x, y, z) = (
        b.input("a", DType::F32, &[1000, 3]),
        b.input("b", DType::F32, &[1000, 3]),
        b.input("c", DType::F32, &[1000, 3]),
    );
    let p = b.map(ScalarOp::Mul, &[x, y]);
    let s = b.map(ScalarOp::Add, &[p, z]);
    let zero = b.constant(0.0, s);
    let r = b.map(ScalarOp::Max, &[s, zero]);
    b.done(r)
}

/// Softmax over rows.
pub fn softmax(name: &str, rows: i64, columns: i64) -> Case {
    let mut b = Builder::new(name);
    let x = b.input("x", DType::F32, &[rows, columns]);
    let y = b.softmax(x);
    b.done(y)
}

/// Sum over the first axis.
pub fn column_sum() -> Case {
    let mut b = Builder::new("column_sum");
    let x = b.input("x", DType::F32, &[40, 700]);
    let y = b.reduce(Monoid::Add, &[0], x);
    b.done(y)
}

fn symbolic_softmax() -> Case {
    let mut b = Builder::new("symbolic_softmax");
    let (m, n) = (b.0.add_symbol("m", 0, 4096), b.0.add_symbol("n", 1, 65536));
    let x = b.input_of("x", DType::F32, smallvec![m.into(), n.into()]);
    let y = b.softmax(x);
    b.done_with(y, &[5, 37])
}

fn symbolic_broadcast() -> Case {
    let mut b = Builder::new("symbolic_broadcast");
    let (m, n) = (b.0.add_symbol("m", 0, 1 << 31), b.0.add_symbol("n", 0, 1 << 31));
    let x = b.input_of("x", DType::F32, smallvec![m.into(), n.into()]);
    let v = b.input_of("v", DType::F32, smallvec![n.into()]);
    let v = b.view(View::Expand(smallvec![m.into(), n.into()]), v);
    let t = b.map(ScalarOp::Tanh, &[x]);
    let y = b.map(ScalarOp::Add, &[t, v]);
    b.done_with(y, &[6, 50])
}

fn reductions(dtype: DType) -> Case {
    let mut b = Builder::new(&format!("reductions_{dtype}"));
    let x = b.input("x", dtype, &[6, 90]);
    let mut out = Vec::new();
    for monoid in Monoid::ALL {
        let bits = matches!(monoid, Monoid::And | Monoid::Or);
        let number = matches!(monoid, Monoid::Add | Monoid::Mul);
        if (bits && dtype.is_float()) || (number && dtype == DType::Bool) {
            continue;
        }
        for axis in [0, 1] {
            out.push(b.reduce(monoid, &[axis], x));
        }
        if !monoid.is_arg() {
            out.push(b.reduce(monoid, &[0, 1], x));
        }
    }
    b.done_all(&out)
}

fn unary(dtype: DType) -> Case {
    let mut b = Builder::new(&format!("unary_{dtype}"));
    let x = b.input("x", dtype, &[70]);
    let mut out = Vec::new();
    for &op in ScalarOp::ALL {
        if op.arity() == 1 && op.result_dtype(&[dtype]).is_ok() {
            out.push(b.map(op, &[x]));
        }
    }
    b.done_all(&out)
}

fn binary(dtype: DType) -> Case {
    let mut b = Builder::new(&format!("binary_{dtype}"));
    let (x, y) = (b.input("x", dtype, &[130]), b.input("y", dtype, &[130]));
    let mut out = Vec::new();
    for &op in ScalarOp::ALL {
        if op.arity() == 2 && op.result_dtype(&[dtype; 2]).is_ok() {
            out.push(b.map(op, &[x, y]));
        }
    }
    let c = b.map(ScalarOp::Lt, &[x, y]);
    out.push(b.map(ScalarOp::Select, &[c, x, y]));
    if dtype.is_float() {
        out.push(b.map(ScalarOp::Fma, &[x, y, x]));
    }
    b.done_all(&out)
}

fn conversions(from: DType) -> Case {
    let mut b = Builder::new(&format!("convert_{from}"));
    let x = b.input("x", from, &[33]);
    let out: Vec<NodeId> = DType::ALL
        .into_iter()
        .filter(|&d| d != from)
        .map(|d| b.convert(d, x))
        .collect();
    b.done_all(&out)
}

fn views() -> Case {
    let mut b = Builder::new("views");
    let x = b.input("x", DType::F32, &[12, 20]);
    let p = b.view(View::Permute(smallvec![1, 0]), x);
    let d = |v: &[i64]| -> Shape { v.iter().map(|&v| IndexExpr::from(v)).collect() };
    let pad = b.view(
        View::Pad {
            lo: d(&[1, 2]).into_boxed_slice(),
            hi: d(&[3, 0]).into_boxed_slice(),
            interior: [0, 2].into(),
            value: Scalar::from_f64(DType::F32, -1.5),
        },
        x,
    );
    let pad = b.map(ScalarOp::Exp, &[pad]);
    let slice = b.view(
        View::Slice {
            start: d(&[11, 1]).into_boxed_slice(),
            step: [-2, 3].into(),
            size: d(&[6, 6]).into_boxed_slice(),
        },
        x,
    );
    let reshape = b.view(View::Reshape(d(&[8, 30])), p);
    let window = b.view(
        View::Window {
            axis: 1,
            size: IndexExpr::from(3),
            stride: 2,
            dilation: 2,
        },
        x,
    );
    let pool = b.reduce(Monoid::Max, &[2], window);
    let iota = b.add(
        NodeKind::Iota {
            ty: TensorType::new(DType::I64, [IndexExpr::from(12), IndexExpr::from(20)]),
            axis: 1,
        },
        &[],
    );
    let copy = b.add(NodeKind::Copy, &[x]);
    let p = b.map(ScalarOp::Neg, &[p]);
    b.done_all(&[p, pad, slice, reshape, pool, iota, copy])
}

fn gathers() -> Case {
    let mut b = Builder::new("gathers");
    let x = b.input("x", DType::F16, &[9, 17]);
    let i = b.input("i", DType::I32, &[5, 3]);
    let rows = b.add(NodeKind::Gather { axes: smallvec![0] }, &[x, i]);
    let columns = b.add(NodeKind::Gather { axes: smallvec![1] }, &[x, i]);
    let both = b.add(NodeKind::Gather { axes: smallvec![0, 1] }, &[x, i, i]);
    b.done_all(&[rows, columns, both])
}

fn scatters(op: ScatterOp) -> Case {
    let mut b = Builder::new(&format!("scatter_{}", op.name()));
    let base = b.input("base", DType::F32, &[9, 4]);
    let i = b.input("i", DType::I64, &[6]);
    let u = b.input("u", DType::F32, &[6, 4]);
    let y = b.add(NodeKind::Scatter { axes: smallvec![0], op }, &[base, u, i]);
    // Enough for owners of ranges, and an axis that comes before the indexed one.
    let base = b.input("rows", DType::F32, &[700, 20]);
    let i = b.input("places", DType::I64, &[500]);
    let u = b.input("updates", DType::F32, &[500, 20]);
    let owned = b.add(NodeKind::Scatter { axes: smallvec![0], op }, &[base, u, i]);
    let base = b.input("columns", DType::F32, &[20, 300]);
    let outer = b.add(NodeKind::Scatter { axes: smallvec![1], op }, &[base, u, i]);
    b.done_all(&[y, owned, outer])
}

fn scans() -> Case {
    let mut b = Builder::new("scans");
    let x = b.input("x", DType::BF16, &[7, 300]);
    let mut out = Vec::new();
    for (monoid, axis, exclusive, reverse) in [
        (Monoid::Add, 1, false, false),
        (Monoid::Mul, 0, true, false),
        (Monoid::Max, 1, false, true),
        (Monoid::Min, 0, true, true),
    ] {
        out.push(b.add(
            NodeKind::Scan {
                monoid,
                axis,
                exclusive,
                reverse,
            },
            &[x],
        ));
    }
    b.done_all(&out)
}

fn random() -> Case {
    let mut b = Builder::new("random");
    let key = b.input("key", DType::U64, &[]);
    let bits = b.add(
        NodeKind::Random {
            shape: smallvec![IndexExpr::from(20), IndexExpr::from(30)],
            stream: 3,
        },
        &[key],
    );
    let f = b.convert(DType::F32, bits);
    let y = b.softmax(f);
    b.done(y)
}

fn einsum(semiring: Semiring, dtype: DType) -> Case {
    let mut b = Builder::new(&format!("einsum_{}_{dtype}", semiring.name()));
    let (x, y) = (b.input("x", dtype, &[20, 45]), b.input("y", dtype, &[45, 12]));
    let product = b.add(
        NodeKind::Einsum {
            inputs: smallvec![smallvec![0, 1], smallvec![1, 2]],
            output: smallvec![0, 2],
            semiring,
            accumulator: dtype.accumulator(),
            dtype,
        },
        &[x, y],
    );
    let bias = b.constant(1.0, product);
    let out = b.map(ScalarOp::Max, &[product, bias]);
    b.done(out)
}

fn attention() -> Case {
    let mut b = Builder::new("attention");
    let q = b.input("q", DType::F16, &[2, 10, 16]);
    let k = b.input("k", DType::F16, &[2, 50, 16]);
    let v = b.input("v", DType::F16, &[2, 50, 16]);
    let einsum = |b: &mut Builder, x, y, from: [[u16; 3]; 2], to: [u16; 3]| {
        b.add(
            NodeKind::Einsum {
                inputs: from.iter().map(|f| f[..].into()).collect(),
                output: to[..].into(),
                semiring: Semiring::AddMul,
                accumulator: DType::F32,
                dtype: DType::F32,
            },
            &[x, y],
        )
    };
    let scores = einsum(&mut b, q, k, [[0, 1, 2], [0, 3, 2]], [0, 1, 3]);
    let p = b.softmax(scores);
    let p = b.convert(DType::F16, p);
    let o = einsum(&mut b, p, v, [[0, 1, 2], [0, 2, 3]], [0, 1, 3]);
    b.done(o)
}

fn layer_norm() -> Case {
    let mut b = Builder::new("layer_norm");
    let x = b.input("x", DType::F32, &[10, 768]);
    let y = b.layer_norm(x, 768.0);
    b.done(y)
}

fn scalar() -> Case {
    let mut b = Builder::new("scalar");
    let (x, y) = (b.input("x", DType::F64, &[]), b.input("y", DType::F64, &[]));
    let p = b.map(ScalarOp::Pow, &[x, y]);
    b.done(p)
}

fn long_row() -> Case {
    // Longer than what shared memory holds.
    let mut c = softmax("long_row", 2, 20000);
    c.name = "long_row".into();
    c
}

/// Every case.
pub fn cases() -> Vec<Case> {
    let mut all = vec![
        chain(),
        softmax("softmax", 6, 1000),
        softmax("softmax_in_pieces", 3, 24000),
        softmax("short_softmax", 200, 10),
        long_row(),
        column_sum(),
        symbolic_softmax(),
        symbolic_broadcast(),
        views(),
        gathers(),
        scans(),
        random(),
        attention(),
        layer_norm(),
        scalar(),
    ];
    for d in DType::ALL {
        all.push(conversions(d));
        if !d.is_storage() {
            all.extend([reductions(d), unary(d), binary(d)]);
        }
    }
    for op in ScatterOp::ALL {
        all.push(scatters(op));
    }
    for s in Semiring::ALL {
        let dtype = if s == Semiring::OrAnd { DType::Bool } else { DType::I32 };
        all.push(einsum(s, dtype));
    }
    all.push(einsum(Semiring::AddMul, DType::BF16));
    all.extend(products());
    all.push(rows_of_product("softmax_of_product", "f32", [48, 24, 40], ""));
    all.push(rows_of_product("softmax_of_product_f16", "f16", [33, 40, 72], ""));
    all.push(rounded_attention("attention_of_one_row", "f16", [1, 150, 64]));
    all
}

/// Products by matrix instructions.
pub fn products() -> Vec<Case> {
    vec![
        product(),
        layer(),
        ragged_product(),
        product_of_rows(),
        dequantized(),
        product_in_tf32("tf32", "ab,bc->ac"),
        product_in_tf32("tf32_turned", "ba,cb->ac"),
        rounded_attention("attention_128", "f16", [32, 40, 128]),
        rounded_attention("attention_64", "bf16", [40, 70, 64]),
    ]
}

/// Some of the graphs that are timed on devices (`tests/gpu/timed`).
pub fn timed() -> Vec<Case> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/gpu/timed");
    let names = [
        "attention",
        "attention_causal",
        "attention_f32",
        "convolution_f16",
        "layer_norm_f16",
        "product_f32",
    ];
    let case = |name: &str| {
        let file = folder.join(format!("{name}.tlir"));
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        parsed(name, &[], &text)
    };
    names.into_iter().map(case).collect()
}

/// Rows behind products of tiles of all sizes.
pub fn rows_of_products() -> Vec<Case> {
    let mut all = Vec::new();
    for (dtype, sizes) in [
        ("f16", [4096, 64, 16]),
        ("f16", [65536, 512, 64]),
        ("bf16", [200, 512, 64]),
        ("bf16", [65536, 512, 128]),
        ("f16", [65536, 512, 100]),
        ("f16", [65536, 512, 256]),
        ("bf16", [2000, 512, 250]),
        ("f32", [4096, 256, 16]),
        ("f32", [65536, 256, 64]),
        ("f32", [65536, 256, 128]),
        ("f32", [2000, 256, 256]),
        ("f32", [65536, 256, 256]),
        ("tf32", [65536, 256, 64]),
        ("tf32", [65536, 256, 128]),
        ("tf32", [65536, 256, 250]),
    ] {
        let [m, _, n] = sizes;
        let stored = if dtype == "tf32" { "f32" } else { dtype };
        let case = rows_of_product(&format!("rows_of_product_{dtype}_{m}_{n}"), stored, sizes, ", %p");
        let precision = match dtype {
            "tf32" => Precision::Tf32,
            _ => Precision::Exact,
        };
        all.push(Case { precision, ..case });
    }
    all
}

/// A softmax of a product with a bias and a residual, and what else is returned of the two.
fn rows_of_product(name: &str, dtype: &str, [m, k, n]: [i64; 3], more: &str) -> Case {
    let acc = if dtype == "f32" { "" } else { "; acc=f32" };
    let residual = match dtype {
        "f32" => "neg",
        _ => "convert",
    };
    let text = format!(
        "graph @rows(%x: {dtype}[{m}, {k}], %w: {dtype}[{k}, {n}], %b: f32[{n}], %r: {dtype}[{m}, {n}]) {{
           %0 = einsum %x, %w {{ab,bc->ac{acc}}} : f32[{m}, {n}]
           %b1 = expand %b : f32[{m}, {n}]
           %1 = add %0, %b1 : f32[{m}, {n}]
           %r1 = {residual} %r : f32[{m}, {n}]
           %p = add %1, %r1 : f32[{m}, {n}]
           %2 = reduce max %p {{axes=[1]}} : f32[{m}]
           %3 = reshape %2 : f32[{m}, 1]
           %4 = expand %3 : f32[{m}, {n}]
           %5 = sub %p, %4 : f32[{m}, {n}]
           %6 = exp %5 : f32[{m}, {n}]
           %7 = reduce add %6 {{axes=[1]}} : f32[{m}]
           %8 = reshape %7 : f32[{m}, 1]
           %9 = expand %8 : f32[{m}, {n}]
           %y = div %6, %9 : f32[{m}, {n}]
           return %y{more}
         }}"
    );
    Case {
        library: false,
        ..parsed(name, &[], &text)
    }
}

fn parsed(name: &str, symbols: &[i64], text: &str) -> Case {
    Case {
        name: name.into(),
        graph: parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{e:?}\n{text}")),
        symbols: symbols.to_vec(),
        precision: Precision::Exact,
        library: true,
    }
}

/// A product by matrix instructions of which one block takes a tile of 64 by 64, three blocks of steps.
pub fn product() -> Case {
    let text = "graph @product(%x: f16[64, 192], %y: f16[192, 128]) {
       %0 = einsum %x, %y {ab,bc->ac; acc=f32} : f16[64, 128]
       return %0
     }";
    parsed("product", &[], text)
}

/// One with what a layer has behind it.
fn layer() -> Case {
    let text = "graph @layer(%x: bf16[64, 128], %w: bf16[96, 128], %b: f32[96], %r: bf16[64, 96]) {
       %0 = einsum %x, %w {ab,cb->ac; acc=f32} : f32[64, 96]
       %1 = expand %b : f32[64, 96]
       %2 = add %0, %1 : f32[64, 96]
       %3 = tanh %2 : f32[64, 96]
       %4 = convert %r : f32[64, 96]
       %5 = add %3, %4 : f32[64, 96]
       %6 = convert %5 : bf16[64, 96]
       return %6
     }";
    parsed("layer", &[], text)
}

/// One of sizes that no tile divides.
fn ragged_product() -> Case {
    let text = "graph @ragged(%x: f16[70, 75], %y: f16[75, 33]) {
       %0 = einsum %x, %y {ab,bc->ac; acc=f32} : f32[70, 33]
       return %0
     }";
    parsed("ragged_product", &[], text)
}

/// One of rows that a call decides.
fn product_of_rows() -> Case {
    let text = "graph @rows(%x: f16[n, m], %w: f16[m, 64]) where n in 0..=4096, m in 0..=4096 {
       %0 = einsum %x, %w {ab,bc->ac; acc=f32} : f16[n, 64]
       return %0
     }";
    parsed("product_of_rows", &[37, 150], text)
}

/// One whose right operand is computed from what is stored.
fn dequantized() -> Case {
    let text = "graph @dequantized(%x: f16[32, 128], %w: i8[64, 128], %s: f32[64]) {
       %0 = convert %w : f32[64, 128]
       %1 = reshape %s : f32[64, 1]
       %2 = expand %1 : f32[64, 128]
       %3 = mul %0, %2 : f32[64, 128]
       %4 = convert %3 : f16[64, 128]
       %5 = einsum %x, %4 {ab,cb->ac; acc=f32} : f32[32, 64]
       return %5
     }";
    parsed("dequantized", &[], text)
}

/// A product of f32 that may be rounded.
fn product_in_tf32(name: &str, labels: &str) -> Case {
    let text = format!(
        "graph @product(%x: f32[96, 96], %y: f32[96, 96]) {{
           %0 = einsum %x, %y {{{labels}}} : f32[96, 96]
           return %0
         }}"
    );
    Case {
        precision: Precision::Tf32,
        ..parsed(name, &[], &text)
    }
}

/// An attention of 16-bit types as exporters write it, of so many rows, keys and features.
fn rounded_attention(name: &str, dtype: &str, [s, t, d]: [i64; 3]) -> Case {
    let text = format!(
        "graph @attention(%q: {dtype}[1, {s}, {d}], %k: {dtype}[1, {t}, {d}], %v: {dtype}[1, {t}, {d}]) {{
           %s = einsum %q, %k {{abc,adc->abd; acc=f32}} : {dtype}[1, {s}, {t}]
           %x = convert %s : f32[1, {s}, {t}]
           %max = reduce max %x {{axes=[2]}} : f32[1, {s}]
           %max1 = reshape %max : f32[1, {s}, 1]
           %max2 = expand %max1 : f32[1, {s}, {t}]
           %away = sub %x, %max2 : f32[1, {s}, {t}]
           %power = exp %away : f32[1, {s}, {t}]
           %sum = reduce add %power {{axes=[2]}} : f32[1, {s}]
           %sum1 = reshape %sum : f32[1, {s}, 1]
           %sum2 = expand %sum1 : f32[1, {s}, {t}]
           %p = div %power, %sum2 : f32[1, {s}, {t}]
           %r = convert %p : {dtype}[1, {s}, {t}]
           %y = einsum %r, %v {{abd,adc->abc; acc=f32}} : {dtype}[1, {s}, {d}]
           return %y
         }}"
    );
    parsed(name, &[], &text)
}

/// Generated graphs.
pub fn random_cases(count: u64) -> Vec<Case> {
    let options = GenOptions {
        control: false,
        ..GenOptions::default()
    };
    (0..count)
        .map(|seed| {
            let made = random_case(seed, &options);
            Case {
                name: format!("random_{seed}"),
                graph: made.graph,
                symbols: made.binding,
                precision: Precision::Exact,
                library: true,
            }
        })
        .collect()
}
