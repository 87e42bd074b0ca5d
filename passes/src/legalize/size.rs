//! How many statements legalization makes of an operation.
//!
//! The figures are counted, not kept in a table: an operation is legalized once, alone, and the result is remembered. So they
//! follow every formula that changes. An operation outside of lanes is what is counted; inside it takes as many.

use std::sync::atomic::{AtomicU32, Ordering};

use smallvec::SmallVec;
use tlc_ir::kernel::{Bind, Kernel, Op, Stmt, ValueId};
use tlc_ir::{DType, Scalar, ScalarOp};

use super::contract::contract_statements;
use super::rewrite;
use super::serial::{collective_statements, fold_statements};

/// Statements of an update of an accumulator: it is loaded, combined and stored. That of an argmax or argmin compares as well.
const ACCUMULATE: u32 = 20;
/// Statements that a short exponential becomes, with its constants.
const SHORT_EXP2: u32 = 24;

/// One figure per operation or dtype, and dtype; 0 until it is known.
static MAPS: [[AtomicU32; DType::ALL.len()]; ScalarOp::ALL.len()] =
    [const { [const { AtomicU32::new(0) }; DType::ALL.len()] }; ScalarOp::ALL.len()];
static CONVERSIONS: [[AtomicU32; DType::ALL.len()]; DType::ALL.len()] =
    [const { [const { AtomicU32::new(0) }; DType::ALL.len()] }; DType::ALL.len()];

/// Statements that a scalar operation becomes where its last operand is of dtype `on`. Operations that do not exist on that
/// dtype count as one.
pub fn map_statements(op: ScalarOp, on: DType) -> u32 {
    remembered(&MAPS[op as usize][on as usize], || {
        let mut kernel = Kernel::default();
        let mut dtypes: SmallVec<[DType; 3]> = SmallVec::from_elem(on, op.arity());
        if op == ScalarOp::Select {
            dtypes[0] = DType::Bool;
        }
        let result = op.result_dtype(&dtypes).ok()?;
        let args = dtypes.iter().map(|&d| zero(&mut kernel, d)).collect();
        let value = kernel.new_value(result);
        let op = Op::Map(op, args);
        kernel.body.push(Stmt::Let { value, op });
        Some(kernel)
    })
}

/// Statements that a conversion becomes.
pub fn convert_statements(from: DType, to: DType) -> u32 {
    remembered(&CONVERSIONS[from as usize][to as usize], || {
        let mut kernel = Kernel::default();
        let of = zero(&mut kernel, from);
        let value = kernel.new_value(to);
        let op = Op::Convert(to, of);
        kernel.body.push(Stmt::Let { value, op });
        Some(kernel)
    })
}

/// Statements that the kernel has once it is legalized and its `Unroll` loops are copied out, saturating. Exact but for
/// accumulations, which count as the longest.
pub fn legal_statements(kernel: &Kernel) -> u64 {
    legal_block(kernel, &kernel.body)
}

/// As [`legal_statements`], of a part of the kernel.
pub fn legal_block(kernel: &Kernel, body: &[Stmt]) -> u64 {
    let of = |s: &Stmt| match s {
        Stmt::Let { op, .. } => u64::from(match op {
            Op::Map(op, args) => map_statements(*op, kernel.dtype(args[args.len() - 1])),
            Op::Convert(to, v) => convert_statements(kernel.dtype(*v), *to),
            Op::Index(_, to) if to.is_storage() => convert_statements(DType::I64, *to),
            // Between bools and bytes.
            Op::Bitcast(..) => 4,
            Op::ShortExp2(_) => SHORT_EXP2,
            _ => 1,
        }),
        Stmt::Accumulate { .. } => u64::from(ACCUMULATE),
        Stmt::Loop { var, bind, body } => {
            let copies = match (bind, kernel.extents[var.0 as usize].as_const()) {
                (Bind::Unroll, Some(n)) => n.max(0) as u64,
                _ => 1,
            };
            legal_block(kernel, body).saturating_mul(copies).saturating_add(copies)
        }
        Stmt::If { body, .. } => legal_block(kernel, body) + 1,
        Stmt::Contract(c) => contract_statements(kernel, c),
        Stmt::Each { body, .. } => legal_block(kernel, body) + 2,
        // A loop of a load and a store.
        Stmt::CopyAsync(_) => 3,
        Stmt::Store { .. }
        | Stmt::Clamp { .. }
        | Stmt::Prefetch { .. }
        | Stmt::Commit
        | Stmt::Wait(_)
        | Stmt::Barrier => 1,
        Stmt::Collective(c) => collective_statements(kernel, c),
        Stmt::FoldRows(f) => fold_statements(kernel, f),
    };
    body.iter().fold(0, |n, s| n.saturating_add(of(s)))
}

fn zero(kernel: &mut Kernel, dtype: DType) -> ValueId {
    let value = kernel.new_value(dtype);
    let op = Op::Const(Scalar::from_bits(dtype, 0));
    kernel.body.push(Stmt::Let { value, op });
    value
}

fn remembered(known: &AtomicU32, kernel: impl FnOnce() -> Option<Kernel>) -> u32 {
    match known.load(Ordering::Relaxed) {
        0 => {}
        n => return n,
    }
    let count = kernel().map_or(1, |mut kernel| {
        let operands = kernel.body.len() - 1;
        rewrite(&mut kernel, None, false);
        let count = kernel.statements().count();
        (count - operands).max(1) as u32
    });
    known.store(count, Ordering::Relaxed);
    count
}
