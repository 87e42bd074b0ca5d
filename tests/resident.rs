//! Compiling, running and dropping many executables leaves the process as large as before. A process of its own, so that no
//! other test grows it.
#![cfg(target_os = "linux")]

use tlc::{CompileOptions, DType, Graph, HostTensor};

fn resident_pages() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn dropped_executables_leave_no_memory_behind() {
    let x = HostTensor::from_slice(&[64], &[1.5f32; 64]).unwrap();
    let options = CompileOptions {
        threads: Some(2),
        ..CompileOptions::default()
    };
    let round = |from: usize, to: usize| {
        for k in from..to {
            let g = Graph::new("scale");
            g.output("y", &(g.input("x", DType::F32, [64]) * k as f64 + 1.0));
            let e = g.compile(&options).unwrap();
            let y = e.run(&[(&x).into()]).unwrap();
            assert_eq!(y[0].as_slice::<f32>().unwrap(), [1.5 * k as f32 + 1.0; 64]);
        }
    };
    round(0, 500);
    let before = resident_pages();
    round(500, 10_000);
    let after = resident_pages();
    // A leak of one page an executable would be 9,500.
    assert!(after < before + 500, "resident pages grew from {before} to {after}");
}
