//! Products with Jacobians and second derivatives, whole matrices of them and functions over batches beside what JAX computes, which
//! `tests/reference/forward.py` recorded.

use serde_json::Value;
use tlc::{DType, Graph, HostTensor, ScatterOp, Tensor, concat, einsum, grad, hessian, hvp, jacobian, jvp, s, vmap};

fn numbers(v: &Value) -> Vec<f64> {
    let all = v.as_array().expect("a list").iter();
    all.map(|v| v.as_f64().expect("a number")).collect()
}

fn lists(v: &Value) -> Vec<Vec<f64>> {
    v.as_array().expect("a list").iter().map(numbers).collect()
}

fn operands(g: &Graph, row: &Value) -> Vec<Tensor> {
    let all = row["operands"].as_array().expect("a list").iter();
    all.map(|o| {
        let shape: Vec<usize> = numbers(&o["shape"]).into_iter().map(|n| n as usize).collect();
        g.constant(HostTensor::from_slice(&shape, &numbers(&o["data"])).expect("as many as the shape has"))
    })
    .collect()
}

/// The function of that name there.
fn function(name: &str, t: &[Tensor]) -> Tensor {
    let x = &t[0];
    let g = x.graph();
    let whole = |numbers: &[i64]| g.constant(numbers.to_vec());
    match name {
        "softmax" => x.softmax(1),
        "log_softmax" => x.log_softmax(0),
        "logsumexp" => x.logsumexp(1),
        "prod" => x.prod(1),
        "cumsum_of_exp" => x.exp().cumsum(1),
        "cumprod" => x.cumprod(1),
        "sort" => x.sort(1, false).pow(3.0),
        "max" => x.max(0).square(),
        "min_of_ties" => x.round().min(1) + x.square().sum(1),
        "sine_of_product" => x.matmul(&t[1]).sin(),
        "matmul" => t[1].matmul(x).tanh(),
        "bilinear" => einsum("ij,jk,k->i", &[x, &t[1], &t[2]]),
        "norm" => x.norm(1),
        "power" => x.pow(&t[1]),
        "atan2" => x.atan2(&t[1]),
        "quotient" => x / &t[1],
        "erf" => x.erf(),
        "take" => x.take(&whole(&[2, 0, 2]), 0).square(),
        "scatter_add" => x.scatter(&[0], &[&whole(&[2, 0, 2])], &t[1], ScatterOp::Add).pow(3.0),
        "scatter_set" => x.scatter(&[0], &[&whole(&[2, 0])], &t[1], ScatterOp::Set).pow(3.0),
        "scatter_mul" => x.scatter(&[0], &[&whole(&[2, 0, 1])], &t[1], ScatterOp::Mul).square(),
        "where" => x.lt(&t[1]).select(x * &t[1], x.exp()),
        "pad_and_slice" => x.pad(&[(1, 0), (0, 2)], 0.0).slice(s![.., ..;2]).square() * 3.0,
        "determinant" => x.det().reshape([1]),
        "silu" => x.silu(),
        "gelu" => x.gelu(),
        "repeated" => g
            .repeat(3)
            .carry(x)
            .record(|i| {
                let h = &i.carried[0];
                vec![h.matmul(&i.capture(&t[1])).tanh() + h * i.number.cast(DType::F64)]
            })
            .remove(0),
        "scanned" => {
            let r = g.repeat(x.dim(0)).carry(&t[1]).slice(x, 0).record(|i| {
                let h = (&i.carried[0] * i.capture(&t[1])).sin() + &i.slices[0];
                i.stack(&h.square(), 0);
                vec![h]
            });
            concat(&[&r[0].unsqueeze(0), &r[1]], 0)
        }
        other => panic!("no function {other}"),
    }
}

fn check(name: &str, what: &str, found: &Tensor, expected: &[f64]) {
    let found = found.eval().unwrap_or_else(|e| panic!("{name}: {e}"));
    let found = found.as_slice::<f64>().expect("doubles");
    let near = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-10 * b.abs().max(1.0);
    let fits = found.len() == expected.len() && found.iter().zip(expected).all(near);
    assert!(fits, "{name}: {what}\n  {found:?}\n  {expected:?}");
}

fn weighted(y: &Tensor) -> Tensor {
    let weights = y.graph().range(y.elements(), DType::F64) / 4.0 + 1.0;
    (y * weights.reshape(y.shape())).sum(..)
}

fn recorded() -> Value {
    serde_json::from_str(include_str!("../reference/forward.json")).expect("JSON")
}

#[test]
fn products_and_matrices_are_those_of_jax() {
    let recorded = recorded();
    let rows = recorded["rows"].as_array().expect("rows");
    assert!(rows.len() >= 25, "{}", rows.len());
    for row in rows {
        let name = row["name"].as_str().expect("a name");
        let g = Graph::new(name);
        let x = operands(&g, row);
        let tangents: Vec<Tensor> = (lists(&row["tangents"]).into_iter().zip(&x))
            .map(|(t, x)| g.constant(t).reshape(x.shape()))
            .collect();
        let by: Vec<&Tensor> = x.iter().collect();
        let along: Vec<&Tensor> = tangents.iter().collect();
        let y = function(name, &x);
        check(name, "value", &y, &numbers(&row["value"]));
        check(name, "tangent", &jvp(&[&y], &by, &along)[0], &numbers(&row["tangent"]));
        let loss = weighted(&y);
        for (h, expected) in hvp(&loss, &by, &along).iter().zip(lists(&row["hvp"])) {
            check(name, "second derivatives along tangents", h, &expected);
        }
        check(name, "jacobian", &jacobian(&y, &x[0]), &numbers(&row["jacobian"]));
        check(name, "hessian", &hessian(&loss, &x[0]), &numbers(&row["hessian"]));
    }
}

#[test]
fn batches_are_those_of_jax() {
    let recorded = recorded();
    for row in recorded["batches"].as_array().expect("rows") {
        let name = row["name"].as_str().expect("a name");
        let g = Graph::new(name);
        let x = operands(&g, row);
        let axes = row["axes"].as_array().expect("a list").iter().map(Value::as_i64);
        let given: Vec<(&Tensor, Option<i64>)> = x.iter().zip(axes).collect();
        let y = vmap(&given, |t| vec![function(name, t)]);
        check(name, "value of a batch", &y[0], &numbers(&row["value"]));
        let slopes = vmap(&given, |t| {
            grad(&weighted(&function(name, t)), &t.iter().collect::<Vec<_>>())
        });
        for (d, expected) in slopes.iter().zip(lists(&row["gradients"])) {
            check(name, "gradient of each", d, &expected);
        }
    }
}

/// A loop that nothing bounds, and one whose iterations each example counts for itself.
#[test]
fn loops_that_data_ends_are_those_of_jax() {
    let recorded = recorded();
    let row = &recorded["unbounded"];
    let g = Graph::default();
    let (a, t) = (
        g.constant(numbers(&row["operand"])),
        g.constant(numbers(&row["tangent"])),
    );
    let far = |x: &Tensor, a: &Tensor| (x.square() - a).abs().max(..).gt(1e-12);
    let root = g.repeat_while(&far(&a, &a)).carry(&a).record(|i| {
        let a = i.capture(&a);
        let x = (&i.carried[0] + &a / &i.carried[0]) / 2.0;
        i.go_on_if(&far(&x, &a));
        vec![x]
    });
    check("newton", "value", &root[0], &numbers(&row["value"]));
    check(
        "newton",
        "tangent",
        &jvp(&[&root[0]], &[&a], &[&t])[0],
        &numbers(&row["moved"]),
    );

    let row = &recorded["differing"];
    let given = lists(&row["operands"]);
    let (x, most) = (g.constant(given[0].clone()), g.constant(given[1].clone()));
    let grown = |t: &[Tensor]| {
        let g = t[0].graph();
        let none = g.scalar(0.0, DType::F64);
        let r = g.repeat_while(&none.lt(&t[1])).carry(&t[0]).carry(&none).record(|i| {
            let (most, count) = (i.capture(&t[1]), &i.carried[1] + 1.0);
            i.go_on_if(&count.lt(&most));
            vec![i.carried[0].square() * 0.5 + most * 0.01, count]
        });
        r[0].clone()
    };
    let found = vmap(&[(&x, Some(0)), (&most, Some(0))], |t| {
        let y = grown(t);
        let g = y.graph();
        let along = jvp(
            &[&y],
            &[&t[0], &t[1]],
            &[&g.scalar(1.0, DType::F64), &g.scalar(2.0, DType::F64)],
        );
        vec![y, along[0].clone()]
    });
    check("grown", "value of a batch", &found[0], &numbers(&row["value"]));
    check("grown", "tangent of each", &found[1], &numbers(&row["moved"]));
}
