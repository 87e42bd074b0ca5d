//! Rows of fragments, combined one element after another.

use super::{KernelError, Machine, combine};
use crate::dtype::Scalar;
use crate::kernel::FoldRows;
use crate::kernel::fold::ROW_LANES;

impl Machine<'_> {
    pub(super) fn fold_rows(&mut self, f: &FoldRows) -> Result<(), KernelError> {
        let [m, n] = f.vars;
        let extent = |k: &Self, v: crate::index::VarId| k.index(&k.kernel.extents[v.0 as usize], 0);
        let (rows, columns) = (extent(self, m)?, extent(self, n)?);
        for row in 0..rows {
            self.set(m, row);
            let mut lanes = Vec::with_capacity(ROW_LANES as usize);
            for lane in 0..ROW_LANES {
                let mut all: Option<Scalar> = None;
                for column in FoldRows::columns(lane, columns) {
                    self.set(n, column);
                    let element = self.load(f.from, self.index(&f.from_index, 0)?)?;
                    all = Some(all.map_or(element, |all| combine(f.monoid, &[all], &[element])[0]));
                }
                lanes.extend(all);
            }
            let mut half = lanes.len() / 2;
            while half > 0 {
                for t in 0..half {
                    lanes[t] = combine(f.monoid, &[lanes[t]], &[lanes[t + half]])[0];
                }
                half /= 2;
            }
            let at = self.index(&f.to_index, 0)?;
            let before = self.load(f.to, at)?;
            if let Some(all) = lanes.first() {
                let whole = combine(f.monoid, &[before], &[*all])[0];
                self.store(f.to, at, whole)?;
            }
        }
        Ok(())
    }
}
