//! Walking index spaces, and views as walks.
//!
//! Invariants: a [`Walk`] visits its extents in C order and hands out whole runs of the last axis; a space with an empty
//! axis is never visited; offsets wrap, so that the offsets of elements that are never taken may be anything, and those of
//! taken elements are right because a view's conditions were checked before.

use crate::graph::{Movement, c_strides};

/// The C-order walk over extents, carrying one flat offset per operand.
pub(super) struct Walk {
    extents: Vec<usize>,
    /// Per operand: per axis, how far one step moves.
    strides: Vec<Vec<i64>>,
    steps: Vec<i64>,
    counters: Vec<usize>,
    offsets: Vec<i64>,
}

impl Walk {
    /// A walk; every stride list has one entry per axis.
    pub(super) fn new(extents: Vec<usize>, strides: Vec<Vec<i64>>) -> Walk {
        Walk {
            steps: strides.iter().map(|s| s.last().copied().unwrap_or(0)).collect(),
            counters: vec![0; extents.len()],
            offsets: vec![0; strides.len()],
            extents,
            strides,
        }
    }

    /// Calls `f` with the offsets of the first position of each run, the run's length and the offsets' steps along it.
    pub(super) fn run(&mut self, starts: &[i64], mut f: impl FnMut(&[i64], usize, &[i64])) {
        if self.extents.contains(&0) {
            return;
        }
        self.offsets.copy_from_slice(starts);
        let Some((&run, outer)) = self.extents.split_last() else {
            return f(&self.offsets, 1, &self.steps);
        };
        self.counters.fill(0);
        loop {
            f(&self.offsets, run, &self.steps);
            let mut axis = outer.len();
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                self.counters[axis] += 1;
                for (o, s) in self.offsets.iter_mut().zip(&self.strides) {
                    *o = o.wrapping_add(s[axis]);
                }
                if self.counters[axis] < outer[axis] {
                    break;
                }
                for (o, s) in self.offsets.iter_mut().zip(&self.strides) {
                    *o = o.wrapping_sub(s[axis].wrapping_mul(outer[axis] as i64));
                }
                self.counters[axis] = 0;
            }
        }
    }
}

/// An iteration space in two levels: `outer` walks the result in C order, `inner` what is combined into one element.
pub(super) struct Groups {
    outer: Walk,
    inner: Walk,
}

impl Groups {
    /// The space of a contraction: extents per label, labels per operand, and which labels the result keeps.
    pub(super) fn contraction(operands: &[(&[usize], &[u16])], output: &[u16]) -> Groups {
        let count = operands
            .iter()
            .flat_map(|o| o.1)
            .map(|&l| l as usize + 1)
            .max()
            .unwrap_or(0);
        let mut extents = vec![1usize; count];
        let mut strides = vec![vec![0i64; count]; operands.len()];
        for (k, (shape, labels)) in operands.iter().enumerate() {
            for ((&l, &d), s) in labels.iter().zip(*shape).zip(c_strides(shape)) {
                extents[l as usize] = d;
                strides[k][l as usize] = strides[k][l as usize].wrapping_add(s);
            }
        }
        let walk = |labels: &[usize]| {
            let pick = |s: &Vec<i64>| labels.iter().map(|&l| s[l]).collect();
            Walk::new(
                labels.iter().map(|&l| extents[l]).collect(),
                strides.iter().map(pick).collect(),
            )
        };
        let kept: Vec<usize> = output.iter().map(|&l| l as usize).collect();
        let summed: Vec<usize> = (0..count).filter(|l| !kept.contains(l)).collect();
        Groups {
            outer: walk(&kept),
            inner: walk(&summed),
        }
    }

    /// The space of a reduction over some axes of one operand.
    pub(super) fn reduction(shape: &[usize], axes: &[u8]) -> Groups {
        let labels: Vec<u16> = (0..shape.len() as u16).collect();
        let kept: Vec<u16> = labels.iter().copied().filter(|l| !axes.contains(&(*l as u8))).collect();
        Groups::contraction(&[(shape, &labels)], &kept)
    }

    /// For each result element in C order: `init`, then `step` per run of what is combined (offsets, length, steps), then
    /// `finish`.
    pub(super) fn run<S>(
        &mut self,
        mut init: impl FnMut() -> S,
        mut step: impl FnMut(&mut S, &[i64], usize, &[i64]),
        mut finish: impl FnMut(S),
    ) {
        let operands = self.outer.offsets.len();
        let mut at = vec![0i64; operands];
        let inner = &mut self.inner;
        self.outer.run(&vec![0; operands], |offsets, run, steps| {
            at.copy_from_slice(offsets);
            for _ in 0..run {
                let mut state = init();
                inner.run(&at, |o, n, s| step(&mut state, o, n, s));
                finish(state);
                at.iter_mut().zip(steps).for_each(|(a, s)| *a = a.wrapping_add(*s));
            }
        });
    }
}

impl Movement {
    /// Moves elements of any kind; `fill` is what padding reads.
    pub(super) fn apply<T: Copy>(&self, source: &[T], shape: &[usize], result: &[usize], fill: T, target: &mut [T]) {
        match self {
            Movement::Same => target.copy_from_slice(source),
            Movement::Read { start, strides } => {
                let mut at = 0;
                Walk::new(result.to_vec(), vec![strides.clone()]).run(&[*start], |o, n, s| {
                    let (mut o, s) = (o[0], s[0]);
                    for t in &mut target[at..at + n] {
                        *t = source[o as usize];
                        o = o.wrapping_add(s);
                    }
                    at += n;
                });
            }
            Movement::Place { start, strides } => {
                target.fill(fill);
                let mut at = 0;
                Walk::new(shape.to_vec(), vec![strides.clone()]).run(&[*start], |o, n, s| {
                    let (mut o, s) = (o[0], s[0]);
                    for v in &source[at..at + n] {
                        target[o as usize] = *v;
                        o = o.wrapping_add(s);
                    }
                    at += n;
                });
            }
        }
    }
}

/// Flat offsets of an indexed tensor: result rows are `index.., rest..`.
pub(super) struct Indexed {
    /// Extents and strides of the indexed axes, in the order of the index operands.
    axes: Vec<(usize, i64)>,
    /// Offset of each position on the other axes, in C order.
    pub(super) rest: Vec<usize>,
}

impl Indexed {
    /// For a tensor of `shape` indexed on `axes`.
    pub(super) fn new(shape: &[usize], axes: &[u8]) -> Indexed {
        let strides = c_strides(shape);
        let others: Vec<usize> = (0..shape.len()).filter(|i| !axes.contains(&(*i as u8))).collect();
        let mut rest = Vec::new();
        let extents = others.iter().map(|&i| shape[i]).collect();
        let steps = others.iter().map(|&i| strides[i]).collect();
        // A tensor with an empty indexed axis is never read, so its offsets are not wanted, only their number.
        Walk::new(extents, vec![steps]).run(&[0], |o, n, s| {
            rest.extend((0..n as i64).map(|i| o[0].wrapping_add(i.wrapping_mul(s[0])) as usize));
        });
        Indexed {
            axes: axes.iter().map(|&a| (shape[a as usize], strides[a as usize])).collect(),
            rest,
        }
    }

    /// The offset that the indices select, or `None` if one is out of range.
    pub(super) fn offset(&self, index: impl Fn(usize) -> Option<u64>) -> Option<usize> {
        let mut at = 0usize;
        for (k, &(extent, stride)) in self.axes.iter().enumerate() {
            let i = index(k).filter(|&i| i < extent as u64)?;
            at += i as usize * stride as usize;
        }
        Some(at)
    }
}
