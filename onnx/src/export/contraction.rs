//! Einsums that are no convolution.

use tlc_formats::onnx::write::Attribute;
use tlc_ir::DType;
use tlc_ir::graph::{Labels, Monoid, NodeId, NodeKind, Semiring};
use tlc_ir::text::einsum_labels;

use super::{Outcome, Writer};

/// Letters that an equation has.
const LETTERS: u16 = 52;

impl Writer<'_, '_> {
    pub(super) fn einsum(&mut self, id: NodeId) -> Outcome<String> {
        let NodeKind::Einsum {
            inputs,
            output,
            semiring,
            accumulator,
            dtype,
        } = &self.graph.node(id).kind
        else {
            return Err("no einsum; a bug".into());
        };
        let operands = self.operands(id);
        // ONNX sums in a type that it leaves open; f16 sums are carried in f32 as here. Others convert.
        let plain = operands.iter().all(|&o| self.ty(o).dtype == *dtype) && *accumulator == dtype.accumulator();
        let direct = plain && (*dtype == *accumulator || *dtype == DType::F16);
        let carried = if direct { *dtype } else { *accumulator };
        let mut names = vec![];
        for &o in operands {
            let name = self.value(o)?;
            names.push(self.converted(&name, self.ty(o).dtype, carried));
        }
        let made = match semiring {
            Semiring::AddMul if carried != DType::Bool => self.contraction(inputs, output, &names, carried)?,
            _ => self.in_semiring(inputs, output, *semiring, names, carried)?,
        };
        Ok(self.converted(&made, carried, *dtype))
    }

    fn contraction(&mut self, inputs: &[Labels], output: &Labels, names: &[String], dtype: DType) -> Outcome<String> {
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        let small = matches!(dtype, DType::I8 | DType::I16 | DType::U8 | DType::U16);
        if is_matmul(inputs, output) && !small {
            return Ok(self.emit("MatMul", &all));
        }
        if inputs.iter().flatten().any(|&l| l >= LETTERS) {
            return Err(format!("more than {LETTERS} labels; ONNX's Einsum has letters only"));
        }
        if dtype == DType::BF16 {
            self.shared.needs(28);
        }
        let equation = vec![("equation", Attribute::Text(einsum_labels(inputs, output)))];
        Ok(self.with("Einsum", &all, equation))
    }

    /// Operands with an axis for each label, combined, then reduced along those that the result lacks.
    fn in_semiring(
        &mut self,
        inputs: &[Labels],
        output: &Labels,
        semiring: Semiring,
        names: Vec<String>,
        dtype: DType,
    ) -> Outcome<String> {
        let mut labels: Vec<u16> = output.to_vec();
        for &l in inputs.iter().flatten() {
            if !labels.contains(&l) {
                labels.push(l);
            }
        }
        let mut product: Option<String> = None;
        for (of, mut name) in inputs.iter().zip(names) {
            if (1..of.len()).any(|i| of[..i].contains(&of[i])) {
                return Err(format!(
                    "a diagonal under {}; ONNX's Einsum has sums of products only",
                    semiring.name()
                ));
            }
            let place = |l: &u16| labels.iter().position(|m| m == l).unwrap_or_default();
            let mut order: Vec<usize> = (0..of.len()).collect();
            order.sort_by_key(|&i| place(&of[i]));
            name = self.transpose(&name, &order);
            let lacking: Vec<i64> = (0..labels.len())
                .filter(|&i| !of.contains(&labels[i]))
                .map(|i| i as i64)
                .collect();
            if !lacking.is_empty() {
                let axes = self.vector(&lacking);
                name = self.emit("Unsqueeze", &[&name, &axes]);
            }
            product = Some(match product {
                None => name,
                Some(before) => {
                    let op = match semiring.product() {
                        tlc_ir::ScalarOp::Add if dtype == DType::Bool => "Or",
                        tlc_ir::ScalarOp::Mul | tlc_ir::ScalarOp::And if dtype == DType::Bool => "And",
                        tlc_ir::ScalarOp::Add => "Add",
                        tlc_ir::ScalarOp::Mul => "Mul",
                        _ => return Err(format!("{} on {dtype}", semiring.name())),
                    };
                    self.emit(op, &[&before, &name])
                }
            });
        }
        let product = product.ok_or("an einsum of nothing; a bug")?;
        let summed: Vec<usize> = (output.len()..labels.len()).collect();
        if summed.is_empty() {
            return Ok(product);
        }
        let monoid = match semiring.sum() {
            Monoid::Add if dtype == DType::Bool => Monoid::Or,
            other => other,
        };
        self.reduced(&product, dtype, monoid, &summed)
    }
}

/// Whether it is a matrix product as NumPy's: batch axes, rows and columns in their places, or one matrix for all batches on the
/// right.
fn is_matmul(inputs: &[Labels], output: &Labels) -> bool {
    let [a, b] = inputs else { return false };
    if a.len() < 2 || b.len() < 2 || output.len() != a.len() {
        return false;
    }
    let (batch, &[m, k]) = a.split_at(a.len() - 2) else {
        return false;
    };
    let (same, &[k2, n]) = b.split_at(b.len() - 2) else {
        return false;
    };
    let distinct = m != n && m != k && k != n && !batch.iter().any(|l| [m, k, n].contains(l));
    let repeated = (1..batch.len()).any(|i| batch[..i].contains(&batch[i]));
    let fits = k == k2 && output[..] == [batch, &[m, n]].concat() && (same == batch || same.is_empty());
    fits && distinct && !repeated
}
