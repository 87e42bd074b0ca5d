//! Products that go into a sum: multiplied and added by one instruction.
//!
//! A contraction says nothing of where its sum is rounded ([`tlc_ir::NodeKind::Einsum`]), so a product may be added without being
//! rounded first. That is half of the instructions of a direct convolution or of a product of one row. Sums of products that a user wrote
//! out are not touched: there the product is a value of its own.

use rustc_hash::FxHashMap;
use smallvec::{SmallVec, smallvec};
use tlc_ir::graph::Monoid;
use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::kernel::{Bind, Kernel, Memory, Op, Stmt, ValueId};
use tlc_ir::{DType, ScalarOp};

use crate::directive::DirectiveRefusal;

/// Makes every sum of products in scratch `s = a * b + s`. Returns no loop.
pub(super) fn fuse_products(kernel: &mut Kernel) -> Result<Vec<VarId>, DirectiveRefusal> {
    let mut uses: FxHashMap<ValueId, u32> = FxHashMap::default();
    for s in kernel.statements() {
        s.operands().for_each(|v| *uses.entry(v).or_default() += 1);
    }
    let mut found = 0;
    let body = std::mem::take(&mut kernel.body);
    kernel.body = block(kernel, body, &uses, None, &mut found);
    match found {
        0 => Err(DirectiveRefusal::NoProduct),
        _ => Ok(Vec::new()),
    }
}

fn block(
    kernel: &mut Kernel,
    body: Vec<Stmt>,
    uses: &FxHashMap<ValueId, u32>,
    lanes: Option<VarId>,
    found: &mut u32,
) -> Vec<Stmt> {
    let mut products: FxHashMap<ValueId, SmallVec<[ValueId; 3]>> = FxHashMap::default();
    let mut out = Vec::with_capacity(body.len());
    for mut s in body {
        match &mut s {
            Stmt::Let {
                value,
                op: Op::Map(ScalarOp::Mul, args),
            } if uses.get(value) == Some(&1) => {
                products.insert(*value, args.clone());
            }
            Stmt::Loop { var, bind, body } => {
                let inside = if *bind == Bind::Lanes { Some(*var) } else { lanes };
                *body = block(kernel, std::mem::take(body), uses, inside, found);
            }
            Stmt::Accumulate {
                monoid: Monoid::Add,
                state,
                values,
            } => {
                let (memory, index) = &state[0];
                if let Some(factors) = products.get(&values[0])
                    && is_own(kernel, *memory, index, lanes)
                {
                    *found += 1;
                    let (memory, index) = (*memory, index.clone());
                    out.extend(multiply_add(kernel, memory, index, factors));
                    continue;
                }
            }
            s => {
                if let Some(inside) = s.body_mut() {
                    *inside = block(kernel, std::mem::take(inside), uses, lanes, found);
                }
            }
        }
        out.push(s);
    }
    out
}

/// Whether a sum is a float of the thread's own, and of each lane's own.
fn is_own(kernel: &Kernel, memory: Memory, index: &IndexExpr, lanes: Option<VarId>) -> bool {
    let float = matches!(kernel.memory_dtype(memory), DType::F32 | DType::F64);
    let apart = |l: VarId| {
        index
            .affine_in(l)
            .is_some_and(|(c, _)| c.as_const().is_some_and(|c| c != 0))
    };
    float && matches!(memory, Memory::Scratch(_)) && lanes.is_none_or(apart)
}

fn multiply_add(kernel: &mut Kernel, memory: Memory, index: IndexExpr, factors: &[ValueId]) -> [Stmt; 3] {
    let dtype = kernel.memory_dtype(memory);
    let (old, new) = (kernel.new_value(dtype), kernel.new_value(dtype));
    let load = Op::Load {
        memory,
        index: index.clone(),
        mask: None,
    };
    let fused = Op::Map(ScalarOp::Fma, smallvec![factors[0], factors[1], old]);
    [
        Stmt::Let { value: old, op: load },
        Stmt::Let { value: new, op: fused },
        Stmt::Store {
            memory,
            index,
            value: new,
            mask: None,
        },
    ]
}
