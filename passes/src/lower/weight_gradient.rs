//! Lowering of gradients by weights: tiles of channels by the windows' elements, block by block of the pixels that are summed.
//!
//! ```text
//! for each group, block of channels, and so many tiles                    in parallel
//!   sums of these tiles = 0
//!   for each image, and each block of its pixels
//!     the gradient's pixels of the block, turned: channels side by side
//!     for each tile
//!       tile = 0                                                          in registers
//!       for each line of the block
//!         tile[element, channel] += Σ pixel: image[element, pixel] * gradient[pixel, channel]
//!       sums += tile
//!   sums to the result, a vector of channels apart at a time
//! ```
//! Invariants:
//! - Each result takes the products of a block's pixels one after another, and the blocks' sums one after another. What a block is
//!   depends on the lengths of lines alone.
//! - A block has at most [`WeightGradient::BLOCK`] pixels, which follow each other in the gradient: of lines that are longer than
//!   half of that it has a part of one line, of shorter ones several lines as a whole, and so on with planes.
//! - Pixels behind a block's last one are turned as zeros and multiplied by nothing.

use smallvec::SmallVec;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Access, Bind, Contract, ContractOperand, Memory, Op, Scope, Stmt, ValueId};
use tlc_ir::{DType, Graph, Precision, ScalarOp};

use super::{Form, Lowerer, Nest};
use crate::cluster::Cluster;
use crate::weight_gradient::{Axis, WeightGradient};

/// Lowers a gradient by weights.
pub(super) fn lower(graph: &Graph, cluster: &Cluster, form: &WeightGradient, is_root: &[bool]) -> Nest {
    let mut lo = Lowerer::new(graph, &cluster.roots, is_root);
    let gradient = Memory::Param(lo.param(form.gradient.0, Access::Read));
    let image = Memory::Param(lo.param(form.image.0, Access::Read));
    let result = Memory::Param(lo.param(cluster.roots[0], Access::Write));
    let (rows, columns) = (form.rows(), form.columns);
    let mut scratch = |len: i64, scope| lo.kernel.new_scratch(DType::F32, constant(len), scope);
    let memories = Memories {
        gradient,
        image,
        result,
        sums: scratch(form.tiles * rows * columns, Scope::Cache),
        turned: scratch(WeightGradient::BLOCK * columns, Scope::Cache),
        square: scratch(form.lanes * form.lanes, Scope::Register),
        tile: scratch(rows * columns, Scope::Register),
    };
    let groups: Vec<VarId> = form.groups.iter().map(|a| lo.new_var(a.extent.clone(), 0)).collect();
    let count = form.channels.extent.as_const().unwrap_or(0);
    let block = lo.new_var(constant(count / columns), 0);
    let share = lo.new_var(constant((form.all_tiles() + form.tiles - 1) / form.tiles), 0);
    let group = |of: fn(&Axis) -> &IndexExpr| walked(&form.groups, &groups, of);
    let first_channel = IndexExpr::from(block) * constant(columns);
    let part = Part {
        form,
        memories,
        gradient: form.gradient.1.clone()
            + group(|a| &a.in_gradient)
            + first_channel.clone() * form.channels.in_gradient.clone(),
        image: form.image.1.clone() + group(|a| &a.in_image),
        result: group(|a| &a.in_result) + first_channel * form.channels.in_result.clone(),
        first_tile: IndexExpr::from(share) * constant(form.tiles),
        lo: &mut lo,
    };
    let body = part.body();
    body.into_iter().for_each(|s| lo.push(0, s));
    let parallel = groups.into_iter().chain([block, share]).collect();
    lo.finish(parallel, Form::Tiles)
}

fn constant(n: i64) -> IndexExpr {
    IndexExpr::Const(n)
}

/// The distance that variables walk along axes.
fn walked(axes: &[Axis], vars: &[VarId], of: fn(&Axis) -> &IndexExpr) -> IndexExpr {
    let steps = axes.iter().zip(vars).map(|(a, &v)| IndexExpr::from(v) * of(a).clone());
    steps.fold(IndexExpr::ZERO, |sum, step| sum + step)
}

#[derive(Clone, Copy)]
struct Memories {
    gradient: Memory,
    image: Memory,
    result: Memory,
    /// Of all tiles of the iteration: rows of channels.
    sums: Memory,
    /// A block of the gradient: a row of channels for each pixel.
    turned: Memory,
    /// Vectors that are being turned.
    square: Memory,
    /// Rows of channels.
    tile: Memory,
}

/// What a parallel iteration computes.
struct Part<'p, 'g> {
    lo: &'p mut Lowerer<'g>,
    form: &'p WeightGradient,
    memories: Memories,
    /// Where its elements begin in each memory.
    gradient: IndexExpr,
    image: IndexExpr,
    result: IndexExpr,
    /// The number of its first tile in the block of channels.
    first_tile: IndexExpr,
}

/// Pixels that are summed together.
struct Block {
    /// Where they begin in the gradient.
    gradient: IndexExpr,
    /// Where the window of the first one begins in the image.
    image: IndexExpr,
    /// Positions along each axis above the pixels, outermost first.
    lines: Vec<IndexExpr>,
    /// Of each line.
    pixels: IndexExpr,
}

impl Part<'_, '_> {
    fn var(&mut self, extent: IndexExpr) -> VarId {
        self.lo.new_var(extent, 0)
    }

    fn let_(&mut self, op: Op, dtype: DType, out: &mut Vec<Stmt>) -> ValueId {
        let value = self.lo.new_value(dtype, 0);
        out.push(Stmt::Let { value, op });
        value
    }

    fn load(&mut self, memory: Memory, index: IndexExpr, mask: Option<ValueId>, out: &mut Vec<Stmt>) -> ValueId {
        self.let_(Op::Load { memory, index, mask }, DType::F32, out)
    }

    /// A loop over what `f` does with its variable.
    fn repeat(&mut self, extent: IndexExpr, bind: Bind, f: impl FnOnce(&mut Self, IndexExpr) -> Vec<Stmt>) -> Stmt {
        let var = self.var(extent);
        let body = f(self, var.into());
        Stmt::Loop { var, bind, body }
    }

    /// What `f` does with each vector of a tile's row of channels, copied out.
    fn vectors(&mut self, f: impl FnOnce(&mut Self, IndexExpr) -> Vec<Stmt>) -> Stmt {
        let (lanes, vectors) = (constant(self.form.lanes), self.form.columns / self.form.lanes);
        self.repeat(constant(vectors), Bind::Unroll, |p, vector| {
            vec![p.repeat(lanes.clone(), Bind::Lanes, |p, lane| f(p, vector * lanes + lane))]
        })
    }

    /// What `f` does with each vector of a tile's rows, copied out: it gets the row and the channel.
    fn tile(&mut self, f: impl FnOnce(&mut Self, IndexExpr, IndexExpr) -> Vec<Stmt>) -> Stmt {
        let rows = constant(self.form.rows());
        self.repeat(rows, Bind::Unroll, |p, row| {
            vec![p.vectors(|p, channel| f(p, row, channel))]
        })
    }

    fn element(&self, row: IndexExpr, channel: IndexExpr) -> IndexExpr {
        row * constant(self.form.columns) + channel
    }

    fn clear(&mut self, memory: Memory, index: IndexExpr) -> Vec<Stmt> {
        let mut out = Vec::new();
        let value = self.let_(Op::Const(DType::F32.zero()), DType::F32, &mut out);
        out.push(store(memory, index, value));
        out
    }

    /// Tiles that the iteration has: the last one of a block of channels may have fewer.
    fn tiles(&self) -> IndexExpr {
        let (each, all) = (self.form.tiles, self.form.all_tiles());
        match all % each {
            0 => constant(each),
            _ => IndexExpr::min(&constant(each), &(constant(all) - self.first_tile.clone())),
        }
    }

    fn body(mut self) -> Vec<Stmt> {
        let m = self.memories;
        let sums = constant(self.form.tiles * self.form.rows());
        let clear = self.repeat(sums, Bind::Serial, |p, row| {
            vec![p.vectors(|p, channel| {
                let at = p.element(row, channel);
                p.clear(m.sums, at)
            })]
        });
        let blocks = self.blocks();
        let tiles = self.tiles();
        let results = self.repeat(tiles, Bind::Serial, |p, tile| vec![p.results(tile)]);
        vec![clear, blocks, results]
    }

    /// Loops over all blocks of all images.
    fn blocks(&mut self) -> Stmt {
        let form = self.form;
        let outer: Vec<VarId> = form.outer.iter().map(|a| self.var(a.extent.clone())).collect();
        let most = constant(WeightGradient::BLOCK);
        let start =
            |in_memory: &IndexExpr, of: fn(&Axis) -> &IndexExpr| in_memory.clone() + walked(&form.outer, &outer, of);
        let mut block = Block {
            gradient: start(&self.gradient, |a| &a.in_gradient),
            image: start(&self.image, |a| &a.in_image),
            lines: Vec::new(),
            pixels: IndexExpr::ZERO,
        };
        // How many positions of each axis a block has: as many as make no more pixels than it may have. No extent is known to be positive.
        let mut vars = outer;
        let (mut span, mut inner) = (IndexExpr::ONE, Vec::new());
        for axis in form.lines.iter().chain([&form.pixels]).rev() {
            let each = IndexExpr::max(&IndexExpr::floor_div(&most, &span), &IndexExpr::ONE);
            let blocks = IndexExpr::floor_div(&(axis.extent.clone() + each.clone() - IndexExpr::ONE), &each);
            let var = self.var(blocks);
            let first = IndexExpr::from(var) * each.clone();
            block.gradient = block.gradient.clone() + first.clone() * axis.in_gradient.clone();
            block.image = block.image.clone() + first.clone() * axis.in_image.clone();
            let count = IndexExpr::min(&each, &(axis.extent.clone() - first)).simplify(self.lo);
            if inner.is_empty() {
                block.pixels = count;
            } else {
                block.lines.insert(0, count);
            }
            inner.insert(0, var);
            span = span * IndexExpr::max(&axis.extent, &IndexExpr::ONE);
        }
        vars.extend(inner);
        let turn = self.turn(&block);
        let tiles = self.tiles();
        let add = self.repeat(tiles, Bind::Serial, |p, tile| p.add(&block, tile));
        match vars.split_last() {
            Some((&var, around)) => nested(
                around,
                Stmt::Loop {
                    var,
                    bind: Bind::Serial,
                    body: vec![turn, add],
                },
            ),
            None => turn,
        }
    }

    /// Lays the channels of each pixel of a block side by side: squares of pixels by channels are turned in registers.
    fn turn(&mut self, block: &Block) -> Stmt {
        let m = self.memories;
        let lines = block.lines.iter().zip(&self.form.lines);
        let before = lines.map(|(count, axis)| (count.clone() - IndexExpr::ONE) * axis.in_gradient.clone());
        let all = before
            .fold(block.pixels.clone(), |sum, step| sum + step)
            .simplify(self.lo);
        let side = constant(self.form.lanes);
        let squares = all.ceil_div(self.form.lanes);
        let stride = self.form.channels.in_gradient.clone();
        let vectors = self.form.columns / self.form.lanes;
        self.repeat(squares, Bind::Serial, |p, square| {
            let first = square * side.clone();
            let body = p.repeat(constant(vectors), Bind::Unroll, |p, vector| {
                let channel = vector * side.clone();
                let start = block.gradient.clone() + channel.clone() * stride.clone() + first.clone();
                let load = p.repeat(side.clone(), Bind::Unroll, |p, row| {
                    vec![p.repeat(side.clone(), Bind::Lanes, |p, lane| {
                        let mut out = Vec::new();
                        let mask = p.below(&(first.clone() + lane.clone()), &all, &mut out);
                        let from = start.clone() + row.clone() * stride.clone() + lane.clone();
                        let value = p.load(m.gradient, from, Some(mask), &mut out);
                        out.push(store(m.square, row * side.clone() + lane, value));
                        out
                    })]
                });
                let turned = p.repeat(side.clone(), Bind::Unroll, |p, pixel| {
                    vec![p.repeat(side.clone(), Bind::Lanes, |p, lane| {
                        let mut out = Vec::new();
                        let value = p.load(m.square, lane.clone() * side.clone() + pixel.clone(), None, &mut out);
                        let at = p.element(first + pixel, channel + lane);
                        out.push(store(m.turned, at, value));
                        out
                    })]
                });
                vec![load, turned]
            });
            vec![body]
        })
    }

    /// Emits `index < limit`.
    fn below(&mut self, index: &IndexExpr, limit: &IndexExpr, out: &mut Vec<Stmt>) -> ValueId {
        let at = self.let_(Op::Index(index.clone(), DType::I32), DType::I32, out);
        let limit = self.let_(Op::Index(limit.clone(), DType::I32), DType::I32, out);
        self.let_(
            Op::Map(ScalarOp::Lt, [at, limit].into_iter().collect()),
            DType::Bool,
            out,
        )
    }

    /// Adds the products of a block's pixels to a tile's sums.
    fn add(&mut self, block: &Block, tile: IndexExpr) -> Vec<Stmt> {
        let (form, m) = (self.form, self.memories);
        let (rows, columns) = (form.rows(), form.columns);
        let clear = self.tile(|p, row, channel| {
            let at = p.element(row, channel);
            p.clear(m.tile, at)
        });
        let lines: Vec<VarId> = block.lines.iter().map(|count| self.var(count.clone())).collect();
        let vars = [constant(rows), constant(columns), block.pixels.clone()].map(|extent| self.var(extent));
        let [row, channel, pixel] = vars.map(IndexExpr::from);
        let (in_image, _) = self.place(&tile, &row);
        let image = block.image.clone()
            + walked(&form.lines, &lines, |a| &a.in_image)
            + pixel.clone() * form.pixels.in_image.clone()
            + in_image;
        let turned = walked(&form.lines, &lines, |a| &a.in_gradient) + pixel;
        let operand = |memory, index| ContractOperand {
            memory,
            index,
            ranges: SmallVec::new(),
        };
        let multiply = Stmt::Contract(Box::new(Contract {
            vars,
            dst: m.tile,
            dst_index: self.element(row, channel.clone()),
            left: operand(m.image, image),
            right: operand(m.turned, self.element(turned, channel)),
            k_block: 1,
            precision: Precision::Exact,
            words: false,
        }));
        let multiply = nested(&lines, multiply);
        let add = self.tile(|p, row, channel| {
            let mut out = Vec::new();
            let held = p.element(row.clone(), channel.clone());
            let at = p.element(tile * constant(rows) + row, channel);
            let own = p.load(m.tile, held, None, &mut out);
            let sum = p.load(m.sums, at.clone(), None, &mut out);
            let op = Op::Map(ScalarOp::Add, [sum, own].into_iter().collect());
            let value = p.let_(op, DType::F32, &mut out);
            out.push(store(m.sums, at, value));
            out
        });
        vec![clear, multiply, add]
    }

    /// How far the element of a tile's row is from the first one, in the image and in the result.
    fn place(&self, tile: &IndexExpr, row: &IndexExpr) -> (IndexExpr, IndexExpr) {
        let form = self.form;
        let (mut image, mut result) = (IndexExpr::ZERO, IndexExpr::ZERO);
        let mut walk = |a: &Axis, at: &IndexExpr| {
            image = image.clone() + at.clone() * a.in_image.clone();
            result = result.clone() + at.clone() * a.in_result.clone();
        };
        let extent = |a: &Axis| constant(a.extent.as_const().unwrap_or(1));
        let outside = form.outside().len();
        let mut rest = row.clone();
        for a in form.elements[outside..].iter().rev() {
            walk(a, &IndexExpr::modulo(&rest, &extent(a)).simplify(self.lo));
            rest = IndexExpr::floor_div(&rest, &extent(a)).simplify(self.lo);
        }
        // What is left of the row's number is the place in the tile's part of the axis before.
        let mut tile = self.first_tile.clone() + tile.clone();
        for (k, a) in form.outside().iter().enumerate().rev() {
            let part = if k + 1 == outside { form.part } else { 1 };
            let parts = constant(a.extent.as_const().unwrap_or(1) / part);
            let at = match k {
                0 => tile.clone(),
                _ => IndexExpr::modulo(&tile, &parts).simplify(self.lo),
            };
            tile = IndexExpr::floor_div(&tile, &parts).simplify(self.lo);
            let inside = if k + 1 == outside {
                rest.clone()
            } else {
                IndexExpr::ZERO
            };
            walk(a, &(at * constant(part) + inside));
        }
        (image, result)
    }

    /// Writes a tile's sums to the result.
    fn results(&mut self, tile: IndexExpr) -> Stmt {
        let m = self.memories;
        let rows = constant(self.form.rows());
        let stride = self.form.channels.in_result.clone();
        self.tile(|p, row, channel| {
            let mut out = Vec::new();
            let at = p.element(tile.clone() * rows + row.clone(), channel.clone());
            let value = p.load(m.sums, at, None, &mut out);
            let (_, place) = p.place(&tile, &row);
            out.push(store(m.result, p.result.clone() + place + channel * stride, value));
            out
        })
    }
}

/// Loops around a statement, outermost first.
fn nested(vars: &[VarId], inside: Stmt) -> Stmt {
    let around = |inside, &var: &VarId| Stmt::Loop {
        var,
        bind: Bind::Serial,
        body: vec![inside],
    };
    vars.iter().rev().fold(inside, around)
}

fn store(memory: Memory, index: IndexExpr, value: ValueId) -> Stmt {
    Stmt::Store {
        memory,
        index,
        value,
        mask: None,
    }
}
