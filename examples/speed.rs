//! scratch
use std::time::Instant;
use tlc::*;
use tlc_runtime::executable::TensorView;
fn bytes(v: &[f32]) -> &[u8] { bytemuck::cast_slice(v) }
fn time(name: &str, g: &Graph, shapes: &[Vec<usize>], threads: usize, mb: f64, flops: f64) {
    let t0 = Instant::now();
    let e = g.compile(&CompileOptions { threads: Some(threads), ..Default::default() }).unwrap();
    let compile = t0.elapsed().as_secs_f64() * 1e3;
    let t0 = Instant::now();
    let _e2 = g.compile(&CompileOptions { threads: Some(threads), ..Default::default() }).unwrap();
    let compile2 = t0.elapsed().as_secs_f64() * 1e3;
    let data: Vec<Vec<f32>> = shapes.iter().enumerate().map(|(k, s)| (0..s.iter().product::<usize>()).map(|i| ((i * 7919 + k * 31) % 1000) as f32 / 500.0 - 1.0).collect()).collect();
    let views: Vec<TensorView> = data.iter().zip(shapes).map(|(d, s)| TensorView { dtype: DType::F32, shape: s, data: bytes(d) }).collect();
    let os = e.output_shapes(&views).unwrap();
    let mut outs: Vec<Vec<u64>> = e.plan().outputs.iter().zip(&os).map(|(o, s)| vec![0u64; (s.iter().product::<usize>() * o.ty.dtype.bytes()).div_ceil(8)]).collect();
    let lens: Vec<usize> = e.plan().outputs.iter().zip(&os).map(|(o, s)| s.iter().product::<usize>() * o.ty.dtype.bytes()).collect();
    let mut best = Vec::new();
    let t = Instant::now();
    let mut first = true;
    while t.elapsed().as_secs_f64() < 0.4 || best.len() < 5 {
        let mut o: Vec<&mut [u8]> = outs.iter_mut().zip(&lens).map(|(v, &l)| &mut bytemuck::cast_slice_mut(v)[..l]).collect();
        let t0 = Instant::now();
        e.run_into(&views, &mut o).unwrap();
        let d = t0.elapsed().as_secs_f64();
        if !first { best.push(d); }
        first = false;
    }
    best.sort_by(f64::total_cmp);
    let m = best[best.len() / 2];
    println!("{name:<28} {:>10.2} us  {:>7.1} GB/s {:>7.1} GF/s   compile {compile:.2} / {compile2:.2} ms  steps {}", m * 1e6, mb / m / 1e9, flops / m / 1e9, e.plan().steps.len());
}
fn main() {
    for th in [1usize, 2] {
        println!("threads {th}");
        let m = 1 << 20;
        for (n, label) in [(m, "1m"), (16 * m, "16m")] {
            let g = Graph::new("add"); let a = g.input("a", DType::F32, [n]); let b = g.input("b", DType::F32, [n]); g.output("y", &(&a + &b));
            time(&format!("add_{label}"), &g, &[vec![n], vec![n]], th, 12.0 * n as f64, n as f64);
            let g = Graph::new("fma"); let a = g.input("a", DType::F32, [n]); let b = g.input("b", DType::F32, [n]); let c = g.input("c", DType::F32, [n]); g.output("y", &(&a * &b + &c).relu());
            time(&format!("fma_relu_{label}"), &g, &[vec![n], vec![n], vec![n]], th, 16.0 * n as f64, n as f64);
            let g = Graph::new("chain"); let a = g.input("a", DType::F32, [n]); let b = g.input("b", DType::F32, [n]);
            let t = ((&a * &b + &a) * 0.5 - &b).relu(); let t = (&t * &t + 1.0) * &a; g.output("y", &(t.abs() - 0.25));
            time(&format!("chain10_{label}"), &g, &[vec![n], vec![n]], th, 12.0 * n as f64, 10.0 * n as f64);
        }
        let n = m;
        for (name, f) in [("exp", Tensor::exp as fn(&Tensor) -> Tensor), ("sigmoid", Tensor::sigmoid), ("tanh", Tensor::tanh), ("gelu_tanh", Tensor::gelu_tanh), ("log", Tensor::log), ("sin", Tensor::sin)] {
            let g = Graph::new(name); let a = g.input("a", DType::F32, [n]); g.output("y", &f(&a));
            time(name, &g, &[vec![n]], th, 8.0 * n as f64, 20.0 * n as f64);
        }
        let s = vec![1024usize, 1024];
        let g = Graph::new("sum_all"); let a = g.input("a", DType::F32, [1024, 1024]); g.output("y", &a.sum(..)); time("sum_all", &g, &[s.clone()], th, 4.0 * n as f64, n as f64);
        for ax in [0i64, 1] {
            let g = Graph::new("sum"); let a = g.input("a", DType::F32, [1024, 1024]); g.output("y", &a.sum(ax)); time(&format!("sum_axis{ax}"), &g, &[s.clone()], th, 4.0 * n as f64, n as f64);
            let g = Graph::new("max"); let a = g.input("a", DType::F32, [1024, 1024]); g.output("y", &a.max(ax)); time(&format!("max_axis{ax}"), &g, &[s.clone()], th, 4.0 * n as f64, n as f64);
            let g = Graph::new("argmax"); let a = g.input("a", DType::F32, [1024, 1024]); g.output("y", &a.argmax(ax)); time(&format!("argmax_axis{ax}"), &g, &[s.clone()], th, 4.0 * n as f64, n as f64);
        }
        let r = vec![4096usize, 1024]; let rn = 4096.0 * 1024.0;
        let g = Graph::new("softmax"); let a = g.input("a", DType::F32, [4096, 1024]); g.output("y", &a.softmax(-1)); time("softmax_4096x1024", &g, &[r.clone()], th, 8.0 * rn, 22.0 * rn);
        let g = Graph::new("logsoftmax"); let a = g.input("a", DType::F32, [4096, 1024]); g.output("y", &a.log_softmax(-1)); time("log_softmax_4096x1024", &g, &[r.clone()], th, 8.0 * rn, 22.0 * rn);
        let g = Graph::new("ln"); let a = g.input("a", DType::F32, [4096, 1024]); let w = g.input("w", DType::F32, [1024]); let b = g.input("b", DType::F32, [1024]);
        g.output("y", &a.layer_norm(Some(&w), Some(&b), 1e-5)); time("layernorm", &g, &[r.clone(), vec![1024], vec![1024]], th, 8.0 * rn, 8.0 * rn);
        let g = Graph::new("ls10"); let a = g.input("a", DType::F32, [4096, 10]); g.output("y", &a.log_softmax(-1)); time("log_softmax_4096x10", &g, &[vec![4096, 10]], th, 8.0 * 40960.0, 22.0 * 40960.0);
        for k in [1024usize, 4096] {
            let g = Graph::new("t"); let a = g.input("a", DType::F32, [k, k]); g.output("y", &a.permute([1, 0])); time(&format!("transpose_{k}"), &g, &[vec![k, k]], th, 8.0 * (k * k) as f64, 0.0);
        }
        for k in [64usize, 256, 512, 1024, 2048] {
            let g = Graph::new("mm"); let a = g.input("a", DType::F32, [k, k]); let b = g.input("b", DType::F32, [k, k]); g.output("y", &a.matmul(&b)); time(&format!("matmul_{k}"), &g, &[vec![k, k], vec![k, k]], th, 0.0, 2.0 * (k * k * k) as f64);
        }
        let g = Graph::new("tiny"); let a = g.input("a", DType::F32, [16]); let b = g.input("b", DType::F32, [16]); g.output("y", &(((&a + &b) * &a - &b).relu() * 0.5)); time("tiny5", &g, &[vec![16], vec![16]], th, 0.0, 0.0);
    }
}
