//! What each node becomes, and what is refused.

use tlc_formats::onnx::write::Dimension;
use tlc_ir::text::{no_data, parse_graph};

fn export(text: &str) -> Result<tlc::onnx::Exported, String> {
    let graph = parse_graph(text, &mut no_data).unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
    tlc::onnx::export(&graph).map_err(|e| e.to_string())
}

fn operators(text: &str) -> String {
    let model = export(text).expect("exported");
    let ops: Vec<&str> = model.graph.nodes.iter().map(|n| n.op).collect();
    ops.join(" ")
}

#[test]
fn nodes_become_the_plainest_operators() {
    let cases = [
        // A bias broadcasts by itself.
        (
            "%x: f32[n, 4], %b: f32[4]",
            "%0 = expand %b : f32[n, 4]\n %1 = add %x, %0 : f32[n, 4]\n return %1",
            "Add",
        ),
        (
            "%x: f32[n, 4], %w: f32[4, 3]",
            "%0 = einsum %x, %w {ab,bc->ac} : f32[n, 3]\n return %0",
            "MatMul",
        ),
        (
            "%x: f32[n, 4], %w: f32[3, 4]",
            "%0 = einsum %x, %w {ab,cb->ac} : f32[n, 3]\n return %0",
            "Einsum",
        ),
        (
            "%x: f32[n, 4]",
            "%0 = reduce add %x {axes=[1]} : f32[n]\n return %0",
            "ReduceSum",
        ),
        (
            "%x: f32[n, 4]",
            "%0 = reduce argmax %x {axes=[1]} : i64[n]\n return %0",
            "ArgMax",
        ),
        (
            "%x: f32[n, 4]",
            "%0 = permute %x {axes=[1, 0]} : f32[4, n]\n return %0",
            "Transpose",
        ),
        (
            "%x: f32[n, 4]",
            "%0 = reshape %x : f32[n, 2, 2]\n return %0",
            "Shape Concat Reshape",
        ),
        (
            "%x: f32[8, 4]",
            "%0 = slice %x {start=[7, 1], step=[-1, 1]} : f32[8, 2]\n return %0",
            "Slice",
        ),
        (
            "%x: f32[n, 4]",
            "%0 = pad %x {lo=[0, 1], hi=[1, 0], value=0.5} : f32[n + 1, 5]\n return %0",
            "Pad",
        ),
        // Elements as rows, padded behind themselves; behind the last there is nothing.
        (
            "%x: f32[5, 4]",
            "%0 = pad %x {lo=[0, 1], hi=[1, 0], interior=[0, 2], value=0.5} : f32[6, 11]\n return %0",
            "Reshape Pad Reshape Slice Pad",
        ),
        (
            "%x: i8[n, 4]",
            "%0 = scan add %x {axis=0, reverse} : i8[n, 4]\n return %0",
            "Cast CumSum Cast",
        ),
        (
            "%x: i32[n], %y: i32[n]",
            "%0 = shr %x, %y : i32[n]\n return %0",
            "Less BitwiseNot Where Cast Cast BitShift Cast BitwiseNot Where",
        ),
        ("%x: f32[n]", "%0 = convert %x : f8e4m3fn[n]\n return %0", "Cast"),
        ("%x: f16[n]", "%0 = convert %x : u8[n]\n return %0", "Cast Clip Cast"),
        ("%x: f32[n]", "%0 = convert %x : i64[n]\n return %0", "Cast"),
        // Storage types are carried in one that has their values.
        (
            "%x: f8e5m2[4]",
            "%0 = slice %x {start=[0], step=[1]} : f8e5m2[2]\n return %0",
            "Cast Slice Cast",
        ),
        // An index that is a constant in range, one that is the model's own, and one that may be anything.
        (
            "%x: f32[4, n]",
            "%0 = const [3, 0] : i64[2]\n %1 = gather %x, %0 {axes=[0]} : f32[2, n]\n return %1",
            "Gather",
        ),
        (
            "%x: f32[4, n], %i: i64[2]",
            "%0 = const 0 : i64[]\n %1 = expand %0 : i64[2]\n %2 = lt %i, %1 : bool[2]\n %3 = const 4 : i64[]\n \
             %4 = expand %3 : i64[2]\n %5 = add %i, %4 : i64[2]\n %6 = select %2, %5, %i : i64[2]\n \
             %7 = gather %x, %6 {axes=[0]} : f32[2, n]\n return %7",
            "Less Add Where Gather",
        ),
        (
            "%x: f32[4, n], %i: i64[2]",
            "%0 = gather %x, %i {axes=[0]} : f32[2, n]\n return %0",
            "GreaterOrEqual Less And Where Gather Unsqueeze Where",
        ),
        // ONNX Runtime chooses between no truths.
        (
            "%x: bool[4, n], %i: i64[2]",
            "%0 = gather %x, %i {axes=[0]} : bool[2, n]\n return %0",
            "GreaterOrEqual Less And Where Gather Unsqueeze And",
        ),
        (
            "%c: bool[n], %x: bool[n], %y: bool[n]",
            "%0 = select %c, %x, %y : bool[n]\n return %0",
            "Not And And Or",
        ),
        (
            "%x: f32[n, 3, 8, 8], %w: f32[5, 3, 3, 3]",
            "%0 = pad %x {lo=[0, 0, 1, 1], hi=[0, 0, 1, 1], value=0.0} : f32[n, 3, 10, 10]\n \
             %1 = window %0 {axis=2, size=3, stride=2, dilation=1} : f32[n, 3, 4, 10, 3]\n \
             %2 = window %1 {axis=3, size=3, stride=2, dilation=1} : f32[n, 3, 4, 4, 3, 3]\n \
             %3 = einsum %2, %w {abcdef,gbef->agcd} : f32[n, 5, 4, 4]\n return %3",
            "Conv",
        ),
        (
            "%x: f32[n, 3, 8]",
            "%0 = window %x {axis=2, size=3, stride=2, dilation=1} : f32[n, 3, 3, 3]\n \
             %1 = reduce max %0 {axes=[3]} : f32[n, 3, 3]\n return %1",
            "MaxPool",
        ),
        (
            "%x: f32[n, 8]",
            "%0 = call sort %x {axis=1, count=2, descending} : (f32[n, 2], i64[n, 2])\n \
          %1 = project %0 {result=1} : i64[n, 2]\n return %1",
            "TopK Identity",
        ),
    ];
    for (inputs, body, expected) in cases {
        let text = format!("graph @f({inputs}) where n in 0..=64 {{\n {body}\n}}\n").replace(
            "where n in 0..=64 {",
            match inputs.contains('n') {
                true => "where n in 0..=64 {",
                false => "{",
            },
        );
        assert_eq!(operators(&text), expected, "{text}");
    }
}

#[test]
fn what_onnx_cannot_say_is_refused_by_node_and_reason() {
    let cases = [
        (
            "%k: u64[]",
            "%0 = random %k {stream=0} : u32[4]\n return %0",
            "%0 random at 2:2: ONNX does not say which random numbers a generator gives",
        ),
        (
            "%x: f32[4]",
            "%0 = scan max %x {axis=0} : f32[4] from \"peak\"\n return %0",
            "%0 scan of node 'peak': ONNX has no running max, only running sums and products",
        ),
        (
            "%x: f32[4]",
            "%0 = atan2 %x, %x : f32[4]\n return %0",
            "%0 atan2 at 2:2: ONNX has no angle of a point (Atan takes the quotient, which loses the quadrant)",
        ),
        (
            "%x: f32[4]",
            "%0 = iota {axis=0} : f32[n]\n return %0",
            "%0 iota at 2:2: the size `n` is told by no input's shape; expected --set n=N or an input of that extent",
        ),
        (
            "%x: f8e5m2[4]",
            "%0 = bitcast %x : u4[4]\n return %0",
            "%0 bitcast at 2:2: ONNX's BitCast takes no f8e5m2 for u4",
        ),
        (
            "%x: f32[4], %y: f32[4]",
            "return %x as y",
            "output `y`: an input has that name, too, and ONNX has one space of names",
        ),
    ];
    for (inputs, body, expected) in cases {
        let symbols = if body.contains("[n]") { " where n" } else { "" };
        let text = format!("graph @f({inputs}){symbols} {{\n {body}\n}}\n");
        assert_eq!(export(&text).expect_err("refused"), expected);
    }
}

#[test]
fn names_and_sizes_are_those_of_the_graph() {
    let text = "graph @net(%\"my input\": f32[batch, 2*half], %x: f32[half], %z: f32[three]) where batch in 1..=8, half, three = 3 {
  %0 = const [1.0, 2.0] : f32[2] from \"scale\"
  %1 = reshape %\"my input\" : f32[batch, half, 2] from \"split\"
  %2 = expand %0 : f32[batch, half, 2]
  %3 = mul %1, %2 : f32[batch, half, 2] from \"scaled\"
  return %3 as \"my output\", %x, %3 as again
}
";
    let model = export(text).expect("exported");
    let graph = &model.graph;
    assert_eq!((graph.name.as_str(), model.opset), ("net", 21));
    let shape = |v: &tlc_formats::onnx::write::ValueInfo| (v.name.clone(), v.shape.clone());
    let named = |n: &str| Dimension::Named(n.into());
    let (batch, half, two) = (named("batch"), named("half"), Dimension::Value(2));
    let inputs: Vec<_> = graph.inputs.iter().map(shape).collect();
    assert_eq!(
        inputs,
        [
            ("my input".to_string(), vec![batch.clone(), Dimension::Unknown]),
            ("x".to_string(), vec![half.clone()]),
            ("z".to_string(), vec![Dimension::Value(3)])
        ]
    );
    let outputs: Vec<_> = graph.outputs.iter().map(shape).collect();
    let whole = vec![batch, half.clone(), two];
    assert_eq!(
        outputs,
        [
            ("my output".to_string(), whole.clone()),
            ("output_1".to_string(), vec![half]),
            ("again".to_string(), whole)
        ]
    );
    assert!(graph.initializers.iter().any(|(name, _)| name == "scale"));
    let mul = graph.nodes.iter().rfind(|n| n.op == "Mul").expect("a product");
    assert_eq!(
        (mul.name.as_str(), &mul.outputs[..]),
        ("scaled/my output", &["my output".to_string()][..])
    );
    // Written twice it is the same file.
    let bytes = |m: &tlc::onnx::Exported| {
        let mut all = vec![];
        m.write(&mut all).expect("written");
        all
    };
    assert_eq!(bytes(&model), bytes(&export(text).expect("exported")));
}

#[test]
fn newer_operator_sets_are_asked_for_only_where_they_are_needed() {
    let opset = |body: &str| {
        export(&format!("graph @f(%x: bf16[4]) {{ {body} return %0 }}"))
            .expect("exported")
            .opset
    };
    assert_eq!(opset("%0 = exp %x : bf16[4]"), 21);
    assert_eq!(opset("%0 = sin %x : bf16[4]"), 22);
    assert_eq!(opset("%0 = bitcast %x : f16[4]"), 26);
    assert_eq!(opset("%0 = convert %x : f4e2m1fn[4]"), 23);
    assert_eq!(opset("%0 = scan mul %x {axis=0} : bf16[4]"), 26);
}
