//! Elements that data says: gathers of every kind and resampled images, against the graph interpreter within its derived bounds, with
//! equal bits on one thread and three, and whether sizes are known when compiled or not, at every level of this machine. Indices lie
//! anywhere, and data is NaN and infinite too.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

use tlc::{
    CompileOptions, Coordinates, DType, Dim, Executable, Graph, GridSample, HostTensor, Interpolation, Outside,
    Resample, Rounding, Scalar, Specialize, Tensor, compile_ir,
};
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::kernel::Kernel;
use tlc_ir::kernel::visit::walk;
use tlc_ir::rng::Rng;
use tlc_ir::testgen::seeds;
use tlc_ir::text::{no_data, parse_graph};
use tlc_runtime::cpu::level;

/// What is read where.
#[derive(Clone, Debug)]
enum Read {
    /// Slices along an axis, counted from both ends.
    Take(i64),
    /// Elements by the places of two axes, as they are: zero outside.
    Places,
    /// Elements along an axis.
    Along(i64),
    /// Rows and columns between the elements, the last axis first or not.
    Resampled(Box<Resample>, [i64; 2], bool),
    /// An image between its elements, anywhere.
    Grid(GridSample),
}

#[derive(Clone, Debug)]
struct Case {
    read: Read,
    dtype: DType,
    index: DType,
    /// Images, rows and columns.
    sides: [usize; 3],
    count: usize,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        let interpolation = rng.pick(&[
            Interpolation::Nearest(Rounding::HalfDown),
            Interpolation::Linear,
            Interpolation::Linear,
            Interpolation::Cubic(-0.75),
        ]);
        let coordinates = match rng.bits() % 3 {
            0 => Coordinates::HalfPixel,
            1 => Coordinates::AlignCorners,
            _ => Coordinates::Asymmetric,
        };
        let resample = Resample::new(interpolation).coordinates(coordinates);
        let resample = if rng.chance(20, 100) {
            resample.exclude_outside()
        } else {
            resample
        };
        let grid =
            GridSample::new(interpolation).outside(rng.pick(&[Outside::Zeros, Outside::Border, Outside::Reflection]));
        let read = match rng.bits() % 6 {
            0 => Read::Take(rng.pick(&[0, 1, 2])),
            1 => Read::Places,
            2 => Read::Along(rng.pick(&[1, 2])),
            3 => Read::Grid(grid),
            _ => Read::Resampled(
                Box::new(resample),
                [(); 2].map(|()| rng.pick(&[1, 2, 3, 8])),
                rng.chance(70, 100),
            ),
        };
        let floats = matches!(read, Read::Resampled(..) | Read::Grid(_));
        Case {
            read,
            dtype: match floats {
                true => DType::F32,
                false => rng.pick(&[
                    DType::F32,
                    DType::F32,
                    DType::F64,
                    DType::I32,
                    DType::I64,
                    DType::U8,
                    DType::F16,
                ]),
            },
            index: rng.pick(&[DType::I32, DType::I64]),
            sides: [
                rng.pick(&[1, 2, 3]),
                rng.pick(&[1, 2, 5, 9]),
                rng.pick(&[1, 2, 7, 16, 17, 28, 40]),
            ],
            count: rng.pick(&[1, 3, 16, 37, 70]),
        }
    }

    /// The graph, with sizes known or not.
    fn record(&self, symbolic: bool) -> tlc_ir::Graph {
        let g = Graph::new("read");
        let [n, h, w] = self.sides;
        let sizes: Vec<Dim> = match symbolic {
            true => ["n", "h", "w"].map(|s| g.symbol(s, 1..=1 << 12)).into_iter().collect(),
            false => [n, h, w].map(Dim::from).into_iter().collect(),
        };
        let count = match symbolic && !matches!(self.read, Read::Resampled(..)) {
            true => g.symbol("count", 0..=1 << 12),
            false => Dim::from(self.count),
        };
        let x = g.input("x", self.dtype, [sizes[0].clone(), sizes[1].clone(), sizes[2].clone()]);
        let at = |name: &str, shape: Vec<Dim>| g.input(name, self.index, shape);
        let y: Tensor = match &self.read {
            Read::Take(axis) => x.take(&at("i", vec![count]), *axis),
            Read::Places => {
                let places = [at("i", vec![count.clone()]), at("j", vec![count])];
                x.gather(&[1, 2], &[&places[0], &places[1]])
            }
            Read::Along(axis) => {
                let mut shape = sizes.clone();
                shape[*axis as usize] = count;
                x.take_along_axis(&at("i", shape), *axis)
            }
            Read::Resampled(how, times, last_first) => {
                let axes = if *last_first { [2i64, 1] } else { [1, 2] };
                axes.iter().fold(x, |y, &axis| {
                    y.resample(axis, &sizes[axis as usize] * times[axis as usize - 1], how)
                })
            }
            Read::Grid(how) => {
                let grid = g.input("grid", DType::F32, [sizes[0].clone(), 2.into(), count, 2.into()]);
                x.unsqueeze(1).grid_sample(&grid, how)
            }
        };
        g.output("y", &y);
        g.finish().unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }

    fn data(&self, rng: &mut Rng) -> Vec<HostTensor> {
        let [n, h, w] = self.sides;
        let mut all = vec![filled(
            self.dtype,
            &[n, h, w],
            &mut |k| match k {
                // What interpolates multiplies an infinity by zero.
                3 if self.dtype.is_float() && matches!(self.read, Read::Take(_) | Read::Places | Read::Along(_)) => {
                    f64::INFINITY
                }
                5 if self.dtype.is_float() => f64::NAN,
                11 if self.dtype.is_float() => -0.0,
                k => (k % 101) as f64,
            },
            rng,
        )];
        let places = |shape: &[usize], extent: usize, inside: bool, rng: &mut Rng| {
            filled(
                self.index,
                shape,
                &mut |k| match k % 19 {
                    3 if !inside => -1e12,
                    4 if !inside => 1e12,
                    5 if !inside => extent as f64,
                    _ => (k / 19 % extent as u64) as f64 - if inside && k % 2 == 0 { extent as f64 } else { 0.0 },
                },
                rng,
            )
        };
        match &self.read {
            Read::Take(axis) => all.push(places(&[self.count], self.sides[*axis as usize], true, rng)),
            Read::Places => {
                all.push(places(&[self.count], h, false, rng));
                all.push(places(&[self.count], w, false, rng));
            }
            Read::Along(axis) => {
                let mut shape = self.sides;
                shape[*axis as usize] = self.count;
                all.push(places(&shape, self.sides[*axis as usize], true, rng));
            }
            Read::Resampled(..) => {}
            Read::Grid(_) => all.push(filled(
                DType::F32,
                &[n, 2, self.count, 2],
                &mut |k| (k % 313) as f64 / 120.0 - 1.3,
                rng,
            )),
        }
        all
    }
}

fn filled(dtype: DType, shape: &[usize], value: &mut dyn FnMut(u64) -> f64, rng: &mut Rng) -> HostTensor {
    let mut out = HostTensor::zeros(dtype, shape).unwrap();
    for i in 0..shape.iter().product() {
        out.set(i, Scalar::from_f64(dtype, value(rng.bits() % 997)));
    }
    out
}

fn compiled(graph: &tlc_ir::Graph, threads: usize) -> Executable {
    let options = CompileOptions {
        threads: Some(threads),
        specialize: Specialize::Never,
        ..CompileOptions::default()
    };
    compile_ir(graph, &options).unwrap_or_else(|e| panic!("{e}\n{graph}"))
}

/// Equal bits, NaN alike.
fn same(a: &HostTensor, b: &HostTensor) -> bool {
    let alike = |i: usize| a.get(i) == b.get(i) || a.get(i).is_nan() && b.get(i).is_nan();
    a.shape() == b.shape() && (0..a.shape().iter().product()).all(alike)
}

#[test]
fn random_reads_are_right_at_every_size() {
    for seed in seeds(0..24) {
        let mut rng = Rng::new(seed);
        let case = Case::random(&mut rng);
        let inputs = case.data(&mut rng);
        let mut first: Option<HostTensor> = None;
        for (symbolic, threads) in [(false, 1), (false, 3), (true, 1), (true, 3)] {
            let graph = case.record(symbolic);
            let e = compiled(&graph, threads);
            let found = e.run(&inputs.iter().map(Into::into).collect::<Vec<_>>());
            let found = found.unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"))[0].to_host();
            match &first {
                Some(first) => assert!(
                    same(first, &found),
                    "seed {seed}: {case:?}: other bits with symbolic sizes {symbolic}, {threads} threads"
                ),
                None => {
                    let meant = interp::Options::default();
                    let bounded = interpret_with_bounds(&graph, &inputs, &meant);
                    let bounded = bounded.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                    compare(&found, &bounded[0]).unwrap_or_else(|m| panic!("seed {seed}: {case:?}: {m}\n{graph}"));
                    first = Some(found);
                }
            }
        }
    }
}

/// Where this process makes most kernels at one level, the others are right too.
#[test]
fn random_reads_are_right_at_every_other_level() {
    let wide = level::all().iter().map(|l| l.name());
    for name in wide.chain([level::PORTABLE]).filter(|name| *name != level::name()) {
        let output = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "gathers::random_reads_are_right_at_every_size"])
            .env(level::VARIABLE, name)
            .env("TLC_SEEDS", "100..112")
            .output()
            .expect("it runs");
        let printed = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && printed.contains("1 passed"),
            "{name}: {printed}"
        );
    }
}

/// Two kernels enlarge an image: one gathers along the rows while there are few, the other adds up whole rows. All of it runs in
/// vectors where lanes gather, and no element tests whether its neighbours are inside.
#[test]
fn an_enlarged_image_is_two_kernels_in_vectors() {
    for symbolic in [false, true] {
        let case = Case {
            read: Read::Resampled(Box::new(Resample::new(Interpolation::Linear)), [8, 8], true),
            dtype: DType::F32,
            index: DType::I64,
            sides: [3, 28, 28],
            count: 1,
        };
        let e = compiled(&case.record(symbolic), 1);
        let explained = e.explain().to_string();
        let launches = e.plan().steps.iter().flat_map(|s| s.launches());
        // Tables of indices and weights are computed once, or per call where sizes are symbols.
        let ends = ["add", "select"];
        let images = launches.filter(|l| ends.contains(&l.label.as_str())).count();
        assert_eq!(images, 2, "symbolic {symbolic}\n{explained}");
        let masked = |k: &Kernel| walk(&k.body).flat_map(|s| s.accesses()).any(|a| a.mask.is_some());
        assert!(symbolic || !e.plan().kernels.iter().any(masked), "{explained}");
        if level::wide().is_some() {
            assert!(
                !explained.contains("an index comes from data"),
                "symbolic {symbolic}\n{explained}"
            );
        }
    }
}

/// Rows of a turned image by indices that are cut off, which need no mask: tiles of what is turned are copied before the loops, and what an
/// index from data says is known inside of them only.
#[test]
fn a_turned_image_is_read_by_indices_that_are_cut_off() {
    for [channels, columns, rows] in [[2, 2, 2], [3, 9, 6], [33, 7, 70]] {
        let text = format!(
            "graph @g(%x: f32[{channels}, {columns}, {rows}], %i: i64[4]) {{
  %0 = permute %x {{axes=[2, 1, 0]}} : f32[{rows}, {columns}, {channels}]
  %1 = const 0 : i64[]
  %2 = expand %1 : i64[4]
  %3 = max %i, %2 : i64[4]
  %4 = const {last} : i64[]
  %5 = expand %4 : i64[4]
  %6 = min %3, %5 : i64[4]
  %7 = gather %0, %6 {{axes=[1]}} : f32[4, {rows}, {channels}]
  %8 = permute %7 {{axes=[1, 0, 2]}} : f32[{rows}, 4, {channels}]
  return %8 as y
}}
",
            last = columns - 1
        );
        let graph = parse_graph(&text, &mut no_data).unwrap_or_else(|e| panic!("{}\n{text}", e[0]));
        let mut rng = Rng::new(5);
        let mut next = 0.0;
        let mut count = |_| {
            next += 1.0;
            next
        };
        let x = filled(DType::F32, &[channels, columns, rows], &mut count, &mut rng);
        let i = HostTensor::from_slice(&[4], &[-3i64, 1, 0, 1 << 40]).expect("indices");
        let inputs = [x, i];
        let meant = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).expect("it runs");
        for threads in [1, 3] {
            let found = compiled(&graph, threads).run(&inputs.iter().map(Into::into).collect::<Vec<_>>());
            let found = found.expect("it runs")[0].to_host();
            compare(&found, &meant[0]).unwrap_or_else(|m| panic!("{m}\n{graph}"));
        }
    }
}
