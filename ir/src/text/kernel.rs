//! The parser of `kernel` sections.
//!
//! Invariants:
//! - Tables are numbered without gaps, so memory is linear in the text whatever numbers it mentions.
//! - A variable's extent mentions only variables that the text defines before it, and intervals of extents are computed
//!   once, at the definition. Blocks nest at most [`MAX_BLOCKS`] deep.
//! - What parses passes [`structure`]; what needs proof is left to [`crate::kernel::verify::verify`].

use std::collections::HashMap;

use smallvec::SmallVec;

use super::cursor::{Cursor, Mark, Parsed};
use super::expr::{self, dim, scalar};
use super::lexer::{Span, Token, TokenKind, excerpt};
use crate::dtype::DType;
use crate::graph::Monoid;
use crate::index::{Bounds, IndexExpr, Interval, SymId, VarId};
use crate::kernel::verify::structure;
use crate::kernel::{Access, Bind, Kernel, Memory, Op, Param, Scope, Scratch, Stmt, ValueId};
use crate::scalar::ScalarOp;

/// How deep loops and conditions nest.
const MAX_BLOCKS: u32 = 128;

/// Words that begin a statement or a section.
const WORDS: &[&str] = &[
    "for",
    "if",
    "store",
    "clamp",
    "accumulate",
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
}

/// The number of a canonical name like `i7`.
fn numbered(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    let number: u32 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

struct KernelParser<'c, 't> {
    c: &'c mut Cursor<'t>,
    names: Names,
    values: HashMap<u32, DType>,
    kernel: Kernel,
    depth: u32,
}

/// Reads a kernel, behind the word `kernel`: its name, if it has one, and the kernel.
pub(crate) fn kernel(c: &mut Cursor<'_>) -> Parsed<(Option<String>, Kernel)> {
    let start = c.mark();
    let mut name = None;
    if c.kind() == TokenKind::Global {
        let token = c.bump();
        name = Some(c.sigil_name(token)?.0);
    }
    let mut parser = KernelParser {
        c,
        names: Names::default(),
        values: HashMap::new(),
        kernel: Kernel::default(),
        depth: 0,
    };
    parser.header()?;
    let span = parser.c.span_since(start);
    parser.kernel.body = parser.block()?;
    parser.finish(span)?;
    Ok((name, parser.kernel))
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
                let (token, number) = self.number("s", "symbol")?;
                self.next(token, number, self.names.symbols.len(), "symbol")?;
                self.word("in", "symbol")?;
                let lo = self.c.integer("range", i64::MIN, i64::MAX)?;
                self.c.expect(TokenKind::Through, "range")?;
                let hi = self.c.integer("range", i64::MIN, i64::MAX)?;
                self.names.symbols.push((lo, hi));
                if !self.c.eat(TokenKind::Comma) {
                    break;
                }
            }
        }
        let body = self.c.mark();
        self.c.reset(params);
        while !self.c.eat(TokenKind::RightParen) {
            let (token, number) = self.number("p", "parameter")?;
            self.next(token, number, self.kernel.params.len(), "parameter")?;
            let (dtype, len) = self.array("parameter")?;
            let access = self.one_of("parameter", Access::ALL.map(|a| (a.name(), a)).as_slice())?;
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
        let dtype = self.dtype()?;
        Ok((dtype, self.bracketed(context)?))
    }

    fn bracketed(&mut self, context: &str) -> Parsed<IndexExpr> {
        self.c.expect(TokenKind::LeftBracket, context)?;
        let e = dim(self.c, &mut self.names)?;
        self.c.expect(TokenKind::RightBracket, context)?;
        Ok(e)
    }

    fn dtype(&mut self) -> Parsed<DType> {
        match (self.c.kind(), self.c.source(self.c.token()).parse::<DType>()) {
            (TokenKind::Word, Ok(dtype)) => {
                self.c.bump();
                Ok(dtype)
            }
            _ => Err(self.c.unexpected("type", "a dtype like `f32`")),
        }
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
        let dtype = self.dtype()?;
        if self.values.insert(number, dtype).is_some() {
            let message = format!("value defined twice; expected a new number, found `%{number}`");
            return Err(self.c.error(token.span(), message));
        }
        Ok((ValueId(number), dtype))
    }

    /// `i7 in 0..extent`.
    fn define_var(&mut self) -> Parsed<VarId> {
        let (token, number) = self.number("i", "loop variable")?;
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

    /// `p0[index]`.
    fn element(&mut self) -> Parsed<(Memory, IndexExpr)> {
        let token = self.c.token();
        let name = self.c.source(token);
        let param = numbered(name, "p").filter(|&p| (p as usize) < self.kernel.params.len());
        let scratch = numbered(name, "r").filter(|&r| (r as usize) < self.kernel.scratch.len());
        let memory = match (token.kind, param, scratch) {
            (TokenKind::Word, Some(p), _) => Memory::Param(p),
            (TokenKind::Word, _, Some(r)) => Memory::Scratch(r),
            _ => return Err(self.c.unexpected("access", "a parameter or scratch of this kernel")),
        };
        self.c.bump();
        Ok((memory, self.bracketed("access")?))
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
        while !self.c.eat(TokenKind::RightBrace) {
            let section = self.c.token().line_start && ["graph", "kernel", "plan"].iter().any(|w| self.c.at_word(w));
            if self.c.gave_up() || self.c.kind() == TokenKind::End || section {
                return Err(self.c.unexpected("kernel", "`}`"));
            }
            let start = self.c.mark();
            match self.statement() {
                Ok(s) => all.extend(s),
                Err(_) => {
                    self.names.incomplete = true;
                    self.c.recover_statement(start, WORDS);
                }
            }
        }
        Ok(all)
    }

    fn nested(&mut self, start: Mark) -> Parsed<Vec<Stmt>> {
        self.c.expect(TokenKind::LeftBrace, "block")?;
        if self.depth >= MAX_BLOCKS {
            let span = self.c.span_since(start);
            let message = format!("blocks nested too deep; expected at most {MAX_BLOCKS} levels");
            return Err(self.c.error(span, message));
        }
        self.depth += 1;
        let body = self.block();
        self.depth -= 1;
        body
    }

    /// A statement, or a declaration, which is none.
    fn statement(&mut self) -> Parsed<Option<Stmt>> {
        let start = self.c.mark();
        if self.c.kind() == TokenKind::Value {
            let (value, dtype) = self.define_value()?;
            self.c.expect(TokenKind::Equals, "statement")?;
            let op = self.operation(dtype)?;
            return Ok(Some(Stmt::Let { value, op }));
        }
        let words = &WORDS[..8];
        let which = self.one_of("statement", &words.iter().map(|w| (*w, *w)).collect::<Vec<_>>())?;
        Ok(Some(match which {
            "for" => {
                let var = self.define_var()?;
                let bind = self.one_of("loop", Bind::ALL.map(|b| (b.name(), b)).as_slice())?;
                let body = self.nested(start)?;
                Stmt::Loop { var, bind, body }
            }
            "if" => {
                let cond = self.value()?;
                let body = self.nested(start)?;
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
                let Some(monoid) = Monoid::from_name(self.c.source(self.c.token())) else {
                    return Err(self.c.unexpected("accumulate", "a monoid like `add`"));
                };
                self.c.bump();
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
            "barrier" => Stmt::Barrier,
            "scratch" => {
                let (token, number) = self.number("r", "scratch")?;
                self.next(token, number, self.kernel.scratch.len(), "scratch")?;
                let (dtype, len) = self.array("scratch")?;
                let scope = self.one_of("scratch", Scope::ALL.map(|s| (s.name(), s)).as_slice())?;
                self.kernel.scratch.push(Scratch { dtype, len, scope });
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
    fn finish(&mut self, header: Span) -> Parsed<()> {
        if self.names.incomplete {
            return Err(super::cursor::Reported);
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
        let violations = structure(&self.kernel);
        for v in &violations {
            self.c.error(header, v.to_string());
        }
        if violations.is_empty() {
            Ok(())
        } else {
            Err(super::cursor::Reported)
        }
    }
}
