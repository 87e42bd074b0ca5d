//! Loops that only copy: one call each.

use cranelift_codegen::ir::{InstBuilder, Value, types};
use tlc_ir::kernel::{Bind, CopyNest, Memory, Stmt};
use tlc_ir::{IndexExpr, VarId};

use super::translate::Translator;
use crate::error::{Result, invalid};
use crate::host::HostFunction;

impl Translator<'_, '_> {
    pub(super) fn copy_loop(&mut self, var: VarId, bind: Bind, body: &[Stmt]) -> Result<()> {
        let Some(nest) = CopyNest::of(self.kernel, var, body) else {
            return invalid("a copy loop that does not just copy");
        };
        let bytes = self.kernel.memory_dtype(nest.to).bytes() as i64;
        let function = HostFunction::Copy {
            element: if nest.transposed { bytes as u8 } else { 1 },
            transposed: nest.transposed,
            streaming: bind == Bind::Stream,
        };
        self.streams |= bind == Bind::Stream;
        let to = self.element_address(nest.to, &nest.to_at)?;
        let to_pitch = self.eval(&(nest.to_pitch * IndexExpr::Const(bytes)))?;
        let from = self.element_address(nest.from, &nest.from_at)?;
        let from_pitch = self.eval(&(nest.from_pitch * IndexExpr::Const(bytes)))?;
        let rows = self.eval(&nest.rows)?;
        let unit = if nest.transposed { 1 } else { bytes };
        let columns = self.eval(&(nest.columns * IndexExpr::Const(unit)))?;
        self.call(function, &[to, to_pitch, from, from_pitch, rows, columns])?;
        Ok(())
    }

    fn element_address(&mut self, memory: Memory, index: &IndexExpr) -> Result<Value> {
        let mut r = self.resolve(index)?;
        let (base, offset) = self.address(memory, &mut r)?;
        match offset {
            0 => Ok(base),
            _ => {
                let offset = self.b.ins().iconst(types::I64, offset);
                Ok(self.b.ins().iadd(base, offset))
            }
        }
    }
}
