//! The registers that an operation touches, for the check of undefined values.

use super::{BarrierKind, Left, Op, PhaseOp, Reg, Warpgroup};

#[derive(Default)]
pub(super) struct Touched {
    /// What it computes with.
    pub(super) reads: Vec<Reg>,
    /// What it only copies: an undefined value is then undefined elsewhere, and not yet used.
    pub(super) copies: Vec<Reg>,
    pub(super) writes: Vec<Reg>,
}

fn computes(reads: Vec<Reg>, writes: Vec<Reg>) -> Touched {
    Touched {
        reads,
        copies: Vec::new(),
        writes,
    }
}

fn copies(copies: Vec<Reg>, writes: Vec<Reg>) -> Touched {
    Touched {
        reads: Vec::new(),
        copies,
        writes,
    }
}

pub(super) fn touched(op: &Op) -> Touched {
    match op {
        Op::Alu { d, a, b, c, .. } | Op::Lane { d, a, b, c, .. } | Op::Carry { d, a, b, c, .. } => {
            computes(vec![*a, *b, *c], vec![*d])
        }
        Op::Move { d, a } => copies(vec![*a], vec![*d]),
        Op::Pack { d, parts, .. } => copies(parts.clone(), vec![*d]),
        Op::Unpack { parts, a, .. } => copies(vec![*a], parts.iter().flatten().copied().collect()),
        Op::Clock { d, .. } | Op::ActiveMask { d } => computes(Vec::new(), vec![*d]),
        Op::Set { a, b, .. } => computes(vec![*a, *b], Vec::new()),
        Op::SetNumber { d, a, b, .. } => computes(vec![*a, *b], vec![*d]),
        Op::Class { a, .. } | Op::IsSpace { a, .. } => computes(vec![*a], Vec::new()),
        // Which of the two it copies differs between lanes: the executor knows.
        Op::Select { .. } => Touched::default(),
        Op::ToGeneric { d, a, .. } | Op::FromGeneric { d, a, .. } | Op::MoveMatrix { d, a } => {
            computes(vec![*a], vec![*d])
        }
        // What a load makes undefined the executor knows.
        Op::Load(access) => computes(vec![access.place.base], Vec::new()),
        Op::Store(access) => {
            let mut reads: Vec<Reg> = access.registers.iter().flatten().copied().collect();
            reads.push(access.place.base);
            computes(reads, Vec::new())
        }
        Op::Atomic(atomic) => computes(
            [&[atomic.place.base, atomic.b], &atomic.a[..]].concat(),
            atomic.results.iter().flatten().copied().collect(),
        ),
        Op::CopyAsync { to, from, size, .. } => {
            let mut reads = vec![to.base, from.base];
            reads.extend(size);
            computes(reads, Vec::new())
        }
        Op::Phase { place, what } => phase(place.base, what),
        Op::CopyTile(copy) => {
            let places = [copy.to.base, copy.map.base, copy.barrier.base];
            computes([&places[..], &copy.at].concat(), Vec::new())
        }
        Op::LoadMatrix { d, place, .. } => computes(vec![place.base], d.clone()),
        Op::StoreMatrix { a, place, .. } => {
            let mut reads = a.clone();
            reads.push(place.base);
            computes(reads, Vec::new())
        }
        Op::Mma(mma) => {
            let reads = mma.a.iter().chain(&mma.b).chain(&mma.c).copied().collect();
            computes(reads, mma.d.clone())
        }
        Op::Warpgroup(Warpgroup::Product(product)) => {
            let mut reads = vec![product.b];
            match &product.a {
                Left::Registers(registers) => reads.extend(registers),
                Left::Memory { descriptor, .. } => reads.push(*descriptor),
            }
            // Whether D is read a predicate says.
            computes(reads, product.d.clone())
        }
        Op::BranchTable { index, .. } => computes(vec![*index], Vec::new()),
        Op::Barrier { id, threads, kind, .. } => {
            let mut reads = vec![*id];
            reads.extend(threads);
            let writes = if let BarrierKind::Count(d, _) = kind {
                vec![*d]
            } else {
                Vec::new()
            };
            computes(reads, writes)
        }
        Op::WarpBarrier { mask } => computes(vec![*mask], Vec::new()),
        // A lane may hand an undefined value to one that does not use it: only the lane in question is looked at.
        Op::Shuffle { d, b, c, mask, .. } => computes(vec![*b, *c, *mask], d.iter().copied().collect()),
        Op::Vote { d, mask, .. } => computes(vec![*mask], d.iter().copied().collect()),
        Op::Match { d, a, mask, .. } | Op::Redux { d, a, mask, .. } => computes(vec![*a, *mask], vec![*d]),
        Op::Elect { d, mask, .. } => computes(vec![*mask], d.iter().copied().collect()),
        Op::Nop
        | Op::PredMove { .. }
        | Op::PredConst { .. }
        | Op::PredLogic { .. }
        | Op::Fence(_)
        | Op::ProxyFence
        | Op::PhaseFence
        | Op::Warpgroup(_)
        | Op::CopyCommit
        | Op::CopyWait(_)
        | Op::Branch { .. }
        | Op::Call(_)
        | Op::Return
        | Op::Exit
        | Op::Trap
        | Op::Assertion => Touched::default(),
    }
}

fn phase(base: Reg, what: &PhaseOp) -> Touched {
    match what {
        PhaseOp::Init(count) => computes(vec![base, *count], Vec::new()),
        PhaseOp::Invalidate => computes(vec![base], Vec::new()),
        PhaseOp::Expect(bytes) => computes(vec![base, *bytes], Vec::new()),
        PhaseOp::Arrive(arrival) => {
            let counts = arrival.count.iter().chain(&arrival.bytes).copied();
            computes(
                std::iter::once(base).chain(counts).collect(),
                arrival.state.iter().copied().collect(),
            )
        }
        PhaseOp::Wait(wait) => computes(vec![base, wait.of], Vec::new()),
    }
}
