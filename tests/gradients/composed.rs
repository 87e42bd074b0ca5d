//! Functions that PyTorch has a name for and the recording has as a few operations, or as one with options: rows of
//! `tests/reference/composed.json`, which `pytorch.rs` compares.

use std::f64::consts::{LN_2, PI};

use tlc::{
    Conv, Coordinates, DType, GridSample, Interpolation, Outside, Pool, Reduction, Resample, RoiAlign, Rounding,
    Tensor, concat, einsum, keep, stack,
};

/// The numbers that `generic` makes there.
fn generic(like: &Tensor, shape: &[usize], lift: f64) -> Tensor {
    let n: usize = shape.iter().product();
    let number = |i: usize| ((i * 37 + 11) % 101) as f64 / 40.0 - 1.2625 + i as f64 / 1024.0 + lift;
    like.graph().data(&(0..n).map(number).collect::<Vec<f64>>(), shape)
}

fn whole(x: &Tensor, numbers: &[i64]) -> Tensor {
    x.graph().constant(numbers.to_vec())
}

/// Where those numbers are above 0, as 1.
fn marked(x: &Tensor) -> Tensor {
    generic(x, &[3, 4], 0.0).gt(0.0).cast(DType::F64)
}

fn part(x: &Tensor, k: i64, of: i64) -> Tensor {
    let last = x.rank() as i64 - 1;
    x.narrow(last, k * of, of)
}

/// `f` of each of the axes from `first` on, to those lengths.
fn resized(x: &Tensor, lengths: &[i64], options: &Resample) -> Tensor {
    let first = x.rank() - lengths.len();
    let axes = lengths.iter().enumerate();
    axes.fold(x.clone(), |x, (k, &n)| x.resample((first + k) as i64, n, options))
}

fn pairwise(a: &Tensor, b: &Tensor) -> Tensor {
    (a - b + 1e-6).norm(1)
}

fn covariance(x: &Tensor) -> Tensor {
    let centered = x - x.mean(keep(1));
    centered.matmul(&centered.transpose()) / 3.0
}

fn shuffled(x: &Tensor, apart: [usize; 6], axes: [i64; 6], together: [usize; 4]) -> Tensor {
    x.reshape(apart).permute(axes).reshape(together)
}

/// Cells of recurrent networks, as `torch.lstm_cell` and its like order their gates.
fn cell(name: &str, t: &[Tensor]) -> Tensor {
    let (x, h) = (&t[0], &t[1]);
    match name {
        "lstm_cell" => {
            let gates = x.linear(&t[3], Some(&t[5])) + h.linear(&t[4], Some(&(&t[5] * 0.5)));
            let [i, f, g, o] = [0, 1, 2, 3].map(|k| part(&gates, k, 2));
            o.sigmoid() * (f.sigmoid() * &t[2] + i.sigmoid() * g.tanh()).tanh()
        }
        "gru_cell" => {
            let (a, b) = (x.linear(&t[2], Some(&t[4])), h.linear(&t[3], Some(&t[5])));
            let gate = |k| (part(&a, k, 2) + part(&b, k, 2)).sigmoid();
            let (r, z) = (gate(0), gate(1));
            let n = (part(&a, 2, 2) + r * part(&b, 2, 2)).tanh();
            (1.0 - &z) * n + z * h
        }
        _ => {
            let sum = x.linear(&t[2], Some(&t[4])) + h.linear(&t[3], Some(&t[4]));
            if name == "rnn_tanh_cell" {
                sum.tanh()
            } else {
                sum.relu()
            }
        }
    }
}

fn sampled(name: &str, t: &[Tensor]) -> Tensor {
    let linear = GridSample::new(Interpolation::Linear);
    let options = match name {
        "grid_border" => linear.outside(Outside::Border),
        "grid_reflection" => linear.outside(Outside::Reflection),
        "grid_aligned" => linear.align_corners(),
        "grid_bicubic" => GridSample::new(Interpolation::Cubic(-0.75)),
        "grid_nearest" => GridSample::new(Interpolation::Nearest(Rounding::HalfEven)),
        _ => linear,
    };
    t[0].grid_sample(&t[1], &options)
}

fn regions(x: &Tensor, scale: f64, half_pixel: bool) -> Tensor {
    let boxes = [0.3, 0.2, 5.1, 4.7, 1.2, 2.1, 2.9, 3.3];
    let options = RoiAlign {
        cells: [2, 2],
        samples: [2, 2],
        counts: None,
        scale,
        half_pixel,
        max: false,
    };
    x.roi_align(&x.graph().data(&boxes, &[2, 4]), &whole(x, &[0, 0]), &options)
}

/// Images, signals and their sizes.
fn image(name: &str, t: &[Tensor]) -> Option<Tensor> {
    let x = &t[0];
    let at = |coordinates| Resample::new(Interpolation::Linear).coordinates(coordinates);
    let cubic = |a, coordinates| Resample::new(Interpolation::Cubic(a)).coordinates(coordinates);
    let (half, aligned) = (Coordinates::HalfPixel, Coordinates::AlignCorners);
    Some(match name {
        "conv3d" => x.conv3d(&t[1], None, &Conv::new()),
        "conv_depthwise" => x.conv2d(&t[1], None, &Conv::new().groups(3)),
        "conv_transpose1d" => {
            let apart = x.pad_interior(&[(0, 0), (0, 0), (1, 1)], &[0, 0, 1], 0.0);
            apart.conv1d(&t[1].flip(2).swap_axes(0, 1), None, &Conv::new())
        }
        "conv_transpose2d" => {
            let apart = x.pad_interior(&[(0, 0), (0, 0), (1, 1), (1, 1)], &[0, 0, 1, 1], 0.0);
            apart.conv2d(&t[1].flip([2, 3]).swap_axes(0, 1), Some(&t[2]), &Conv::new())
        }
        "movedim" => x.move_axis(1, 3) * 2.0,
        "instance_norm" => x.group_norm(3, None, None, 1e-5),
        "local_response_norm" => {
            let around = x.square().pad(&[(0, 0), (1, 1), (0, 0)], 0.0).window(1, 3, 1, 1);
            x / (around.sum(-1) * (0.5 / 3.0) + 1.0).pow(0.75)
        }
        "pixel_shuffle" => shuffled(x, [1, 2, 2, 2, 2, 2], [0, 1, 4, 2, 5, 3], [1, 2, 4, 4]),
        "pixel_unshuffle" => shuffled(x, [1, 2, 2, 2, 2, 2], [0, 1, 3, 5, 2, 4], [1, 8, 2, 2]),
        "channel_shuffle" => x.reshape([1, 3, 2, 2, 2]).swap_axes(1, 2).reshape([1, 6, 2, 2]),
        "im2col" => {
            let windows = x.window(2, 2, 1, 1).window(3, 2, 1, 1);
            windows.permute([0, 1, 4, 5, 2, 3]).reshape([1, 8, 9])
        }
        "col2im" => x.fold([4, 4], &[2, 2], &Conv::new()),
        "pad_reflect" => x.take(&whole(x, &[2, 1, 0, 1, 2, 3, 2]), 2),
        "pad_replicate" => x.take(&whole(x, &[0, 0, 0, 1, 2, 3, 3]), 2),
        "pad_circular" => x.take(&whole(x, &[2, 3, 0, 1, 2, 3, 0]), 2),
        "avg_pool1d" | "adaptive_avg_pool1d" | "area" | "avg_pool3d" => x.avg_pool(&Pool::new(2)),
        "max_pool3d" => x.max_pool(&Pool::new(2)),
        "adaptive_max_pool1d" => x.max_pool(&Pool::new(3)),
        "lp_pool1d" => (x.square().avg_pool(&Pool::new(2)) * 2.0).sqrt(),
        "max_unpool1d" => {
            let (y, places) = x.max_pool_with_places(&Pool::new(2));
            y.max_unpool(&places, x.shape())
        }
        "linear1d" => resized(x, &[7], &at(half)),
        "linear1d_aligned" => resized(x, &[7], &at(aligned)),
        "bilinear_aligned" => resized(x, &[5, 7], &at(aligned)),
        "bicubic" => resized(x, &[5, 7], &cubic(-0.75, half)),
        "bicubic_aligned" => resized(x, &[5, 7], &cubic(-0.75, aligned)),
        "trilinear" => resized(x, &[3, 5, 4], &at(half)),
        "bilinear_antialias" => resized(x, &[3, 4], &at(half).antialias().exclude_outside()),
        "bicubic_antialias" => resized(x, &[3, 4], &cubic(-0.5, half).antialias().exclude_outside()),
        "nearest_exact" => {
            let nearest = Resample::new(Interpolation::Nearest(Rounding::HalfUp));
            resized(x, &[7], &nearest.coordinates(half))
        }
        "fft" => x.unsqueeze(-1).dft(1, 5, false, false),
        "rfft" => x.unsqueeze(-1).dft(1, 5, false, true),
        "ifft" => x.dft(1, 4, true, false),
        "irfft" => x.dft(1, 4, true, true).squeeze(-1),
        "affine_grid" => x.affine_grid([3, 4], false),
        "affine_grid_aligned" => x.affine_grid([3, 4], true),
        "deform_conv2d" => x.deform_conv(&t[2], &t[1], None, None, 1, &Conv::new()),
        "deform_conv2d_masked" => x.deform_conv(&t[2], &t[1], Some(&t[3]), None, 1, &Conv::new()),
        "roi_align" => regions(x, 1.0, true),
        "roi_align_scaled" => regions(x, 0.5, false),
        _ if name.starts_with("grid_") => sampled(name, t),
        _ => return None,
    })
}

/// Losses.
fn loss(name: &str, t: &[Tensor]) -> Option<Tensor> {
    let x = &t[0];
    let signs = || generic(x, &[3, 4], 0.0).sign();
    Some(match name {
        "margin_ranking" => {
            let first = x.graph().constant(vec![1.0f64, -1.0, 1.0, -1.0]);
            (first * (&t[1] - x) + 0.3).relu().mean(..)
        }
        "poisson_nll" => (x.exp() - &t[1] * x).mean(..),
        "gaussian_nll" => ((t[2].log() + (x - &t[1]).square() / &t[2]) * 0.5).mean(..),
        "mse_sum" => x.mse_loss(&t[1], Reduction::Sum),
        "huber_sum" => x.huber_loss(&t[1], 1.0, Reduction::Sum),
        "triplet_margin" => (pairwise(x, &t[1]) - pairwise(x, &t[2]) + 1.0).relu().mean(..),
        "multi_margin" => {
            let classes = whole(x, &[1, 0, 3]);
            let right = x.take_along_axis(&classes.unsqueeze(1), 1);
            let others = 1.0 - classes.one_hot(4, DType::F64);
            ((x - right + 1.0).relu() * others).mean(..)
        }
        "multilabel_soft_margin" => {
            let y = marked(x);
            -(&y * x.log_sigmoid() + (1.0 - &y) * (-x).log_sigmoid()).mean(..)
        }
        "soft_margin" => (-signs() * x).exp().log1p().mean(..),
        "hinge_embedding" => signs().gt(0.0).select(x, (1.0 - x).relu()).mean(..),
        "focal" => {
            let (y, p) = (marked(x), x.sigmoid());
            let entropy = x.binary_cross_entropy_with_logits(&y, Reduction::Each);
            let right = &p * &y + (1.0 - &p) * (1.0 - &y);
            let share = &y * 0.25 + (1.0 - &y) * 0.75;
            (share * entropy * (1.0 - right).square()).mean(..)
        }
        _ => return None,
    })
}

/// The function of that name.
pub fn function(name: &str, t: &[Tensor]) -> Tensor {
    if name.ends_with("_cell") {
        return cell(name, t);
    }
    if let Some(found) = image(name, t).or_else(|| loss(name, t)) {
        return found;
    }
    let x = &t[0];
    match name {
        "addcmul" => x + &t[1] * &t[2] * 0.5,
        "addcdiv" => x + &t[1] / &t[2] * 0.5,
        "addmm" => x * 0.5 + t[1].matmul(&t[2]) * 2.0,
        "addmv" | "baddbmm" => x + t[1].matmul(&t[2]),
        "addr" => x + t[1].outer(&t[2]),
        "addbmm" => x + t[1].matmul(&t[2]).sum(0),
        "bmm" | "mm" | "mv" => x.matmul(&t[1]),
        "inner" => einsum("ik,jk->ij", &[x, &t[1]]),
        "kron" => einsum("ij,kl->ikjl", &[x, &t[1]]).reshape([4, 6]),
        "tensordot" => x.tensordot(&t[1], &[1, 2], &[1, 0]),
        "multi_dot" => x.matmul(&t[1]).matmul(&t[2]),
        "bilinear_form" => einsum("bi,oij,bj->bo", &[x, &t[2], &t[1]]) + &t[3],
        "cross" => {
            let turned = |t: &Tensor, by| t.roll(by, 1);
            turned(x, -1) * turned(&t[1], -2) - turned(x, -2) * turned(&t[1], -1)
        }
        "cdist" => (x.unsqueeze(1) - t[1].unsqueeze(0)).norm(2),
        "pairwise_distance" => pairwise(x, &t[1]),
        "hypot" => (x.square() + t[1].square()).sqrt(),
        "logaddexp" => stack(&[x, &t[1]], 0).logsumexp(0),
        "logaddexp2" => (stack(&[x, &t[1]], 0) * LN_2).logsumexp(0) / LN_2,
        "rsub" => &t[1] - x,
        "copysign" => x.abs() * t[1].sign(),
        "dist" => (x - &t[1]).norm(..),
        "block_diag" => x.pad(&[(0, 2), (0, 3)], 0.0) + t[1].pad(&[(2, 0), (2, 0)], 0.0),
        "meshgrid" => {
            let both = tlc::meshgrid(&[x, &t[1]]);
            stack(&both.iter().collect::<Vec<_>>(), 0)
        }
        "cartesian_prod" => {
            let both = tlc::meshgrid(&[x, &t[1]]);
            stack(&both.iter().collect::<Vec<_>>(), 2).reshape([6, 2])
        }
        "hstack" => concat(&[x, &t[1]], 1),
        "vstack" => concat(&[x, &t[1]], 0),
        "dstack" => stack(&[x, &t[1]], 2),
        "slice_scatter" => concat(&[&x.narrow(1, 0, 1), &t[1], &x.narrow(1, 3, 1)], 1),
        "select_scatter" => concat(&[&x.narrow(0, 0, 1), &t[1].unsqueeze(0), &x.narrow(0, 2, 1)], 0),
        "prelu" => x.gt(0.0).select(x, x * t[1].reshape([1, 3, 1])),
        "rms_norm_affine" => x.rms_norm(Some(&t[1]), 1e-5),
        "batch_norm" => {
            let (mean, var) = (generic(x, &[2], 0.0), generic(x, &[2], 3.0));
            x.batch_norm(&mean, &var, Some(&t[1]), Some(&t[2]), 1e-5)
        }
        "batch_norm_training" => {
            let (mean, var) = (x.graph().zeros(2, DType::F64), x.graph().ones(2, DType::F64));
            x.batch_norm_train(&mean, &var, Some(&t[1]), Some(&t[2]), 0.1, 1e-5).0
        }
        "xlogy" => x * t[1].log(),
        "xlog1py" => x * t[1].log1p(),
        "deg2rad" => x * (PI / 180.0),
        "rad2deg" => x * (180.0 / PI),
        "frac" => x - x.trunc(),
        "sinc" => (x * PI).sin() / (x * PI),
        "erfc" => 1.0 - x.erf(),
        "clamp_max" => x.clamp(f64::NEG_INFINITY, 0.4),
        "clamp_min" => x.clamp(0.4, f64::INFINITY),
        "threshold" => x.gt(0.1).select(x, -2.0),
        "celu" => x.gt(0.0).select(x, (x / 1.5).expm1() * 1.5),
        "selu" => x.elu(1.673_263_242_354_377_2) * 1.050_700_987_355_480_5,
        "rrelu" => x.leaky_relu((1.0 / 8.0 + 1.0 / 3.0) / 2.0),
        "hardshrink" => x.abs().gt(0.5).select(x, 0.0),
        "softshrink" => x.abs().gt(0.5).select(x - x.sign() * 0.5, 0.0),
        "tanhshrink" => x - x.tanh(),
        "softmin" => (-x).softmax(1),
        "glu" => part(x, 0, 2) * part(x, 1, 2).sigmoid(),
        "normalize" => x / x.norm(keep(1)).maximum(1e-12),
        "norm1" => x.abs().sum(1),
        "norm_inf" => x.abs().max(1),
        "norm3" => x.abs().pow(3.0).sum(1).pow(1.0 / 3.0),
        "frobenius" => x.norm(..),
        "median" => x.narrow(1, 0, 3).sort(1, false).select_index(1, 1),
        "kthvalue" => x.sort(1, false).select_index(1, 1),
        "quantile" => {
            let sorted = x.sort(1, false);
            // 0.4 of the way from the first to the last of four.
            let (below, above) = (sorted.select_index(1, 1), sorted.select_index(1, 2));
            &below + (&above - &below) * (0.4 * 3.0 - 1.0)
        }
        "trapezoid" => ((x.narrow(1, 1, 3) + x.narrow(1, 0, 3)) * 0.25).sum(1),
        "cumulative_trapezoid" => ((x.narrow(1, 1, 3) + x.narrow(1, 0, 3)) * 0.25).cumsum(1),
        "diff" => x.narrow(1, 1, 3) - x.narrow(1, 0, 3),
        "logcumsumexp" => x.exp().cumsum(1).log(),
        "cov" => covariance(x),
        "corrcoef" => {
            let c = covariance(x);
            let sizes = c.diagonal(0, 0, 1).sqrt();
            c / sizes.unsqueeze(0) / sizes.unsqueeze(1)
        }
        "amax_axes" => x.max([0, 2]),
        "mean_all" => x.mean(..),
        "var_all" => x.var(.., 1),
        "std_all" => x.std(.., 1),
        "logsumexp_all" => x.logsumexp(..),
        "narrow" => x.narrow(1, 1, 2),
        "flatten" => x.flatten(),
        "unflatten" => x.unflatten(1, [2, 2]),
        "squeeze" => x.squeeze(1).exp(),
        "unsqueeze" => x.unsqueeze(1) * x,
        "chunk" => x.chunk(2, 1).remove(1),
        "split" => x.split(&[1, 3], 1).remove(1),
        "rot90" => x.flip(1).transpose(),
        "fliplr" => x.flip(1),
        "diag" => x.diagonal(0, 0, 1),
        "diag_embed" => x.diag_embed(),
        "index_select" => x.take(&whole(x, &[2, 0, 2]), 0),
        "take_flat" => x.flatten().take(&whole(x, &[0, 5, 5, 11]), 0),
        "embedding_bag" => x.embedding(&whole(x, &[0, 2, 1, 1]).reshape([2, 2])).mean(1),
        "index_copy" => {
            let ones = x.graph().ones([5, 4], DType::F64);
            ones.scatter_set(0, &whole(x, &[3, 0, 1]), x)
        }
        "broadcast_to" => x.broadcast_to([2, 3, 4]),
        "unbind" => x.unbind(0).remove(1).exp(),
        "column_stack" => concat(&[x, &x.narrow(1, 0, 1)], 1),
        "swapaxes" => x.swap_axes(0, 1) * 3.0,
        "combinations" => {
            let of = |places: &[i64]| x.take(&whole(x, places), 0);
            stack(&[&of(&[0, 0, 0, 1, 1, 2]), &of(&[1, 2, 3, 2, 3, 3])], 1)
        }
        "logit" => (x / (1.0 - x)).log(),
        "entr" => -x * x.log(),
        "matrix_power" => {
            let square = x.narrow(1, 0, 3);
            square.matmul(&square).matmul(&square)
        }
        "slogdet" => x.narrow(1, 0, 3).det().abs().log(),
        "det_each" => x.det(),
        other => panic!("no function {other}"),
    }
}
