//! Derivatives of convolutions with respect to image and weights, and overlap-add, which the former is: against finite differences, and
//! against sums over the definition in whole numbers, which are exact. What they cost is in `costs`.

use tlc::ir::graph::NodeKind;
use tlc::ir::kernel::Access;
use tlc::ir::plan::{Plan, Step};
use tlc::ir::rng::Rng;
use tlc::{CompileOptions, Conv, DType, Graph, HostTensor, Tensor, grad, inputs};

use crate::against::{check, host};

/// Padding before and behind.
const SIDES: [(usize, usize); 3] = [(0, 0), (1, 0), (2, 3)];

#[test]
fn every_stride_dilation_and_kernel_over_one_axis() {
    for stride in 1..=3 {
        for dilation in 1..=3 {
            for size in 1..=5 {
                for (length, (before, behind)) in [4, 7].into_iter().zip(SIDES).chain([(2, SIDES[2])]) {
                    let reach = dilation * (size - 1) + 1;
                    if length + before + behind < reach {
                        continue;
                    }
                    let name = format!("{length}+{before}+{behind} by {size}, stride {stride}, dilation {dilation}");
                    let options = Conv::new()
                        .stride(stride)
                        .dilation(dilation)
                        .padding_sides(before, behind);
                    check(
                        &name,
                        &[(&[1, 2, length], -1.0, 1.0), (&[2, 2, size], -1.0, 1.0)],
                        |_, x| x[0].conv1d(&x[1], None, &options),
                    );
                }
            }
        }
    }
}

#[test]
fn several_axes_groups_and_depthwise() {
    let plain = Conv::new();
    let cases: [(&str, &[usize], &[usize], Conv); 9] = [
        ("full", &[2, 3, 5, 4], &[2, 3, 3, 3], plain.clone().padding(1)),
        ("strides", &[1, 2, 7, 6], &[2, 2, 3, 2], plain.clone().stride([2, 3])),
        (
            "one axis strided",
            &[1, 2, 5, 6],
            &[3, 2, 3, 3],
            plain.clone().stride([1, 2]).padding([1, 0]),
        ),
        ("patches", &[1, 2, 5, 6], &[3, 2, 2, 3], plain.clone().stride([2, 3])),
        ("gaps", &[1, 1, 8, 7], &[2, 1, 2, 1], plain.clone().stride([3, 2])),
        (
            "groups",
            &[2, 4, 4, 5],
            &[6, 2, 3, 2],
            plain.clone().groups(2).stride([1, 2]).padding(1),
        ),
        (
            "depthwise",
            &[1, 3, 5, 5],
            &[3, 1, 3, 3],
            plain.clone().groups(3).padding(1),
        ),
        (
            "dilated",
            &[1, 2, 6, 7],
            &[2, 2, 2, 3],
            plain.clone().dilation([2, 1]).stride([2, 1]).padding(1),
        ),
        (
            "smaller than the kernel",
            &[1, 2, 2, 1],
            &[2, 2, 5, 3],
            plain.clone().padding([2, 1]),
        ),
    ];
    for (name, x, w, options) in cases {
        check(name, &[(x, -1.0, 1.0), (w, -1.0, 1.0)], |_, x| {
            x[0].conv(&x[1], None, &options)
        });
    }
    let options = Conv::new().stride([1, 2, 1]).padding([1, 0, 1]);
    check(
        "3-d",
        &[(&[1, 1, 3, 4, 3], -1.0, 1.0), (&[2, 1, 2, 3, 2], -1.0, 1.0)],
        |_, x| x[0].conv3d(&x[1], None, &options),
    );
}

#[test]
fn second_derivatives() {
    for (stride, dilation) in [(1, 1), (2, 1), (1, 2)] {
        let options = Conv::new().stride(stride).dilation(dilation).padding(1);
        let name = format!("stride {stride}, dilation {dilation}");
        check(
            &name,
            &[(&[1, 2, 5, 4], -1.0, 1.0), (&[2, 2, 3, 2], -1.0, 1.0)],
            |_, x| {
                let loss = x[0].conv2d(&x[1], None, &options).sin().sum(..);
                grad(&loss, &[&x[0]]).remove(0)
            },
        );
    }
}

fn whole(shape: &[usize], rng: &mut Rng) -> Vec<f64> {
    (0..shape.iter().product())
        .map(|_| (rng.below(9) as f64) - 4.0)
        .collect()
}

/// The definition, over two axes: what a cotangent of `[b, f, h', w']` and weights of `[f, c / groups, i, j]` make of an image's `[b, c, h, w]`.
fn by_definition(
    d: (&[usize], &[f64]),
    w: (&[usize], &[f64]),
    x: [usize; 4],
    (stride, dilation, before, groups): ([usize; 2], [usize; 2], [usize; 2], usize),
) -> Vec<f64> {
    let mut dx = vec![0.0; x.iter().product()];
    let inner = x[1] / groups;
    for b in 0..d.0[0] {
        for f in 0..d.0[1] {
            for p in 0..d.0[2] * d.0[3] {
                let at = [p / d.0[3], p % d.0[3]];
                for c in 0..inner {
                    for k in 0..w.0[2] * w.0[3] {
                        let in_window = [k / w.0[3], k % w.0[3]];
                        let place = [0, 1].map(|a| {
                            (at[a] * stride[a] + in_window[a] * dilation[a])
                                .checked_sub(before[a])
                                .filter(|&i| i < x[2 + a])
                        });
                        let [Some(row), Some(column)] = place else { continue };
                        let channel = f / (d.0[1] / groups) * inner + c;
                        let of_w = w.1[(f * inner + c) * w.0[2] * w.0[3] + k];
                        let of_d = d.1[(b * d.0[1] + f) * d.0[2] * d.0[3] + p];
                        dx[((b * x[1] + channel) * x[2] + row) * x[3] + column] += of_d * of_w;
                    }
                }
            }
        }
    }
    dx
}

#[test]
fn random_convolutions_match_the_definition_exactly() {
    let mut rng = Rng::new(61);
    let mut tried = 0;
    while tried < 120 {
        let mut draw = |n: usize| rng.below(n);
        let groups = 1 + draw(3);
        // Of many channels there is a product for each place of a stride.
        let (inner, outer, batch) = match tried % 2 {
            0 => (1 + draw(3), groups * (1 + draw(2)), 1 + draw(2)),
            _ => (16 + draw(20), groups * (8 + draw(4)), 1 + draw(2)),
        };
        let two = |draw: &mut dyn FnMut(usize) -> usize, n| [1 + draw(n), 1 + draw(n)];
        let (stride, dilation, size) = (two(&mut draw, 3), two(&mut draw, 3), two(&mut draw, 5));
        let (space, before, behind) = (two(&mut draw, 9), [draw(4), draw(4)], [draw(4), draw(4)]);
        let fits = (0..2).all(|a| space[a] + before[a] + behind[a] > dilation[a] * (size[a] - 1));
        if !fits {
            continue;
        }
        tried += 1;
        let x_shape = [batch, groups * inner, space[0], space[1]];
        let w_shape = [outer, inner, size[0], size[1]];
        let g = Graph::new("conv");
        let (x, w) = (g.input("x", DType::F32, x_shape), g.input("w", DType::F32, w_shape));
        let options = Conv::new()
            .stride(stride)
            .dilation(dilation)
            .padding_sides(before, behind)
            .groups(groups);
        let y = x.conv2d(&w, None, &options);
        let d_shape = y.const_shape().expect("numbers");
        let (of_w, of_d) = (whole(&w_shape, &mut rng), whole(&d_shape, &mut rng));
        let d = g.constant(host(&d_shape, &of_d)).cast(DType::F32);
        g.output("dx", &tlc::vjp(&[&y], &[&d], &[&x])[0]);
        let name = format!("{x_shape:?} {w_shape:?} {options:?}");
        let step = g
            .compile(&CompileOptions::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let to_f32 = |v: &[f64]| -> Vec<f32> { v.iter().map(|&v| v as f32).collect() };
        let given = HostTensor::from_slice(&w_shape, &to_f32(&of_w)).expect("as many");
        let zeros = HostTensor::full(&x_shape, tlc::Scalar::from_f64(DType::F32, 0.0)).expect("memory");
        let found = step
            .run(&inputs![&zeros, &given])
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        let expected = by_definition(
            (&d_shape, &of_d),
            (&w_shape, &of_w),
            x_shape,
            (stride, dilation, before, groups),
        );
        assert_eq!(found["dx"].as_slice::<f32>().expect("f32"), to_f32(&expected), "{name}");
    }
}

#[test]
fn an_empty_batch_and_symbolic_sizes() {
    an_empty_batch_and_symbolic_sizes_of(3, 2);
    an_empty_batch_and_symbolic_sizes_of(9, 17);
}

fn an_empty_batch_and_symbolic_sizes_of(outer: usize, inner: usize) {
    let g = Graph::new("conv");
    let (b, n) = (g.symbol("b", 0..=4), g.symbol("n", 3..=20));
    let x = g.input("x", DType::F64, (&b, inner, &n));
    let w = g.input("w", DType::F64, [outer, inner, 3]);
    for stride in 1..=3 {
        let loss = x
            .conv1d(&w, None, &Conv::new().stride(stride).padding(1))
            .square()
            .sum(..);
        let d = grad(&loss, &[&x, &w]);
        g.output(&format!("dx{stride}"), &d[0]);
        g.output(&format!("dw{stride}"), &d[1]);
    }
    let all = g.compile(&CompileOptions::default()).expect("compiles");
    let mut rng = Rng::new(5);
    for (batch, length) in [(0, 5), (1, 3), (2, 4), (3, 13), (2, 20)] {
        let (x_shape, w_shape) = ([batch, inner, length], [outer, inner, 3]);
        let (of_x, of_w) = (whole(&x_shape, &mut rng), whole(&w_shape, &mut rng));
        let found = all
            .run(&inputs![&host(&x_shape, &of_x), &host(&w_shape, &of_w)])
            .expect("runs");
        for stride in 1..=3 {
            // A loss of squares: twice the result is its cotangent.
            let places = (length - 1) / stride + 1;
            let terms = |b: usize, f: usize, p: usize| {
                (0..3 * inner).filter_map(move |ck| {
                    let (c, k) = (ck / 3, ck % 3);
                    let i = (p * stride + k).checked_sub(1).filter(|&i| i < length)?;
                    Some(((b * inner + c) * length + i, f * 3 * inner + ck))
                })
            };
            let (mut dx, mut dw) = (vec![0.0; of_x.len()], vec![0.0; of_w.len()]);
            for b in 0..batch {
                for f in 0..outer {
                    for p in 0..places {
                        let y: f64 = terms(b, f, p).map(|(i, k)| of_x[i] * of_w[k]).sum();
                        terms(b, f, p).for_each(|(i, k)| {
                            dx[i] += 2.0 * y * of_w[k];
                            dw[k] += 2.0 * y * of_x[i];
                        });
                    }
                }
            }
            let name = format!("{batch} of {length}, stride {stride}");
            assert_eq!(
                found[&format!("dx{stride}")[..]].as_slice::<f64>().expect("f64"),
                dx,
                "{name}"
            );
            assert_eq!(
                found[&format!("dw{stride}")[..]].as_slice::<f64>().expect("f64"),
                dw,
                "{name}"
            );
        }
    }
}

#[test]
fn overlap_add_refuses_what_are_no_windows() {
    let problem = |f: &dyn Fn(&Graph) -> Tensor| {
        let g = Graph::default();
        assert!(f(&g).is_poisoned());
        g.errors()[0].to_string()
    };
    let windows = |g: &Graph| g.ones([3, 2], DType::F32);
    assert!(problem(&|g| windows(g).overlap_add(1, 4, 1, 1)).contains("last axis"));
    assert!(problem(&|g| windows(g).overlap_add(0, 5, 1, 1)).contains("extent"));
    assert!(problem(&|g| windows(g).overlap_add(0, 4, 0, 1)).contains("stride of 0"));
    assert!(problem(&|g| windows(g).overlap_add(0, 1, 1, 1)).contains("window"));
    assert!(problem(&|g| g.ones([3, 2], DType::Bool).overlap_add(0, 4, 1, 1)).contains("bools"));
    assert!(problem(&|g| g.ones([3], DType::F32).overlap_add(0, 4, 1, 1)).contains("rank"));
}

/// Elements of what each sum of products leaves, by the library or by a kernel.
fn results_of_products(plan: &Plan) -> Vec<i64> {
    let written = |s: &Step| match s {
        Step::Gemm(g) => vec![g.dst.slot],
        s => {
            let launches = s.launches();
            let sums = launches.iter().filter(|l| l.label.contains("einsum"));
            sums.flat_map(|l| {
                let params = &plan.kernels[l.kernel.0 as usize].params;
                let args = l.args.iter().zip(params);
                args.filter(|(_, p)| p.access != Access::Read).map(|(slot, _)| *slot)
            })
            .collect()
        }
    };
    let slots = plan.steps.iter().flat_map(written);
    slots
        .map(|s| plan.slots[s.0 as usize].len.as_const().expect("a number"))
        .collect()
}

#[test]
fn the_elements_of_windows_are_never_computed() {
    for (stride, size, groups) in [(1, 3, 1), (2, 3, 1), (2, 4, 1), (2, 2, 1), (1, 5, 1), (1, 3, 2)] {
        let g = Graph::new("conv");
        let x = g.input("x", DType::F32, [2, 16, 28, 28]);
        let w = g.input("w", DType::F32, [16, 16 / groups, size, size]);
        let options = Conv::new().stride(stride).padding(size / 2).groups(groups);
        let y = x.conv2d(&w, None, &options);
        let d = tlc::vjp(&[&y], &[&g.input("d", DType::F32, y.shape())], &[&x]);
        let ir = g.extract(&[("dx", &d[0])]).expect("recorded");
        let name = format!("stride {stride}, {size}, {groups} groups\n{ir}");
        let most = 2 * 16 * 34 * 34;
        for (_, node) in ir.nodes() {
            assert!(!matches!(node.kind, NodeKind::Scatter { .. }), "{name}");
            if matches!(node.kind, NodeKind::Einsum { .. }) && node.ty.elements().as_const().expect("numbers") > most {
                // What was recorded on the way is dead.
                panic!("{name}");
            }
        }
        let plan = tlc::compile_ir(&ir, &CompileOptions::default()).expect("compiles");
        let results = results_of_products(plan.plan());
        if stride == 2 && size > 2 {
            // A product for each place of the stride along both axes, which together compute the image and nothing beside it.
            assert_eq!(results, [2 * 16 * 14 * 14; 4], "{name}");
        } else {
            assert_eq!(results.len(), 1, "{name}");
        }
    }
}

/// Parts of transposed convolutions, of which some are cut where each of their products is, and others where the sizes do not say which products are.
#[test]
fn parts_of_transposed_convolutions() {
    let mut rng = Rng::new(7);
    let (y_shape, w_shape) = ([1, 8, 5, 6], [8, 16, 3, 4]);
    let (of_y, of_w) = (whole(&y_shape, &mut rng), whole(&w_shape, &mut rng));
    let whole_of = |g: &Graph| {
        let y = g.constant(host(&y_shape, &of_y)).cast(DType::F32);
        let w = g.constant(host(&w_shape, &of_w)).cast(DType::F32);
        let windows = tlc::einsum("bchw,cokl->bohwkl", &[&y, &w]);
        windows.overlap_add(3, 14, 2, 1).overlap_add(2, 11, 2, 1)
    };
    let plain = Graph::new("whole");
    let image = whole_of(&plain).eval().expect("evaluates");
    let image = image.as_slice::<f32>().expect("f32");
    for shift in 0..4usize {
        for length in 1..=7 {
            let g = Graph::new("parts");
            let n = g.symbol("n", 0..=4);
            let x = whole_of(&g);
            let rows = x.narrow(2, &n, length).narrow(3, shift, length);
            let columns = x.narrow(3, &n, length).narrow(2, shift, length);
            g.output("rows", &rows);
            g.output("columns", &columns);
            g.output("n", &(&rows.sum(..) + &g.input("size", DType::F32, &n).sum(..)));
            let parts = g.compile(&CompileOptions::default()).expect("compiles");
            for begin in [0usize, 1, 3, 4] {
                let given = HostTensor::full(&[begin], tlc::Scalar::from_f64(DType::F32, 0.0)).expect("memory");
                let found = parts.run(&inputs![&given]).expect("runs");
                for (name, [row, column]) in [("rows", [begin, shift]), ("columns", [shift, begin])] {
                    let at = |i: usize| {
                        let (o, r, c) = (i / length / length, i / length % length, i % length);
                        image[(o * 11 + row + r) * 14 + column + c]
                    };
                    let expected: Vec<f32> = (0..16 * length * length).map(at).collect();
                    let name = format!("{length} {name} from {begin} and {shift}");
                    assert_eq!(
                        found[name.split(' ').nth(1).expect("two words")]
                            .as_slice::<f32>()
                            .expect("f32"),
                        expected,
                        "{name}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_is_infinite_is_in_the_windows_that_cover_it_alone() {
    // Five elements of strides of two, three and four, of many channels and of few: no product has weights that the window lacks.
    for (stride, channels) in [(2, 16), (2, 3), (3, 3), (4, 16), (4, 1)] {
        is_infinite_where_windows_cover(stride, channels);
    }
}

fn is_infinite_where_windows_cover(stride: usize, channels: usize) {
    let size = 5;
    let g = Graph::new("upsampling");
    let y = g.input("y", DType::F32, [1, 8, 6, 6]);
    let w = g.input("w", DType::F32, [8, channels, size, size]);
    let windows = tlc::einsum("bchw,cokl->bohwkl", &[&y, &w]);
    let extent = 5 * stride + size;
    let x = windows
        .overlap_add(3, extent, stride, 1)
        .overlap_add(2, extent, stride, 1);
    g.output("x", &x.narrow(2, 1, 13).narrow(3, 2, 12));
    let step = g.compile(&CompileOptions::default()).expect("compiles");
    let mut of_y = vec![1.0f32; 8 * 36];
    of_y[3 * 36 + 2 * 6 + 4] = f32::INFINITY;
    let of_y = HostTensor::from_slice(&[1, 8, 6, 6], &of_y).expect("as many");
    let of_w = HostTensor::full(&[8, channels, size, size], tlc::Scalar::from_f64(DType::F32, 1.0)).expect("memory");
    let found = step.run(&inputs![&of_y, &of_w]).expect("runs");
    let found = found["x"].as_slice::<f32>().expect("f32");
    for (i, &value) in found.iter().enumerate() {
        let [row, column] = [i / 12 % 13 + 1, i % 12 + 2];
        let covers = |at: usize, window: usize| (window * stride..window * stride + size).contains(&at);
        let of = |at: usize| (0..6).filter(|&p| covers(at, p)).count() as f32;
        match covers(row, 2) && covers(column, 4) {
            true => assert_eq!(value, f32::INFINITY, "{row}, {column}"),
            false => assert_eq!(value, 8.0 * of(row) * of(column), "{row}, {column}"),
        }
    }
}

#[test]
fn what_padding_added_to_the_image_is_not_computed() {
    let g = Graph::new("conv");
    let x = g.input("x", DType::F32, [2, 16, 28, 28]);
    let w = g.input("w", DType::F32, [16, 16, 5, 5]);
    let y = x.conv2d(&w, None, &Conv::new().padding_sides([2, 0], [1, 3]));
    let d = tlc::vjp(&[&y], &[&g.input("d", DType::F32, y.shape())], &[&x]);
    let ir = g.extract(&[("dx", &d[0])]).expect("recorded");
    let plan = tlc::compile_ir(&ir, &CompileOptions::default()).expect("compiles");
    let results = results_of_products(plan.plan());
    assert_eq!(results, [2 * 16 * 28 * 28], "{}", plan.explain());
}
