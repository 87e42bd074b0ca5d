//! The parser of `plan` sections: tables, then steps, then the kernels that the steps launch.
//!
//! Invariants: slots, constants and kernels are numbered in order, so memory is linear in the text. Whether a number that a
//! step mentions exists is for [`crate::plan::verify::verify`] to say.

mod product;

use std::collections::HashMap;

use super::cursor::{Cursor, Mark, Parsed, Reported};
use super::expr::{self, condition, dim, dims, dtype, symbol_range, tensor_type};
use super::kernel::{StatementSpans, kernel};
use super::lexer::{Span, Token, TokenKind, excerpt};
use super::{Resolver, constant};
use crate::graph::control::MAX_LOOP_DEPTH;
use crate::graph::{Along, Guard, HostFunction, NodeId, Shape, Symbol, TensorType};
use crate::index::{Bounds, IndexExpr, IndexNode, Interval, SymId, VarId};
use crate::kernel::Grid;
use crate::plan::{
    Carried, DeviceId, DeviceKind, HostCall, KernelId, Launch, Plan, PlanInput, PlanOutput, PlanState, QueueId, Repeat,
    Slot, SlotId, Step, Storage, Turn, Walk, Work,
};
use crate::tensor::HostTensor;

/// The most slots and steps of a plan: the verifier compares them with each other.
const MAX_TABLE: usize = 1 << 16;

/// The most queues of a plan: for each step the verifier keeps a number for each of them.
const MAX_QUEUES: usize = 64;

/// Words that begin a line of a plan.
const WORDS: &[&str] = &[
    "device", "queue", "input", "output", "state", "guard", "constant", "donate", "init", "steps", "kernel", "in",
    "after", "launch", "group", "sequence", "gemm", "copy", "loop", "call", "carried", "slice", "stack", "capture",
    "body", "graph", "plan",
];

/// The sizes of a plan.
#[derive(Default)]
struct Names {
    symbols: Vec<Symbol>,
    /// Number of each symbol. Looked up, never iterated.
    numbers: HashMap<String, u32>,
    /// Something was not read, so names may lack their definition.
    incomplete: bool,
}

impl Bounds for Names {
    fn symbol(&self, sym: SymId) -> Interval {
        let known = self.symbols.get(sym.0 as usize);
        known.map_or(Interval::new(0, i64::MAX), |s| Interval::new(s.lo, s.hi))
    }
    fn extent(&self, _: VarId) -> Option<IndexExpr> {
        None
    }
}

impl expr::Scope for Names {
    fn atom(&mut self, name: &str) -> Option<IndexExpr> {
        match self.numbers.get(name) {
            Some(&number) => Some(SymId(number).into()),
            None => self.incomplete.then_some(IndexExpr::ONE),
        }
    }
}

/// Where the parts of a plan are.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlanSpans {
    pub(crate) header: Span,
    pub(crate) slots: Vec<Span>,
    pub(crate) init: Vec<Span>,
    pub(crate) steps: Vec<Span>,
    pub(crate) kernels: Vec<StatementSpans>,
}

struct PlanParser<'c, 't, 'r, 'f> {
    c: &'c mut Cursor<'t>,
    resolver: &'r mut Resolver<'f>,
    names: Names,
    plan: Plan,
    spans: PlanSpans,
    /// Loops around it.
    depth: usize,
}

/// Reads a plan, behind the word `plan`.
pub(crate) fn plan(c: &mut Cursor<'_>, resolver: &mut Resolver<'_>) -> Parsed<(Plan, PlanSpans)> {
    nested(c, resolver, 0)
}

fn nested(c: &mut Cursor<'_>, resolver: &mut Resolver<'_>, depth: usize) -> Parsed<(Plan, PlanSpans)> {
    let start = c.mark();
    let mut parser = PlanParser {
        c,
        resolver,
        names: Names::default(),
        plan: Plan::default(),
        spans: PlanSpans::default(),
        depth,
    };
    let header = parser.header();
    parser.spans.header = parser.c.span_since(start);
    if header.is_err() {
        parser.names.incomplete = true;
        if !parser.c.find_block() {
            return Err(Reported);
        }
    }
    parser.c.expect(TokenKind::LeftBrace, "plan")?;
    let body = parser.body();
    if parser.names.incomplete {
        return Err(Reported);
    }
    body?;
    parser.plan.symbols = parser.names.symbols;
    Ok((parser.plan, parser.spans))
}

impl PlanParser<'_, '_, '_, '_> {
    fn header(&mut self) -> Parsed<()> {
        let name = self.c.expect(TokenKind::Global, "plan")?;
        self.plan.name = self.c.sigil_name(name)?.0;
        if !self.c.eat_word("where") {
            return Ok(());
        }
        loop {
            let start = self.c.mark();
            let symbol = symbol_range(self.c, &mut self.names)?;
            let number = self.names.symbols.len() as u32;
            if self.names.numbers.insert(symbol.name.clone(), number).is_some() {
                return Err(self.c.declared_twice(start, &symbol.name));
            }
            self.names.symbols.push(symbol);
            if !self.c.eat(TokenKind::Comma) {
                return Ok(());
            }
        }
    }

    /// Up to and with the closing brace.
    fn body(&mut self) -> Parsed<()> {
        loop {
            self.c.anchor();
            if self.c.eat(TokenKind::RightBrace) {
                return Ok(());
            }
            if self.ends() {
                return Err(self.c.unexpected("plan", "`}`"));
            }
            let start = self.c.mark();
            if self.item(start).is_err() {
                self.names.incomplete = true;
                self.c.recover_statement(start, WORDS);
            }
        }
    }

    /// True where nothing of this plan can follow.
    fn ends(&self) -> bool {
        self.c.gave_up() || self.c.kind() == TokenKind::End || self.c.at_section()
    }

    fn item(&mut self, start: Mark) -> Parsed<()> {
        if self.c.kind() == TokenKind::Slot {
            return self.slot_entry(start);
        }
        let token = self.c.token();
        let word = match token.kind {
            TokenKind::Word => self.c.source(token),
            _ => "",
        };
        if !matches!(
            word,
            "device"
                | "queue"
                | "input"
                | "output"
                | "state"
                | "guard"
                | "constant"
                | "donate"
                | "init"
                | "steps"
                | "kernel"
        ) {
            let expected =
                "device, queue, input, output, state, guard, constant, a slot, donate, init, steps or kernel";
            return Err(self.c.unexpected("plan", expected));
        }
        self.c.bump();
        match word {
            "device" => {
                self.numbered("device", self.plan.devices.len())?;
                self.room(token, self.plan.devices.len())?;
                let kinds = [DeviceKind::Host, DeviceKind::Gpu];
                let Some(kind) = kinds.into_iter().find(|k| self.c.eat_word(k.name())) else {
                    return Err(self.c.unexpected("device", "host or gpu"));
                };
                self.plan.devices.push(kind);
            }
            "queue" => {
                self.numbered("queue", self.plan.queues.len())?;
                if self.plan.queues.len() >= MAX_QUEUES {
                    let message = format!("too many queues; expected at most {MAX_QUEUES}");
                    return Err(self.c.error(token.span(), message));
                }
                self.word("on", "queue")?;
                let device = DeviceId(self.index("queue")?);
                self.plan.queues.push(device);
            }
            "input" => {
                let (name, ty) = self.named_type("input")?;
                self.c.expect(TokenKind::Equals, "input")?;
                let slot = match self.c.eat_word("unused") {
                    true => None,
                    false => Some(self.slot("input", "a slot like `$0`, or `unused`")?),
                };
                self.plan.inputs.push(PlanInput { name, ty, slot });
            }
            "output" => {
                let (name, ty) = self.named_type("output")?;
                self.c.expect(TokenKind::Equals, "output")?;
                let slot = self.slot("output", TokenKind::Slot.describe())?;
                self.plan.outputs.push(PlanOutput { name, ty, slot });
            }
            "state" => {
                let (name, ty) = self.named_type("state")?;
                self.c.expect(TokenKind::Equals, "state")?;
                let slot = self.slot("state", TokenKind::Slot.describe())?;
                let read = self.c.eat_word("read");
                let set = match self.c.eat_word("set") {
                    true => Some(self.slot("state", TokenKind::Slot.describe())?),
                    false => None,
                };
                self.plan.states.push(PlanState {
                    name,
                    ty,
                    slot,
                    read,
                    set,
                });
            }
            "guard" => self.guard()?,
            "constant" => {
                self.numbered("constant", self.plan.constants.len())?;
                self.c.expect(TokenKind::Colon, "constant")?;
                let ty = tensor_type(self.c, &mut self.names)?;
                self.c.expect(TokenKind::Equals, "constant")?;
                let data = self.constant(&ty)?;
                self.plan.constants.push(data);
            }
            "donate" => {
                self.word("input", "donation")?;
                let input = self.index("donation")?;
                self.word("to", "donation")?;
                self.word("output", "donation")?;
                let output = self.index("donation")?;
                self.plan.donations.push((input, output));
            }
            "kernel" => {
                self.numbered("kernel", self.plan.kernels.len())?;
                let (kernel, spans) = kernel(self.c)?;
                self.plan.kernels.push(kernel);
                self.spans.kernels.push(spans);
            }
            "init" => {
                let (steps, spans) = self.block(word, Self::step)?;
                self.only(start, word, self.plan.init.is_empty())?;
                (self.plan.init, self.spans.init) = (steps, spans);
            }
            _ => {
                let (steps, spans) = self.block(word, Self::step_in_turn)?;
                self.only(start, word, self.plan.steps.is_empty())?;
                let (turns, steps): (Vec<Turn>, Vec<Step>) = steps.into_iter().unzip();
                (self.plan.steps, self.spans.steps) = (steps, spans);
                if turns.iter().any(|t| *t != Turn::default()) {
                    self.plan.turns = turns;
                }
            }
        }
        Ok(())
    }

    /// `$0: f32[n] arena "name"`.
    fn slot_entry(&mut self, start: Mark) -> Parsed<()> {
        let token = self.c.token();
        let slot = self.slot("plan", "")?;
        self.in_order(token, slot.0, self.plan.slots.len(), "slot")?;
        self.room(token, self.plan.slots.len())?;
        self.c.expect(TokenKind::Colon, "slot")?;
        let dtype = dtype(self.c)?;
        self.c.expect(TokenKind::LeftBracket, "slot")?;
        let len = dim(self.c, &mut self.names)?;
        self.c.expect(TokenKind::RightBracket, "slot")?;
        let word = self.c.token();
        let expected = "input, output, constant, state, persistent, arena, lines, alias or part";
        if word.kind != TokenKind::Word {
            return Err(self.c.unexpected("slot", expected));
        }
        self.c.bump();
        let storage = match self.c.source(word) {
            "input" => Storage::Input(self.index("slot")?),
            "output" => Storage::Output(self.index("slot")?),
            "constant" => Storage::Constant(self.index("slot")?),
            "state" => Storage::State(self.index("slot")?),
            "persistent" => Storage::Persistent,
            "arena" => Storage::Arena,
            "lines" => Storage::Lines,
            "part" => {
                let of = self.slot("slot", TokenKind::Slot.describe())?;
                if !self.c.eat_word("at") {
                    return Err(self.c.unexpected("slot", "`at`"));
                }
                let at = dim(self.c, &mut self.names)?;
                Storage::Part { of, at }
            }
            "alias" => Storage::Alias(self.slot("slot", TokenKind::Slot.describe())?),
            found => {
                let message = format!("malformed slot; expected {expected}, found `{}`", excerpt(found));
                return Err(self.c.error(word.span(), message));
            }
        };
        let device = match self.c.eat_word("on") {
            true => DeviceId(self.index("slot")?),
            false => DeviceId::HOST,
        };
        let name = self.c.string("slot")?;
        self.plan.slots.push(Slot {
            name,
            dtype,
            len,
            storage,
            device,
        });
        self.spans.slots.push(self.c.span_since(start));
        Ok(())
    }

    /// `name: dtype[extents]`.
    fn named_type(&mut self, context: &str) -> Parsed<(String, TensorType)> {
        let name = self.c.word_or_string(context)?;
        self.c.expect(TokenKind::Colon, context)?;
        Ok((name, tensor_type(self.c, &mut self.names)?))
    }

    /// `a = b at node 3` or `a not negative at node 3`, and behind it maybe `for "reshape %1 at 4:3"`.
    fn guard(&mut self) -> Parsed<()> {
        let condition = condition(self.c, &mut self.names, "guard")?;
        self.word("at", "guard")?;
        self.word("node", "guard")?;
        let node = NodeId(self.index("guard")?);
        let needed_by = match self.c.eat_word("for") {
            true => self.c.string("guard")?.into(),
            false => "".into(),
        };
        self.plan.guards.push(Guard {
            condition,
            node,
            needed_by,
        });
        Ok(())
    }

    fn constant(&mut self, ty: &TensorType) -> Parsed<HostTensor> {
        let start = self.c.mark();
        let text = match ty.const_shape() {
            Some(shape) => format!("{}{shape:?}", ty.dtype),
            None => format!("{} of symbolic extents", ty.dtype),
        };
        if self.c.eat_word("opaque") {
            let name = self.c.string("constant")?;
            return constant::opaque(self.c, self.resolver, start, &name, ty, &text);
        }
        if self.c.kind() != TokenKind::LeftBracket {
            return Err(self.c.unexpected("constant", "a list in brackets, or `opaque`"));
        }
        constant::list(self.c, ty, &text)
    }

    /// Entries in braces, and where they are; a bad head does not hide the errors of its block.
    fn block<T>(&mut self, context: &str, entry: fn(&mut Self) -> Parsed<T>) -> Parsed<(Vec<T>, Vec<Span>)> {
        self.c.expect(TokenKind::LeftBrace, context)?;
        let (mut all, mut spans) = (Vec::new(), Vec::new());
        loop {
            self.c.anchor();
            if self.c.eat(TokenKind::RightBrace) {
                return Ok((all, spans));
            }
            if self.ends() {
                return Err(self.c.unexpected(context, "`}`"));
            }
            let start = self.c.mark();
            self.room(self.c.token(), all.len())?;
            match entry(self) {
                Ok(entry) => {
                    all.push(entry);
                    spans.push(self.c.span_since(start));
                }
                Err(_) => {
                    self.names.incomplete = true;
                    self.c.recover_statement(start, WORDS);
                }
            }
        }
    }

    /// A section that may not come twice.
    fn only(&mut self, start: Mark, word: &str, first: bool) -> Parsed<()> {
        match first {
            true => Ok(()),
            false => {
                let span = self.c.span_since(start);
                Err(self.c.error(span, format!("second `{word}`; expected one")))
            }
        }
    }

    /// `in 1 after [0, 3]` before a step, either of them or both or none.
    fn step_in_turn(&mut self) -> Parsed<(Turn, Step)> {
        let mut turn = Turn::default();
        if self.c.eat_word("in") {
            turn.queue = QueueId(self.index("step")?);
        }
        if self.c.eat_word("after") {
            self.c.expect(TokenKind::LeftBracket, "step")?;
            let waits = self.c.list(TokenKind::RightBracket, "step", |c| {
                c.integer("step", 0, i64::from(u32::MAX)).map(|n| n as u32)
            })?;
            turn.waits = waits.into();
        }
        Ok((turn, self.step()?))
    }

    fn step(&mut self) -> Parsed<Step> {
        if self.c.at_word("launch") {
            return self.launch().map(Step::Launch);
        }
        if self.c.eat_word("group") {
            return Ok(Step::Group(self.block("group", Self::launch)?.0));
        }
        if self.c.eat_word("sequence") {
            return Ok(Step::Sequence(self.block("sequence", Self::launch)?.0));
        }
        if self.c.eat_word("gemm") {
            return Ok(Step::Gemm(Box::new(self.gemm()?)));
        }
        if self.c.eat_word("copy") {
            let src = self.slot("copy", TokenKind::Slot.describe())?;
            self.word("to", "copy")?;
            let dst = self.slot("copy", TokenKind::Slot.describe())?;
            return Ok(Step::Copy { src, dst });
        }
        if self.c.eat_word("call") {
            return Ok(Step::Call(Box::new(self.call()?)));
        }
        if self.c.eat_word("loop") {
            return Ok(Step::Loop(Box::new(self.repeat()?)));
        }
        Err(self
            .c
            .unexpected("step", "launch, group, sequence, gemm, copy, loop or call"))
    }

    /// `call sort axis 0 count 4 shapes [[8]] ($0) to ($1, $2) workspace $3 "label"`, behind the first word.
    fn call(&mut self) -> Parsed<HostCall> {
        let function = self.function()?;
        self.word("shapes", "call")?;
        self.c.expect(TokenKind::LeftBracket, "call")?;
        let names = &mut self.names;
        let shapes: Vec<Shape> = self
            .c
            .list(TokenKind::RightBracket, "call", |c| dims(c, names, "call"))?;
        let operands = self.slots("call")?;
        self.word("to", "call")?;
        let results = self.slots("call")?;
        self.word("workspace", "call")?;
        let workspace = self.slot("call", TokenKind::Slot.describe())?;
        let label = self.c.string("call")?;
        Ok(HostCall {
            function,
            shapes,
            operands,
            results,
            workspace,
            label,
        })
    }

    /// `sort axis 0 count 4`.
    fn function(&mut self) -> Parsed<HostFunction> {
        let names = ["sort", "nonzero", "unique", "suppress"];
        let Some(name) = names.into_iter().find(|n| self.c.eat_word(n)) else {
            return Err(self.c.unexpected("call", &format!("one of {}", names.join(", "))));
        };
        let mut axis = None;
        if matches!(name, "sort" | "unique") && self.c.eat_word("axis") {
            axis = Some(self.c.integer("axis", 0, 255)? as u8);
        }
        self.word("count", "call")?;
        let start = self.c.mark();
        let count = dim(self.c, &mut self.names)?;
        if name == "sort" {
            let Some(axis) = axis else {
                return Err(self.c.unexpected("call", "`axis`"));
            };
            let descending = self.c.eat_word("descending");
            return Ok(HostFunction::Sort {
                axis,
                count,
                descending,
            });
        }
        let symbol = match &count {
            IndexExpr::Node(n) => match **n {
                IndexNode::Sym(s) => Some(s),
                _ => None,
            },
            IndexExpr::Const(_) => None,
        };
        let Some(count) = symbol else {
            let span = self.c.span_since(start);
            return Err(self
                .c
                .error(span, "a count that is no symbol; expected one declared with `upto`"));
        };
        Ok(match name {
            "nonzero" => HostFunction::NonZero { count },
            "unique" => HostFunction::Unique {
                axis,
                sorted: self.c.eat_word("sorted"),
                count,
            },
            _ => HostFunction::Suppress {
                center: self.c.eat_word("center"),
                count,
            },
        })
    }

    /// `($0, $1)`.
    fn slots(&mut self, context: &str) -> Parsed<Vec<SlotId>> {
        self.c.expect(TokenKind::LeftParen, context)?;
        let mut all = Vec::new();
        while !self.c.eat(TokenKind::RightParen) {
            all.push(self.slot(context, "a slot like `$0`, or `)`")?);
            if !self.c.eat(TokenKind::Comma) && self.c.kind() != TokenKind::RightParen {
                return Err(self.c.unexpected(context, "`,` or `)`"));
            }
        }
        Ok(all)
    }

    /// `loop trip n … body @name { … }`, behind the first word.
    fn repeat(&mut self) -> Parsed<Repeat> {
        let expected = TokenKind::Slot.describe();
        let trip = match self.c.eat_word("trip") {
            true => Some(dim(self.c, &mut self.names)?),
            false => None,
        };
        let optional = |this: &mut Self, word: &str| match this.c.eat_word(word) {
            true => this.slot("loop", expected).map(Some),
            false => Ok(None),
        };
        let count = optional(self, "count")?;
        let condition = optional(self, "while")?;
        let follows = optional(self, "then")?;
        let mut symbols = Vec::new();
        if self.c.eat_word("symbols") {
            self.c.expect(TokenKind::LeftBracket, "loop")?;
            let names = &mut self.names;
            symbols = self.c.list(TokenKind::RightBracket, "loop", |c| dim(c, names))?;
        }
        self.word("number", "loop")?;
        let number = self.slot("loop", expected)?;
        let label = self.c.string("loop")?;
        let (mut carried, mut slices, mut stacks, mut captures) = (vec![], vec![], vec![], vec![]);
        loop {
            self.c.anchor();
            if self.c.eat_word("carried") {
                let first = self.slot("loop", expected)?;
                self.word("to", "loop")?;
                let last = self.slot("loop", expected)?;
                self.word("spare", "loop")?;
                let spare = self.slot("loop", expected)?;
                carried.push(Carried { first, last, spare });
            } else if self.c.eat_word("slice") {
                slices.push(self.walk()?);
            } else if self.c.eat_word("stack") {
                stacks.push(self.walk()?);
            } else if self.c.eat_word("capture") {
                captures.push(self.slot("loop", expected)?);
            } else {
                break;
            }
        }
        let token = self.c.token();
        self.word("body", "loop")?;
        if self.depth + 1 >= MAX_LOOP_DEPTH {
            let message = format!("loops inside each other; expected at most {MAX_LOOP_DEPTH}");
            return Err(self.c.error(token.span(), message));
        }
        let (body, _) = nested(self.c, self.resolver, self.depth + 1)?;
        Ok(Repeat {
            body,
            symbols,
            trip,
            count,
            condition,
            number,
            follows,
            carried,
            slices,
            captures,
            stacks,
            label,
        })
    }

    /// `$0 axis 1 reverse element $2`.
    fn walk(&mut self) -> Parsed<Walk> {
        let slot = self.slot("loop", TokenKind::Slot.describe())?;
        self.word("axis", "loop")?;
        let axis = self.c.integer("axis", 0, 255)? as u8;
        let reverse = self.c.eat_word("reverse");
        let element = match self.c.eat_word("element") {
            true => Some(self.slot("loop", TokenKind::Slot.describe())?),
            false => None,
        };
        Ok(Walk {
            slot,
            along: Along { axis, reverse },
            element,
        })
    }

    /// `launch kernel 0($0, $1) symbols [n] grain 4 bytes 8*n flops n "label"`.
    fn launch(&mut self) -> Parsed<Launch> {
        self.word("launch", "launch")?;
        self.word("kernel", "launch")?;
        let kernel = KernelId(self.index("launch")?);
        self.c.expect(TokenKind::LeftParen, "launch")?;
        let mut args = Vec::new();
        while !self.c.eat(TokenKind::RightParen) {
            args.push(self.slot("launch", "a slot like `$0`, or `)`")?);
            if !self.c.eat(TokenKind::Comma) && self.c.kind() != TokenKind::RightParen {
                return Err(self.c.unexpected("launch", "`,` or `)`"));
            }
        }
        let mut symbols = Vec::new();
        if self.c.eat_word("symbols") {
            self.c.expect(TokenKind::LeftBracket, "launch")?;
            let names = &mut self.names;
            symbols = self.c.list(TokenKind::RightBracket, "launch", |c| dim(c, names))?;
        }
        let work = self.work()?;
        self.word("bytes", "launch")?;
        let bytes = dim(self.c, &mut self.names)?;
        self.word("flops", "launch")?;
        let flops = dim(self.c, &mut self.names)?;
        let label = self.c.string("launch")?;
        Ok(Launch {
            kernel,
            args,
            symbols,
            work,
            label,
            bytes,
            flops,
        })
    }

    /// `grain 4`, or `grid n threads 256 shared 1024`.
    fn work(&mut self) -> Parsed<Work> {
        if self.c.eat_word("grid") {
            let blocks = dim(self.c, &mut self.names)?;
            self.word("threads", "launch")?;
            let threads = self.c.integer("launch", 1, i64::MAX)?;
            self.word("shared", "launch")?;
            let shared_bytes = self.c.integer("launch", 0, i64::MAX)?;
            return Ok(Work::Grid(Grid {
                blocks,
                threads,
                shared_bytes,
            }));
        }
        self.word("grain", "launch")?;
        let start = self.c.mark();
        let grain = dim(self.c, &mut self.names)?;
        if let Some(n) = grain.as_const().filter(|&n| n < 1) {
            let span = self.c.span_since(start);
            return Err(self
                .c
                .error(span, format!("grain out of range; expected at least 1, found {n}")));
        }
        Ok(Work::Chunks { grain })
    }

    fn word(&mut self, word: &str, context: &str) -> Parsed<()> {
        match self.c.eat_word(word) {
            true => Ok(()),
            false => Err(self.c.unexpected(context, &format!("`{word}`"))),
        }
    }

    /// A number of a table entry.
    fn index(&mut self, context: &str) -> Parsed<u32> {
        self.c.integer(context, 0, i64::from(u32::MAX)).map(|n| n as u32)
    }

    fn numbered(&mut self, what: &str, expected: usize) -> Parsed<()> {
        let token = self.c.token();
        let number = self.index(what)?;
        self.in_order(token, number, expected, what)
    }

    fn in_order(&mut self, token: Token, number: u32, expected: usize, what: &str) -> Parsed<()> {
        // What stands before may have been too broken to count.
        if number as usize == expected || self.names.incomplete {
            return Ok(());
        }
        let message = format!("{what} out of order; expected number {expected}, found {number}");
        Err(self.c.error(token.span(), message))
    }

    fn room(&mut self, token: Token, entries: usize) -> Parsed<()> {
        if entries < MAX_TABLE {
            return Ok(());
        }
        let message = format!("plan too large; expected at most {MAX_TABLE} slots and steps each");
        Err(self.c.error(token.span(), message))
    }

    fn slot(&mut self, context: &str, expected: &str) -> Parsed<SlotId> {
        let token = self.c.token();
        if token.kind != TokenKind::Slot {
            return Err(self.c.unexpected(context, expected));
        }
        self.c.bump();
        let source = self.c.source(token);
        let number = source[1..].parse::<u32>().ok().filter(|n| n.to_string() == source[1..]);
        number.map(SlotId).ok_or_else(|| {
            let message = format!(
                "malformed slot; expected a number below 2^32, found `{}`",
                excerpt(source)
            );
            self.c.error(token.span(), message)
        })
    }
}
