//! The parser of `kernel` sections.
//!
//! Invariants:
//! - Tables are numbered without gaps, so memory is linear in the text whatever numbers it mentions.
//! - A variable's extent mentions only variables that the text defines before it, and intervals of extents are computed
//!   once, at the definition. Blocks nest at most [`MAX_BLOCKS`] deep.
//! - What parses has complete tables: every value, variable, parameter and scratch that a statement mentions is declared,
//!   and each value and variable has one definition. All else is left to [`crate::kernel::verify::verify`].

use std::collections::HashMap;

use smallvec::SmallVec;

use super::cursor::{Cursor, Mark, Parsed, Reported};
use super::expr::{self, dim, dtype, range, scalar};
use super::lexer::{Span, Token, TokenKind, excerpt};
use crate::dtype::DType;
use crate::graph::{Condition, Monoid};
use crate::index::{Bounds, IndexExpr, Interval, SymId, VarId};
use crate::kernel::verify::{Place, positive_where};
use crate::kernel::{
    APPROXIMATED, Access, AsyncCopy, Bind, Collective, CollectiveKind, Contract, ContractOperand, FoldRows, Group,
    Kernel, Memory, Op, Param, Range, Scope, Scratch, Stmt, ValueId,
};
use crate::precision::Precision;
use crate::scalar::ScalarOp;
use crate::target::{MAX_BLOCK_THREADS, WARP_THREADS};

/// How deep loops and conditions nest.
const MAX_BLOCKS: u32 = 128;

/// The most scratch memories and variables of a kernel: the verifier and the interpreter look at all of them often.
const MAX_TABLE: usize = 1 << 16;

/// Words that begin a statement or a section.
const WORDS: &[&str] = &[
    "for",
    "if",
    "store",
    "clamp",
    "accumulate",
    "contract",
    "reduce",
    "scan",
    "broadcast",
    "shift",
    "fold",
    "each",
    "copy_async",
    "prefetch",
    "commit",
    "wait",
    "barrier",
    "scratch",
    "unused",
    "graph",
    "kernel",
    "plan",
];

/// The names of a kernel: positional symbols, and the variables defined so far.
#[derive(Default)]
struct Names {
    symbols: Vec<(i64, i64)>,
    /// Extent of each variable, and the largest value of that. Looked up, never iterated.
    vars: HashMap<u32, (IndexExpr, i64)>,
    /// The lengths of memories and what the kernel requires, which no launch makes negative.
    not_negative: Vec<IndexExpr>,
    /// The extents of the loops around, which are positive where they run.
    around: Vec<IndexExpr>,
    /// Something was not read, so names may lack their definition.
    incomplete: bool,
}

impl Bounds for Names {
    fn symbol(&self, sym: SymId) -> Interval {
        let known = self.symbols.get(sym.0 as usize);
        known.map_or(Interval::new(0, i64::MAX), |&(lo, hi)| Interval::new(lo, hi))
    }
    fn extent(&self, var: VarId) -> Option<IndexExpr> {
        self.vars.get(&var.0).map(|v| IndexExpr::Const(v.1))
    }
}

impl expr::Scope for Names {
    fn atom(&mut self, name: &str) -> Option<IndexExpr> {
        if let Some(s) = numbered(name, "s") {
            return (self.incomplete || (s as usize) < self.symbols.len()).then(|| SymId(s).into());
        }
        let var = numbered(name, "i")?;
        (self.incomplete || self.vars.contains_key(&var)).then(|| VarId(var).into())
    }

    fn positive_here(&self, e: &IndexExpr) -> bool {
        positive_where(e, &self.around, &self.not_negative, self)
    }
}

/// The number of a canonical name like `i7`.
fn numbered(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let number: u32 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

/// Where the statements of a kernel are, outer before inner.
#[derive(Clone, Debug, Default)]
pub(crate) struct StatementSpans {
    header: Span,
    statements: Vec<Span>,
}

impl StatementSpans {
    /// The text of a place in the kernel that was read with these spans.
    pub(crate) fn find(&self, kernel: &Kernel, place: &Place) -> Span {
        let mut number = 0usize;
        let mut block = &kernel.body[..];
        for (depth, &at) in place.0.iter().enumerate() {
            let at = at as usize;
            number += block.iter().take(at).map(statements).sum::<usize>() + usize::from(depth > 0);
            block = match block.get(at) {
                Some(s) => s.body(),
                None => &[],
            };
        }
        match place.0.is_empty() {
            true => self.header,
            false => self.statements.get(number).copied().unwrap_or(self.header),
        }
    }
}

/// A statement and those inside it.
fn statements(s: &Stmt) -> usize {
    1 + s.body().iter().map(statements).sum::<usize>()
}

struct KernelParser<'c, 't> {
    c: &'c mut Cursor<'t>,
    names: Names,
    values: HashMap<u32, DType>,
    kernel: Kernel,
    depth: u32,
    spans: StatementSpans,
}

/// Reads a kernel section, behind the word `kernel`: its name, if it has one, and the kernel.
pub(crate) fn section(c: &mut Cursor<'_>) -> Parsed<(Option<String>, Kernel, StatementSpans)> {
    let mut name = None;
    if c.kind() == TokenKind::Global {
        let token = c.bump();
        name = Some(c.sigil_name(token)?.0);
    }
    let (kernel, spans) = kernel(c)?;
    Ok((name, kernel, spans))
}

/// Reads a kernel, behind its name.
pub(super) fn kernel(c: &mut Cursor<'_>) -> Parsed<(Kernel, StatementSpans)> {
    let start = c.mark();
    let mut parser = KernelParser {
        c,
        names: Names::default(),
        values: HashMap::new(),
        kernel: Kernel::default(),
        depth: 0,
        spans: StatementSpans::default(),
    };
    let header = parser.header();
    parser.spans.header = parser.c.span_since(start);
    if header.is_err() {
        // The body's own errors still show.
        parser.names.incomplete = true;
        if !parser.c.find_block() {
            return Err(Reported);
        }
        parser.c.bump();
    }
    parser.kernel.body = parser.block()?;
    parser.finish()?;
    Ok((parser.kernel, parser.spans))
}

impl KernelParser<'_, '_> {
    fn header(&mut self) -> Parsed<()> {
        let open = self.c.expect(TokenKind::LeftParen, "kernel")?;
        let params = self.c.mark();
        if !self.c.skip_parenthesized() {
            let message = "unclosed list of parameters; expected `)` before the body";
            return Err(self.c.error(open.span(), message));
        }
        if self.c.eat_word("where") {
            loop {
                let start = self.c.mark();
                let (token, number) = self.number("s", "symbol")?;
                self.next(token, number, self.names.symbols.len(), "symbol")?;
                self.word("in", "symbol")?;
                let range = range(self.c, start)?;
                self.names.symbols.push(range);
                if !self.c.eat(TokenKind::Comma) {
                    break;
                }
            }
        }
        while self.c.eat_word("requires") {
            let condition = expr::condition(self.c, &mut self.names, "kernel")?;
            if let Condition::NonNegative(e) = &condition {
                self.names.not_negative.push(e.clone());
            }
            self.kernel.requires.push(condition);
        }
        if self.c.eat_word("residents") {
            self.kernel.residents = self.residents()?;
        }
        let body = self.c.mark();
        self.c.reset(params);
        while !self.c.eat(TokenKind::RightParen) {
            let (token, number) = self.number("p", "parameter")?;
            self.next(token, number, self.kernel.params.len(), "parameter")?;
            let (dtype, len) = self.array("parameter")?;
            let access = self.one_of("parameter", Access::ALL.map(|a| (a.name(), a)).as_slice())?;
            self.names.not_negative.push(len.clone());
            self.kernel.params.push(Param { dtype, len, access });
            if !self.c.eat(TokenKind::Comma) && self.c.kind() != TokenKind::RightParen {
                return Err(self.c.unexpected("list of parameters", "`,` or `)`"));
            }
        }
        self.c.reset(body);
        self.c.expect(TokenKind::LeftBrace, "kernel").map(|_| ())
    }

    /// `: dtype[len]`.
    fn array(&mut self, context: &str) -> Parsed<(DType, IndexExpr)> {
        self.c.expect(TokenKind::Colon, context)?;
        let dtype = dtype(self.c)?;
        Ok((dtype, self.bracketed(context)?))
    }

    fn bracketed(&mut self, context: &str) -> Parsed<IndexExpr> {
        self.c.expect(TokenKind::LeftBracket, context)?;
        let e = dim(self.c, &mut self.names)?;
        self.c.expect(TokenKind::RightBracket, context)?;
        Ok(e)
    }

    fn word(&mut self, word: &str, context: &str) -> Parsed<()> {
        if self.c.eat_word(word) {
            return Ok(());
        }
        Err(self.c.unexpected(context, &format!("`{word}`")))
    }

    fn one_of<T: Copy>(&mut self, context: &str, all: &[(&str, T)]) -> Parsed<T> {
        match all.iter().find(|(name, _)| self.c.at_word(name)) {
            Some(&(_, value)) => {
                self.c.bump();
                Ok(value)
            }
            None => {
                let names: Vec<&str> = all.iter().map(|a| a.0).collect();
                Err(self.c.unexpected(context, &names.join(", ")))
            }
        }
    }

    /// A name like `i7`.
    fn number(&mut self, prefix: &str, context: &str) -> Parsed<(Token, u32)> {
        let token = self.c.token();
        match (token.kind, numbered(self.c.source(token), prefix)) {
            (TokenKind::Word, Some(number)) => Ok((self.c.bump(), number)),
            _ => Err(self.c.unexpected(context, &format!("a name like `{prefix}0`"))),
        }
    }

    fn next(&mut self, token: Token, number: u32, expected: usize, what: &str) -> Parsed<()> {
        if number as usize == expected {
            return Ok(());
        }
        let message = format!("{what} out of order; expected number {expected}, found {number}");
        Err(self.c.error(token.span(), message))
    }

    fn table(&mut self, token: Token, entries: usize) -> Parsed<()> {
        if entries < MAX_TABLE {
            return Ok(());
        }
        let message = format!("kernel too large; expected at most {MAX_TABLE} variables and scratch memories each");
        Err(self.c.error(token.span(), message))
    }

    /// A value's name, and its number.
    fn value_name(&mut self) -> Parsed<(Token, u32)> {
        let token = self.c.token();
        match (token.kind, numbered(self.c.source(token), "%")) {
            (TokenKind::Value, Some(number)) => Ok((self.c.bump(), number)),
            _ => Err(self.c.unexpected("statement", "a value like `%0`")),
        }
    }

    fn value(&mut self) -> Parsed<ValueId> {
        let (token, number) = self.value_name()?;
        if self.values.contains_key(&number) || self.names.incomplete {
            return Ok(ValueId(number));
        }
        let message = format!("unknown value; expected one that is defined above, found `%{number}`");
        Err(self.c.error(token.span(), message))
    }

    fn define_value(&mut self) -> Parsed<(ValueId, DType)> {
        let (token, number) = self.value_name()?;
        self.c.expect(TokenKind::Colon, "value")?;
        let dtype = dtype(self.c)?;
        if self.values.insert(number, dtype).is_some() {
            let message = format!("value defined twice; expected a new number, found `%{number}`");
            return Err(self.c.error(token.span(), message));
        }
        Ok((ValueId(number), dtype))
    }

    /// `i7 in 0..extent`.
    fn define_var(&mut self) -> Parsed<VarId> {
        let (token, number) = self.number("i", "loop variable")?;
        self.table(token, self.names.vars.len())?;
        self.word("in", "loop variable")?;
        self.c.integer("lower bound", 0, 0)?;
        self.c.expect(TokenKind::Range, "range")?;
        let extent = dim(self.c, &mut self.names)?;
        let high = extent.interval(&self.names).hi;
        if self.names.vars.insert(number, (extent, high)).is_some() {
            let message = format!("variable defined twice; expected a new number, found `i{number}`");
            return Err(self.c.error(token.span(), message));
        }
        Ok(VarId(number))
    }

    /// Behind `for`.
    fn loop_head(&mut self) -> Parsed<(VarId, Bind)> {
        let var = self.define_var()?;
        let bind = self.one_of("loop", Bind::ALL.map(|b| (b.name(), b)).as_slice())?;
        Ok((var, bind))
    }

    /// `p0[index]`.
    fn element(&mut self) -> Parsed<(Memory, IndexExpr)> {
        let memory = self.memory()?;
        Ok((memory, self.bracketed("access")?))
    }

    /// `p0`.
    fn memory(&mut self) -> Parsed<Memory> {
        let token = self.c.token();
        let name = self.c.source(token);
        let known = |number: &u32, len: usize| self.names.incomplete || (*number as usize) < len;
        let param = numbered(name, "p").filter(|p| known(p, self.kernel.params.len()));
        let scratch = numbered(name, "r").filter(|r| known(r, self.kernel.scratch.len()));
        let memory = match (token.kind, param, scratch) {
            (TokenKind::Word, Some(p), _) => Memory::Param(p),
            (TokenKind::Word, _, Some(r)) => Memory::Scratch(r),
            _ => return Err(self.c.unexpected("access", "a parameter or scratch of this kernel")),
        };
        self.c.bump();
        Ok(memory)
    }

    /// `if %3`, unless that begins a statement.
    fn mask(&mut self) -> Parsed<Option<ValueId>> {
        let start = self.c.mark();
        if !self.c.eat_word("if") {
            return Ok(None);
        }
        if self.c.kind() == TokenKind::Value && self.c.next_kind() == TokenKind::LeftBrace {
            self.c.reset(start);
            return Ok(None);
        }
        self.value().map(Some)
    }

    fn values(&mut self) -> Parsed<Vec<ValueId>> {
        let mut all = vec![self.value()?];
        while self.c.eat(TokenKind::Comma) {
            all.push(self.value()?);
        }
        Ok(all)
    }

    /// Statements up to the closing brace, behind the opening one.
    fn block(&mut self) -> Parsed<Vec<Stmt>> {
        let mut all = Vec::new();
        while self.c.kind() != TokenKind::RightBrace {
            let nested = self.c.at_word("kernel") && self.c.next_kind() == TokenKind::Number;
            if self.c.gave_up() || self.c.kind() == TokenKind::End || nested || self.c.at_section() {
                return Err(self.c.unexpected("kernel", "`}`"));
            }
            self.c.anchor();
            let start = self.c.mark();
            let number = self.spans.statements.len();
            self.spans.statements.push(Span::default());
            match self.statement(number) {
                Ok(Some(s)) => all.push(s),
                // A declaration.
                Ok(None) => drop(self.spans.statements.pop()),
                Err(_) => {
                    self.names.incomplete = true;
                    self.c.recover_statement(start, WORDS);
                }
            }
            if let Some(span) = self.spans.statements.get_mut(number)
                && *span == Span::default()
            {
                *span = self.c.span_since(start);
            }
        }
        self.c.anchor();
        self.c.bump();
        Ok(all)
    }

    /// The head of a block, just read from `start` on, and the block. A bad head does not hide the errors of its block.
    fn nested<T>(&mut self, number: usize, start: Mark, head: Parsed<T>) -> Parsed<(T, Vec<Stmt>)> {
        self.spans.statements[number] = self.c.span_since(start);
        if head.is_err() {
            self.names.incomplete = true;
            if !self.c.find_block() {
                return Err(Reported);
            }
        }
        self.c.expect(TokenKind::LeftBrace, "block")?;
        if self.depth >= MAX_BLOCKS {
            let span = self.c.span_since(start);
            let message = format!("blocks nested too deep; expected at most {MAX_BLOCKS} levels");
            self.c.error(span, message);
            self.c.skip_braced();
            return Err(Reported);
        }
        self.depth += 1;
        let body = self.block();
        self.depth -= 1;
        Ok((head?, body?))
    }

    /// A statement, or a declaration, which is none.
    fn statement(&mut self, number: usize) -> Parsed<Option<Stmt>> {
        let start = self.c.mark();
        if self.c.kind() == TokenKind::Value {
            let (value, dtype) = self.define_value()?;
            self.c.expect(TokenKind::Equals, "statement")?;
            let op = self.operation(dtype)?;
            return Ok(Some(Stmt::Let { value, op }));
        }
        let words = &WORDS[..19];
        let which = self.one_of("statement", &words.iter().map(|w| (*w, *w)).collect::<Vec<_>>())?;
        Ok(Some(match which {
            "for" => {
                let head = self.loop_head();
                let around = self.names.around.len();
                if let Ok((var, _)) = &head
                    && let Some((extent, _)) = self.names.vars.get(&var.0)
                {
                    self.names.around.push(extent.clone());
                }
                let read = self.nested(number, start, head);
                self.names.around.truncate(around);
                let ((var, bind), body) = read?;
                Stmt::Loop { var, bind, body }
            }
            "if" => {
                let head = self.value();
                let (cond, body) = self.nested(number, start, head)?;
                Stmt::If { cond, body }
            }
            "store" => {
                let (memory, index) = self.element()?;
                self.c.expect(TokenKind::Comma, "store")?;
                let value = self.value()?;
                let mask = self.mask()?;
                Stmt::Store {
                    memory,
                    index,
                    value,
                    mask,
                }
            }
            "clamp" => {
                let var = self.define_var()?;
                self.c.expect(TokenKind::Equals, "clamp")?;
                let value = self.value()?;
                Stmt::Clamp { var, value }
            }
            "accumulate" => {
                let monoid = self.monoid("accumulate")?;
                let mut state = SmallVec::new();
                loop {
                    state.push(self.element()?);
                    if !self.c.eat(TokenKind::Comma) {
                        break;
                    }
                }
                self.word("with", "accumulate")?;
                let values = self.values()?.into();
                Stmt::Accumulate { monoid, state, values }
            }
            "contract" => Stmt::Contract(Box::new(self.contract()?)),
            "reduce" => self.collective(|p| Ok(CollectiveKind::Reduce(p.monoid("reduce")?)))?,
            "scan" => self.collective(|p| Ok(CollectiveKind::Scan(p.monoid("scan")?)))?,
            "shift" => self.collective(|p| Ok(CollectiveKind::Shift(p.monoid("shift")?)))?,
            "broadcast" => self.collective(|p| {
                Ok(CollectiveKind::Broadcast(p.c.integer(
                    "thread",
                    0,
                    MAX_BLOCK_THREADS,
                )?))
            })?,
            "fold" => Stmt::FoldRows(Box::new(self.fold()?)),
            "each" => {
                let head = self.each_head();
                let ((vars, memory), body) = self.nested(number, start, head)?;
                Stmt::Each { vars, memory, body }
            }
            "copy_async" => Stmt::CopyAsync(Box::new(self.copy_async()?)),
            "prefetch" => {
                let (memory, index) = self.element()?;
                Stmt::Prefetch { memory, index }
            }
            "commit" => Stmt::Commit,
            "wait" => Stmt::Wait(self.pending_groups()?),
            "barrier" => Stmt::Barrier,
            "scratch" => {
                let (token, number) = self.number("r", "scratch")?;
                self.next(token, number, self.kernel.scratch.len(), "scratch")?;
                self.table(token, self.kernel.scratch.len())?;
                let (dtype, len) = self.array("scratch")?;
                let scope = self.one_of("scratch", Scope::ALL.map(|s| (s.name(), s)).as_slice())?;
                let swizzled = self.c.eat_word("swizzled");
                self.kernel.scratch.push(Scratch {
                    dtype,
                    len,
                    scope,
                    swizzled,
                });
                return Ok(None);
            }
            _ => {
                if self.c.kind() == TokenKind::Value {
                    self.define_value()?;
                } else {
                    self.define_var()?;
                }
                return Ok(None);
            }
        }))
    }

    /// Behind `each`.
    fn each_head(&mut self) -> Parsed<([VarId; 2], Memory)> {
        let m = self.define_var()?;
        self.c.expect(TokenKind::Comma, "each")?;
        let n = self.define_var()?;
        self.word("of", "each")?;
        Ok(([m, n], self.memory()?))
    }

    /// Behind `fold`.
    fn fold(&mut self) -> Parsed<FoldRows> {
        let monoid = self.monoid("fold")?;
        let m = self.define_var()?;
        self.c.expect(TokenKind::Comma, "fold")?;
        let n = self.define_var()?;
        let (to, to_index) = self.element()?;
        self.word("with", "fold")?;
        let (from, from_index) = self.element()?;
        Ok(FoldRows {
            monoid,
            vars: [m, n],
            to,
            to_index,
            from,
            from_index,
        })
    }

    fn pending_groups(&mut self) -> Parsed<u32> {
        let pending = self.c.integer("wait", 0, i64::from(u32::MAX))?;
        Ok(u32::try_from(pending).unwrap_or(u32::MAX))
    }

    fn residents(&mut self) -> Parsed<u32> {
        let blocks = self.c.integer("residents", 1, i64::from(u32::MAX))?;
        Ok(u32::try_from(blocks).unwrap_or(u32::MAX))
    }

    /// Behind `copy_async`.
    fn copy_async(&mut self) -> Parsed<AsyncCopy> {
        let var = self.define_var()?;
        let (to, to_index) = self.element()?;
        self.word("from", "copy")?;
        let (from, from_index) = self.element()?;
        let mask = self.mask()?;
        Ok(AsyncCopy {
            var,
            to,
            to_index,
            from,
            from_index,
            mask,
        })
    }

    fn monoid(&mut self, context: &str) -> Parsed<Monoid> {
        let Some(monoid) = Monoid::from_name(self.c.source(self.c.token())) else {
            return Err(self.c.unexpected(context, "a monoid like `add`"));
        };
        self.c.bump();
        Ok(monoid)
    }

    /// A collective: what it does, by `warp`, `part 4` of one or `block 128`, and on which element.
    fn collective(&mut self, kind: impl FnOnce(&mut Self) -> Parsed<CollectiveKind>) -> Parsed<Stmt> {
        let kind = kind(self)?;
        let words = [
            ("warp", Group::Warp),
            ("part", Group::Part(0)),
            ("block", Group::Block(0)),
        ];
        let group = match self.one_of("collective", &words)? {
            Group::Warp => Group::Warp,
            Group::Part(_) => Group::Part(self.c.integer("threads", 1, WARP_THREADS)?),
            Group::Block(_) => Group::Block(self.c.integer("threads", 1, MAX_BLOCK_THREADS)?),
        };
        let (memory, index) = self.element()?;
        Ok(Stmt::Collective(Box::new(Collective {
            kind,
            group,
            memory,
            index,
        })))
    }

    /// Behind `contract`.
    fn contract(&mut self) -> Parsed<Contract> {
        let m = self.define_var()?;
        self.c.expect(TokenKind::Comma, "contract")?;
        let n = self.define_var()?;
        self.word("over", "contract")?;
        let k = self.define_var()?;
        self.word("by", "contract")?;
        let k_block = self.c.integer("block", 1, i64::from(u32::MAX))?;
        let precision = match self.c.eat_word(Precision::Tf32.name()) {
            true => Precision::Tf32,
            false => Precision::Exact,
        };
        let words = self.c.eat_word(ScalarOp::Dot4.name());
        let (dst, dst_index) = self.element()?;
        self.word("with", "contract")?;
        let left = self.contract_operand()?;
        self.c.expect(TokenKind::Comma, "contract")?;
        let right = self.contract_operand()?;
        Ok(Contract {
            vars: [m, n, k],
            dst,
            dst_index,
            left,
            right,
            k_block,
            precision,
            words,
        })
    }

    /// `p0[index] if e in 0..limit and e in 0..limit`.
    fn contract_operand(&mut self) -> Parsed<ContractOperand> {
        let (memory, index) = self.element()?;
        let mut ranges = SmallVec::new();
        let statement = self.c.at_word("if") && self.c.next_kind() == TokenKind::Value;
        if !statement && self.c.eat_word("if") {
            loop {
                let index = dim(self.c, &mut self.names)?;
                self.word("in", "condition")?;
                self.c.integer("lower bound", 0, 0)?;
                self.c.expect(TokenKind::Range, "condition")?;
                let limit = dim(self.c, &mut self.names)?;
                ranges.push(Range { index, limit });
                if !self.c.eat_word("and") {
                    break;
                }
            }
        }
        Ok(ContractOperand { memory, index, ranges })
    }

    fn operation(&mut self, dtype: DType) -> Parsed<Op> {
        let token = self.c.expect(TokenKind::Word, "operation")?;
        Ok(match self.c.source(token) {
            "const" => Op::Const(scalar(self.c, dtype)?),
            "index" => Op::Index(dim(self.c, &mut self.names)?, dtype),
            "load" => {
                let (memory, index) = self.element()?;
                let mask = self.mask()?;
                Op::Load { memory, index, mask }
            }
            "convert" => Op::Convert(dtype, self.value()?),
            "bitcast" => Op::Bitcast(dtype, self.value()?),
            "short_exp2" => Op::ShortExp2(self.value()?),
            "scale" => {
                let x = self.value()?;
                self.c.expect(TokenKind::Comma, "scale")?;
                Op::Scale([x, self.value()?])
            }
            "approximate" => {
                let token = self.c.expect(TokenKind::Word, "approximation")?;
                let op = self.c.source(token);
                match APPROXIMATED.into_iter().find(|a| a.name() == op) {
                    Some(op) => Op::Approximate(op, self.values()?.into()),
                    None => {
                        let message = format!(
                            "unknown approximation; expected exp2, log2, div, sqrt or rsqrt, found `{}`",
                            excerpt(op)
                        );
                        return Err(self.c.error(token.span(), message));
                    }
                }
            }
            name => match ScalarOp::from_name(name) {
                Some(op) => Op::Map(op, self.values()?.into()),
                None => {
                    let message = format!("unknown operation; expected an operation, found `{}`", excerpt(name));
                    return Err(self.c.error(token.span(), message));
                }
            },
        })
    }

    /// Makes the tables, and checks the whole.
    fn finish(&mut self) -> Parsed<()> {
        let header = self.spans.header;
        if self.names.incomplete {
            return Err(Reported);
        }
        let (values, vars) = (self.values.len() as u32, self.names.vars.len() as u32);
        for number in 0..values {
            match self.values.get(&number) {
                Some(&dtype) => self.kernel.values.push(dtype),
                None => {
                    return Err(self.c.error(
                        header,
                        format!("no definition of %{number}; expected {values} values from %0"),
                    ));
                }
            }
        }
        for number in 0..vars {
            match self.names.vars.get(&number) {
                Some((extent, _)) => self.kernel.extents.push(extent.clone()),
                None => {
                    return Err(self.c.error(
                        header,
                        format!("no definition of i{number}; expected {vars} variables from i0"),
                    ));
                }
            }
        }
        self.kernel.symbols = std::mem::take(&mut self.names.symbols);
        Ok(())
    }
}
