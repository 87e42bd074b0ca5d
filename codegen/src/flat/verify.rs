//! Checks the invariants of the lowered form, which builder and emitters rely on. It runs in debug builds.

use tlc_ir::kernel::Memory;
use tlc_ir::{DType, ScalarOp};

use super::{Address, Flat, Item, LoopKind, Op, Region, Value, Varies};

type Checked = Result<(), String>;

/// # Errors
/// The first broken invariant, in words.
pub fn verify(flat: &Flat<'_>) -> Checked {
    let mut v = Verifier {
        flat,
        visible: vec![false; flat.values.len()],
        defined: vec![false; flat.values.len()],
        steering: Varies::NOTHING,
        apart: false,
    };
    for at in flat.scratch_at.iter().flatten() {
        v.is_index(*at)?;
    }
    v.region(&flat.body)
}

struct Verifier<'f, 'k> {
    flat: &'f Flat<'k>,
    /// Values that may be used here.
    visible: Vec<bool>,
    /// Values that were defined somewhere.
    defined: Vec<bool>,
    /// What conditions and extents around vary with.
    steering: Varies,
    /// Whether in a loop over threads or warps.
    apart: bool,
}

fn holds(what: bool, otherwise: impl FnOnce() -> String) -> Checked {
    if what { Ok(()) } else { Err(otherwise()) }
}

impl Verifier<'_, '_> {
    fn lanes(&self, v: Value) -> u32 {
        self.flat.info(v).lanes
    }

    fn uses(&self, v: Value) -> Checked {
        let known = self.flat.is_placeless(v) || self.visible[v.0 as usize];
        holds(known, || format!("%{} is used where it is not defined", v.0))
    }

    fn defines(&mut self, v: Value) -> Checked {
        let before = std::mem::replace(&mut self.defined[v.0 as usize], true);
        self.visible[v.0 as usize] = true;
        let info = self.flat.info(v);
        let lanes = info.varies.meets(Varies::LANES) == (info.lanes > 1);
        holds(!before, || format!("%{} is defined twice", v.0))?;
        holds(lanes, || format!("%{} varies with lanes or not, against its type", v.0))
    }

    fn is_index(&self, v: Value) -> Checked {
        let fits = self.flat.dtype(v) == DType::I64 && self.lanes(v) == 1;
        holds(fits, || format!("%{} is no index", v.0))
    }

    fn is_condition(&self, v: Value) -> Checked {
        let fits = self.flat.dtype(v) == DType::Bool && self.lanes(v) == 1;
        holds(fits, || format!("%{} is no condition", v.0))
    }

    fn alike(&self, a: Value, b: Value) -> Checked {
        let form = |v| (self.flat.dtype(v), self.lanes(v));
        holds(form(a) == form(b), || format!("%{} and %{} differ in type", a.0, b.0))
    }

    fn address(&self, a: &Address) -> Checked {
        a.parts()
            .try_for_each(|v| self.uses(v).and_then(|()| self.is_index(v)))?;
        let varies = |v: Option<Value>| v.map(|v| self.flat.info(v).varies);
        holds(varies(a.uniform).is_none_or(Varies::is_uniform), || {
            format!("the uniform part of an address of {} varies", a.memory)
        })?;
        holds(varies(a.varying).is_none_or(|v| !v.is_uniform()), || {
            format!("the varying part of an address of {} does not vary", a.memory)
        })?;
        let known = match a.memory {
            Memory::Param(i) => (i as usize) < self.flat.kernel.params.len(),
            Memory::Scratch(i) => (i as usize) < self.flat.kernel.scratch.len(),
        };
        holds(known, || format!("no memory {}", a.memory))
    }

    /// An access of `value`'s lanes.
    fn access(&self, a: &Address, offsets: &[u8], value: Value, mask: Option<Value>) -> Checked {
        self.address(a)?;
        let lanes = self.lanes(value) as usize;
        let fits = if lanes == 1 {
            offsets.is_empty()
        } else {
            offsets.len() == lanes
        };
        holds(fits, || format!("%{} has other lanes than its access", value.0))?;
        let dtype = self.flat.kernel.memory_dtype(a.memory);
        holds(dtype == self.flat.dtype(value), || {
            format!("%{} has another type than {}", value.0, a.memory)
        })?;
        mask.map_or(Ok(()), |m| {
            self.uses(m)?;
            holds(
                self.flat.dtype(m) == DType::Bool && self.lanes(m) == self.lanes(value),
                || format!("%{} is no mask of %{}", m.0, value.0),
            )
        })
    }

    fn computed(&self, v: Value) -> Checked {
        let info = self.flat.info(v);
        let mut uses = Ok(());
        let mut varies = Varies::NOTHING;
        info.op.operands(|o| {
            if uses.is_ok() {
                uses = self.uses(o);
            }
            varies = varies.and(self.flat.info(o).varies);
        });
        uses?;
        let less = varies.but(Varies::LANES).but(info.varies);
        holds(less.is_uniform(), || format!("%{} varies less than its operands", v.0))?;
        let (dtype, lanes) = (info.dtype, info.lanes);
        let scalar = |o: Value| self.lanes(o) == 1;
        let form = |fits: bool| holds(fits, || format!("%{} has operands of other types or lanes", v.0));
        match &info.op {
            Op::Symbol(_) | Op::Counter | Op::Carried | Op::Outcome | Op::Undefined | Op::Const(_) => {
                Err(format!("%{} has no place, or another one", v.0))
            }
            Op::Sum { terms, .. } => terms.iter().try_for_each(|t| self.is_index(t.0)),
            Op::Product(factors) => factors.iter().try_for_each(|f| self.is_index(*f)),
            Op::FloorDiv(a, b)
            | Op::FloorMod(a, b)
            | Op::Smaller(a, b)
            | Op::Larger(a, b)
            | Op::Clamp { data: a, last: b } => self.is_index(*a).and_then(|()| self.is_index(*b)),
            Op::Series { first, .. } => form(scalar(*first) && self.flat.dtype(*first) == dtype && lanes > 1),
            Op::Load { address, offsets, mask } => self.access(address, offsets, v, *mask),
            Op::Gather { address, at, mask } => {
                form(lanes > 1 && self.lanes(*at) == lanes && self.flat.dtype(*at) == DType::I32)?;
                self.access(address, &vec![0; lanes as usize], v, *mask)
            }
            Op::Map(op, args) => {
                let dtypes: Vec<DType> = args.iter().map(|a| self.flat.dtype(*a)).collect();
                form(op.result_dtype(&dtypes) == Ok(dtype))?;
                let shared = |i: usize| match op {
                    ScalarOp::Shl | ScalarOp::Shr => i == 1,
                    ScalarOp::Select => i == 0,
                    _ => false,
                };
                let fits = |(i, a): (usize, &Value)| self.lanes(*a) == lanes || shared(i) && scalar(*a);
                form(args.iter().enumerate().all(fits))
            }
            Op::Unordered(a, b) => {
                self.alike(*a, *b)?;
                form(self.lanes(*a) == lanes && dtype == DType::Bool && self.flat.dtype(*a).is_float())
            }
            Op::Scale(x, n) => {
                self.alike(*x, *n)?;
                form(self.lanes(*x) == lanes && dtype == DType::F32 && self.flat.dtype(*x) == dtype)
            }
            Op::Approximate(op, args) => {
                let fits = |a: &Value| scalar(*a) && self.flat.dtype(*a) == DType::F32;
                form(args.len() == op.arity() && lanes == 1 && dtype == DType::F32 && args.iter().all(fits))
            }
            Op::Convert(a) => form(self.lanes(*a) == lanes && self.flat.dtype(*a) != dtype),
            Op::Bitcast(a) => form(self.lanes(*a) == lanes && self.flat.dtype(*a).bits() == dtype.bits()),
            Op::Splat(a) => form(scalar(*a) && lanes > 1 && self.flat.dtype(*a) == dtype),
            Op::Pack(parts) => {
                let fits = |p: &Value| scalar(*p) && self.flat.dtype(*p) == dtype;
                form(parts.len() == lanes as usize && parts.iter().all(fits))
            }
            Op::Lane(a, lane) => form(lanes == 1 && u32::from(*lane) < self.lanes(*a) && self.flat.dtype(*a) == dtype),
            Op::Part(a, first) => {
                let inside = lanes > 1 && u32::from(*first) + lanes <= self.lanes(*a);
                form(inside && self.flat.dtype(*a) == dtype)
            }
            Op::Insert(a, x, lane) => {
                self.alike(*a, v)?;
                form(scalar(*x) && self.flat.dtype(*x) == dtype && u32::from(*lane) < lanes)
            }
            Op::Interleave(a, b, _) => {
                self.alike(*a, v)?;
                self.alike(*b, v)?;
                form(matches!(lanes, 8 | 16) && dtype.bits() == 32)
            }
            Op::AnyLane(a) | Op::AllLanes(a) => {
                form(!scalar(*a) && self.flat.dtype(*a) == DType::Bool && dtype == DType::Bool && lanes == 1)
            }
            Op::LaneBits(a) => form(!scalar(*a) && self.flat.dtype(*a) == DType::Bool && dtype == DType::U32),
            Op::Bit(a, _) => form(self.flat.dtype(*a) == DType::U32 && scalar(*a) && dtype == DType::Bool),
        }
    }

    fn region(&mut self, body: &Region) -> Checked {
        for item in body {
            match item {
                Item::Let(v) => {
                    self.computed(*v)?;
                    self.defines(*v)?;
                }
                Item::Store {
                    address,
                    offsets,
                    value,
                    mask,
                } => {
                    self.uses(*value)?;
                    self.access(address, offsets, *value, *mask)?;
                }
                Item::Copy(c) => {
                    self.address(&c.to)?;
                    self.address(&c.from)?;
                    [c.to_pitch, c.from_pitch, c.rows, c.columns]
                        .into_iter()
                        .try_for_each(|v| self.uses(v).and_then(|()| self.is_index(v)))?;
                }
                Item::Loop(l) => {
                    self.uses(l.extent)?;
                    self.is_index(l.extent)?;
                    holds(l.kind == LoopKind::Serial || l.carried.is_empty(), || {
                        format!("a {} loop carries something", l.kind.name())
                    })?;
                    l.carried.iter().try_for_each(|c| self.uses(c.initial))?;
                    let (steering, apart) = (self.steering, self.apart);
                    self.steering = steering.and(self.flat.info(l.extent).varies);
                    self.apart |= matches!(l.kind, LoopKind::Thread | LoopKind::Warp);
                    let outer = self.visible.clone();
                    self.defines(l.counter)?;
                    for c in &l.carried {
                        self.defines(c.inside)?;
                    }
                    self.nested(&l.body, l.carried.iter().map(|c| c.next))?;
                    self.visible = outer;
                    (self.steering, self.apart) = (steering, apart);
                    for c in &l.carried {
                        for other in [c.initial, c.next, c.outcome] {
                            self.alike(c.inside, other)?;
                        }
                        self.defines(c.outcome)?;
                    }
                }
                Item::If(i) => {
                    self.uses(i.cond)?;
                    self.is_condition(i.cond)?;
                    let steering = self.steering;
                    self.steering = steering.and(self.flat.info(i.cond).varies);
                    self.nested(&i.then, i.merges.iter().map(|m| m.then))?;
                    self.nested(&i.otherwise, i.merges.iter().map(|m| m.otherwise))?;
                    self.steering = steering;
                    for m in &i.merges {
                        self.alike(m.then, m.otherwise)?;
                        self.alike(m.then, m.outcome)?;
                        self.defines(m.outcome)?;
                    }
                }
                Item::Collective { address, .. } => {
                    self.address(address)?;
                    let apart = self.steering.meets(Varies::THREAD);
                    holds(!apart, || "a collective that some threads may not reach".into())?;
                }
                Item::Multiply(m) => {
                    m.shared().try_for_each(|o| self.address(&o.first))?;
                    let apart = self.steering.meets(Varies::THREAD);
                    holds(!apart, || {
                        "a product of matrices that some threads may not reach".into()
                    })?;
                }
                Item::CopyAsync(c) => {
                    self.address(&c.to)?;
                    self.address(&c.from)?;
                    if let Some(mask) = c.mask {
                        self.uses(mask)?;
                        self.is_condition(mask)?;
                    }
                }
                Item::CopyTile(c) => {
                    self.address(&c.to)?;
                    c.parts().try_for_each(|v| self.uses(v))?;
                    if let Some(mask) = c.mask {
                        self.is_condition(mask)?;
                    }
                    let matrix = self.flat.matrices.get(c.matrix);
                    let known = matrix.is_some_and(|m| m.is_one_of_several() == c.number.is_some())
                        && self.flat.kernel.is_swizzled(c.to.memory);
                    holds(known, || {
                        "a copy of a tile of no matrix, or not to swizzled memory".into()
                    })?;
                    let apart = self.apart || self.steering.meets(Varies::WARP.and(Varies::THREAD));
                    holds(!apart, || "a copy of a tile that some threads may not reach".into())?;
                }
                Item::Prefetch(address) => self.address(address)?,
                Item::Commit | Item::Wait(_) => {}
                Item::Barrier => {
                    let apart = self.apart || self.steering.meets(Varies::WARP.and(Varies::THREAD));
                    holds(!apart, || "a barrier that some threads may not reach".into())?;
                }
            }
        }
        Ok(())
    }

    /// A region at whose end values are used.
    fn nested(&mut self, body: &Region, used: impl Iterator<Item = Value>) -> Checked {
        let used: Vec<Value> = used.collect();
        let outer = self.visible.clone();
        self.region(body)?;
        used.into_iter().try_for_each(|v| self.uses(v))?;
        self.visible = outer;
        Ok(())
    }
}
