//! Random graphs as programs record them, of structures that the generator of single nodes does not make: transposed convolutions, whose results
//! lie interleaved, parts of constants that sizes choose, scans along any axis from both ends, windows far apart. One executable runs at several sizes,
//! and the interpreter says what its results are.
//!
//! `TLC_SEEDS=from..to` runs other seeds, `TLC_SEED=n` runs one and prints its graph.

use std::hash::{DefaultHasher, Hash, Hasher};

use tlc::{
    CompileOptions, Conv, DType, Device, Dim, Executable, Graph, HostTensor, Input, Pool, Specialize, Tensor, concat,
    einsum,
};
use tlc_ir::graph::Monoid;
use tlc_ir::interp::{Options, interpret, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::testgen::{random_tensor, seeds};

use crate::judged::judges;
use crate::states::compare_all;

/// Sizes that calls choose.
const MOST: [i64; 2] = [6, 9];

/// A program that is being recorded.
struct Program<'p> {
    g: &'p Graph,
    rng: &'p mut Rng,
    /// From 0, and from 1.
    sizes: [Dim; 2],
    inputs: usize,
}

impl Program<'_> {
    fn dtype(&mut self) -> DType {
        use DType::*;
        self.rng.pick(&[F32, F32, F32, F16, BF16, F64])
    }

    fn input<const N: usize>(&mut self, dtype: DType, shape: [Dim; N]) -> Tensor {
        self.inputs += 1;
        self.g.input(&format!("x{}", self.inputs), dtype, shape)
    }

    /// Numbers, as an input or as a constant.
    fn weights<const N: usize>(&mut self, dtype: DType, shape: [usize; N]) -> Tensor {
        match self.rng.chance(1, 2) {
            true => self.input(dtype, shape.map(Dim::from)),
            false => self.table(dtype, &shape),
        }
    }

    fn table(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        self.g.constant(random_tensor(self.rng, dtype, shape))
    }

    /// What each element of an image makes of weights, added up where it lies; parts of it, and what is made of them.
    fn transposed(&mut self) -> Tensor {
        let dtype = self.dtype();
        let [g, c, o] = [&[1, 1, 1, 2][..], &[1, 2, 3, 8, 9, 16], &[1, 3, 4, 8, 16, 17]].map(|of| self.rng.pick(of));
        let kernel: [usize; 2] = [(); 2].map(|()| self.rng.pick(&[1, 2, 2, 3, 3, 4, 5]));
        let stride = [(); 2].map(|()| self.rng.pick(&[1, 2, 2, 2, 3, 4]));
        let dilation = self.rng.pick(&[1, 1, 1, 1, 2]);
        let sides = [(); 2].map(|()| self.rng.pick(&[1usize, 2, 3, 4, 5, 7]));
        let mut sides = sides.map(Dim::from);
        let mut images = Dim::from(self.rng.pick(&[1usize, 1, 2]));
        match self.rng.below(5) {
            0 => images = self.sizes[0].clone(),
            1 => sides[0] = self.sizes[1].clone(),
            2 => sides[1] = self.sizes[1].clone(),
            _ => {}
        }
        let [kh, kw] = kernel;
        let [h, w] = sides.clone();
        let x = self.input(dtype, [images.clone(), (g * c).into(), h.clone(), w.clone()]);
        let weights = self.weights(dtype, [g * c, o, kh, kw]);
        let x = x.reshape([images.clone(), g.into(), c.into(), h.clone(), w.clone()]);
        let y = match self.rng.chance(1, 2) {
            true => einsum("gcoij,bgcuv->bgouvij", &[&weights.reshape([g, c, o, kh, kw]), &x]),
            false => einsum("bgcuv,gcoij->bgouvij", &[&x, &weights.reshape([g, c, o, kh, kw])]),
        };
        let y = y.reshape([images, (g * o).into(), h.clone(), w.clone(), kh.into(), kw.into()]);
        let reach =
            |side: &Dim, k: usize| (side.clone() - 1) * stride[k] as i64 + (dilation * (kernel[k] - 1) + 1) as i64;
        let y = y.overlap_add(3, reach(&w, 1), stride[1], dilation);
        let mut y = y.overlap_add(2, reach(&h, 0), stride[0], dilation);
        // Padding of a transposed convolution cuts off what is beyond it.
        for axis in [2i64, 3] {
            let extent = y.shape()[axis as usize].clone();
            let Some(extent) = extent.as_const() else { continue };
            let room = extent - MOST[0];
            match self.rng.below(4) {
                0 if extent > 2 => y = y.narrow(axis, 1, extent - 2),
                1 if extent > 1 => y = y.narrow(axis, self.rng.range(0, extent - 1), 1),
                2 if room > 0 => y = y.narrow(axis, &self.sizes[0], room),
                _ => {}
            }
        }
        if self.rng.chance(1, 2) {
            y += &self.weights(dtype, [g * o, 1, 1]);
        }
        y
    }

    /// A part of a constant that a size chooses, as of positions or of weights, and what is made of it.
    fn part(&mut self) -> Tensor {
        let dtype = self.dtype();
        let [rows, columns] = [&[3usize, 5, 8, 16][..], &[1, 7, 16, 32, 40]].map(|of| self.rng.pick(of));
        let least = MOST[0] as usize;
        let n = self.sizes[0].clone();
        match self.rng.below(6) {
            0 => {
                let x = self.input(dtype, [rows.into(), columns.into()]);
                x + self.table(dtype, &[rows + least, columns]).narrow(0, n, rows)
            }
            1 => {
                let part = self.table(dtype, &[columns, rows + least]).narrow(1, n, rows);
                let x = self.input(dtype, [rows.into(), columns.into()]);
                (part.tanh() * 2.0).t() + x
            }
            2 => {
                let weights = self.table(dtype, &[columns + least, 24]).narrow(0, n, columns);
                self.input(dtype, [rows.into(), columns.into()]).matmul(&weights)
            }
            3 => {
                let weights = self.table(dtype, &[24, columns + least]).narrow(1, n, columns);
                self.input(dtype, [rows.into(), columns.into()]).matmul(&weights.t())
            }
            4 => {
                let behind = Dim::from(MOST[0]) - &n;
                let moved = self.table(dtype, &[rows, columns]);
                let moved = moved.pad(&[(n, behind), (0.into(), 0.into())], 1.5f32);
                self.input(dtype, [(rows + least).into(), columns.into()]) * moved
            }
            _ => {
                let kernels = self.table(dtype, &[8 + least, 3, 3, 3]).narrow(0, n, 8);
                let x = self.input(dtype, [1.into(), 3.into(), 6.into(), columns.into()]);
                x.conv2d(&kernels, None, &Conv::new().padding(1))
            }
        }
    }

    /// A scan along any axis, from either end.
    fn scan(&mut self) -> Tensor {
        let dtype = self.dtype();
        let mut shape = [(); 3].map(|()| Dim::from(self.rng.pick(&[1usize, 2, 5, 17, 33, 64])));
        let some = self.rng.below(6);
        if some < 3 {
            shape[some] = self.sizes[some % 2].clone();
        }
        let x = self.input(dtype, shape);
        let x = if self.rng.chance(1, 2) { x.tanh() } else { x };
        let axis = self.rng.range(0, 2);
        let monoid = self.rng.pick(&[Monoid::Add, Monoid::Add, Monoid::Max, Monoid::Min]);
        let (exclusive, reverse) = (self.rng.chance(1, 3), self.rng.chance(1, 2));
        let y = x.scan(monoid, axis, exclusive, reverse);
        match self.rng.below(3) {
            0 => y.flip(axis) * x,
            1 => y.scan(Monoid::Add, (axis + 1) % 3, false, self.rng.chance(1, 2)),
            _ => y,
        }
    }

    /// Windows of an image with strides and dilations: a convolution or a pool.
    fn windows(&mut self) -> Tensor {
        let dtype = self.dtype();
        let [g, c, o] = [&[1, 1, 2, 4][..], &[1, 2, 3, 8, 16], &[1, 2, 4, 8, 16]].map(|of| self.rng.pick(of));
        let kernel = [(); 2].map(|()| self.rng.pick(&[1usize, 2, 3, 3, 5]));
        let stride = [(); 2].map(|()| self.rng.pick(&[1usize, 1, 2, 3, 4]));
        let dilation = [(); 2].map(|()| self.rng.pick(&[1usize, 1, 2, 3]));
        let reach = [0, 1].map(|k| dilation[k] * (kernel[k] - 1) + 1);
        let mut shape = [
            Dim::from(self.rng.pick(&[1usize, 2])),
            (g * c).into(),
            (reach[0] + self.rng.pick(&[0, 1, 4, 9])).into(),
            (reach[1] + self.rng.pick(&[0, 2, 5, 12])).into(),
        ];
        if self.rng.chance(1, 3) {
            let axis = self.rng.pick(&[0, 2, 3]);
            shape[axis] = match axis {
                0 => self.sizes[0].clone(),
                // So that a window has room.
                _ => self.sizes[1].clone() + reach[axis - 2] as i64,
            };
        }
        let x = self.input(dtype, shape);
        if self.rng.chance(1, 3) {
            let pool = Pool::new(kernel).stride(stride).dilation(dilation);
            return match self.rng.chance(1, 2) {
                true => x.max_pool(&pool),
                false => x.avg_pool(&pool),
            };
        }
        let padding = [(); 2].map(|()| self.rng.pick(&[0usize, 0, 1, 2]));
        let w = self.weights(dtype, [g * o, c, kernel[0], kernel[1]]);
        let conv = Conv::new().stride(stride).dilation(dilation).padding(padding).groups(g);
        x.conv2d(&w, None, &conv)
    }

    /// What is done with a value: activations, sums, parts, joints.
    fn then(&mut self, y: Tensor) -> Tensor {
        let last = y.rank() as i64 - 1;
        let axis = self.rng.range(0, last);
        match self.rng.below(9) {
            0 => y.relu(),
            1 => y.tanh() * 0.5,
            2 => y.tanh().sum(axis),
            3 => y.flip(axis).exp2().sqrt(),
            4 => concat(&[&y, &(&y * 2.0)], axis),
            5 => y.tanh().softmax(-1),
            6 => y.swap_axes(0, last),
            7 => y.tanh().scan(Monoid::Add, axis, false, self.rng.chance(1, 2)),
            _ => y,
        }
    }
}

/// A random program; its sizes follow from its first input.
fn program(rng: &mut Rng) -> Graph {
    let g = Graph::new("program");
    let sizes = [0, 1].map(|k| Dim::from(&g.symbol(["n", "m"][k], k as i64..=MOST[k])));
    let size = g.input("sizes", DType::F32, sizes.clone());
    let mut p = Program {
        g: &g,
        rng,
        sizes,
        inputs: 0,
    };
    for number in 0..1 + p.rng.below(3) {
        let mut y = match p.rng.below(7) {
            0..3 => p.transposed(),
            3 | 4 => p.part(),
            5 => p.scan(),
            _ => p.windows(),
        };
        for _ in 0..p.rng.below(3) {
            if p.rng.chance(1, 4) {
                g.output(&format!("y{number} on the way {}", p.rng.below(1 << 30)), &y);
            }
            y = p.then(y);
        }
        g.output(&format!("y{number}"), &y);
    }
    g.output("size", &size.sum(..));
    g
}

fn check(seed: u64, bits: &mut DefaultHasher) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let g = program(&mut rng);
    let graph = g.finish().map_err(|e| format!("not recorded: {e}"))?;
    if std::env::var("TLC_SEED").is_ok() {
        println!("{graph}");
    }
    let options = CompileOptions {
        device: Device::cuda(0),
        specialize: match seed % 4 {
            3 => Specialize::After(2),
            _ => Specialize::Never,
        },
        ..CompileOptions::default()
    };
    let executable: Executable = g.compile(&options).map_err(|e| format!("compile: {e}"))?;
    for call in 0..5 {
        // The first ones again, which were recorded.
        let sizes = match call {
            0 | 3 => [2, 3],
            1 => [MOST[0], 1],
            _ => [rng.range(0, MOST[0]), rng.range(1, MOST[1])],
        };
        let inputs: Vec<HostTensor> = (graph.inputs().iter())
            .map(|&i| {
                let ty = graph.ty(i);
                let extent = |d: &tlc_ir::IndexExpr| d.eval_symbols(&sizes).expect("two symbols") as usize;
                random_tensor(&mut rng, ty.dtype, &ty.shape.iter().map(extent).collect::<Vec<_>>())
            })
            .collect();
        let given: Vec<Input<'_>> = inputs.iter().map(Into::into).collect();
        let found = executable.run(&given).map_err(|e| format!("call {call}: {e}"))?;
        let found: Vec<HostTensor> = found.iter().map(|o| o.to_host()).collect();
        if judges() {
            let of = Options::default();
            let exact = interpret(&graph, &inputs, &of).map_err(|e| format!("interpreter: {e}"))?;
            let bounded = interpret_with_bounds(&graph, &inputs, &of).map_err(|e| format!("interpreter: {e}"))?;
            compare_all(&found, &exact, &bounded).map_err(|e| format!("call {call}, {sizes:?}: {e}"))?;
        }
        found.iter().for_each(|t| t.bytes().hash(bits));
    }
    executable.wait_for_specializations();
    Ok(())
}

mod children {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn random() {
        let mut bits = DefaultHasher::new();
        let mut failures = Vec::new();
        for seed in seeds(80_000..80_024) {
            let message = match catch_unwind(AssertUnwindSafe(|| check(seed, &mut bits))) {
                Ok(Ok(())) => continue,
                Ok(Err(e)) => e,
                Err(_) => "panic".into(),
            };
            println!("program seed {seed}: {message}");
            failures.push(seed);
        }
        println!("bits {:016x}", bits.finish());
        assert!(failures.is_empty(), "{} failures: {failures:?}", failures.len());
    }
}
