//! The text of the lowered form, for people and tests.
//!
//! ```text
//! for %1 in 0..s0 parallel {
//!   %2: i64 = 4*%1
//!   %3: f32x4 = load p0[%2]
//!   %4: f32x4 = load p1[%2 + 4] lanes 3 2 1 0
//!   %5: f32x4 = mul %3, %4
//!   store p1[%2], %5
//! }
//! ```
//! Lanes access neighbours in order, or elements that are listed. Constants and symbols stand where they are used. `~` says with which loops a value varies (block, warp, thread); that of a
//! vector with its lane is its type. In an address the uniform part comes first, the varying part has a `~`.

use std::fmt;

use tlc_ir::Precision;
use tlc_ir::index::SymId;
use tlc_ir::kernel::CollectiveKind;
use tlc_ir::target::WARP_THREADS;

use super::{Address, Flat, IfKind, Item, LeftOperand, Op, Region, TiledMatrix, Value, Varies};

impl fmt::Display for Varies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [(Varies::BLOCK, "b"), (Varies::WARP, "w"), (Varies::THREAD, "t")];
        for (_, letter) in letters.into_iter().filter(|(loops, _)| self.meets(*loops)) {
            f.write_str(letter)?;
        }
        Ok(())
    }
}

/// A value as an operand.
struct Operand<'f, 'k>(&'f Flat<'k>, Value);

impl fmt::Display for Operand<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operand(flat, v) = *self;
        match flat.op(v) {
            Op::Symbol(s) => write!(f, "s{s}"),
            Op::Undefined => f.write_str("undefined"),
            _ => match flat.constant(v) {
                Some(c) => write!(f, "{c}"),
                None => write!(f, "%{}", v.0),
            },
        }
    }
}

impl fmt::Display for Flat<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.region(f, &self.body, 0)
    }
}

impl<'k> Flat<'k> {
    fn operand(&self, v: Value) -> Operand<'_, 'k> {
        Operand(self, v)
    }

    /// `%3: f32x4 ~bt`.
    fn definition(&self, v: Value) -> String {
        let info = self.info(v);
        let lanes = if info.lanes > 1 {
            format!("x{}", info.lanes)
        } else {
            String::new()
        };
        let varies = match info.varies.but(Varies::LANES) {
            Varies::NOTHING => String::new(),
            loops => format!(" ~{loops}"),
        };
        format!("%{}: {}{lanes}{varies}", v.0, info.dtype)
    }

    fn place(&self, a: &Address) -> String {
        let uniform = a.uniform.map(|v| self.operand(v).to_string());
        let varying = a.varying.map(|v| format!("~{}", self.operand(v)));
        let constant = (a.constant != 0 || a.parts().next().is_none()).then(|| a.constant.to_string());
        let parts: Vec<String> = uniform.into_iter().chain(varying).chain(constant).collect();
        format!("{}[{}]", a.memory, parts.join(" + "))
    }

    fn lanes(offsets: &[u8]) -> String {
        let each: Vec<String> = offsets.iter().map(|o| format!(" {o}")).collect();
        match offsets.iter().enumerate().all(|(i, o)| i == usize::from(*o)) {
            true => String::new(),
            false => format!(" lanes{}", each.concat()),
        }
    }

    fn mask(&self, mask: Option<Value>) -> String {
        mask.map_or_else(String::new, |m| format!(" if {}", self.operand(m)))
    }

    fn list(&self, name: &str, args: &[Value]) -> String {
        let args: Vec<String> = args.iter().map(|a| self.operand(*a).to_string()).collect();
        format!("{name} {}", args.join(", "))
    }

    fn computation(&self, v: Value) -> String {
        match self.op(v) {
            Op::Symbol(_) | Op::Const(_) | Op::Undefined => self.operand(v).to_string(),
            Op::Counter => "counter".into(),
            Op::Carried => "carried".into(),
            Op::Outcome => "outcome".into(),
            Op::Sum { terms, constant } => {
                let mut parts: Vec<String> = terms
                    .iter()
                    .map(|(t, k)| match k {
                        1 => self.operand(*t).to_string(),
                        k => format!("{k}*{}", self.operand(*t)),
                    })
                    .collect();
                if *constant != 0 {
                    parts.push(constant.to_string());
                }
                parts.join(" + ")
            }
            Op::Product(factors) => self.list("product", factors),
            Op::FloorDiv(a, b) => self.list("div", &[*a, *b]),
            Op::FloorMod(a, b) => self.list("mod", &[*a, *b]),
            Op::Smaller(a, b) => self.list("min", &[*a, *b]),
            Op::Larger(a, b) => self.list("max", &[*a, *b]),
            Op::Clamp { data, last } => self.list("clamp", &[*data, *last]),
            Op::Series { first, step } => format!("series {} by {step}", self.operand(*first)),
            Op::Load { address, offsets, mask } => {
                let (place, lanes) = (self.place(address), Self::lanes(offsets));
                format!("load {place}{lanes}{}", self.mask(*mask))
            }
            Op::Gather { address, at, mask } => {
                let (place, mask) = (self.place(address), self.mask(*mask));
                format!("gather {place} each {}{mask}", self.operand(*at))
            }
            Op::Map(op, args) => self.list(op.name(), args),
            Op::Unordered(a, b) => self.list("unordered", &[*a, *b]),
            Op::Scale(x, n) => self.list("scale", &[*x, *n]),
            Op::Approximate(op, args) => self.list(&format!("approximate {op}"), args),
            Op::Convert(a) => self.list("convert", &[*a]),
            Op::Bitcast(a) => self.list("bitcast", &[*a]),
            Op::Splat(a) => self.list("splat", &[*a]),
            Op::Pack(lanes) => self.list("pack", lanes),
            Op::Lane(a, lane) => format!("lane {lane} of {}", self.operand(*a)),
            Op::Part(a, first) => format!("lanes from {first} of {}", self.operand(*a)),
            Op::Insert(a, x, lane) => format!("insert {} in lane {lane} of {}", self.operand(*x), self.operand(*a)),
            Op::Interleave(a, b, how) => self.list(how.name(), &[*a, *b]),
            Op::AnyLane(a) => self.list("any_lane", &[*a]),
            Op::AllLanes(a) => self.list("all_lanes", &[*a]),
            Op::LaneBits(a) => self.list("lane_bits", &[*a]),
            Op::Bit(a, bit) => format!("bit {bit} of {}", self.operand(*a)),
        }
    }

    /// What a statement is, without what is within it and what it carries.
    pub fn statement(&self, item: &Item) -> String {
        match item {
            Item::Let(v) => format!("{} = {}", self.definition(*v), self.computation(*v)),
            Item::Store {
                address,
                offsets,
                value,
                mask,
            } => {
                let (place, lanes) = (self.place(address), Self::lanes(offsets));
                format!("store {place}{lanes}, {}{}", self.operand(*value), self.mask(*mask))
            }
            Item::Copy(c) => {
                let order = if c.transposed { "transposed" } else { "rows" };
                let verb = if c.streaming { "stream" } else { "copy" };
                let block = |a: &Address, pitch| format!("{} by {}", self.place(a), self.operand(pitch));
                let (to, from) = (block(&c.to, c.to_pitch), block(&c.from, c.from_pitch));
                let (rows, columns) = (self.operand(c.rows), self.operand(c.columns));
                format!("{verb} {order} {rows} x {columns} {to} from {from}")
            }
            Item::Loop(l) => {
                let counter = self.definition(l.counter);
                format!("for {counter} in 0..{} {}", self.operand(l.extent), l.kind.name())
            }
            Item::If(i) => {
                let kind = match i.kind {
                    IfKind::Plain => "",
                    IfKind::Rare => " rarely",
                    IfKind::Guard => " guard",
                };
                format!("if {}{kind}", self.operand(i.cond))
            }
            Item::Barrier => "barrier".into(),
            Item::Prefetch(address) => format!("prefetch {}", self.place(address)),
            Item::Commit => "commit".into(),
            Item::Wait(pending) => format!("wait {pending}"),
            Item::Multiply(m) => {
                let [rows, columns, steps] = m.extents;
                let mut text = format!("multiply {} rows {rows} columns {columns} steps {steps}", m.dst);
                if m.precision != Precision::Exact {
                    text += &format!(" {}", m.precision);
                }
                if let LeftOperand::Held(left) = m.left {
                    text += &format!(", {left}");
                }
                let sides = match m.left {
                    LeftOperand::Shared(_) => &["row", "column"][..],
                    LeftOperand::Held(_) => &["column"],
                };
                for (o, across) in m.shared().zip(sides) {
                    let place = self.place(&o.first);
                    text += &format!(", {place} {across} {} step {}", o.across, o.along);
                }
                text
            }
            Item::CopyAsync(c) => {
                let (to, from) = (self.place(&c.to), self.place(&c.from));
                let mask = self.mask(c.mask);
                format!("copy_async {to} from {from}, {} elements{mask}", c.elements)
            }
            Item::CopyTile(c) => {
                let (to, mask) = (self.place(&c.to), self.mask(c.mask));
                let TiledMatrix {
                    param,
                    count,
                    rows,
                    columns,
                    tile: [height, width],
                    ..
                } = &self.matrices[c.matrix];
                let symbol = |s: SymId| format!("s{}", s.0);
                let [count, rows] = [count, rows].map(|e| e.display(&symbol).to_string());
                let [row, column] = [c.row, c.column].map(|v| self.operand(v));
                let (several, which) = match c.number {
                    Some(v) => (format!("{count} times "), format!("matrix {} ", self.operand(v))),
                    None => (String::new(), String::new()),
                };
                format!(
                    "copy_tile {to} from p{param} of {several}{rows} by {columns}, {height} by {width} at {which}row {row} column {column}{mask}"
                )
            }
            Item::Collective { kind, threads, address } => {
                let place = match *threads {
                    WARP_THREADS => self.place(address),
                    part => format!("part {part} {}", self.place(address)),
                };
                match kind {
                    CollectiveKind::Reduce(monoid) => format!("reduce {} {place}", monoid.name()),
                    CollectiveKind::Scan(monoid) => format!("scan {} {place}", monoid.name()),
                    CollectiveKind::Broadcast(from) => format!("broadcast {from} {place}"),
                    CollectiveKind::Shift(monoid) => format!("shift {} {place}", monoid.name()),
                }
            }
        }
    }

    fn region(&self, f: &mut fmt::Formatter<'_>, body: &Region, depth: usize) -> fmt::Result {
        let indent = "  ".repeat(depth);
        for item in body {
            write!(f, "{indent}{}", self.statement(item))?;
            match item {
                Item::Loop(l) => {
                    for c in &l.carried {
                        let (inside, outcome) = (self.definition(c.inside), c.outcome.0);
                        let (initial, next) = (self.operand(c.initial), self.operand(c.next));
                        write!(
                            f,
                            "\n{indent}  carry {inside} = {initial} then {next} giving %{outcome}"
                        )?;
                    }
                    f.write_str(" {\n")?;
                    self.region(f, &l.body, depth + 1)?;
                    writeln!(f, "{indent}}}")?;
                }
                Item::If(i) => {
                    for m in &i.merges {
                        let (then, otherwise) = (self.operand(m.then), self.operand(m.otherwise));
                        let outcome = self.definition(m.outcome);
                        write!(f, "\n{indent}  merge {outcome} = {then} else {otherwise}")?;
                    }
                    f.write_str(" {\n")?;
                    self.region(f, &i.then, depth + 1)?;
                    if !i.otherwise.is_empty() {
                        writeln!(f, "{indent}}} else {{")?;
                        self.region(f, &i.otherwise, depth + 1)?;
                    }
                    writeln!(f, "{indent}}}")?;
                }
                _ => f.write_str("\n")?,
            }
        }
        Ok(())
    }
}
