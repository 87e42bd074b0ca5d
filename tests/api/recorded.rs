//! What recording takes and refuses.

use ndarray::array;
use tlc::{CompileOptions, DType, Graph, Slice, Tensor, inputs, s};

fn only_error(g: &Graph) -> String {
    let errors = g.errors();
    assert_eq!(errors.len(), 1, "{errors:?}");
    // Without the place.
    let text = errors[0].to_string();
    text.splitn(4, ':')
        .nth(3)
        .map_or(text.clone(), |rest| rest.trim_start().to_string())
}

#[test]
fn slices_take_ends_of_both_kinds() {
    let g = Graph::new("slices");
    let w = g.symbol("w", 4..=10);
    let x = g.input("x", DType::I32, (&w, 4));
    g.output("a", &x.slice(s![1..&w - 1, ..]));
    g.output("b", &x.slice(s![.., 1..=2]));
    g.output("c", &x.slice(s![0, ..-1; 2]));
    g.output("d", &x.slice(s![&w - 3..=&w - 2, 3..; -1,]));
    g.output("e", &x.slice_axis(1, s![1..3]));
    g.output("f", &x.slice((Slice::between(1, &w - 1), Slice::through(0, 1))));
    let e = g.compile(&CompileOptions::default()).unwrap();
    let x = ndarray::Array2::from_shape_fn((5, 4), |(i, j)| (10 * i + j) as i32);
    let y = e.run(&inputs![&x]).unwrap();
    let part = |name: &str| y[name].as_array::<i32, ndarray::IxDyn>().unwrap().to_owned();
    use ndarray::s as cut;
    assert_eq!(part("a"), x.slice(cut![1..4, ..]).into_dyn());
    assert_eq!(part("b"), x.slice(cut![.., 1..=2]).into_dyn());
    assert_eq!(part("c"), x.slice(cut![0, ..-1;2]).into_dyn());
    assert_eq!(part("d"), array![[23, 22, 21, 20], [33, 32, 31, 30]].into_dyn());
    assert_eq!(part("e"), x.slice(cut![.., 1..3]).into_dyn());
    assert_eq!(part("f"), x.slice(cut![1..4, 0..=1]).into_dyn());
}

#[test]
fn an_extent_of_an_axis_that_is_not_there_is_an_error() {
    let g = Graph::new("dim");
    let x = g.input("x", DType::F32, [2, 3]);
    assert_eq!((x.dim(-1).as_const(), x.dim(0).as_const()), (Some(3), Some(2)));
    assert_eq!(x.dim(2).as_const(), Some(0));
    assert_eq!(
        only_error(&g),
        "dim of f32[2, 3]: axis 2 of a tensor of rank 2; expected an axis from -2 to 1"
    );
    // What follows from a refused operation is not another error.
    let y = x.matmul(&x);
    y.dim(5);
    assert_eq!(g.errors().len(), 2);
}

#[test]
fn negative_indices_count_from_the_end() {
    let g = Graph::new("take");
    let n = g.symbol("n", 1..=300);
    let x = g.input("x", DType::F32, (&n, 2));
    let at = g.input("at", DType::I8, [2, 2]);
    let along = g.input("along", DType::I64, (1, 2));
    let unsigned = g.input("unsigned", DType::U8, [2]);
    g.output("rows", &x.take(&at, 0));
    g.output("known", &x.take(&g.constant([-1i32, 0]), 0));
    g.output("along", &x.take_along_axis(&along, 0));
    g.output("unsigned", &x.take(&unsigned, 0));
    g.output("columns", &x.take(&g.constant([-1i8, 0, 1, -2]), -1));
    let e = g.compile(&CompileOptions::default()).unwrap();
    // More rows than an index of 8 bits can count.
    let x = ndarray::Array2::from_shape_fn((260, 2), |(i, j)| (2 * i + j) as f32);
    let y = e
        .run(&inputs![&x, &[[-1i8, 0], [-128, 127]], &[[-260i64, -2]], &[255u8, 1]])
        .unwrap();
    let rows = [259, 0, 132, 127]
        .map(|i| [2.0 * i as f32, 2.0 * i as f32 + 1.0])
        .concat();
    assert_eq!(y["rows"].as_slice::<f32>().unwrap(), rows);
    assert_eq!(y["known"].as_slice::<f32>().unwrap(), [518.0, 519.0, 0.0, 1.0]);
    assert_eq!(y["along"].as_slice::<f32>().unwrap(), [0.0, 517.0]);
    assert_eq!(y["unsigned"].as_slice::<f32>().unwrap(), [510.0, 511.0, 2.0, 3.0]);
    assert_eq!(y["columns"].as_slice::<f32>().unwrap()[..4], [1.0, 0.0, 1.0, 0.0]);
    // Out of range where data decides: zero.
    let y = e
        .run(&inputs![&x, &[[0i8; 2]; 2], &[[260i64, -261]], &[0u8, 0]])
        .unwrap();
    assert_eq!(y["along"].as_slice::<f32>().unwrap(), [0.0, 0.0]);
}

#[test]
fn a_known_index_out_of_range_is_an_error() {
    for (indices, text) in [
        (
            vec![3i64],
            "index 3 of axis 0 of extent 3; expected indices from -3 to 2",
        ),
        (
            vec![0, -4],
            "index -4 of axis 0 of extent 3; expected indices from -3 to 2",
        ),
    ] {
        let g = Graph::new("take");
        let x = g.input("x", DType::F32, [3]);
        let indices = g.constant(indices);
        assert!(x.take(&indices, 0).is_poisoned());
        assert!(only_error(&g).ends_with(text), "{}", only_error(&g));
        assert!(x.take_along_axis(&indices, 0).is_poisoned());
    }
    let g = Graph::new("none");
    let x = g.input("x", DType::F32, [0]);
    assert!(x.take(&g.scalar(0, DType::I64), 0).is_poisoned());
    assert!(only_error(&g).ends_with("index 0 of axis 0 of extent 0; expected no index"));
    let g = Graph::new("huge");
    let x = g.input("x", DType::F32, [3]);
    assert!(x.take(&g.constant([u64::MAX]), 0).is_poisoned());
}

fn looped(body: impl FnOnce(&mut tlc::Iteration, &Tensor) -> Vec<Tensor>) -> String {
    let g = Graph::new("loop");
    let (start, k) = (g.input("start", DType::F32, ()), g.input("k", DType::F32, ()));
    let results = g.repeat(3).carry(&start).record(|i| body(i, &k));
    assert!(results[0].is_poisoned());
    only_error(&g)
}

#[test]
fn a_forgotten_capture_is_called_that() {
    for error in [
        looped(|i, k| vec![&i.carried[0] * k]),
        looped(|i, k| vec![k * &i.carried[0]]),
        looped(|i, k| vec![tlc::stack(&[&i.carried[0], k], 0).sum(0)]),
        looped(|_, k| vec![k.clone()]),
        looped(|i, k| {
            i.stack(k, 0);
            vec![i.carried[0].clone()]
        }),
    ] {
        assert!(error.contains("capture"), "{error}");
    }
    let nested = looped(|i, k| {
        let (first, graph) = (i.carried[0].clone(), i.graph().clone());
        graph.repeat(2).carry(&first).record(|j| vec![&j.carried[0] * k])
    });
    assert!(nested.contains("capture"), "{nested}");
    // Tensors of two graphs that have nothing to do with one another.
    let (g, h) = (Graph::new("g"), Graph::new("h"));
    let _ = g.input("x", DType::F32, ()) + h.input("x", DType::F32, ());
    assert!(
        !g.errors()
            .iter()
            .chain(&h.errors())
            .any(|e| e.to_string().contains("capture"))
    );
}
