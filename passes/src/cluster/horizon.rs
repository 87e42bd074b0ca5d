//! Which keys a mask of an attention hides from a row, where positions alone decide: those behind a last one that grows with the row.
//!
//! It is found by what is computed between scores and softmax under the one comparison of a row's number with a key's: where it says that a
//! key is seen, the score as it is, and where not, a number so low that its weight is zero.
//!
//! That weight is zero only beside a score that is one: what is infinite, no number or beyond [`TAME`] may show in a row from which it is
//! hidden. So whoever leaves hidden keys out has to look whether there is any: in queries, keys and values, or in values alone where a hidden
//! key's score is replaced by minus infinity. Then its weight is zero, unless the largest score that is seen is no number or minus infinity,
//! and all of the row is no number in both ways.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::{DType, Graph, NodeId, NodeKind, Scalar, ScalarOp};

use crate::access::{Index, Variables};
use crate::partition::{Horizon, OfScore};

/// What elements of queries, keys and values are at most, so that every score is far from what hides a key: sums of 2^16 products are below 2^96.
pub(crate) const TAME: f64 = (1u64 << 40) as f64;
/// What hides a key is at most this: 2^97 less is as low, for an exponential of f32.
const HIDING: f64 = -1e30;
/// The most that is added to a score that is seen.
const SHIFT: f64 = 1e20;
/// The longest sum of a score.
const LONGEST_SUM: i64 = 1 << 16;

/// The last key that each row sees, if a mask hides those behind it and nothing else.
pub(super) fn find(graph: &Graph, [scores, masked]: [NodeId; 2], row_axis: usize, summed: i64) -> Option<Horizon> {
    if summed > LONGEST_SUM {
        return None;
    }
    let shape = &graph.ty(masked).shape;
    let mut vars = Variables::new(graph);
    let point: Vec<VarId> = shape.iter().map(|d| vars.push(d.clone())).collect();
    let at: Index = point.iter().map(|v| IndexExpr::from(*v)).collect();
    let (row, key) = (point[row_axis], *point.last()?);
    let mut search = Search {
        graph,
        vars,
        scores,
        row,
        key,
        found: None,
        visits: 0,
    };
    search.compared(masked, &at)?;
    let found = search.found.clone()?;
    let seen = Assumed {
        graph,
        comparison: found.comparison,
        holds: !found.hides,
        scores,
        narrow: graph.ty(scores).dtype == DType::F16,
    };
    let hidden = Assumed {
        holds: found.hides,
        ..seen
    };
    // The first row sees a key, and so does every other one.
    let some = found.last.proves_nonnegative(&search.vars);
    let seen = seen.of_score(masked).filter(|_| some && hidden.is_hidden(masked))?;
    let replaced = hidden.constant(masked).is_some_and(|c| c.as_f64() == f64::NEG_INFINITY);
    Some(Horizon {
        last: found.last,
        seen,
        replaced,
    })
}

/// How many values between scores and softmax are looked at, each as often as it is reached.
const MOST_VISITS: usize = 256;
/// Numbers beside which those of rows and keys do not overflow.
const MOST_OFFSET: i64 = 1 << 40;

#[derive(Clone, PartialEq)]
struct Compared {
    comparison: NodeId,
    /// What it says of a hidden key.
    hides: bool,
    /// The last key that row 0 sees.
    last: IndexExpr,
}

struct Search<'g> {
    graph: &'g Graph,
    vars: Variables<'g>,
    scores: NodeId,
    row: VarId,
    key: VarId,
    found: Option<Compared>,
    visits: usize,
}

impl Search<'_> {
    /// Looks for the comparison in what a value at a point is computed from; `None` if there are several, or one is read at several places: what
    /// it says of a row and a key is one thing only then.
    fn compared(&mut self, node: NodeId, at: &Index) -> Option<()> {
        if node == self.scores {
            return Some(());
        }
        self.visits += 1;
        if self.visits > MOST_VISITS {
            return None;
        }
        let n = self.graph.node(node);
        match &n.kind {
            NodeKind::Map(op @ (ScalarOp::Le | ScalarOp::Lt)) if self.graph.ty(n.operands[0]).dtype.is_int() => {
                let sides = [self.integer(n.operands[0], at)?, self.integer(n.operands[1], at)?];
                let compared = self.comparison(node, *op, sides)?;
                if self.found.as_ref().is_some_and(|f| *f != compared) {
                    return None;
                }
                self.found = Some(compared);
            }
            NodeKind::Map(_) | NodeKind::Convert(_) | NodeKind::Copy => {
                for o in &n.operands {
                    self.compared(*o, at)?;
                }
            }
            NodeKind::View(view) if view.fill().is_none() => {
                let from = &self.graph.ty(n.operands[0]).shape;
                let at = view.operand_index(from, &n.ty.shape, at, &self.vars).index;
                self.compared(n.operands[0], &at)?;
            }
            _ => {}
        }
        Some(())
    }

    /// What an integer at a point is, in terms of the point.
    fn integer(&self, mut node: NodeId, at: &Index) -> Option<IndexExpr> {
        let mut at = at.clone();
        loop {
            let n = self.graph.node(node);
            match &n.kind {
                NodeKind::Iota { axis, ty } => {
                    // Numbers of narrow types go round.
                    let last = ty.shape[*axis as usize].interval(&self.vars).hi;
                    let whole = match ty.dtype {
                        DType::I64 => true,
                        DType::I32 => last <= i64::from(i32::MAX),
                        _ => false,
                    };
                    return whole.then(|| at[*axis as usize].clone());
                }
                NodeKind::Const(value) => {
                    let small = value.as_i64().unsigned_abs() <= MOST_OFFSET.unsigned_abs();
                    return small.then(|| IndexExpr::Const(value.as_i64()));
                }
                NodeKind::View(view) if view.fill().is_none() => {
                    let from = &self.graph.ty(n.operands[0]).shape;
                    at = view.operand_index(from, &n.ty.shape, &at, &self.vars).index;
                    node = n.operands[0];
                }
                NodeKind::Map(ScalarOp::Add) if n.ty.dtype == DType::I64 => {
                    let [a, b] = [self.integer(n.operands[0], &at)?, self.integer(n.operands[1], &at)?];
                    return Some(a + b);
                }
                NodeKind::Map(ScalarOp::Sub) if n.ty.dtype == DType::I64 => {
                    let [a, b] = [self.integer(n.operands[0], &at)?, self.integer(n.operands[1], &at)?];
                    return Some(a - b);
                }
                _ => return None,
            }
        }
    }

    /// A comparison of a row's number with a key's.
    fn comparison(&self, comparison: NodeId, op: ScalarOp, [a, b]: [IndexExpr; 2]) -> Option<Compared> {
        // It holds where this is not negative.
        let strict = if op == ScalarOp::Lt {
            IndexExpr::ONE
        } else {
            IndexExpr::ZERO
        };
        let above = (b - a - strict).simplify(&self.vars);
        let (of_row, rest) = above.affine_in(self.row)?;
        let (of_key, rest) = rest.affine_in(self.key)?;
        let constant = !rest.uses(self.row) && !rest.uses(self.key);
        let (hides, last) = match (of_row.as_const()?, of_key.as_const()?) {
            _ if !constant => return None,
            (1, -1) => (false, rest),
            (-1, 1) => (true, IndexExpr::ZERO - rest - IndexExpr::ONE),
            _ => return None,
        };
        let mut atoms = false;
        last.visit_atoms(&mut |a| atoms |= matches!(a, tlc_ir::index::IndexNode::Var(_)));
        let last = last.simplify(&self.vars);
        (!atoms).then_some(Compared {
            comparison,
            hides,
            last,
        })
    }
}

/// Values as they are where the comparison says one thing everywhere.
#[derive(Clone, Copy)]
struct Assumed<'g> {
    graph: &'g Graph,
    comparison: NodeId,
    holds: bool,
    scores: NodeId,
    /// Whether scores are rounded to a type where they may be infinite: then nothing but minus infinity in their place hides them.
    narrow: bool,
}

impl Assumed<'_> {
    /// The number that a value is everywhere.
    fn constant(&self, node: NodeId) -> Option<Scalar> {
        let n = self.graph.node(node);
        if node == self.comparison {
            return Some(Scalar::from_bool(self.holds));
        }
        match &n.kind {
            NodeKind::Const(value) => Some(*value),
            NodeKind::View(view) if view.fill().is_none() => self.constant(n.operands[0]),
            NodeKind::Copy => self.constant(n.operands[0]),
            NodeKind::Convert(to) => Some(self.constant(n.operands[0])?.convert(*to)),
            NodeKind::Map(ScalarOp::Select) => self.constant(self.chosen(node)?),
            NodeKind::Map(op) => {
                let args: Option<Vec<Scalar>> = n.operands.iter().map(|o| self.constant(*o)).collect();
                Some(op.eval(&args?))
            }
            _ => None,
        }
    }

    /// The operand that a choice takes everywhere.
    fn chosen(&self, node: NodeId) -> Option<NodeId> {
        let operands = &self.graph.node(node).operands;
        let holds = self.constant(operands[0])?.as_bool();
        Some(operands[if holds { 1 } else { 2 }])
    }

    /// Whether scores are what they are in a type too, rounded.
    fn holds_scores(&self, to: DType) -> bool {
        matches!(to, DType::F32 | DType::F64 | DType::BF16) || (self.narrow && to == DType::F16)
    }

    /// How a value is computed from the score: it is that but for a factor that is no more than one, little that is added, and rounding.
    fn of_score(&self, node: NodeId) -> Option<Vec<OfScore>> {
        if node == self.scores {
            return Some(Vec::new());
        }
        let n = self.graph.node(node);
        let within = |o: NodeId, most: f64| self.constant(o).filter(|c| c.as_f64().abs() <= most);
        let (of, step) = match &n.kind {
            NodeKind::Convert(to) if self.holds_scores(*to) => (n.operands[0], Some(OfScore::Convert(*to))),
            NodeKind::Copy => (n.operands[0], None),
            NodeKind::Map(op @ (ScalarOp::Mul | ScalarOp::Add)) => {
                let most = if *op == ScalarOp::Mul { 1.0 } else { SHIFT };
                let [a, b] = [n.operands[0], n.operands[1]];
                let (of, by) = match (within(b, most), within(a, most)) {
                    (Some(by), _) => (a, by),
                    (None, by) => (b, by?),
                };
                // A zero changes the sign of another one, at most, and no weight.
                let nothing = *op == ScalarOp::Add && by.as_f64() == 0.0;
                (of, (!nothing).then_some(OfScore::Map(*op, by)))
            }
            NodeKind::Map(ScalarOp::Select) => (self.chosen(node)?, None),
            _ => return None,
        };
        let mut steps = self.of_score(of)?;
        steps.extend(step);
        Some(steps)
    }

    /// Whether a value hides a key whose score is tame.
    fn is_hidden(&self, node: NodeId) -> bool {
        let n = self.graph.node(node);
        let least = if self.narrow { f64::NEG_INFINITY } else { HIDING };
        let hiding = |o: NodeId| self.constant(o).is_some_and(|c| c.as_f64() <= least);
        match &n.kind {
            _ if hiding(node) => true,
            NodeKind::Convert(to) => self.holds_scores(*to) && self.is_hidden(n.operands[0]),
            NodeKind::Copy => self.is_hidden(n.operands[0]),
            NodeKind::Map(ScalarOp::Add) if !self.narrow => {
                let [a, b] = [n.operands[0], n.operands[1]];
                (hiding(b) && self.of_score(a).is_some()) || (hiding(a) && self.of_score(b).is_some())
            }
            NodeKind::Map(ScalarOp::Select) => self.chosen(node).is_some_and(|o| self.is_hidden(o)),
            _ => false,
        }
    }
}
