//! x
use tlc::*;
fn main() {
    let n = 1 << 20;
    let g = Graph::new("exp");
    let a = g.input("a", DType::F32, [n]);
    let y = match std::env::args().nth(1).unwrap().as_str() {
        "exp" => a.exp(),
        "chain" => {
            let b = g.input("b", DType::F32, [n]);
            let t = ((&a * &b + &a) * 0.5 - &b).relu();
            let t = (&t * &t + 1.0) * &a;
            t.abs() - 0.25
        }
        "max" => a.reshape([1024, 1024]).max(1),
        "argmax" => a.reshape([1024, 1024]).argmax(1),
        "tr" => a.reshape([1024, 1024]).permute([1, 0]),
        "softmax" => a.reshape([1024, 1024]).softmax(-1),
        "ls10" => {
            let x = g.input("x", DType::F32, [4096, 10]);
            x.log_softmax(-1)
        }
        "tanh" => a.tanh(),
        "sum0" => a.reshape([1024, 1024]).sum(0),
        _ => a.sigmoid(),
    };
    g.output("y", &y);
    let e = g.compile(&CompileOptions::default()).unwrap();
    let c = tlc_runtime::jit::Compiler::new().unwrap();
    for k in &e.plan().kernels {
        println!("{k}");
        let t = c.text(k).unwrap();
        println!("{}", t.assembly);
    }
}
