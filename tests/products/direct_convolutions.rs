//! Convolutions that a kernel computes from their windows: weights that never change, channels that fill lanes, rows of any length,
//! windows of one element too;
//! against the graph interpreter within its derived bounds, with equal bits on one thread and three, and whether sizes are known
//! when compiled or not. Which convolutions they are does not depend on the image.
//!
//! `TLC_SEEDS=from..to` runs other seeds.

use std::sync::Arc;

use tlc::{CompileOptions, Conv, DType, Dim, Graph, HostTensor, Scalar, Specialize, Tensor, compile_ir};
use tlc_codegen::wide::Level;
use tlc_ir::interp::{self, compare, interpret_with_bounds};
use tlc_ir::rng::Rng;
use tlc_ir::target::Cpu;
use tlc_ir::testgen::seeds;
use tlc_passes::schedule::Directive;
use tlc_passes::{Options, compile};
use tlc_runtime::driver::{Executable, TensorView};
use tlc_runtime::memory::BufferPool;
use tlc_runtime::pool::Pool;

/// One convolution.
#[derive(Clone, Debug)]
struct Case {
    images: usize,
    groups: usize,
    /// Of a group.
    channels: usize,
    outputs: usize,
    sides: [usize; 2],
    kernel: [usize; 2],
    stride: usize,
    dilation: usize,
    padding: [usize; 2],
    bias: bool,
    residual: bool,
    activation: bool,
    special: bool,
}

impl Case {
    fn random(rng: &mut Rng) -> Case {
        Case {
            images: rng.pick(&[1, 1, 2, 3]),
            groups: rng.pick(&[1, 1, 1, 2, 3]),
            channels: rng.pick(&[12, 13, 16]),
            outputs: rng.pick(&[16, 16, 24, 32, 48]),
            // Every sum of tiles of 14 and less, and none of them.
            sides: [rng.pick(&[1, 2, 3, 5]), rng.pick(&[1, 2, 3, 5, 7, 13, 14, 15, 21, 29])],
            kernel: rng.pick(&[[3, 3], [3, 3], [1, 9], [9, 1], [2, 5]]),
            stride: rng.pick(&[1, 1, 2, 3]),
            dilation: rng.pick(&[1, 1, 2]),
            padding: [(); 2].map(|()| rng.pick(&[0, 1, 1, 2, 4])),
            bias: rng.chance(60, 100),
            residual: rng.chance(30, 100),
            activation: rng.chance(60, 100),
            special: rng.chance(25, 100),
        }
    }

    /// One of which some elements of a window, or all but one, are padding for all results.
    fn of_padding(rng: &mut Rng) -> Case {
        let dilation = rng.pick(&[1, 3, 6, 12]);
        Case {
            sides: [rng.pick(&[1, 2, 4, 7]), rng.pick(&[1, 3, 6, 14])],
            kernel: rng.pick(&[[3, 3], [3, 3], [1, 3], [3, 2]]),
            dilation,
            padding: [(); 2].map(|()| dilation * rng.pick(&[1, 1, 2])),
            ..Case::random(rng)
        }
    }

    /// One of which some rows have other elements of a window inside of the image than the next ones, and most few.
    fn of_rows(rng: &mut Rng) -> Case {
        let dilation = rng.pick(&[8, 9, 11]);
        Case {
            images: rng.pick(&[1, 2]),
            groups: rng.pick(&[1, 2]),
            channels: rng.pick(&[64, 70]),
            outputs: rng.pick(&[32, 48]),
            sides: [rng.pick(&[12, 13, 14]), rng.pick(&[7, 8, 14])],
            kernel: rng.pick(&[[3, 3], [3, 3], [3, 2]]),
            stride: 1,
            dilation,
            padding: [dilation, rng.pick(&[0, 1, dilation])],
            ..Case::random(rng)
        }
    }

    /// One whose windows are single elements: a product, which the library computes where the image is large.
    fn of_elements(rng: &mut Rng) -> Case {
        Case {
            channels: rng.pick(&[100, 117, 128, 520]),
            outputs: rng.pick(&[16, 24, 32, 48, 64]),
            sides: rng.pick(&[
                [1, 1],
                [1, 7],
                [3, 5],
                [7, 7],
                [14, 14],
                [2, 29],
                [13, 11],
                [23, 20],
                [1, 401],
            ]),
            kernel: [1, 1],
            dilation: 1,
            padding: [rng.pick(&[0, 0, 0, 1]); 2],
            ..Case::random(rng)
        }
    }

    /// Whether a kernel computes it from its windows where the emitter has tiles.
    fn is_direct(&self, symbolic: bool) -> bool {
        let large = |[h, w]: [usize; 2]| h * w > 400;
        // Of an image of unknown size, where channels fill one of AVX2's vectors and not two.
        let narrow = !self.outputs.is_multiple_of(16);
        let by_library = if symbolic {
            narrow
        } else {
            self.results().is_some_and(large)
        };
        self.kernel != [1, 1] || self.channels > 512 || !by_library
    }

    /// Rows and columns of the result, if a window has a place in the image.
    fn results(&self) -> Option<[usize; 2]> {
        let side = |i: usize| {
            let room = (self.sides[i] + 2 * self.padding[i]).checked_sub(self.dilation * (self.kernel[i] - 1) + 1)?;
            Some(room / self.stride + 1)
        };
        Some([side(0)?, side(1)?])
    }

    /// The network, with sizes of the image known or not.
    fn record(&self, symbolic: bool, weights: &HostTensor, bias: &HostTensor) -> tlc::ir::Graph {
        let g = Graph::new("direct");
        let [h, w] = self.sides;
        let sizes: Vec<Dim> = match symbolic {
            true => (["n", "h", "w"].iter())
                .map(|s| Dim::from(&g.symbol(s, 0..=1 << 12)))
                .collect(),
            false => [self.images, h, w].map(Dim::from).into_iter().collect(),
        };
        let shape = [
            sizes[0].clone(),
            (self.groups * self.channels).into(),
            sizes[1].clone(),
            sizes[2].clone(),
        ];
        let x = g.input("x", DType::F32, shape);
        let settings = Conv::new()
            .stride(self.stride)
            .dilation(self.dilation)
            .groups(self.groups)
            .padding(self.padding);
        let mut y: Tensor = x.conv2d(&g.constant(weights), None, &settings);
        if self.bias {
            y += &g.constant(bias);
        }
        if self.residual {
            y = &y + &(&y * 0.5).sin();
        }
        if self.activation {
            y = y.relu();
        }
        g.output("y", &y);
        g.finish().unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }
}

fn data(shape: &[usize], rng: &mut Rng, special: bool) -> HostTensor {
    let mut out = HostTensor::zeros(DType::F32, shape).unwrap();
    for i in 0..shape.iter().product() {
        let value = match rng.bits() % 997 {
            3 if special => f64::NAN,
            5 if special => f64::INFINITY,
            7 if special => f64::NEG_INFINITY,
            11 if special => -0.0,
            v => v as f64 / 249.0 - 2.0,
        };
        out.set(i, Scalar::from_f64(DType::F32, value));
    }
    out
}

/// Whether this machine's code has tiles in vectors that so many channels fill.
fn has_tiles(channels: usize) -> bool {
    let lanes = tlc_runtime::cpu::level::wide().map(|level: Level| level.vector_bits() as usize / 32);
    lanes.is_some_and(|lanes| channels.is_multiple_of(lanes))
}

/// Whether some kernel of an executable multiplies windows where they lie.
fn is_direct(explained: &str) -> bool {
    explained.contains("windows are multiplied where they lie")
}

#[test]
fn random_direct_convolutions_are_right_at_every_size() {
    right_at_every_size(0..10, Case::random);
}

#[test]
fn windows_of_one_element_have_the_same_bits_as_products_of_large_images() {
    right_at_every_size(100..106, Case::of_elements);
}

#[test]
fn windows_that_are_padding_for_all_results_have_the_same_bits_without_it() {
    right_at_every_size(200..210, Case::of_padding);
}

#[test]
fn rows_with_other_elements_inside_of_the_image_have_the_same_bits_as_sums_of_their_own() {
    right_at_every_size(300..306, Case::of_rows);
}

/// Of 14 rows, 12 apart, the first two and the last two meet two rows of the image and the others one; what is not a number is multiplied by padding too.
#[test]
fn rows_are_divided_by_the_elements_that_they_meet() {
    let mut rng = Rng::new(4);
    for (infinite, rows) in [(false, vec![(2, 2), (10, 1), (2, 2)]), (true, vec![(14, 3)])] {
        let case = Case {
            images: 1,
            groups: 1,
            channels: 64,
            outputs: 32,
            sides: [14, 14],
            kernel: [3, 3],
            stride: 1,
            dilation: 12,
            padding: [12; 2],
            bias: false,
            residual: false,
            activation: false,
            special: false,
        };
        let mut weights = data(&[32, 64, 3, 3], &mut rng, false);
        if infinite {
            weights.set(0, Scalar::from_f64(DType::F32, f64::INFINITY));
        }
        let graph = case.record(false, &weights, &data(&[32, 1, 1], &mut rng, false));
        let e = compile_ir(&graph, &CompileOptions::default()).unwrap();
        if has_tiles(32) {
            let launches = e.plan().steps.iter().flat_map(|s| s.launches());
            let flops = launches.map(|l| l.flops.as_const().unwrap());
            let mut found: Vec<i64> = flops.filter(|f| *f > 1 << 18).collect();
            let mut expected: Vec<i64> = rows
                .iter()
                .map(|(rows, met)| 2 * rows * 14 * 32 * 64 * met * 3)
                .collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "infinite {infinite}");
        }
    }
}

/// Of 16 rows, 4 apart, the first four and the last four meet two rows of the image: a sixth less is worth weights of their own where it is much.
#[test]
fn rows_that_meet_a_little_less_are_divided_where_that_saves_much() {
    let mut rng = Rng::new(12);
    for (channels, rows) in [(512, vec![(4, 2), (8, 3), (4, 2)]), (64, vec![(16, 3)])] {
        let case = Case {
            images: 1,
            groups: 1,
            channels,
            outputs: channels,
            sides: [16, 16],
            kernel: [3, 3],
            stride: 1,
            dilation: 4,
            padding: [4; 2],
            bias: false,
            residual: false,
            activation: false,
            special: false,
        };
        let weights = data(&[channels, channels, 3, 3], &mut rng, false);
        let graph = case.record(false, &weights, &data(&[channels, 1, 1], &mut rng, false));
        let e = compile_ir(&graph, &CompileOptions::default()).unwrap();
        if has_tiles(channels) {
            let launches = e.plan().steps.iter().flat_map(|s| s.launches());
            let flops = launches.map(|l| l.flops.as_const().unwrap());
            // What puts the parts together chooses among them.
            let mut found: Vec<i64> = flops.filter(|f| *f > 1 << 20).collect();
            let each = |(rows, met): &(i64, i64)| 2 * rows * 16 * (channels * channels) as i64 * met * 3;
            let mut expected: Vec<i64> = rows.iter().map(each).collect();
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{channels} channels");
        }
        if channels == 64 {
            continue;
        }
        let inputs = [data(&[1, channels, 16, 16], &mut rng, false)];
        let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
        let found = e.run(&inputs.each_ref().map(Into::into)).unwrap()[0].to_host();
        compare(&found, &bounded[0]).unwrap_or_else(|m| panic!("{m}"));
    }
}

/// Few zeros behind the channels make blocks of them: what is computed of an infinity there is cut off.
#[test]
fn channels_that_nearly_fill_vectors_are_filled_with_zeros() {
    let mut rng = Rng::new(13);
    for (outputs, kernel, filled) in [(172, [1, 1], true), (172, [3, 3], true), (98, [3, 3], false)] {
        let case = Case {
            images: 2,
            groups: 1,
            channels: 32,
            outputs,
            sides: [5, 13],
            kernel,
            stride: 1,
            dilation: 1,
            padding: [kernel[0] / 2; 2],
            bias: true,
            residual: true,
            activation: true,
            special: true,
        };
        let weights = data(&[outputs, 32, kernel[0], kernel[1]], &mut rng, true);
        let graph = case.record(false, &weights, &data(&[outputs, 1, 1], &mut rng, true));
        let inputs = [data(&[2, 32, 5, 13], &mut rng, true)];
        let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
        for threads in [1, 2] {
            let options = CompileOptions {
                threads: Some(threads),
                ..CompileOptions::default()
            };
            let e = compile_ir(&graph, &options).unwrap();
            let explained = e.explain().to_string();
            let direct = has_tiles(16) && filled;
            assert!(is_direct(&explained) == direct, "{outputs} {kernel:?}\n{explained}");
            let found = e.run(&inputs.each_ref().map(Into::into)).unwrap()[0].to_host();
            compare(&found, &bounded[0]).unwrap_or_else(|m| panic!("{m}\n{explained}"));
        }
    }
}

/// A result of one block of channels is pieces of pixels, of which two threads have as many each.
#[test]
fn threads_share_the_pixels_of_one_block_of_channels() {
    use tlc::ir::kernel::{Bind, Stmt};
    let mut rng = Rng::new(14);
    for outputs in [16, 48] {
        let case = Case {
            images: 1,
            groups: 1,
            channels: 64,
            outputs,
            sides: [14, 14],
            kernel: [1, 1],
            stride: 1,
            dilation: 1,
            padding: [0; 2],
            bias: true,
            residual: false,
            activation: true,
            special: true,
        };
        let weights = data(&[outputs, 64, 1, 1], &mut rng, false);
        let graph = case.record(false, &weights, &data(&[outputs, 1, 1], &mut rng, false));
        let inputs = [data(&[1, 64, 14, 14], &mut rng, true)];
        let run = |threads: usize| {
            let options = CompileOptions {
                threads: Some(threads),
                ..CompileOptions::default()
            };
            let e = compile_ir(&graph, &options).unwrap();
            let kernels = e.plan().kernels.iter();
            let multiplies = |k: &&tlc::ir::kernel::Kernel| k.params.len() > 2;
            let shared = kernels.filter(multiplies).map(|k| {
                let parallel = k.statements().find_map(|s| match s {
                    Stmt::Loop {
                        var,
                        bind: Bind::Parallel,
                        ..
                    } => k.extents[var.0 as usize].as_const(),
                    _ => None,
                });
                parallel.unwrap_or(1)
            });
            let shared: Vec<i64> = shared.collect();
            let found = e.run(&inputs.each_ref().map(Into::into)).unwrap()[0].to_host();
            (shared, found)
        };
        let [(_, alone), (shared, together)] = [run(1), run(2)];
        assert!(same(&alone, &together), "{outputs}");
        assert!(
            !has_tiles(16) || shared.iter().any(|n| n % 2 == 0),
            "{outputs}: {shared:?}"
        );
        let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
        compare(&together, &bounded[0]).unwrap_or_else(|m| panic!("{m}"));
    }
}

/// Weights come from memory once a call: while a block of channels is multiplied, the next one's weights are asked for. Where several threads
/// have written the image, the next channels of it are too.
#[test]
fn the_next_channels_weights_are_asked_for() {
    let mut rng = Rng::new(5);
    for (outputs, kernel, asked) in [(64, [3, 3], true), (64, [1, 1], true), (16, [3, 3], false)] {
        let case = Case {
            images: 1,
            groups: 1,
            channels: 64,
            outputs,
            sides: [14, 15],
            kernel,
            stride: 1,
            dilation: 1,
            padding: [kernel[0] / 2; 2],
            bias: true,
            residual: false,
            activation: true,
            special: false,
        };
        let weights = data(&[outputs, 64, kernel[0], kernel[1]], &mut rng, false);
        let graph = case.record(false, &weights, &data(&[outputs, 1, 1], &mut rng, false));
        for threads in [1, 2] {
            let options = CompileOptions {
                threads: Some(threads),
                ..CompileOptions::default()
            };
            let e = compile_ir(&graph, &options).unwrap();
            let asks = |param: u32| {
                let of = move |s: &tlc::ir::kernel::Stmt| matches!(s, tlc::ir::kernel::Stmt::Prefetch { memory: tlc::ir::kernel::Memory::Param(p), .. } if *p == param);
                e.plan().kernels.iter().any(|k| k.statements().any(of))
            };
            let what = format!("{outputs} {kernel:?}, {threads} threads");
            assert_eq!(asks(1), has_tiles(outputs) && asked, "{what}");
            // A tile of narrow vectors multiplies too little of one element for a line of it to be asked for.
            let much = kernel == [3, 3] || tlc_runtime::cpu::level::wide() == Some(Level::Avx512);
            if outputs == 64 {
                assert_eq!(asks(0), has_tiles(outputs) && threads > 1 && much, "{what}: the image");
            }
        }
    }
}

/// Channels of a large image lie further apart than processors foresee, and are asked for on one thread too.
#[test]
fn the_next_channels_of_large_images_are_asked_for() {
    let mut rng = Rng::new(6);
    for (side, large) in [(32, true), (4, false)] {
        let case = Case {
            images: 1,
            groups: 1,
            channels: 1024,
            outputs: 32,
            sides: [side; 2],
            kernel: [1; 2],
            stride: 1,
            dilation: 1,
            padding: [0; 2],
            bias: false,
            residual: false,
            activation: true,
            special: false,
        };
        let weights = data(&[32, 1024, 1, 1], &mut rng, false);
        let graph = case.record(false, &weights, &data(&[32, 1, 1], &mut rng, false));
        let options = CompileOptions {
            threads: Some(1),
            ..CompileOptions::default()
        };
        let e = compile_ir(&graph, &options).unwrap();
        let kernels = e.plan().kernels.iter();
        let asks = kernels.flat_map(|k| k.statements()).any(|s| {
            use tlc::ir::kernel::{Memory, Stmt};
            matches!(
                s,
                Stmt::Prefetch {
                    memory: Memory::Param(0),
                    ..
                }
            )
        });
        let much = tlc_runtime::cpu::level::wide() == Some(Level::Avx512);
        assert_eq!(asks, large && much, "{side}: {}", e.explain());
    }
}

/// An image of windows that are as high as it is has elements in the order of blocks of weights, if its rows are as long as a block is wide.
#[test]
fn images_in_the_order_of_weights_are_images() {
    let mut rng = Rng::new(21);
    for (width, outputs) in [(32, 128), (16, 64), (8, 32)] {
        let case = Case {
            images: 1,
            groups: 1,
            channels: 24,
            outputs,
            sides: [4, width],
            kernel: [4, 1],
            stride: 1,
            dilation: 1,
            padding: [0; 2],
            bias: true,
            residual: false,
            activation: true,
            special: true,
        };
        let weights = data(&[outputs, 24, 4, 1], &mut rng, false);
        let graph = case.record(false, &weights, &data(&[outputs, 1, 1], &mut rng, false));
        let e = compile_ir(&graph, &CompileOptions::default()).unwrap();
        let explained = e.explain().to_string();
        assert_eq!(is_direct(&explained), has_tiles(outputs), "{explained}");
        // Tiles of one row would be those of an image that is taken for weights.
        assert!(
            !explained.contains("rows=1 columns=") || !has_tiles(outputs),
            "{explained}"
        );
        let inputs = [data(&[1, 24, 4, width], &mut rng, true)];
        let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
        let found = e.run(&inputs.each_ref().map(Into::into)).unwrap()[0].to_host();
        compare(&found, &bounded[0]).unwrap_or_else(|m| panic!("{width}, {outputs}: {m}"));
    }
}

/// Short sums take tiles of one vector of channels and as many pixels, whatever rows leave over.
#[test]
fn short_sums_over_rows_of_any_length() {
    let mut rng = Rng::new(22);
    for (channels, sides, stride) in [
        (1, [5, 16], 1),
        (1, [4, 31], 1),
        (3, [3, 64], 1),
        (3, [6, 47], 2),
        (2, [32, 32], 1),
        (3, [1, 1], 1),
        (1, [2, 17], 1),
        (3, [4, 13], 1),
        (4, [4, 33], 1),
    ] {
        let case = Case {
            images: 2,
            groups: 1,
            channels,
            outputs: 32,
            sides,
            kernel: [3, 3],
            stride,
            dilation: 1,
            padding: [1; 2],
            bias: true,
            residual: false,
            activation: true,
            special: true,
        };
        let weights = data(&[32, channels, 3, 3], &mut rng, false);
        let inputs = [data(&[2, channels, sides[0], sides[1]], &mut rng, true)];
        let bias = data(&[32, 1, 1], &mut rng, false);
        let run = |symbolic: bool| {
            let graph = case.record(symbolic, &weights, &bias);
            let e = compile_ir(&graph, &CompileOptions::default()).unwrap();
            let found = e.run(&inputs.each_ref().map(Into::into)).unwrap()[0].to_host();
            let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
            compare(&found, &bounded[0]).unwrap_or_else(|m| panic!("{case:?}: {m}"));
            found
        };
        assert!(same(&run(false), &run(true)), "{case:?}");
    }
}

/// Channels of a padded image that would lie 4 KiB apart share a set of the first-level cache: each has another row of padding.
#[test]
fn channels_that_would_share_a_set_lie_apart() {
    let mut rng = Rng::new(17);
    let (channels, outputs) = (256, 16);
    for (sides, stride, rows) in [([28, 28], 4, 33), ([28, 27], 4, 32), ([60, 12], 7, 65)] {
        let case = Case {
            images: 2,
            groups: 1,
            channels,
            outputs,
            sides,
            kernel: [3, 3],
            stride,
            dilation: 2,
            padding: [2, 2],
            bias: true,
            residual: false,
            activation: true,
            special: true,
        };
        let weights = data(&[outputs, channels, 3, 3], &mut rng, false);
        let graph = case.record(false, &weights, &data(&[outputs, 1, 1], &mut rng, false));
        let input = data(&[2, channels, sides[0], sides[1]], &mut rng, true);
        let bounded = interpret_with_bounds(&graph, std::slice::from_ref(&input), &interp::Options::default()).unwrap();
        let e = compile_ir(&graph, &CompileOptions::default()).unwrap();
        let padded = (2 * channels * rows * (sides[1] + 4)) as i64;
        let stored = (e.plan().kernels.iter()).any(|k| k.params.iter().any(|p| p.len.is(padded)));
        assert_eq!(stored, has_tiles(outputs), "{case:?}: {rows} rows of each channel");
        let found = e.run(&[(&input).into()]).unwrap()[0].to_host();
        compare(&found, &bounded[0]).unwrap_or_else(|e| panic!("{case:?}: {e}"));
    }
}

/// Where the last cache is far, all blocks of channels meet a tile of an image of unknown size before the next tile is read, if their weights leave room.
/// Bits are those of one block after another.
#[test]
fn blocks_of_channels_meet_one_tile_after_another() {
    if tlc_runtime::cpu::level::wide().is_none() {
        println!("SKIP: tiles are in vectors of AVX2 or wider");
        return;
    }
    let emitters = tlc_runtime::cpu::jit::emitters().unwrap();
    let mut rng = Rng::new(23);
    for (channels, outputs, inside) in [(128, 128, true), (96, 256, false)] {
        let case = Case {
            images: 2,
            groups: 1,
            channels,
            outputs,
            sides: [7, 9],
            kernel: [1, 1],
            stride: 1,
            dilation: 1,
            padding: [0, 0],
            bias: true,
            residual: true,
            activation: true,
            special: true,
        };
        let weights = data(&[outputs, channels, 1, 1], &mut rng, false);
        let graph = case.record(true, &weights, &data(&[outputs, 1, 1], &mut rng, false));
        let made = |feeds_tiles: bool, threads: usize| {
            let cpu = Cpu {
                l2_bytes: 256 << 10,
                feeds_tiles,
                ..tlc_runtime::target::cpu(emitters.clone(), threads)
            };
            let plan = compile(&graph, &Options::new(cpu)).unwrap().planned.plan;
            // Of each image so many pieces, which threads share.
            let pieces = plan.kernels.iter().map(|k| match &k.body[..] {
                [tlc::ir::kernel::Stmt::Loop { var, .. }] => {
                    k.extents[var.0 as usize].linear().0.iter().map(|t| t.1).max()
                }
                _ => None,
            });
            let pieces = pieces.flatten().max();
            let pool = Arc::new(Pool::new(threads));
            let executable = Executable::new(plan, pool, BufferPool::new(), tlc_passes::memory::pack).unwrap();
            (executable, pieces)
        };
        let (one_after_another, apart) = made(true, 1);
        let met = [1, 2].map(|threads| {
            let (executable, pieces) = made(false, threads);
            let met = pieces == Some(threads as i64) && pieces < apart;
            assert_eq!(
                met, inside,
                "{case:?}, {threads} threads: {pieces:?} pieces, {apart:?} apart"
            );
            executable
        });
        for sides in [[4, 7], [1, 1], [0, 3], [3, 10], [23, 1]] {
            let input = data(&[2, channels, sides[0], sides[1]], &mut rng, true);
            let view = TensorView {
                dtype: input.dtype(),
                shape: input.shape(),
                data: input.bytes(),
            };
            let run = |executable: &Executable| {
                let found = executable.run(&[view]).unwrap().remove(0);
                HostTensor::from_bytes(found.dtype, &found.shape, found.bytes()).unwrap()
            };
            let expected = run(&one_after_another);
            let bounded = interpret_with_bounds(&graph, std::slice::from_ref(&input), &interp::Options::default());
            compare(&expected, &bounded.unwrap()[0]).unwrap_or_else(|e| panic!("{case:?} {sides:?}: {e}"));
            for executable in &met {
                assert!(same(&expected, &run(executable)), "{case:?} {sides:?}");
            }
        }
    }
}

/// A window as wide as the image has one element inside of it: nothing is padded, and one product is left of nine.
#[test]
fn elements_that_are_padding_for_all_results_are_left_out() {
    let mut rng = Rng::new(3);
    for (dilation, infinite, multiplied) in [(6, false, 9), (14, false, 1), (14, true, 9)] {
        let case = Case {
            images: 1,
            groups: 1,
            channels: 16,
            outputs: 32,
            sides: [14, 14],
            kernel: [3, 3],
            stride: 1,
            dilation,
            padding: [dilation; 2],
            bias: false,
            residual: false,
            activation: false,
            special: false,
        };
        let mut weights = data(&[32, 16, 3, 3], &mut rng, false);
        if infinite {
            // The product of padding with it is NaN.
            weights.set(0, Scalar::from_f64(DType::F32, f64::INFINITY));
        }
        let graph = case.record(false, &weights, &data(&[32, 1, 1], &mut rng, false));
        let e = compile_ir(&graph, &CompileOptions::default()).unwrap();
        let launches = e.plan().steps.iter().flat_map(|s| s.launches());
        // A padded image is written by a kernel of its own.
        let flops = launches.map(|l| l.flops.as_const().unwrap()).max();
        // Elsewhere it is the library's.
        if has_tiles(32) {
            let expected = Some(2 * 14 * 14 * 32 * 16 * multiplied);
            assert_eq!(flops, expected, "dilation {dilation}, infinite {infinite}");
        }
    }
}

fn right_at_every_size(usual: std::ops::Range<u64>, random: fn(&mut Rng) -> Case) {
    for seed in seeds(usual) {
        let mut rng = Rng::new(seed);
        let mut case = random(&mut rng);
        while case.results().is_none() {
            case = random(&mut rng);
        }
        let [kh, kw] = case.kernel;
        let outputs = case.groups * case.outputs;
        let weights = data(&[outputs, case.channels, kh, kw], &mut rng, case.special);
        let bias = data(&[outputs, 1, 1], &mut rng, case.special);
        let [h, w] = case.sides;
        let inputs = [data(
            &[case.images, case.groups * case.channels, h, w],
            &mut rng,
            case.special,
        )];
        let mut first: Option<HostTensor> = None;
        for (symbolic, threads) in [(false, 1), (false, 3), (true, 1), (true, 3)] {
            let graph = case.record(symbolic, &weights, &bias);
            let options = CompileOptions {
                threads: Some(threads),
                specialize: Specialize::Never,
                ..CompileOptions::default()
            };
            let e = compile_ir(&graph, &options).unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"));
            let explained = e.explain().to_string();
            let direct = has_tiles(case.outputs) && case.is_direct(symbolic);
            assert_eq!(is_direct(&explained), direct, "seed {seed}: {case:?}\n{explained}");
            let found = e.run(&inputs.each_ref().map(Into::into));
            let found = found.unwrap_or_else(|e| panic!("seed {seed}: {case:?}: {e}"))[0].to_host();
            match &first {
                // The library's sums of one row of an image are others where sizes are known.
                Some(first) => assert!(
                    same(first, &found) || symbolic && !has_tiles(case.outputs),
                    "seed {seed}: {case:?}: other bits with symbolic sizes {symbolic}, {threads} threads"
                ),
                None => {
                    let meant = interp::Options::default();
                    let bounded = interpret_with_bounds(&graph, &inputs, &meant);
                    let bounded = bounded.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                    compare(&found, &bounded[0]).unwrap_or_else(|m| panic!("seed {seed}: {case:?}: {m}\n{explained}"));
                    first = Some(found);
                }
            }
        }
    }
}

/// Equal bits, NaN alike.
fn same(a: &HostTensor, b: &HostTensor) -> bool {
    let alike = |i: usize| a.get(i) == b.get(i) || a.get(i).is_nan() && b.get(i).is_nan();
    a.shape() == b.shape() && (0..a.shape().iter().product()).all(alike)
}

#[test]
fn short_sums_and_channels_that_fill_no_vector_are_products() {
    let mut rng = Rng::new(9);
    for (channels, outputs, kernel, direct) in [
        (16, 32, [3, 3], true),
        (3, 32, [3, 3], true),
        (1, 64, [3, 3], true),
        (2, 32, [2, 2], false),
        (16, 20, [3, 3], false),
        (1, 64, [2, 3], false),
    ] {
        let case = Case {
            images: 1,
            groups: 1,
            channels,
            outputs,
            sides: [8, 14],
            kernel,
            stride: 1,
            dilation: 1,
            padding: [1, 1],
            bias: true,
            residual: false,
            activation: true,
            special: false,
        };
        let weights = data(&[outputs, channels, kernel[0], kernel[1]], &mut rng, false);
        let bias = data(&[outputs, 1, 1], &mut rng, false);
        let graph = case.record(false, &weights, &bias);
        let e = compile_ir(&graph, &CompileOptions::default()).unwrap();
        let explained = e.explain().to_string();
        let expected = has_tiles(outputs) && direct;
        assert_eq!(is_direct(&explained), expected, "{channels} to {outputs}\n{explained}");
        // Bias and activation are part of the kernel.
        let labels: Vec<_> = e
            .plan()
            .steps
            .iter()
            .flat_map(|s| s.launches())
            .map(|l| l.label.clone())
            .collect();
        assert!(!expected || labels.len() == 2, "{labels:?}");
    }
}

/// What a tile leaves of the cache lines of a short image is there when the next tile wants it: a few channels at a time. And a product of
/// every other pixel reads a copy of these.
#[test]
fn lines_of_short_images_are_used_whole() {
    let mut rng = Rng::new(11);
    for (channels, stride, few_at_once) in [(512, 1, true), (64, 1, false), (512, 2, true)] {
        let case = Case {
            images: 1,
            groups: 1,
            channels,
            outputs: 32,
            sides: [7 * stride; 2],
            kernel: [1, 1],
            stride,
            dilation: 1,
            padding: [0, 0],
            bias: true,
            residual: true,
            activation: true,
            special: true,
        };
        let weights = data(&[32, channels, 1, 1], &mut rng, false);
        let bias = data(&[32, 1, 1], &mut rng, false);
        let graph = case.record(false, &weights, &bias);
        let e = compile_ir(&graph, &CompileOptions::default()).unwrap();
        let explained = e.explain().to_string();
        let lines = "channels of the image before the next ones";
        // A tile of 14 pixels uses most of a line of 16.
        let small_tiles = tlc_runtime::cpu::level::wide() == Some(Level::Avx2);
        assert_eq!(explained.contains(lines), small_tiles && few_at_once, "{explained}");
        if has_tiles(32) {
            let launches = e.plan().steps.iter().flat_map(|s| s.launches()).count();
            assert_eq!(launches, stride, "{explained}");
        }
        let inputs = [data(&[1, channels, 7 * stride, 7 * stride], &mut rng, true)];
        let bounded = interpret_with_bounds(&graph, &inputs, &interp::Options::default()).unwrap();
        let found = e.run(&inputs.each_ref().map(Into::into)).unwrap()[0].to_host();
        compare(&found, &bounded[0]).unwrap_or_else(|m| panic!("{m}\n{explained}"));
    }
}

/// Long sums over images that the second cache does not hold, a few channels at a time: on a processor with small caches, so that small images
/// are such. Results are the bits of those added up at once.
#[test]
fn long_sums_are_added_up_in_rounds_to_the_same_bits() {
    let Some(level) = tlc_runtime::cpu::level::wide() else {
        println!("SKIP: tiles are in vectors of AVX2 or wider");
        return;
    };
    let emitters = tlc_runtime::cpu::jit::emitters().unwrap();
    let mut rng = Rng::new(23);
    let of = |channels, outputs, sides, kernel: [usize; 2], dilation| Case {
        images: 1,
        groups: 1,
        channels,
        outputs,
        sides,
        kernel,
        stride: 1,
        dilation,
        padding: kernel.map(|k| dilation * (k / 2)),
        bias: true,
        residual: true,
        activation: true,
        special: false,
    };
    let cases = [
        // One row; several blocks of channels, rows that no vector fills.
        of(512, 64, [8, 16], [1, 1], 1),
        of(520, 32, [9, 15], [1, 1], 1),
        Case {
            special: true,
            ..of(1024, 64, [5, 13], [1, 1], 1)
        },
        Case {
            images: 2,
            groups: 2,
            ..of(512, 32, [8, 16], [1, 1], 1)
        },
        // Windows that lie apart: rows of padding are left out, and the rows of the image are parts of their own.
        of(256, 32, [16, 16], [3, 3], 12),
        Case {
            special: true,
            ..of(272, 32, [15, 16], [3, 3], 12)
        },
    ];
    let mut in_rounds = 0;
    for case in cases {
        let weights = data(
            &[
                case.groups * case.outputs,
                case.channels,
                case.kernel[0],
                case.kernel[1],
            ],
            &mut rng,
            false,
        );
        let bias = data(&[case.groups * case.outputs, 1, 1], &mut rng, false);
        let graph = case.record(false, &weights, &bias);
        let [h, w] = case.sides;
        let input = data(
            &[case.images, case.groups * case.channels, h, w],
            &mut rng,
            case.special,
        );
        let bounded = interpret_with_bounds(&graph, std::slice::from_ref(&input), &interp::Options::default()).unwrap();
        let run = |shared_by: usize| {
            let cpu = Cpu {
                l1_bytes: 32 << 10,
                l2_bytes: 256 << 10,
                feeds_tiles: false,
                ..tlc_runtime::target::cpu(emitters.clone(), shared_by)
            };
            let compiled = compile(&graph, &Options::new(cpu)).unwrap().planned;
            let launches = compiled.launches.iter().flat_map(|l| &l.schedule.applied);
            let rounds = launches
                .filter(|a| matches!(a.directive, Directive::Hold { .. }))
                .count();
            let pool = Arc::new(Pool::new(shared_by.min(3)));
            let executable = Executable::new(compiled.plan, pool, BufferPool::new(), tlc_passes::memory::pack).unwrap();
            let view = TensorView {
                dtype: input.dtype(),
                shape: input.shape(),
                data: input.bytes(),
            };
            let found = executable.run(&[view]).unwrap().remove(0);
            let found = HostTensor::from_bytes(found.dtype, &found.shape, found.bytes()).unwrap();
            compare(&found, &bounded[0]).unwrap_or_else(|e| panic!("{case:?} for {shared_by} threads: {e}"));
            (found, rounds)
        };
        // There are fewer blocks than threads.
        let (expected, none) = run(1 << 20);
        assert_eq!(none, 0, "{case:?}");
        for threads in [1, 2] {
            let (found, rounds) = run(threads);
            let bits = |t: &HostTensor| {
                t.as_slice::<f32>()
                    .unwrap()
                    .iter()
                    .map(|x| x.to_bits())
                    .collect::<Vec<_>>()
            };
            assert!(bits(&found) == bits(&expected), "{case:?}, {threads} threads");
            in_rounds += usize::from(rounds > 0);
        }
    }
    assert!(in_rounds >= 8, "{in_rounds} of 12 in rounds on {level:?}");
}
