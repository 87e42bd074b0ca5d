//! Resampling, sampling, regions and transforms against loops over their definitions: `tests/reference/sampling.py` makes
//! the expected values, in f64.

use tlc::{
    Conv, Coordinates, DType, Graph, GridSample, Interpolation, Outside, Pool, Resample, RoiAlign, Rounding, Tensor, s,
};

use crate::numerics::{compare, data, run};

const CUBIC: Interpolation = Interpolation::Cubic(-0.75);
const LINEAR: Interpolation = Interpolation::Linear;

fn resampling(g: &Graph) -> Vec<(&'static str, Tensor)> {
    let row = data(g, &[2, 7], 1);
    let to = |length: usize, options: Resample| row.resample(1, length, &options);
    let number = |v: f64| g.scalar(v, DType::F64);
    vec![
        ("linear_up", to(12, Resample::new(LINEAR))),
        ("cubic_down", to(4, Resample::new(CUBIC))),
        ("linear_antialias", to(3, Resample::new(LINEAR).antialias())),
        (
            "cubic_antialias",
            to(3, Resample::new(CUBIC).antialias().exclude_outside()),
        ),
        ("cubic_exclude", to(10, Resample::new(CUBIC).exclude_outside())),
        (
            "align_corners",
            to(5, Resample::new(LINEAR).coordinates(Coordinates::AlignCorners)),
        ),
        (
            "symmetric",
            to(
                4,
                Resample::new(LINEAR)
                    .coordinates(Coordinates::HalfPixelSymmetric)
                    .scale(0.6),
            ),
        ),
        (
            "crop",
            to(
                6,
                Resample::new(LINEAR).coordinates(Coordinates::Crop(number(0.2), number(1.4), -9.0)),
            ),
        ),
        (
            "nearest_repeat",
            to(21, Resample::new(Interpolation::Nearest(Rounding::HalfDown))),
        ),
        (
            "nearest_down",
            to(3, Resample::new(Interpolation::Nearest(Rounding::HalfDown))),
        ),
    ]
}

/// Every mode, padding and alignment, on planes and volumes.
fn grids(g: &Graph) -> Vec<(String, Tensor)> {
    let grid = |shape: &[usize], seed: usize| data(g, shape, seed) * 0.9318 + 0.0131;
    let plane = (data(g, &[2, 3, 5, 6], 0), grid(&[2, 5, 4, 2], 3));
    let volume = (data(g, &[2, 2, 3, 4, 3], 2), grid(&[2, 3, 2, 3, 3], 4));
    let modes = [
        ("nearest", Interpolation::Nearest(Rounding::HalfEven)),
        ("linear", LINEAR),
        ("cubic", CUBIC),
    ];
    let sides = [
        ("zeros", Outside::Zeros),
        ("border", Outside::Border),
        ("reflection", Outside::Reflection),
    ];
    let mut all = vec![];
    for (kind, (x, grid)) in [("plane", plane), ("volume", volume)] {
        for (mode, how) in modes {
            for (side, outside) in sides {
                let options = GridSample::new(how).outside(outside);
                let name = |aligned: &str| format!("{kind}_{mode}_{side}_{aligned}");
                all.push((name("False"), x.grid_sample(&grid, &options.clone())));
                all.push((name("True"), x.grid_sample(&grid, &options.align_corners())));
            }
        }
    }
    all
}

fn sampling(g: &Graph) -> Vec<(String, Tensor)> {
    let mut all = vec![];
    all.push(("affine".into(), data(g, &[2, 2, 3], 8).affine_grid([4, 3], false)));
    all.push((
        "affine_volume".into(),
        data(g, &[2, 3, 4], 8).affine_grid([2, 3, 4], true),
    ));
    let (weight, offset, mask) = (
        data(g, &[4, 2, 2, 3], 1),
        data(g, &[2, 24, 3, 3], 2),
        data(g, &[2, 12, 3, 3], 3),
    );
    let deformed = data(g, &[2, 4, 5, 6], 0).deform_conv(
        &weight,
        &offset,
        Some(&mask),
        Some(&data(g, &[4], 4)),
        2,
        &Conv::new().stride(2).padding_sides([1, 1], [0, 1]).groups(2),
    );
    all.push(("deform_conv".into(), deformed));
    all
}

fn regions(g: &Graph) -> Vec<(&'static str, Tensor)> {
    let x4 = data(g, &[2, 3, 5, 6], 0);
    let regions = g.constant([
        [0.3, 0.2, 5.1, 4.7],
        [-3.0, 1.0, 2.0, 9.0],
        [2.0, 2.0, 2.4, 2.1],
        [20.0, 20.0, 25.0, 30.0],
    ]);
    let images = g.constant([0i64, 1, 1, 0]);
    let plain = RoiAlign {
        cells: [2, 3],
        samples: [2, 2],
        counts: None,
        scale: 0.8,
        half_pixel: true,
        max: false,
    };
    let adaptive = RoiAlign {
        cells: [2, 2],
        samples: [5, 3],
        counts: Some(g.constant([[3i64, 3], [4, 3], [1, 1], [5, 3]])),
        scale: 1.0,
        half_pixel: false,
        max: false,
    };
    let max = RoiAlign {
        half_pixel: false,
        max: true,
        ..plain.clone()
    };
    let pooled = g.constant([
        [0.0, 0.0, 0.0, 5.0, 4.0],
        [1.0, 1.4, 1.6, 3.2, 9.9],
        [1.0, -4.0, -4.0, 1.0, 0.0],
        [0.0, 9.0, 9.0, 12.0, 12.0],
    ]);
    vec![
        ("roi_mean", x4.roi_align(&regions, &images, &plain)),
        ("roi_adaptive", x4.roi_align(&regions, &images, &adaptive)),
        ("roi_max", x4.roi_align(&regions, &images, &max)),
        ("roi_max_pool", x4.roi_max_pool(&pooled, [3, 2], 1.0)),
    ]
}

fn blocks(g: &Graph) -> Vec<(&'static str, Tensor)> {
    let x4 = data(g, &[2, 3, 5, 6], 0);
    let options = Conv::new()
        .stride([1, 2])
        .dilation([2, 1])
        .padding_sides([1, 0], [0, 4]);
    let (max, places) = x4.max_pool_with_places(&Pool::new(2));
    vec![
        ("fold", data(g, &[2, 12, 12], 1).fold([4, 5], &[2, 3], &options)),
        (
            "max_places",
            x4.max_pool_with_places(&Pool::new(3).stride(2).padding(1)).1,
        ),
        ("max_unpool", max.max_unpool(&places, [2, 3, 5, 6])),
    ]
}

fn signals(g: &Graph) -> Vec<(&'static str, Tensor)> {
    let (real, complex) = (data(g, &[2, 9, 3, 1], 5), data(g, &[2, 9, 3, 2], 6));
    let sound = data(g, &[2, 20], 0).unsqueeze(-1);
    let window = g.hann_window(8, true, DType::F64);
    // Lengths that have divisors are computed by parts.
    let long = data(g, &[2, 1280, 2], 9);
    let every = |t: &Tensor| t.slice((.., s(..).step(97)));
    vec![
        ("hann", g.hann_window(7, false, DType::F64)),
        ("hann_periodic", window.clone()),
        ("hamming", g.hamming_window(6, true, DType::F64)),
        ("blackman", g.blackman_window(8, false, DType::F64)),
        ("dft", real.dft(1, 9, false, false)),
        ("dft_padded", real.dft(1, 12, false, true)),
        ("dft_cut_complex", complex.dft(1, 5, false, false)),
        ("dft_inverse", complex.dft(1, 9, true, false)),
        ("dft_inverse_odd", complex.dft(1, 15, true, true)),
        ("dft_inverse_even", complex.dft(1, 16, true, true)),
        ("dft_long", every(&long.dft(1, 1280, false, false))),
        (
            "dft_long_onesided",
            every(&long.narrow(2, 0, 1).dft(1, 1500, false, true)),
        ),
        ("dft_long_inverse", every(&long.dft(1, 3150, true, true))),
        ("stft", sound.stft(3, 8, Some(&window), true)),
        ("stft_two_sided", sound.stft(5, 7, None, false)),
        ("det", (data(g, &[3, 4, 4], 7) + g.eye(4, 4, 0, DType::F64) * 3.0).det()),
        (
            "det_large",
            (data(g, &[12, 12], 3) + g.eye(12, 12, 0, DType::F64) * 3.0).det(),
        ),
        ("det_singular", g.constant([[1.0, 2.0], [2.0, 4.0]]).det()),
        (
            "reverse_sequence",
            data(g, &[3, 4, 2], 0).reverse_sequence(&g.constant([4i32, 0, 3]), 0, 1),
        ),
    ]
}

#[test]
fn samples_and_transforms_follow_their_definitions() {
    let g = Graph::new("cases");
    let mut cases = sampling(&g);
    for family in [resampling(&g), regions(&g), blocks(&g), signals(&g)] {
        cases.extend(family.into_iter().map(|(name, t)| (name.to_string(), t)));
    }
    compare(&g, &cases, include_str!("../reference/sampling.json"));
}

/// `tests/reference/grid_sample.py` computes them with PyTorch, and checks that ONNX Runtime agrees.
#[test]
fn grids_sample_as_pytorch_and_onnx_runtime_do() {
    let g = Graph::new("grids");
    compare(&g, &grids(&g), include_str!("../reference/grid_sample.json"));
}

#[test]
fn edges_of_samples_are_as_documented() {
    let g = Graph::new("edges");
    assert_eq!(run(&g, &g.hann_window(1, false, DType::F64)), [1.0]);
    assert!(run(&g, &g.hann_window(0, false, DType::F64)).is_empty());
    // Integers are rounded half to even.
    let whole = g.constant([[1i32, 2, 4]]);
    let halves = whole.resample(1, 2, &Resample::new(LINEAR).coordinates(Coordinates::AlignCorners));
    assert_eq!(run(&g, &halves), [1.0, 4.0]);
    let middle = whole.resample(1, 6, &Resample::new(LINEAR));
    assert_eq!(run(&g, &middle), [1.0, 1.0, 2.0, 2.0, 4.0, 4.0]);
    // The first of equal maxima; NaN wins.
    let x = g.constant([[[3.0f32, 3.0, f32::NAN, 1.0]]]);
    let (max, places) = x.max_pool_with_places(&Pool::new(2));
    assert!(run(&g, &max)[0] == 3.0 && run(&g, &max)[1].is_nan());
    assert_eq!(run(&g, &places), [0.0, 2.0]);
    // All elements are the value that padding has.
    let low = g.full([1, 1, 3], f64::NEG_INFINITY, DType::F32);
    let (_, places) = low.max_pool_with_places(&Pool::new(3).stride(1).padding(1));
    assert_eq!(run(&g, &places), [0.0, 0.0, 1.0]);
    // An axis of one element, aligned at its corners, has nowhere to be turned around.
    let one = g.constant([[[7.0f64]]]);
    let options = GridSample::new(LINEAR).outside(Outside::Reflection).align_corners();
    assert_eq!(
        run(&g, &one.grid_sample(&g.constant([[[0.7], [5.0]]]), &options)),
        [7.0, 7.0]
    );
}

#[test]
fn wrong_operands_are_refused_and_none_panics() {
    let refused = |f: &dyn Fn(&Graph, &Tensor) -> Tensor, expected: &str| {
        let g = Graph::new("wrong");
        let x = g.zeros([2, 4, 5, 6], DType::F32);
        assert!(f(&g, &x).is_poisoned(), "{expected}");
        let text = g.finish().expect_err(expected).to_string();
        assert!(text.contains(expected), "{text}");
    };
    let linear = || Resample::new(LINEAR);
    refused(&|_, x| x.resample(4, 3, &linear()), "axis 4 of a tensor of rank 4");
    refused(&|_, x| x.resample(1, 3, &linear().scale(f64::NAN)), "a scale of NaN");
    refused(&|g, _| g.zeros([0], DType::F32).resample(0, 3, &linear()), "is empty");
    refused(
        &|g, x| x.grid_sample(&g.zeros([2, 3, 3, 3], DType::F32), &GridSample::new(LINEAR)),
        "extent 3 on axis 3",
    );
    refused(
        &|g, x| x.grid_sample(&g.zeros([2, 3, 3, 2], DType::I64), &GridSample::new(LINEAR)),
        "a grid of i64",
    );
    refused(&|_, x| x.affine_grid([2, 2], true), "matrices of rank 4");
    refused(
        &|g, x| {
            let (w, o) = (g.zeros([4, 3, 2, 2], DType::F32), g.zeros([2, 8, 4, 5], DType::F32));
            x.deform_conv(&w, &o, None, None, 1, &Conv::new())
        },
        "groups that divide",
    );
    refused(&|_, x| x.dft(3, 6, false, false), "last axis");
    refused(
        &|g, _| g.zeros([1, 4, 2], DType::F32).dft(1, 4, false, true),
        "one-sided transform of complex",
    );
    refused(&|g, _| g.zeros([1, 4, 2], DType::I32).dft(1, 4, false, false), "floats");
    refused(
        &|g, _| g.zeros([1, 4, 1], DType::F32).dft(1, 0, false, false),
        "1 or more",
    );
    refused(&|g, _| g.zeros([1, 4, 1], DType::F32).stft(1, 9, None, true), "9");
    refused(
        &|g, _| g.zeros([1, 4, 1], DType::F32).stft(0, 2, None, true),
        "stride 0",
    );
    refused(&|_, x| x.det(), "extent 5");
    refused(&|g, _| g.zeros([99, 99], DType::F32).det(), "at most 64");
    refused(
        &|g, _| g.zeros([1, 6, 5], DType::F32).fold([4], &[2], &Conv::new()),
        "extent 5 on axis 2",
    );
    refused(
        &|g, _| g.zeros([1, 5, 5], DType::F32).fold([4], &[2], &Conv::new()),
        "a multiple",
    );
    refused(&|g, x| x.reverse_sequence(&g.zeros([3], DType::I64), 0, 1), "extent 3");
    refused(&|g, x| x.reverse_sequence(&g.zeros([2], DType::I64), 0, 0), "two axes");
}
