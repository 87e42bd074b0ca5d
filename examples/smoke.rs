use tlc::*;
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let g = Graph::new("t");
    let a = g.input("a", DType::F32, [1000]);
    let b = g.input("b", DType::F32, [1000]);
    let c = g.input("c", DType::F32, [1000]);
    g.output("y", &(&a * &b + &c).relu());
    let e = g.compile(&CompileOptions::default())?;
    println!("{}", e.explain());
    let f = |k: f32| ndarray::Array1::from_iter((0..1000).map(|i| (i as f32 - 500.0) * k));
    let (x, y, z) = (f(0.1), f(0.2), f(-3.0));
    let out = e.run(&[(&x).into(), (&y).into(), (&z).into()])?;
    let want: Vec<f32> = (0..1000).map(|i| (x[i] * y[i] + z[i]).max(0.0)).collect();
    assert_eq!(out[0].as_slice::<f32>().unwrap(), &want[..]);
    println!("ok relu");
    let g = Graph::new("softmax");
    let x = g.input("x", DType::F32, [37, 103]);
    g.output("y", &x.softmax(-1));
    g.output("l", &x.log_softmax(-1));
    g.output("m", &x.mean(-1));
    g.output("am", &x.argmax(-1));
    g.output("s0", &x.sum(0));
    let e = g.compile(&CompileOptions::default())?;
    println!("{}", e.explain());
    let xs = ndarray::Array2::from_shape_fn((37, 103), |(i, j)| ((i * 7919 + j * 104729) % 1000) as f32 / 100.0 - 5.0);
    let out = e.run(&[(&xs).into()])?;
    let y = out[0].as_array::<f32>().unwrap();
    for i in 0..37 {
        let row: Vec<f64> = (0..103).map(|j| (xs[[i, j]] as f64).exp()).collect();
        let s: f64 = row.iter().sum();
        for j in 0..103 { let w = row[j] / s; assert!((y[[i, j]] as f64 - w).abs() < 1e-6 * w.max(1e-3), "{i} {j} {} {w}", y[[i, j]]); }
    }
    let am = out[3].as_array::<i64>().unwrap();
    for i in 0..37 { let mut best = 0; for j in 0..103 { if xs[[i, j]] > xs[[i, best]] { best = j } } assert_eq!(am[[i]], best as i64); }
    let s0 = out[4].as_array::<f32>().unwrap();
    for j in 0..103 { let w: f64 = (0..37).map(|i| xs[[i, j]] as f64).sum(); assert!((s0[[j]] as f64 - w).abs() < 1e-4, "{j} {} {w}", s0[[j]]); }
    println!("ok softmax");
    let g = Graph::new("mlp");
    let n = g.symbol("n", 1..=4096);
    let x = g.input("x", DType::F32, (&n, 64));
    let w = g.input("w", DType::F32, [64, 128]);
    let b = g.input("b", DType::F32, [128]);
    let h = (x.matmul(&w) + &b).gelu();
    g.output("h", &h);
    g.output("t", &h.sum(keep(1)));
    let e = g.compile(&CompileOptions::default())?;
    println!("{}", e.explain());
    let xs = ndarray::Array2::from_shape_fn((33, 64), |(i, j)| ((i * 31 + j * 17) % 29) as f32 / 29.0 - 0.5);
    let ws = ndarray::Array2::from_shape_fn((64, 128), |(i, j)| ((i * 13 + j * 7) % 23) as f32 / 23.0 - 0.5);
    let bs = ndarray::Array1::from_shape_fn(128, |j| j as f32 / 128.0);
    let out = e.run(&[(&xs).into(), (&ws).into(), (&bs).into()])?;
    println!("{:?} {:?}", out[0].shape(), &out[0].as_slice::<f32>().unwrap()[..4]);
    let want = xs.dot(&ws) + &bs;
    println!("{:?}", want.row(0).iter().take(4).map(|&v| 0.5 * v * (1.0 + libm_erf(v / 2f32.sqrt()))).collect::<Vec<_>>());
    Ok(())
}
fn libm_erf(x: f32) -> f32 { let t = 1.0 / (1.0 + 0.3275911 * x.abs()); let y = 1.0 - (((((1.061405429 * t - 1.453152027) * t) + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t * (-x * x).exp(); if x < 0.0 { -y } else { y } }
