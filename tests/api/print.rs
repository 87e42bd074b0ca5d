//! Results print as NumPy prints arrays: tests/reference/print.py wrote what is expected here.

use tlc::{CompileOptions, DType, Graph, HostTensor, Scalar, inputs};

const REFERENCE: &str = include_str!("../reference/print.json");

#[test]
fn results_print_as_numpy_prints_them() {
    let cases: Vec<serde_json::Value> = serde_json::from_str(REFERENCE).unwrap();
    assert!(cases.len() > 200);
    for case in &cases {
        let name = case["dtype"].as_str().unwrap();
        let dtype = DType::ALL.into_iter().find(|d| d.name() == name).unwrap();
        let shape = case["shape"].as_array().unwrap().iter();
        let shape: Vec<usize> = shape.map(|n| n.as_u64().unwrap() as usize).collect();
        let mut tensor = HostTensor::zeros(dtype, &shape).unwrap();
        for i in 0..tensor.len() {
            let value = match case["data"].as_array() {
                Some(bits) => Scalar::from_bits(dtype, bits[i].as_u64().unwrap()),
                None => Scalar::from_f64(dtype, ((7 * i % 1009) as f64 - 500.0) / 8.0),
            };
            tensor.set(i, value);
        }
        let g = Graph::new("same");
        g.output("y", &g.input("x", dtype, &shape));
        let y = g
            .compile(&CompileOptions::default())
            .unwrap()
            .run(&inputs![&tensor])
            .unwrap();
        let expected = format!("y: {dtype}{shape:?}\n{}", case["text"].as_str().unwrap());
        assert_eq!(y[0].to_string(), expected);
        assert_eq!(format!("{:?}", y[0]), expected);
    }
}
