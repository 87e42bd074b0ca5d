//! A plan under concrete sizes: pure numbers, the same whatever runs it.
//!
//! Invariants:
//! - Sizes are evaluated with overflow checks; every declared extent and guard is checked before anything is sized.
//! - A layout is verified before it is used.
//! - A size that data decides is as large as it may get, until a call says what it is.

pub mod call;
pub mod product;
pub mod repeat;
pub mod segments;
pub mod steps;

use tlc_ir::binding::{condition_holds, condition_mentions, condition_waits, most_under};
use tlc_ir::graph::control::{mentions, mentions_data};
use tlc_ir::graph::{Condition, Guard, TensorType};
use tlc_ir::index::{IndexExpr, IndexNode};
use tlc_ir::plan::verify::verify_layout;
use tlc_ir::plan::{Layout, Plan, SlotId};

use crate::error::RunError;

/// Places a plan's arena slots for concrete symbol values; `None` if a size overflows. Supplied by the compiler, which owns
/// the decision.
pub type Packer = fn(&Plan, &[i64]) -> Option<Layout>;

/// The numbers of a plan whose symbols have values.
#[derive(Clone)]
pub struct Sizes {
    /// The shapes of the inputs, then of the states that are read ([`Plan::sources`]).
    pub shapes: Vec<Vec<usize>>,
    /// Values of the plan's symbols; those that data decides are as large as they may get, or what a call said.
    pub symbols: Vec<i64>,
    /// By symbol: whether a call said what it is.
    pub decided: Vec<bool>,
    /// Bytes of every slot.
    pub slot_bytes: Vec<u64>,
    /// Bytes that the layout has for every slot: more than there are where a call said how large it is.
    pub room: Vec<u64>,
    /// The slot whose bytes each slot has.
    pub root: Vec<usize>,
    /// The byte of that slot where each begins.
    pub begins: Vec<usize>,
    /// The shapes of the outputs.
    pub output_shapes: Vec<Vec<usize>>,
    /// Where slots are in the arenas.
    pub layout: Layout,
}

/// True if an expression mentions a symbol of which no call has said yet what it is.
pub(crate) fn is_open(plan: &Plan, e: &IndexExpr, decided: &[bool]) -> bool {
    let mut open = false;
    if mentions_data(&plan.symbols, e) {
        e.visit_atoms(&mut |a| {
            if let IndexNode::Sym(s) = a {
                let at = s.0 as usize;
                open |= plan.symbols[at].upper.is_some() && !decided.get(at).copied().unwrap_or(false);
            }
        });
    }
    open
}

pub(crate) fn overflow(name: &str) -> RunError {
    RunError::Overflow { name: name.to_string() }
}

impl Sizes {
    /// Evaluates every size of a plan.
    ///
    /// # Errors
    /// [`RunError::Overflow`].
    pub fn of(
        plan: &Plan,
        symbols: &[i64],
        shapes: Vec<Vec<usize>>,
        layout: Layout,
        decided: &[bool],
    ) -> Result<Sizes, RunError> {
        let eval = |e: &IndexExpr, name: &str| e.eval_symbols(symbols).ok_or_else(|| overflow(name));
        let mut slot_bytes = Vec::with_capacity(plan.slots.len());
        let mut room = Vec::with_capacity(plan.slots.len());
        for s in &plan.slots {
            let most = || plan.most(&s.len, symbols).ok_or_else(|| overflow(&s.name));
            // As large as it may get, until a call says how large it is.
            let n = match is_open(plan, &s.len, decided) {
                true => most()?,
                false => u64::try_from(eval(&s.len, &s.name)?).map_err(|_| overflow(&s.name))?,
            };
            let bytes = |n: u64| {
                let bytes = n.checked_mul(s.dtype.bytes() as u64);
                bytes
                    .filter(|&b| b <= isize::MAX as u64)
                    .ok_or_else(|| overflow(&s.name))
            };
            slot_bytes.push(bytes(n)?);
            room.push(bytes(if mentions_data(&plan.symbols, &s.len) {
                most()?
            } else {
                n
            })?);
        }
        let root = (0..plan.slots.len())
            .map(|i| plan.root(SlotId(i as u32)).0 as usize)
            .collect();
        let mut begins = Vec::with_capacity(plan.slots.len());
        for (i, s) in plan.slots.iter().enumerate() {
            let at = plan.begins(SlotId(i as u32)).map_or(Ok(0), |e| eval(&e, &s.name))?;
            begins.push(usize::try_from(at).map_err(|_| overflow(&s.name))?);
        }
        let mut output_shapes = Vec::with_capacity(plan.outputs.len());
        for o in &plan.outputs {
            let dims: Result<Vec<usize>, RunError> =
                o.ty.shape
                    .iter()
                    .map(|d| usize::try_from(eval(d, &o.name)?.max(0)).map_err(|_| overflow(&o.name)))
                    .collect();
            output_shapes.push(dims?);
        }
        Ok(Sizes {
            shapes,
            symbols: symbols.to_vec(),
            decided: decided.to_vec(),
            slot_bytes,
            room,
            root,
            begins,
            output_shapes,
            layout,
        })
    }
}

/// What finds the values of a plan's symbols.
#[derive(Clone, Copy)]
pub struct Binder<'p> {
    /// The plan.
    pub plan: &'p Plan,
    /// Values of symbols that no input's shape determines, by name.
    pub given: &'p [(String, i64)],
    /// By symbol: whether nothing that is computed needs a value of it; see [`idle_symbols`](tlc_ir::binding::idle_symbols). None if empty.
    pub idle: &'p [bool],
    /// What places arena slots.
    pub packer: Packer,
}

impl Binder<'_> {
    fn text(&self, e: &IndexExpr) -> String {
        e.display(&|s| self.plan.symbols[s.0 as usize].name.clone()).to_string()
    }

    /// An error if a guard does not hold.
    ///
    /// # Errors
    /// [`RunError::Guard`].
    pub fn check_guard(&self, guard: &Guard, symbols: &[i64]) -> Result<(), RunError> {
        if condition_holds(&guard.condition, symbols) || condition_mentions(&guard.condition, self.idle) {
            return Ok(());
        }
        let condition = match &guard.condition {
            // What is a number is what the other should be.
            Condition::Equal(a, b) if a.as_const().is_some() => format!("{} = {}", self.text(b), self.text(a)),
            Condition::Equal(a, b) => format!("{} = {}", self.text(a), self.text(b)),
            Condition::NonNegative(e) => format!("{} >= 0", self.text(e)),
        };
        let needed_by = guard.needed_by.to_string();
        Err(RunError::Guard { needed_by, condition })
    }

    /// An error for another number of inputs than the plan has, or for inputs without the states that the plan reads besides.
    pub(crate) fn source_count(&self, found: usize) -> RunError {
        let expected = self.plan.inputs.len();
        match found == expected {
            true => RunError::StateCount {
                expected: self.plan.states.len(),
                found: 0,
            },
            false => RunError::InputCount { expected, found },
        }
    }

    fn shape_error(&self, source: usize, found: &[usize]) -> RunError {
        let Some((name, ty)) = self.plan.sources().nth(source) else {
            return self.source_count(source);
        };
        let dims: Vec<String> = ty.shape.iter().map(|d| self.text(d)).collect();
        let (name, found) = (name.to_string(), found.to_vec());
        let expected = format!("{}[{}]", ty.dtype, dims.join(", "));
        match source < self.plan.inputs.len() {
            true => RunError::InputShape { name, expected, found },
            false => RunError::StateShape { name, expected, found },
        }
    }

    /// Symbol values from the shapes of inputs and of the states that are read, every declared extent checked.
    ///
    /// # Errors
    /// If the shapes do not fit what is declared.
    pub fn symbols(&self, shapes: &[Vec<usize>]) -> Result<Vec<i64>, RunError> {
        let mut values: Vec<Option<i64>> = vec![None; self.plan.symbols.len()];
        for (k, ((_, declared), given)) in self.plan.sources().zip(shapes).enumerate() {
            if declared.shape.len() != given.len() {
                return Err(self.shape_error(k, &shapes[k]));
            }
            for (d, &n) in declared.shape.iter().zip(given) {
                if let IndexExpr::Node(node) = d
                    && let IndexNode::Sym(s) = **node
                {
                    values[s.0 as usize].get_or_insert(n as i64);
                }
            }
        }
        for (name, value) in self.given {
            if let Some(at) = self.plan.symbols.iter().position(|s| s.name == *name) {
                let known = *values[at].get_or_insert(*value);
                if known != *value {
                    let condition = format!("{name} = {value} (an input's shape says {known})");
                    let needed_by = String::new();
                    return Err(RunError::Guard { needed_by, condition });
                }
            }
        }
        let mut symbols = Vec::with_capacity(values.len());
        for ((k, s), value) in self.plan.symbols.iter().enumerate().zip(values) {
            let most = || {
                let most = most_under(&self.plan.symbols, s.upper.as_ref()?, &symbols)?;
                Some(most.clamp(0, s.hi))
            };
            let value = match value.or_else(most) {
                Some(v) => v,
                None if s.lo == s.hi || self.idle.get(k) == Some(&true) => s.lo,
                None => return Err(RunError::SymbolUnbound { name: s.name.clone() }),
            };
            if value < s.lo || value > s.hi {
                return Err(RunError::SymbolRange {
                    name: s.name.clone(),
                    value,
                    lo: s.lo,
                    hi: s.hi,
                });
            }
            symbols.push(value);
        }
        for (k, ((_, declared), given)) in self.plan.sources().zip(shapes).enumerate() {
            for (d, &n) in declared.shape.iter().zip(given) {
                if d.eval_symbols(&symbols) != i64::try_from(n).ok() && !mentions(d, self.idle) {
                    return Err(self.shape_error(k, &shapes[k]));
                }
            }
        }
        Ok(symbols)
    }

    /// The numbers of the plan for inputs, and states that are read, of these shapes.
    ///
    /// # Errors
    /// If they do not fit what is declared, a guard does not hold, or a size overflows.
    pub fn bind(&self, shapes: Vec<Vec<usize>>) -> Result<Sizes, RunError> {
        if shapes.len() != self.plan.sources().count() {
            return Err(self.source_count(shapes.len()));
        }
        let symbols = self.symbols(&shapes)?;
        self.bind_symbols(&symbols, shapes)
    }

    /// The numbers of the plan where its symbols have these values, inputs and states of the shapes that this makes.
    ///
    /// # Errors
    /// If a guard does not hold, or a size overflows.
    pub fn bind_sizes(&self, symbols: &[i64]) -> Result<Sizes, RunError> {
        let extents = |ty: &TensorType| -> Option<Vec<usize>> {
            let size = |d: &IndexExpr| usize::try_from(d.eval_symbols(symbols)?).ok();
            ty.shape.iter().map(size).collect()
        };
        let shape = |(name, ty): (&str, &TensorType)| extents(ty).ok_or_else(|| overflow(name));
        let shapes = self.plan.sources().map(shape).collect::<Result<_, _>>()?;
        self.bind_symbols(symbols, shapes)
    }

    fn bind_symbols(&self, symbols: &[i64], shapes: Vec<Vec<usize>>) -> Result<Sizes, RunError> {
        let waits = |g: &&Guard| condition_waits(&self.plan.symbols, &g.condition);
        for g in self.plan.guards.iter().filter(|g| !waits(g)) {
            self.check_guard(g, symbols)?;
        }
        let layout = (self.packer)(self.plan, symbols).ok_or_else(|| overflow(&self.plan.name))?;
        if let Some(violation) = verify_layout(self.plan, &layout, symbols).into_iter().next() {
            return Err(RunError::Layout(violation));
        }
        let undecided = vec![false; self.plan.symbols.len()];
        Sizes::of(self.plan, symbols, shapes, layout, &undecided)
    }
}
