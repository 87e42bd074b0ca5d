//! Pooling and small convolutions: windows of every stride, dilation and padding, over rows of ragged length, with NaN,
//! infinities and zeros of both signs, against the graph interpreter within its derived bounds; on one thread and two.

use tlc::{CompileOptions, Conv, DType, Graph, HostTensor, Pool, Tensor, compile_ir};
use tlc_ir::interp::{self, compare, interpret, interpret_with_bounds};

/// Values around zero, with something special here and there if asked for.
fn data(dtype: DType, shape: &[usize], special: bool) -> HostTensor {
    let n: usize = shape.iter().product();
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..n {
        let value = match i % 59 {
            7 if special => f64::NAN,
            19 if special => f64::INFINITY,
            20 if special => f64::NEG_INFINITY,
            31 if special => -0.0,
            _ => ((i * 37 + 11) % 101) as f64 / 25.0 - 2.0,
        };
        out.set(i, tlc::Scalar::from_f64(dtype, value));
    }
    out
}

fn check(what: &str, shapes: &[&[usize]], dtype: DType, special: bool, f: &dyn Fn(&[Tensor]) -> Tensor) {
    let g = Graph::new("windows");
    let tensors: Vec<Tensor> = shapes
        .iter()
        .enumerate()
        .map(|(i, shape)| g.input(&format!("x{i}"), dtype, shape.to_vec()))
        .collect();
    g.output("y", &f(&tensors));
    let graph = g.finish().unwrap();
    let inputs: Vec<HostTensor> = shapes.iter().map(|s| data(dtype, s, special)).collect();
    let options = interp::Options::default();
    let exact = interpret(&graph, &inputs, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    let bounded = interpret_with_bounds(&graph, &inputs, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
    let mut first: Option<HostTensor> = None;
    for threads in [1, 2] {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        let executable = compile_ir(&graph, &options).unwrap_or_else(|e| panic!("{what}: {e}"));
        let found = executable.run(&inputs.iter().map(Into::into).collect::<Vec<_>>());
        let found = found.unwrap_or_else(|e| panic!("{what}: {e}"))[0].to_host();
        assert_eq!(found.shape(), exact[0].shape(), "{what}");
        compare(&found, &bounded[0]).unwrap_or_else(|e| panic!("{what}: {e}\n{}", executable.explain()));
        match &first {
            Some(first) => assert_eq!(*first, found, "{what}: one thread and two differ"),
            None => first = Some(found),
        }
    }
}

#[test]
fn pools_of_every_stride_and_padding() {
    for (h, w) in [(8, 8), (9, 13), (7, 24), (12, 5), (6, 3)] {
        for (size, stride, padding) in [
            (2, 2, 0),
            (3, 1, 0),
            (3, 2, 0),
            (3, 3, 0),
            (2, 1, 1),
            (3, 1, 1),
            (3, 2, 1),
            (5, 1, 2),
        ] {
            if h + 2 * padding < size || w + 2 * padding < size {
                continue;
            }
            let shape = [2, 3, h, w];
            let pool = || Pool::new(size).stride(stride).padding(padding);
            for special in [false, true] {
                let what = format!("{shape:?}, window {size}, stride {stride}, padding {padding}, special {special}");
                let max = |t: &[Tensor]| t[0].max_pool(&pool());
                check(&format!("max of {what}"), &[&shape], DType::F32, special, &max);
                let avg = |t: &[Tensor]| t[0].avg_pool(&pool());
                check(&format!("mean of {what}"), &[&shape], DType::F32, special, &avg);
            }
        }
    }
}

#[test]
fn pools_of_other_dtypes() {
    for dtype in [DType::F64, DType::F16, DType::BF16, DType::I32] {
        for padding in [0, 1] {
            let pool = || Pool::new(3).stride(2).padding(padding);
            let what = format!("{dtype}, padding {padding}");
            check(&what, &[&[2, 2, 9, 17]], dtype, false, &|t| t[0].max_pool(&pool()));
        }
    }
}

#[test]
fn depthwise_and_small_convolutions() {
    for (stride, padding) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
        for w in [7, 8, 21] {
            let what = format!("width {w}, stride {stride}, padding {padding}");
            let conv = || Conv::new().stride(stride).padding(padding);
            let depthwise = |t: &[Tensor]| t[0].conv2d(&t[1], None, &conv().groups(4));
            check(
                &format!("depthwise, {what}"),
                &[&[2, 4, 6, w], &[4, 1, 3, 3]],
                DType::F32,
                false,
                &depthwise,
            );
            let dense = |t: &[Tensor]| t[0].conv2d(&t[1], None, &conv());
            check(
                &format!("dense, {what}"),
                &[&[2, 3, 6, w], &[5, 3, 3, 3]],
                DType::F32,
                false,
                &dense,
            );
        }
    }
}

/// Sums of windows over images of every height and width near a few rows and vectors: rows that are left over, last vectors
/// that overlap the ones before, and results that take the place of an operand, which are computed once.
#[test]
fn windows_of_several_rows_run_together() {
    for (h, w) in [(2, 4), (4, 4), (5, 9), (7, 7), (11, 6), (13, 5), (14, 14), (16, 23)] {
        for (size, stride) in [(3, 1), (5, 1), (3, 2)] {
            let image = [1, 20, (h - 1) * stride + size, (w - 1) * stride + size];
            let shapes: [&[usize]; 4] = [&image, &[20, 1, size, size], &[1, 20, h, w], &[20, 1, 1]];
            let conv = || Conv::new().stride(stride).groups(20);
            let what = format!("{h} by {w}, window {size}, stride {stride}");
            for special in [false, true] {
                check(&what, &shapes[..2], DType::F32, special, &|t| {
                    t[0].conv2d(&t[1], None, &conv())
                });
                check(&format!("{what}, activation"), &shapes, DType::F32, special, &|t| {
                    (t[0].conv2d(&t[1], None, &conv()) + &t[3]).relu()
                });
                check(&format!("{what}, residual"), &shapes[..3], DType::F32, special, &|t| {
                    t[0].conv2d(&t[1], None, &conv()) * &t[2] + &t[2]
                });
            }
        }
    }
}

/// An element of an image is loaded once for all rows of results whose windows meet it, and weights once for all of them where registers hold
/// them. A row that is longer than a vector is vectors of which the last overlaps the one before; a short one is a single vector,
/// where lanes may be left out.
#[test]
fn windows_that_run_together_load_an_element_once() {
    for (width, masked, size, rows) in [(20usize, false, 5usize, 4usize), (7, true, 5, 4), (20, false, 3, 7)] {
        let g = Graph::new("depthwise");
        let x = g.input("x", DType::F32, [1, 64, rows + size - 1, width + size - 1]);
        let weight = g.input("weight", DType::F32, [64, 1, size, size]);
        g.output("y", &x.conv2d(&weight, None, &Conv::new().groups(64)));
        let e = g.compile(&CompileOptions::default()).unwrap();
        let explained = e.explain();
        assert!(
            explained.contains(&format!("windows of {rows} rows share")),
            "{explained}"
        );
        assert!(explained.contains("is loaded once for the rows whose"), "{explained}");
        let text = e.plan().kernels[0].to_string();
        let count = |p: &str| text.matches(p).count();
        let masked = masked && explained.contains("inward-masked");
        assert!(masked || explained.contains(" again"), "{explained}");
        let held = explained
            .split("slide ")
            .nth(1)
            .is_some_and(|s| s[..s.len().min(9)].contains("held"));
        // One line of lanes for the vectors at the left, and one for those at the right.
        let vectors = if masked { 1 } else { 2 };
        let weights = if held { size * size } else { rows * size * size };
        assert_eq!(
            (count("load p0["), count("load p1[")),
            (vectors * (rows + size - 1) * size, vectors * weights),
            "{text}"
        );
    }
}

/// Depthwise convolutions of padded images: what is padding is left out where windows slide, whatever the weights are that it is
/// multiplied by.
#[test]
fn windows_slide_over_padded_images() {
    let images = [
        (1, 16),
        (2, 5),
        (7, 7),
        (8, 16),
        (14, 14),
        (15, 33),
        (28, 28),
        (9, 40),
        (3, 1),
    ];
    for (h, w) in images {
        for (size, around) in [
            (3, (1, 1)),
            (5, (2, 2)),
            (7, (3, 3)),
            (5, (4, 0)),
            (2, (0, 1)),
            (3, (2, 5)),
        ] {
            let padded = |x: &Tensor| x.pad(&[(0, 0), (0, 0), around, around], 0.0);
            for (stride, special) in [(1, false), (1, true), (2, false), (2, true)] {
                let results = [h, w].map(|n| (n + around.0 + around.1 - size) / stride + 1);
                let (image, results) = ([1, 20, h, w], [1, 20, results[0], results[1]]);
                let shapes: [&[usize]; 4] = [&image, &[20, 1, size, size], &results, &[20, 1, 1]];
                let conv = || Conv::new().groups(20).stride(stride);
                let what = format!("{h} by {w}, window {size}, stride {stride}, {around:?} around");
                check(&format!("{what}, activation"), &shapes, DType::F32, special, &|t| {
                    (padded(&t[0]).conv2d(&t[1], None, &conv()) + &t[3]).relu()
                });
                check(&format!("{what}, residual"), &shapes[..3], DType::F32, special, &|t| {
                    padded(&t[0]).conv2d(&t[1], None, &conv()) * &t[2] + &t[2]
                });
            }
        }
    }
}

/// The step that a depthwise convolution of a product's result takes has no padding written before it, nor behind the product.
#[test]
fn padding_between_a_product_and_windows_that_slide_is_never_written() {
    for (stride, size) in [(1usize, 3usize), (1, 5), (2, 3)] {
        let g = Graph::new("block");
        let x = g.input("x", DType::F32, [1, 24, 28, 28]);
        let [wide, deep] = [[96, 24, 1, 1], [96, 1, size, size]];
        let (wide, deep) = (g.input("wide", DType::F32, wide), g.input("deep", DType::F32, deep));
        let y = x.conv2d(&wide, None, &Conv::new()).relu();
        let conv = Conv::new().groups(96).padding(size / 2).stride(stride);
        g.output("y", &y.conv2d(&deep, None, &conv));
        let graph = g.finish().unwrap();
        let e = compile_ir(&graph, &CompileOptions::default()).unwrap();
        let explained = e.explain();
        let masks = explained.contains("emitter avx");
        let written =
            explained.contains("f32[1, 96, 32, 32]: stored") || explained.contains("f32[1, 96, 30, 30]: stored");
        assert!(!masks || !written, "{explained}");
        let shapes = [[1, 24, 28, 28], [96, 24, 1, 1], [96, 1, size, size]];
        let inputs = shapes.map(|s| data(DType::F32, &s, false));
        let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
        let found = e.run(&inputs.each_ref().map(Into::into)).unwrap();
        compare(&found[0].to_host(), &bounded[0]).unwrap_or_else(|e| panic!("{size}, {stride}: {e}\n{explained}"));
    }
}

#[test]
fn windows_with_something_before_and_after() {
    check(
        "relu, pool, scale",
        &[&[2, 3, 10, 18], &[3, 1, 1]],
        DType::F32,
        true,
        &|t| t[0].relu().max_pool(&Pool::new(2)) * &t[1] + 1.0,
    );
    check("pool of exp", &[&[2, 3, 10, 18]], DType::F32, false, &|t| {
        t[0].exp().avg_pool(&Pool::new(3))
    });
    check("pool over rows only", &[&[2, 9, 11]], DType::F32, true, &|t| {
        t[0].window(1, 3, 1, 1).max(-1)
    });
    check("short matrices", &[&[3, 5, 2], &[3, 2, 9]], DType::F32, false, &|t| {
        t[0].matmul(&t[1])
    });
}

/// Padding of many small images: rows and columns at the edges apart, last vectors of a row that overlap the ones before.
#[test]
fn padding_of_images_with_ragged_rows() {
    for (h, w) in [(1, 1), (3, 4), (4, 7), (7, 5), (9, 18), (2, 23)] {
        for (rows, columns) in [((1, 1), (1, 1)), ((2, 2), (2, 2)), ((0, 1), (3, 0)), ((5, 4), (0, 0))] {
            let what = format!("{h} by {w}, {rows:?} and {columns:?} around");
            let around = [(0, 0), (0, 0), rows, columns];
            for special in [false, true] {
                // An activation reads its operand twice.
                let shapes: [&[usize]; 3] = [&[2, 10, h, w], &[10, 1, 1], &[2, h, w, 10]];
                let activated = |t: &[Tensor]| {
                    let x = &t[0] * &t[1];
                    (&x * x.sigmoid()).pad(&around, 0.5)
                };
                check(&what, &shapes[..2], DType::F32, special, &activated);
                check(&what, &shapes[..2], DType::F16, special, &activated);
                // What is loaded across rows.
                check(&format!("{what}, transposed"), &shapes, DType::F32, special, &|t| {
                    (&t[0] + t[2].permute([0, 3, 1, 2]) * &t[1]).pad(&around, -1.0)
                });
            }
        }
    }
}

/// A sum and the same sum with zeros around it, as between the blocks of a network: one kernel, no condition an element.
#[test]
fn a_result_and_the_same_padded_run_in_lanes() {
    for (h, w) in [(14, 14), (7, 9), (5, 4)] {
        let g = Graph::new("block");
        let x = g.input("x", DType::F32, [1, 24, h, w]);
        let t = g.input("t", DType::F32, [1, h, w, 24]);
        let sum = &x + t.permute([0, 3, 1, 2]);
        g.output("sum", &sum);
        g.output("padded", &sum.pad(&[(0, 0), (0, 0), (3, 3), (3, 3)], 0.0));
        let graph = g.finish().unwrap();
        let inputs = [[1, 24, h, w], [1, h, w, 24]].map(|s| data(DType::F32, &s, true));
        let exact = interpret(&graph, &inputs, &interp::Options::default()).unwrap();
        for threads in [1, 2] {
            let options = CompileOptions {
                threads: Some(threads),
                ..CompileOptions::default()
            };
            let e = compile_ir(&graph, &options).unwrap();
            let explained = e.explain();
            assert_eq!(e.plan().steps.len(), 1, "{explained}");
            assert!(!explained.contains("conditional per element"), "{explained}");
            let found = e.run(&inputs.each_ref().map(Into::into)).unwrap();
            for (found, exact) in found.iter().zip(&exact) {
                assert_eq!(found.to_host(), *exact, "{h} by {w}\n{explained}");
            }
        }
    }
}

/// Images made larger by elements that are meant several times, with something around them: whole vectors, with sizes known
/// or not, from even places and odd ones.
#[test]
fn enlarged_images_with_padding_run_in_lanes() {
    for dtype in [DType::F32, DType::F16, DType::F64, DType::I32, DType::Bool] {
        for (count, skipped) in [(2, 0), (2, 1), (3, 0), (4, 1), (8, 0)] {
            for symbolic in [false, true] {
                let g = Graph::new("enlarged");
                let [h, w]: [tlc::Dim; 2] = match symbolic {
                    true => ["h", "w"].map(|s| (&g.symbol(s, 1..=1 << 20)).into()),
                    false => [5.into(), 9.into()],
                };
                let x = g.input("x", dtype, [1.into(), 20.into(), h.clone(), w.clone()]);
                let wide = x.repeat(count, 2).repeat(count, 3);
                let from = wide.slice((.., .., .., skipped..));
                g.output("y", &from.pad(&[(0, 0), (0, 0), (1, 1), (1, 2)], 0));
                let graph = g.finish().unwrap();
                let what = format!("{dtype}, {count} times, from {skipped}, symbolic {symbolic}");
                let options = CompileOptions {
                    specialize: tlc::Specialize::Never,
                    ..CompileOptions::default()
                };
                let e = compile_ir(&graph, &options).unwrap();
                let explained = e.explain();
                assert!(!explained.contains("conditional per element"), "{what}\n{explained}");
                let sizes: &[(usize, usize)] = match symbolic {
                    true => &[(5, 9), (1, 1), (2, 3), (4, 8), (3, 17)],
                    false => &[(5, 9)],
                };
                for &(h, w) in sizes {
                    let inputs = [data(dtype, &[1, 20, h, w], true)];
                    let exact = interpret(&graph, &inputs, &interp::Options::default()).unwrap();
                    let found = e.run(&inputs.each_ref().map(Into::into)).unwrap();
                    assert_eq!(found[0].to_host(), exact[0], "{what}, {h} by {w}\n{explained}");
                }
            }
        }
    }
}

#[test]
fn padding_over_symbolic_sizes_runs_in_lanes() {
    let g = Graph::new("norm-and-conv");
    let [n, h, w] = ["n", "h", "w"].map(|s| g.symbol(s, 0..=i64::from(i32::MAX)));
    let x = g.input("x", DType::F32, [n, 32.into(), h, w]);
    let [scale, shift] = ["scale", "shift"].map(|s| g.input(s, DType::F32, [32]));
    let k = g.input("k", DType::F32, [16, 32, 3, 3]);
    let normal = x.group_norm(8, Some(&scale), Some(&shift), 1e-5);
    let gated = &normal * normal.sigmoid();
    g.output("y", &gated.conv2d(&k, None, &Conv::new().padding(1)));
    let graph = g.finish().unwrap();
    let executables = [1, 2].map(|threads| {
        let options = CompileOptions {
            threads: Some(threads),
            ..CompileOptions::default()
        };
        compile_ir(&graph, &options).unwrap()
    });
    // The norm's two sums, what it gives the convolution with the padding around it, and the convolution; before it its weights in
    // blocks, where a kernel computes it.
    let explained = executables[0].explain();
    assert!(!explained.contains("innermost loops: scalar"), "{explained}");
    let direct = explained.contains("windows are multiplied where they lie");
    assert_eq!(
        executables[0].plan().steps.len(),
        3 + usize::from(direct),
        "{explained}"
    );
    for (shape, special) in [
        ([1, 32, 1, 1], false),
        ([2, 32, 3, 5], false),
        ([1, 32, 8, 17], false),
        ([3, 32, 4, 4], true),
        ([1, 32, 0, 4], false),
        ([0, 32, 4, 4], false),
    ] {
        let of = |shape: &[usize]| data(DType::F32, shape, special);
        let inputs = [of(&shape), of(&[32]), of(&[32]), of(&[16, 32, 3, 3])];
        let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
        let run = |e: &tlc::Executable| e.run(&inputs.each_ref().map(Into::into)).unwrap()[0].to_host();
        let [one, two] = executables.each_ref().map(run);
        compare(&one, &bounded[0]).unwrap_or_else(|e| panic!("{shape:?}: {e}\n{explained}"));
        assert_eq!(one, two, "{shape:?}");
    }
}

#[test]
fn windows_over_images_of_unknown_size_run_in_lanes() {
    let g = Graph::new("depthwise");
    let (h, w) = (g.symbol("h", 0..=1 << 20), g.symbol("w", 0..=1 << 20));
    let x = g.input("x", DType::F32, (2, 3, &h, &w));
    let weight = g.input("weight", DType::F32, [3, 1, 3, 3]);
    let bias = g.input("bias", DType::F32, [3, 1, 1]);
    let y = x.conv2d(&weight, None, &Conv::new().groups(3).padding(1));
    g.output("y", &(y + bias));
    let graph = g.finish().unwrap();
    for threads in [1, 2] {
        let options = CompileOptions {
            threads: Some(threads),
            specialize: tlc::Specialize::Never,
            ..CompileOptions::default()
        };
        let e = compile_ir(&graph, &options).unwrap();
        let explained = e.explain();
        assert!(
            explained.contains("neighbouring results, each of a small window"),
            "{explained}"
        );
        for (h, w) in [(5, 9), (1, 1), (4, 3), (7, 4), (3, 18), (0, 5), (6, 0)] {
            let inputs = [
                data(DType::F32, &[2, 3, h, w], true),
                data(DType::F32, &[3, 1, 3, 3], false),
                data(DType::F32, &[3, 1, 1], false),
            ];
            let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
            let found = e.run(&inputs.iter().map(Into::into).collect::<Vec<_>>()).unwrap();
            compare(&found[0].to_host(), &bounded[0]).unwrap_or_else(|e| panic!("{h} by {w}: {e}\n{explained}"));
        }
    }
}

/// Windows slide over padded images of unknown size as over those of known size: rows together, by fewer where fewer are left, and what
/// whole vectors leave over by masks.
#[test]
fn windows_slide_over_padded_images_of_unknown_size() {
    for (size, stride, around) in [
        (3, 1, (1, 1)),
        (3, 2, (1, 1)),
        (5, 1, (2, 2)),
        (5, 2, (2, 2)),
        (3, 1, (2, 0)),
    ] {
        let g = Graph::new("depthwise");
        let n = g.symbol("n", 0..=16);
        let (h, w) = (g.symbol("h", 0..=1 << 20), g.symbol("w", 0..=1 << 20));
        let x = g.input("x", DType::F32, (&n, 20, &h, &w));
        let weight = g.input("weight", DType::F32, [20, 1, size, size]);
        let bias = g.input("bias", DType::F32, [20, 1, 1]);
        let padded = x.pad(&[(0, 0), (0, 0), around, around], 0.0);
        let y = padded.conv2d(&weight, None, &Conv::new().groups(20).stride(stride));
        g.output("y", &(y + bias).relu());
        let graph = g.finish().unwrap();
        let executables = [1, 2].map(|threads| {
            let options = CompileOptions {
                threads: Some(threads),
                specialize: tlc::Specialize::Never,
                ..CompileOptions::default()
            };
            compile_ir(&graph, &options).unwrap()
        });
        let explained = executables[0].explain();
        if explained.contains("emitter avx512") {
            assert!(explained.contains("loaded once for the rows"), "{explained}");
            // One piece of code for all rows and vectors, the last ones too.
            assert!(around != (1, 1) || explained.contains("cover i"), "{explained}");
        }
        for (n, h, w) in [
            (1, 7, 7),
            (2, 14, 14),
            (1, 28, 28),
            (1, 16, 16),
            (1, 15, 33),
            (1, 57, 17),
            (1, 1, 64),
            (1, 31, 1),
            (3, 2, 3),
            (1, 3, 47),
            (0, 5, 9),
        ] {
            for special in [false, true] {
                let size = size as usize;
                let inputs = [
                    data(DType::F32, &[n, 20, h, w], special),
                    data(DType::F32, &[20, 1, size, size], false),
                    data(DType::F32, &[20, 1, 1], false),
                ];
                let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
                let run = |e: &tlc::Executable| e.run(&inputs.each_ref().map(Into::into)).unwrap()[0].to_host();
                let [one, two] = executables.each_ref().map(run);
                compare(&one, &bounded[0]).unwrap_or_else(|e| panic!("{n} of {h} by {w}: {e}\n{explained}"));
                assert_eq!(one, two, "{n} of {h} by {w}");
            }
        }
    }
}

/// Sums and maxima of windows over images of random size, which is not known when code is made: of every stride, dilation and padding, larger than the
/// image and not, within the bounds of the meaning; on one thread and two.
#[test]
fn windows_over_images_of_random_size_that_is_not_known() {
    type Windows = fn(&[Tensor], usize, usize, usize, usize) -> Tensor;
    let sums: Windows = |t, size, stride, dilation, padding| {
        let _ = size;
        let conv = Conv::new()
            .groups(20)
            .stride(stride)
            .dilation(dilation)
            .padding(padding);
        (t[0].conv2d(&t[1], None, &conv) + &t[2]).relu()
    };
    let products: Windows = |t, size, stride, dilation, padding| {
        let _ = size;
        let conv = Conv::new().stride(stride).dilation(dilation).padding(padding);
        t[0].conv2d(&t[1], None, &conv).relu()
    };
    let largest: Windows = |t, size, stride, dilation, padding| {
        t[0].max_pool(&Pool::new(size).stride(stride).dilation(dilation).padding(padding))
    };
    let mean: Windows = |t, size, stride, dilation, padding| {
        let _ = dilation;
        t[0].avg_pool(&Pool::new(size).stride(stride).padding(padding))
    };
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut below = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % n) as usize
    };
    for (kind, size, stride, dilation, padding) in [
        ("sums", 3, 1, 1, 1),
        ("sums", 3, 1, 1, 0),
        ("sums", 3, 2, 1, 1),
        ("sums", 3, 2, 1, 0),
        ("sums", 5, 1, 1, 2),
        ("sums", 5, 2, 1, 2),
        ("sums", 5, 1, 2, 4),
        ("sums", 7, 1, 1, 3),
        ("sums", 3, 3, 2, 2),
        ("sums", 5, 3, 1, 1),
        ("sums", 7, 3, 1, 3),
        ("sums", 7, 2, 1, 1),
        ("sums", 2, 1, 1, 0),
        ("maxima", 3, 1, 1, 1),
        ("maxima", 3, 2, 1, 1),
        ("maxima", 3, 2, 1, 0),
        ("maxima", 2, 2, 1, 0),
        ("maxima", 5, 1, 1, 2),
        ("maxima", 3, 1, 2, 1),
        ("maxima", 2, 3, 1, 0),
        ("maxima", 3, 3, 1, 1),
        ("means", 3, 1, 1, 1),
        ("means", 2, 3, 1, 1),
        ("means", 3, 2, 1, 0),
        ("products", 3, 1, 1, 1),
        ("products", 3, 2, 1, 1),
        ("products", 3, 1, 2, 2),
        ("products", 3, 1, 7, 7),
    ] {
        let what = format!("{kind} of {size}, stride {stride}, dilation {dilation}, padding {padding}");
        let f = match kind {
            "sums" => sums,
            "products" => products,
            "maxima" => largest,
            _ => mean,
        };
        let g = Graph::new("windows");
        let least = (dilation * (size - 1) + 1_usize).saturating_sub(2 * padding);
        let n = g.symbol("n", 0..=16);
        let [h, w] = ["h", "w"].map(|name| g.symbol(name, least as i64..=1 << 20));
        let x = g.input("x", DType::F32, (&n, 20, &h, &w));
        let weights = match kind {
            "products" => [32, 20, size, size],
            _ => [20, 1, size, size],
        };
        let weight = g.input("weight", DType::F32, weights);
        let bias = g.input("bias", DType::F32, [20, 1, 1]);
        g.output("y", &f(&[x, weight, bias], size, stride, dilation, padding));
        let graph = g.finish().unwrap();
        let compiled = |graph: &tlc_ir::Graph, threads| {
            let options = CompileOptions {
                threads: Some(threads),
                specialize: tlc::Specialize::Never,
                ..CompileOptions::default()
            };
            compile_ir(graph, &options).unwrap_or_else(|e| panic!("{what}: {e}"))
        };
        let executables = [1, 2].map(|threads| compiled(&graph, threads));
        let explained = executables[0].explain();
        for k in 0..10 {
            let n = [1, 1, 2, 0, 3, 1][k % 6];
            let [h, w] = [below(21), below(40)].map(|n| least.max(1) + if k == 0 { 0 } else { n });
            let special = k % 2 == 1;
            // Weights that are infinite meet padding.
            let mut weight = data(DType::F32, &weights, false);
            if special {
                weight.set(2, tlc::Scalar::from_f64(DType::F32, f64::INFINITY));
            }
            let inputs = [
                data(DType::F32, &[n, 20, h, w], special),
                weight,
                data(DType::F32, &[20, 1, 1], false),
            ];
            let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
            let run = |e: &tlc::Executable| e.run(&inputs.each_ref().map(Into::into)).unwrap()[0].to_host();
            let [one, two] = executables.each_ref().map(run);
            let what = format!("{what}, {n} of {h} by {w}");
            compare(&one, &bounded[0]).unwrap_or_else(|e| panic!("{what}: {e}\n{explained}"));
            assert_eq!(one, two, "{what}");
        }
    }
}

/// A bias for each channel, sizes unknown and computed from others: channels stay a loop, and no element computes which it has.
#[test]
fn a_bias_of_channels_is_found_without_a_division_for_each_element() {
    let g = Graph::new("bias");
    let h = g.symbol("h", 1..=1 << 20);
    let x = g.input("x", DType::F32, (2, 16, &h, 50));
    let weight = g.input("weight", DType::F32, [24, 16, 1, 1]);
    let bias = g.input("bias", DType::F32, [24, 1, 1]);
    g.output("y", &(x.conv2d(&weight, None, &Conv::new().stride(2)) + bias).exp());
    let e = g.compile(&CompileOptions::default()).unwrap();
    let kernels: Vec<String> = e.plan().kernels.iter().map(|k| k.to_string()).collect();
    for (k, text) in kernels.iter().enumerate() {
        // Once a channel is often enough: not in a loop inside that over channels.
        let divides =
            |l: &&str| l.starts_with("      ") && l.contains("load p1[") && (l.contains("mod(") || l.contains("div("));
        assert_eq!(text.lines().filter(divides).count(), 0, "kernel {k}:\n{text}");
    }
}
