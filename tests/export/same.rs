//! Whether two graphs compute the same.

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, HostTensor, Input, compile_ir};
use tlc_ir::Graph;
use tlc_ir::interp::{self, Bounded, compare, interpret_with_bounds};

/// The graph by way of an ONNX model's bytes.
pub fn through_onnx(graph: &Graph) -> Result<Graph, String> {
    let model = tlc::onnx::export(graph).map_err(|e| format!("export: {e}"))?;
    let mut bytes = vec![];
    model.write(&mut bytes).expect("memory is written to");
    let imported = import(&bytes, &ImportOptions::default()).map_err(|e| format!("import: {e}"))?;
    Ok(imported.graph)
}

pub fn run(
    graph: &Graph,
    inputs: &[HostTensor],
    symbols: &[(String, i64)],
) -> Result<Vec<(String, HostTensor)>, String> {
    let options = CompileOptions {
        threads: Some(1),
        symbols: symbols.to_vec(),
        ..CompileOptions::default()
    };
    let executable = compile_ir(graph, &options).map_err(|e| format!("compile: {e}"))?;
    let given: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
    let outputs = executable.run(&given).map_err(|e| format!("run: {e}"))?;
    Ok(outputs.iter().map(|o| (o.name.clone(), o.to_host())).collect())
}

fn bounded(graph: &Graph, inputs: &[HostTensor], symbols: &[(String, i64)]) -> Result<Vec<Bounded>, String> {
    let options = interp::Options {
        symbols: symbols.to_vec(),
        ..interp::Options::default()
    };
    interpret_with_bounds(graph, inputs, &options).map_err(|e| format!("interpreter: {e}"))
}

/// Whether the second graph's results are the first's, whose symbols have those values: returns whether to the bit, or what differs. Where bits
/// differ, the exact values must agree within the bounds of both, and the second's results be within its own.
pub fn same(a: &Graph, b: &Graph, inputs: &[HostTensor], symbols: &[(String, i64)]) -> Result<bool, String> {
    let (first, second) = (run(a, inputs, symbols)?, run(b, inputs, &[])?);
    if first == second {
        return Ok(true);
    }
    let names = |all: &[(String, HostTensor)]| all.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>();
    if names(&first) != names(&second) {
        return Err(format!("outputs {:?} and {:?}", names(&first), names(&second)));
    }
    let (exact_a, exact_b) = (bounded(a, inputs, symbols)?, bounded(b, inputs, &[])?);
    for (k, (name, y)) in second.iter().enumerate() {
        compare(y, &exact_b[k]).map_err(|e| format!("output {name} of the second: {e}"))?;
        compare(&first[k].1, &exact_a[k]).map_err(|e| format!("output {name} of the first: {e}"))?;
        let (a, b) = (&exact_a[k], &exact_b[k]);
        if a.shape != b.shape || a.dtype != b.dtype {
            return Err(format!(
                "output {name}: {}{:?} and {}{:?}",
                a.dtype, a.shape, b.dtype, b.shape
            ));
        }
        for i in 0..a.value.len() {
            let (x, y) = (a.value[i], b.value[i]);
            let error = a.error[i] + b.error[i];
            let close = x == y || (x.is_nan() && y.is_nan()) || (x - y).abs() <= error || error.is_infinite();
            if !close {
                return Err(format!("output {name} element {i}: {x:e} and {y:e}, bound {error:e}"));
            }
        }
    }
    Ok(false)
}
