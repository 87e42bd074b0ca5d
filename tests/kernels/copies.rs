//! Transpositions and results larger than the caches, on machine code, against plain loops.

use tlc::{CompileOptions, DType, Executable, Graph, HostTensor, Input};

const F32: DType = DType::F32;

fn compile(threads: usize, record: impl Fn(&Graph)) -> Executable {
    let g = Graph::new("copies");
    record(&g);
    let options = CompileOptions {
        threads: Some(threads),
        ..CompileOptions::default()
    };
    g.compile(&options).unwrap_or_else(|e| panic!("{e}"))
}

fn values(shape: &[usize]) -> HostTensor {
    let count: usize = shape.iter().product();
    let data: Vec<f32> = (0..count)
        .map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32)
        .collect();
    HostTensor::from_slice(shape, &data).unwrap()
}

fn run(e: &Executable, inputs: &[&HostTensor]) -> Vec<f32> {
    let inputs: Vec<Input<'_>> = inputs.iter().map(|&t| Input::from(t)).collect();
    let out = e.run(&inputs).unwrap();
    out[0].as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn results_larger_than_the_last_cache_are_whole() {
    // Ragged, and more than half of most last caches.
    let n = 9_000_003;
    let (x, y) = (values(&[n]), values(&[n]));
    let expected: Vec<f32> = x.as_slice::<f32>().unwrap().iter().map(|v| v + v * 0.5).collect();
    for threads in [1, 2] {
        let e = compile(threads, |g| {
            let (x, y) = (g.input("x", F32, vec![n]), g.input("y", F32, vec![n]));
            g.output("z", &(&x + &y * 0.5));
        });
        assert!(run(&e, &[&x, &y]) == expected, "{threads} threads");
    }
}

#[test]
fn transpositions_of_every_raggedness_are_whole() {
    for (rows, columns) in [
        (1, 70),
        (70, 1),
        (64, 128),
        (65, 129),
        (100, 3),
        (333, 517),
        (3000, 2904),
    ] {
        let x = values(&[rows, columns]);
        let source = x.as_slice::<f32>().unwrap();
        let expected: Vec<f32> = (0..columns)
            .flat_map(|c| (0..rows).map(move |r| source[r * columns + c]))
            .collect();
        for threads in [1, 2] {
            let e = compile(threads, |g| {
                let x = g.input("x", F32, vec![rows, columns]);
                g.output("y", &x.t());
            });
            assert!(run(&e, &[&x]) == expected, "{rows}x{columns}, {threads} threads");
            let e = compile(threads, |g| {
                let x = g.input("x", F32, vec![rows, columns]);
                g.output("y", &(x.t() * 2.0 + 1.0));
            });
            let scaled: Vec<f32> = expected.iter().map(|v| v * 2.0 + 1.0).collect();
            assert!(
                run(&e, &[&x]) == scaled,
                "{rows}x{columns} with arithmetic, {threads} threads"
            );
        }
    }
}

/// Tokens as an image with a frame around it: what is loaded lies along channels, and what is stored along rows, whose ends are the frame.
#[test]
fn padded_transpositions_of_every_raggedness_are_whole() {
    let mut turned = 0;
    for (h, w, c) in [
        (1, 1, 70),
        (7, 9, 64),
        (56, 57, 33),
        (3, 130, 65),
        (40, 64, 128),
        (5, 3, 1),
    ] {
        let x = values(&[h * w, c]);
        let source = x.as_slice::<f32>().unwrap();
        for (top, left, bottom, right) in [(1, 1, 1, 1), (0, 2, 1, 0), (2, 0, 0, 3)] {
            let (rows, columns) = (h + top + bottom, w + left + right);
            let mut expected = Vec::with_capacity(c * rows * columns);
            for k in 0..c {
                for i in 0..rows {
                    for j in 0..columns {
                        let inside = (top..top + h).contains(&i) && (left..left + w).contains(&j);
                        expected.push(match inside {
                            true => (source[((i - top) * w + j - left) * c + k] * 0.5 - 3.0).max(-1.0),
                            false => 7.0,
                        });
                    }
                }
            }
            for threads in [1, 3] {
                let e = compile(threads, |g| {
                    let x = g.input("x", F32, vec![h * w, c]);
                    let image = x.reshape((h, w, c)).permute([2, 0, 1]);
                    let image = (image * 0.5 - 3.0).maximum(-1.0);
                    let frame = [(0, 0), (top as i64, bottom as i64), (left as i64, right as i64)];
                    g.output("y", &image.pad(&frame, 7.0));
                });
                assert!(
                    run(&e, &[&x]) == expected,
                    "{h} by {w} by {c}, {threads} threads\n{}",
                    e.explain()
                );
                turned += usize::from(e.explain().to_string().contains("stage-turned"));
            }
        }
    }
    let wide = tlc_runtime::cpu::level::wide().is_some_and(|level| level.vector_bits() >= 256);
    assert!(!wide || turned > 10, "{turned}");
}
