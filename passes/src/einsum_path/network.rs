//! The contraction as a hypergraph of sized label classes.
//!
//! Labels with the same holders (the operands that have them, and whether the output does) always travel together, so
//! they form one *class* whose extent is the product of theirs. Labels of extent 1 and labels that one operand alone has
//! (they are summed before the first step) form no class. So every class is held by two operands or more, or by the
//! output.
//!
//! Sizes saturate at [`SATURATED`] and are never NaN: a contraction of that size cannot run, and orders among such need
//! no distinction.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::Label;

/// The largest size that differs from a larger one.
pub(super) const SATURATED: f64 = 1e300;

/// A set of classes, as bits.
pub(super) type Mask = SmallVec<[u64; 8]>;

/// `p`, a product of extents, saturated; NaN stands for infinity times zero.
pub(super) fn saturate(p: f64) -> f64 {
    if p.is_nan() { 0.0 } else { p.min(SATURATED) }
}

/// The classes of `a` or `b`.
pub(super) fn union(a: &[u64], b: &[u64]) -> Mask {
    a.iter().zip(b).map(|(x, y)| x | y).collect()
}

/// The members of a mask, ascending.
pub(super) fn members(mask: &[u64]) -> impl Iterator<Item = usize> + '_ {
    mask.iter().enumerate().flat_map(|(word, &bits)| {
        let mut rest = bits;
        std::iter::from_fn(move || {
            let bit = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
            rest &= rest - 1;
            Some(64 * word + bit)
        })
    })
}

/// The hypergraph.
pub(super) struct Network {
    /// The extent of each class.
    pub extents: Vec<f64>,
    /// The classes of each operand.
    pub leaves: Vec<Mask>,
    /// The classes of the output.
    pub output: Mask,
    /// Of each class: the number of operands that hold it, plus one if the output does.
    pub holders: Vec<u32>,
}

impl Network {
    /// No operand repeats a label, and every label has an extent.
    pub fn new(operands: &[Vec<Label>], output: &[Label], extents: &[u64]) -> Self {
        let mut holders: Vec<Vec<u32>> = vec![Vec::new(); extents.len()];
        for (operand, labels) in operands.iter().enumerate() {
            for &label in labels {
                holders[usize::from(label)].push(operand as u32);
            }
        }
        for &label in output {
            holders[usize::from(label)].push(operands.len() as u32);
        }
        let mut classes: BTreeMap<Vec<u32>, f64> = BTreeMap::new();
        for (held_by, &extent) in holders.into_iter().zip(extents) {
            if held_by.len() > 1 && extent != 1 {
                *classes.entry(held_by).or_insert(1.0) *= extent as f64;
            }
        }
        let words = classes.len().div_ceil(64).max(1);
        let mut masks = vec![Mask::from_elem(0, words); operands.len() + 1];
        let mut network = Network {
            extents: Vec::new(),
            leaves: Vec::new(),
            output: Mask::new(),
            holders: Vec::new(),
        };
        for (class, (held_by, extent)) in classes.into_iter().enumerate() {
            for &holder in &held_by {
                masks[holder as usize][class / 64] |= 1 << (class % 64);
            }
            network.extents.push(saturate(extent));
            network.holders.push(held_by.len() as u32);
        }
        network.output = masks.pop().unwrap_or_default();
        network.leaves = masks;
        network
    }

    /// The product of the extents of a set of classes.
    pub fn size(&self, mask: &[u64]) -> f64 {
        saturate(members(mask).map(|class| self.extents[class]).product())
    }
}
