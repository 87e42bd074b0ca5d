//! Which code generator makes a kernel, decided from the tables of what each has, before the kernel is scheduled.
//!
//! An emitter that lacks an operation of the kernel outright is not chosen. Of those that have all, the one whose vectors do the
//! kernel's operations in the least time is: a wide one, unless it does an operation lane by lane, for then a loop has no lanes
//! at all. Between equals the order of the target decides.

use std::cmp::Ordering;
use std::fmt;

use tlc_ir::scalar::Cost;
use tlc_ir::target::{AccessKind, CpuEmitter, Emitter, EmitterId, Support, Target, Width};
use tlc_ir::{DType, ScalarOp};

/// Something that an emitter has or lacks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Operation {
    /// A scalar operation on operands of that dtype.
    Map(ScalarOp, DType),
    /// A conversion; from a dtype to itself, values of it.
    Convert(DType, DType),
    /// An access.
    Access(AccessKind),
}

impl Operation {
    /// How an emitter does it.
    pub fn support(self, emitter: &Emitter, width: Width) -> Support {
        match self {
            Operation::Map(op, on) => emitter.map(op, on, width),
            Operation::Convert(from, to) => emitter.convert(from, to, width),
            Operation::Access(kind) => emitter.access(kind),
        }
    }

    /// Instructions that it takes, about.
    fn instructions(self) -> f64 {
        match self {
            Operation::Map(op, _) => match op.cost() {
                Cost::Cheap | Cost::Fused => 1.0,
                Cost::Division => 4.0,
                Cost::Function => 20.0,
            },
            Operation::Convert(from, to) if from == to => 0.0,
            Operation::Convert(..) | Operation::Access(_) => 1.0,
        }
    }

    /// The widest element that it holds.
    fn widest(self) -> Option<DType> {
        match self {
            Operation::Map(_, on) => Some(on),
            Operation::Convert(from, to) => Some(if from.bits() > to.bits() { from } else { to }),
            Operation::Access(_) => None,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Map(op, on) => write!(f, "{op} of {on}"),
            Operation::Convert(from, to) if from == to => write!(f, "values of {from}"),
            Operation::Convert(from, to) => write!(f, "{from} to {to}"),
            Operation::Access(kind) => write!(f, "{kind}"),
        }
    }
}

/// What a kernel does for each element, with how often.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Operations(Vec<(Operation, u32)>);

impl FromIterator<Operation> for Operations {
    fn from_iter<I: IntoIterator<Item = Operation>>(all: I) -> Operations {
        let mut all: Vec<(Operation, u32)> = all.into_iter().map(|op| (op, 1)).collect();
        all.sort();
        Operations(merged(all))
    }
}

/// Equal neighbours as one.
fn merged(all: Vec<(Operation, u32)>) -> Vec<(Operation, u32)> {
    let mut out: Vec<(Operation, u32)> = Vec::with_capacity(all.len());
    for (op, times) in all {
        match out.last_mut() {
            Some(last) if last.0 == op => last.1 = last.1.saturating_add(times),
            _ => out.push((op, times)),
        }
    }
    out
}

impl Operations {
    /// What a kernel of both does.
    pub fn with(&self, other: &Operations) -> Operations {
        let mut all = Vec::with_capacity(self.0.len() + other.0.len());
        let (mut own, mut others) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(&&(a, times)), Some(&&(b, also))) = (own.peek(), others.peek()) {
            match a.cmp(&b) {
                Ordering::Less => all.extend(own.next()),
                Ordering::Greater => all.extend(others.next()),
                Ordering::Equal => {
                    all.push((a, times.saturating_add(also)));
                    own.next();
                    others.next();
                }
            }
        }
        all.extend(own);
        all.extend(others);
        Operations(all)
    }

    /// The first that an emitter lacks outright.
    fn lacking(&self, emitter: &Emitter) -> Option<Operation> {
        let lacks = |op: &Operation| op.support(emitter, Width::Scalar) == Support::Missing;
        self.0.iter().map(|o| o.0).find(lacks)
    }

    /// The first that keeps a loop from lanes.
    fn one_by_one(&self, emitter: &Emitter) -> Option<Operation> {
        let keeps =
            |op: &Operation| !matches!(op, Operation::Access(_)) && !op.support(emitter, Width::Lanes).is_vector();
        self.0.iter().map(|o| o.0).find(keeps)
    }

    /// Picoseconds that one thread takes for an element, if the emitter has everything.
    pub fn picoseconds(&self, emitter: &CpuEmitter) -> Option<f64> {
        let table = &emitter.table;
        match self.lacking(table) {
            Some(_) => None,
            None => Some(self.time(emitter, self.one_by_one(table).is_none())),
        }
    }

    fn time(&self, emitter: &CpuEmitter, vectors: bool) -> f64 {
        let bits = self
            .0
            .iter()
            .filter_map(|o| o.0.widest())
            .filter(|d| *d != DType::Bool)
            .map(DType::bits);
        let lanes = match vectors {
            true => f64::from((emitter.table.vector_bits / bits.max().unwrap_or(8)).max(1)),
            false => 1.0,
        };
        let instructions: f64 = (self.0.iter())
            .map(|&(op, times)| {
                let at_once = !matches!(op, Operation::Access(kind) if !emitter.table.access(kind).is_vector());
                f64::from(times) * op.instructions() / if at_once { lanes } else { 1.0 }
            })
            .sum();
        instructions * 1e12 / emitter.vector_ops_per_second.max(1.0)
    }
}

/// Why an emitter makes a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EmitterReason {
    /// The target has no other.
    Only,
    /// Its vectors take the least time.
    Wider {
        /// Bits of its vectors.
        bits: u32,
        /// Bits of the widest of the others.
        others: u32,
    },
    /// One that would take less time lacks something.
    Lacks {
        /// Its name.
        name: &'static str,
        /// What it lacks.
        what: Operation,
    },
    /// One with wider vectors has something only lane by lane.
    LaneByLane {
        /// Its name.
        name: &'static str,
        /// What it does so.
        what: Operation,
    },
    /// It alone keeps tiles of sums in registers.
    Tiles,
    /// It takes less time than the others, or as little and is preferred.
    Faster,
}

impl fmt::Display for EmitterReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EmitterReason::Only => f.write_str("the target has no other"),
            EmitterReason::Wider { bits, others } => write!(f, "vectors of {bits} bits, those of others have {others}"),
            EmitterReason::Lacks { name, what } => write!(f, "{name} lacks {what}"),
            EmitterReason::LaneByLane { name, what } => write!(f, "{name} has {what} lane by lane"),
            EmitterReason::Tiles => f.write_str("it keeps tiles of sums in registers"),
            EmitterReason::Faster => f.write_str("no other takes less time"),
        }
    }
}

/// An emitter that was chosen, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EmitterChoice {
    /// The emitter.
    pub emitter: EmitterId,
    /// Its name.
    pub name: &'static str,
    /// Why.
    pub reason: EmitterReason,
}

/// The emitter of a target that keeps tiles of f32 sums in registers, the first of several.
pub fn tiles(target: &Target) -> Option<EmitterChoice> {
    let Target::Cpu(cpu) = target else { return None };
    let has = |e: &CpuEmitter| e.table.tile(DType::F32, 1).is_some();
    let at = cpu.emitters.iter().position(has)?;
    Some(EmitterChoice {
        emitter: EmitterId(at as u32),
        name: cpu.emitters[at].table.name,
        reason: EmitterReason::Tiles,
    })
}

/// The emitter of a target that makes a kernel of these operations.
pub fn choose(target: &Target, operations: &Operations) -> EmitterChoice {
    let only = |table: &Emitter| EmitterChoice {
        emitter: EmitterId(0),
        name: table.name,
        reason: EmitterReason::Only,
    };
    match target {
        Target::Cpu(cpu) => match &cpu.emitters[..] {
            [one] => only(&one.table),
            all => choose_among(all, operations),
        },
        Target::Gpu(gpu) => only(&gpu.emitter),
    }
}

/// The one that takes the least time, the first of several, of those that take any.
fn least(emitters: &[CpuEmitter], time: impl Fn(&CpuEmitter) -> Option<f64>) -> Option<usize> {
    let times = emitters.iter().enumerate().filter_map(|(k, e)| Some((k, time(e)?)));
    times.min_by(|a, b| a.1.total_cmp(&b.1)).map(|(k, _)| k)
}

/// The emitter of a processor that makes a kernel of these operations: that of [`choose`], without the reason.
pub fn fastest(emitters: &[CpuEmitter], operations: &Operations) -> EmitterId {
    // The first one has everything, says the target.
    let found = least(emitters, |e| operations.picoseconds(e));
    EmitterId(found.unwrap_or(0) as u32)
}

fn choose_among(emitters: &[CpuEmitter], operations: &Operations) -> EmitterChoice {
    let chosen = fastest(emitters, operations).0 as usize;
    // What would be chosen if each had everything.
    let wished = least(emitters, |e| Some(operations.time(e, true))).unwrap_or(chosen);
    let (own, other) = (&emitters[chosen].table, &emitters[wished].table);
    let others = emitters.iter().enumerate().filter(|(k, _)| *k != chosen);
    let others = others.map(|(_, e)| e.table.vector_bits).max().unwrap_or(0);
    let name = other.name;
    let reason = match (operations.lacking(other), operations.one_by_one(other)) {
        (Some(what), _) if wished != chosen => EmitterReason::Lacks { name, what },
        (None, Some(what)) if wished != chosen => EmitterReason::LaneByLane { name, what },
        _ if own.vector_bits > others => EmitterReason::Wider {
            bits: own.vector_bits,
            others,
        },
        _ => EmitterReason::Faster,
    };
    EmitterChoice {
        emitter: EmitterId(chosen as u32),
        name: own.name,
        reason,
    }
}
