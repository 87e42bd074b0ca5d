//! Reductions and prefixes.

use tlc_formats::onnx::write::Attribute;
use tlc_ir::DType;
use tlc_ir::graph::{Axes, Monoid, NodeId};

use super::{Outcome, Writer, storage};

impl Writer<'_, '_> {
    pub(super) fn reduce(&mut self, id: NodeId, monoid: Monoid, axes: &Axes) -> Outcome<String> {
        let operand = self.operands(id)[0];
        let dtype = self.ty(operand).dtype;
        let x = self.value(operand)?;
        let axes: Vec<usize> = axes.iter().map(|&a| a as usize).collect();
        self.reduced(&x, dtype, monoid, &axes)
    }

    /// A reduction of a value over axes, which disappear.
    pub(super) fn reduced(&mut self, x: &str, dtype: DType, monoid: Monoid, axes: &[usize]) -> Outcome<String> {
        use DType::*;
        if monoid.is_arg() {
            let op = if monoid == Monoid::ArgMax { "ArgMax" } else { "ArgMin" };
            storage(dtype, op)?;
            let wide = if dtype == Bool { U8 } else { dtype };
            let x = self.cast(x, dtype, wide);
            let axis = axes.first().copied().unwrap_or_default() as i64;
            let attributes = vec![("axis", Attribute::Int(axis)), ("keepdims", Attribute::Int(0))];
            return Ok(self.with(op, &[&x], attributes));
        }
        let (op, wide) = match (monoid, dtype) {
            // Smaller integers wrap when they are converted back.
            (Monoid::Add | Monoid::Mul, I8 | I16 | U8 | U16) => (sums(monoid), I32),
            (Monoid::Max, I16 | U16) => ("ReduceMax", I32),
            (Monoid::Min, I16 | U16) => ("ReduceMin", I32),
            (Monoid::Or, Bool) | (Monoid::Max, _) => ("ReduceMax", dtype),
            (Monoid::And, Bool) | (Monoid::Min, _) => ("ReduceMin", dtype),
            (Monoid::And | Monoid::Or, _) => {
                return Err(format!("ONNX has no bitwise {} over an axis", monoid.name()));
            }
            (_, Bool) => return Err(format!("{} of bool", monoid.name())),
            _ => (sums(monoid), dtype),
        };
        storage(dtype, op)?;
        if axes.is_empty() {
            return Ok(x.to_string());
        }
        let x = self.cast(x, dtype, wide);
        let axes = self.vector(&axes.iter().map(|&a| a as i64).collect::<Vec<_>>());
        let mut reduced = self.with(op, &[&x, &axes], vec![("keepdims", Attribute::Int(0))]);
        if wide != dtype && matches!(monoid, Monoid::Max | Monoid::Min) {
            // Of nothing it is the wide type's identity, which is not the narrow one's.
            let identity = self.number(monoid.identity(dtype).as_f64(), wide);
            reduced = self.emit(
                if monoid == Monoid::Max { "Max" } else { "Min" },
                &[&reduced, &identity],
            );
        }
        Ok(self.cast(&reduced, wide, dtype))
    }

    pub(super) fn scan(
        &mut self,
        id: NodeId,
        monoid: Monoid,
        axis: u8,
        exclusive: bool,
        reverse: bool,
    ) -> Outcome<String> {
        use DType::*;
        let operand = self.operands(id)[0];
        let dtype = self.ty(operand).dtype;
        let op = match monoid {
            Monoid::Add => "CumSum",
            Monoid::Mul => {
                self.shared.needs(26);
                "CumProd"
            }
            _ => {
                return Err(format!(
                    "ONNX has no running {}, only running sums and products",
                    monoid.name()
                ));
            }
        };
        if dtype == Bool {
            return Err(format!("{} of bool", monoid.name()));
        }
        let wide = match dtype {
            I8 | I16 | U8 | U16 => I32,
            other => other,
        };
        let x = self.value(operand)?;
        let x = self.cast(&x, dtype, wide);
        let axis = self.number(axis.into(), I64);
        let mut attributes = vec![];
        if exclusive {
            attributes.push(("exclusive", Attribute::Int(1)));
        }
        if reverse {
            attributes.push(("reverse", Attribute::Int(1)));
        }
        let made = self.with(op, &[&x, &axis], attributes);
        Ok(self.cast(&made, wide, dtype))
    }
}

fn sums(monoid: Monoid) -> &'static str {
    match monoid {
        Monoid::Mul => "ReduceProd",
        _ => "ReduceSum",
    }
}
