//! What stands in an operation's braces.

use std::collections::HashMap;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Attributes, EinsumSpec, Form, Full, GraphParser, nested};
use crate::dtype::DType;
use crate::graph::control::MAX_LOOP_DEPTH;
use crate::graph::{Along, Body, HostFunction, Labels, Loop, Region, Rule, Semiring};
use crate::index::{IndexExpr, IndexNode};
use crate::text::cursor::{Cursor, Parsed};
use crate::text::expr::{dim, dims};
use crate::text::lexer::{Span, TokenKind, excerpt};
use crate::text::view::view_attributes;

impl GraphParser<'_, '_, '_, '_> {
    /// Reads the braces that belong to the operation.
    pub(super) fn attributes(&mut self, op: &str, form: Form) -> Parsed<Full> {
        let allowed: &[&str] = match form {
            Form::Map(_) | Form::Convert | Form::Bitcast | Form::Copy => &[],
            Form::View(view) => view_attributes(view),
            Form::Einsum => return self.einsum(),
            Form::Iota => &["axis"],
            Form::Random => &["stream"],
            Form::Reduce(_) | Form::Gather | Form::Scatter(_) => &["axes"],
            Form::Scan(_) => &["axis", "exclusive", "reverse"],
            Form::Project => &["result"],
            Form::Region(_) => &["symbols"],
            Form::Call("sort") => &["axis", "count", "descending"],
            Form::Call("unique") => &["axis", "sorted", "count"],
            Form::Call("suppress") => &["center", "count"],
            Form::Call(_) => &["count"],
            Form::Loop => &[
                "trip",
                "counted",
                "conditional",
                "carried",
                "slices",
                "stacks",
                "symbols",
            ],
        };
        let open = self.c.mark();
        let mut a = Attributes::default();
        let mut seen: SmallVec<[&str; 4]> = SmallVec::new();
        if self.c.eat(TokenKind::LeftBrace) {
            while !self.c.eat(TokenKind::RightBrace) {
                let word = self.c.expect(TokenKind::Word, "attribute")?;
                let name = self.c.source(word);
                let Some(&name) = allowed.iter().find(|&&a| a == name) else {
                    let expected = if allowed.is_empty() {
                        "none".to_string()
                    } else {
                        allowed.join(", ")
                    };
                    let message = format!(
                        "unknown attribute of {op}; expected {expected}, found `{}`",
                        excerpt(name)
                    );
                    return Err(self.c.error(word.span(), message));
                };
                if seen.contains(&name) {
                    let message = format!("attribute given twice; expected `{name}` once");
                    return Err(self.c.error(word.span(), message));
                }
                seen.push(name);
                match name {
                    "exclusive" => a.exclusive = true,
                    "reverse" => a.reverse = true,
                    "counted" => a.counted = true,
                    "conditional" => a.conditional = true,
                    "descending" => a.descending = true,
                    "sorted" => a.sorted = true,
                    "center" => a.center = true,
                    _ => {
                        self.c.expect(TokenKind::Equals, "attribute")?;
                        self.attribute(name, &mut a)?;
                    }
                }
                if !self.c.eat(TokenKind::Comma) && self.c.kind() != TokenKind::RightBrace {
                    return Err(self.c.unexpected("attribute", "`,` or `}`"));
                }
            }
        }
        let optional = [
            "interior",
            "step",
            "stride",
            "dilation",
            "exclusive",
            "reverse",
            "trip",
            "counted",
            "conditional",
            "slices",
            "stacks",
            "symbols",
            "descending",
            "sorted",
            "center",
        ];
        let whole = matches!(form, Form::Call("unique"));
        let may_lack = |n: &str| optional.contains(&n) || (whole && n == "axis");
        let missing = allowed.iter().find(|n| !may_lack(n) && !seen.contains(n));
        if let Some(missing) = missing {
            let span = self.c.span_since(open);
            return Err(self.c.error(
                span,
                format!("missing attribute of {op}; expected `{missing}=…` in braces"),
            ));
        }
        match form {
            Form::Call(name) => {
                let size = a.size.unwrap_or(IndexExpr::ZERO);
                let count = match &size {
                    IndexExpr::Node(n) => match **n {
                        IndexNode::Sym(s) => Some(s),
                        _ => None,
                    },
                    IndexExpr::Const(_) => None,
                };
                let function = match (name, count) {
                    ("sort", _) => HostFunction::Sort {
                        axis: a.axis,
                        count: size,
                        descending: a.descending,
                    },
                    (_, None) => {
                        let span = self.c.span_since(open);
                        return Err(self
                            .c
                            .error(span, "a count that is no symbol; expected one declared with `upto`"));
                    }
                    ("nonzero", Some(count)) => HostFunction::NonZero { count },
                    ("suppress", Some(count)) => HostFunction::Suppress {
                        center: a.center,
                        count,
                    },
                    (_, Some(count)) => HostFunction::Unique {
                        axis: seen.contains(&"axis").then_some(a.axis),
                        sorted: a.sorted,
                        count,
                    },
                };
                Ok(Full::Call(function))
            }
            Form::Loop => self.repeated(a),
            Form::Region(rule) => self.region(rule, a),
            _ => Ok(Full::With(form, Box::new(a))),
        }
    }

    /// `body @name(…) { … }`, behind the attributes of a loop.
    fn repeated(&mut self, a: Attributes) -> Parsed<Full> {
        let Some(body) = self.inside("loop", "body")? else {
            return Ok(Full::Loop(None));
        };
        Ok(Full::Loop(Some(Box::new(Loop {
            body,
            symbols: a.symbols.into_vec(),
            trip: a.size,
            counted: a.counted,
            conditional: a.conditional,
            carried: a.carried,
            slices: a.slices,
            stacks: a.stacks,
        }))))
    }

    /// `body @name(…) { … }`, and for a custom rule `derivative @name(…) { … }`, behind the attributes of a region.
    fn region(&mut self, rule: &str, a: Attributes) -> Parsed<Full> {
        let body = self.inside("region", "body")?;
        let rule = match rule {
            "custom" => self.inside("region", "derivative")?.map(Rule::Custom),
            "checkpoint" => Some(Rule::Checkpoint),
            _ => Some(Rule::Opaque),
        };
        let (Some(body), Some(rule)) = (body, rule) else {
            return Ok(Full::Region(None));
        };
        let symbols = a.symbols.into_vec();
        Ok(Full::Region(Some(Box::new(Region { body, symbols, rule }))))
    }

    /// The graph behind a word; none if it is broken.
    fn inside(&mut self, op: &str, what: &str) -> Parsed<Option<Body>> {
        let word = self.c.token();
        if !self.c.eat_word(what) {
            return Err(self.c.unexpected(op, &format!("`{what}`")));
        }
        if self.depth + 1 >= MAX_LOOP_DEPTH {
            let message = format!("loops and regions inside each other; expected at most {MAX_LOOP_DEPTH}");
            return Err(self.c.error(word.span(), message));
        }
        let before = self.c.errors();
        let body = nested(self.c, self.resolver, self.depth + 1)?;
        Ok((self.c.errors() == before).then(|| Body(Arc::new(body))))
    }

    fn attribute(&mut self, name: &str, a: &mut Attributes) -> Parsed<()> {
        let integers = |c: &mut Cursor<'_>, lo, hi| {
            c.expect(TokenKind::LeftBracket, name)?;
            c.list(TokenKind::RightBracket, name, |c| c.integer(name, lo, hi))
        };
        match name {
            "axis" => a.axis = self.c.integer(name, 0, 255)? as u8,
            "stream" => a.stream = self.c.integer(name, 0, i64::from(u32::MAX))? as u32,
            "axes" => a.axes = integers(self.c, 0, 255)?.into_iter().map(|v| v as u8).collect(),
            "interior" => a.interior = Some(integers(self.c, 0, i64::MAX)?.into()),
            "step" => a.step = Some(integers(self.c, i64::MIN, i64::MAX)?.into()),
            "stride" => a.stride = Some(self.c.integer(name, i64::MIN, i64::MAX)?),
            "dilation" => a.dilation = Some(self.c.integer(name, i64::MIN, i64::MAX)?),
            "lo" => a.lo = dims(self.c, &mut self.graph, name)?.into_vec().into(),
            "hi" => a.hi = dims(self.c, &mut self.graph, name)?.into_vec().into(),
            "start" => a.lo = dims(self.c, &mut self.graph, name)?.into_vec().into(),
            "size" | "trip" | "count" => a.size = Some(dim(self.c, &mut self.graph)?),
            "carried" => a.carried = self.c.integer(name, 0, i64::from(u32::MAX))? as usize,
            "result" => a.result = self.c.integer(name, 0, i64::from(u32::MAX))? as u32,
            "slices" => a.slices = self.alongs(name)?,
            "stacks" => a.stacks = self.alongs(name)?,
            "symbols" => {
                let graph = &mut self.graph;
                self.c.expect(TokenKind::LeftBracket, name)?;
                a.symbols = self.c.list(TokenKind::RightBracket, name, |c| dim(c, graph))?.into();
            }
            _ => {
                a.value = Some(self.c.mark());
                self.skip_literal()?;
            }
        }
        Ok(())
    }

    /// `[0, 1 reverse]`.
    fn alongs(&mut self, name: &str) -> Parsed<SmallVec<[Along; 2]>> {
        self.c.expect(TokenKind::LeftBracket, name)?;
        let all = self.c.list(TokenKind::RightBracket, name, |c| {
            let axis = c.integer(name, 0, 255)? as u8;
            let reverse = c.eat_word("reverse");
            Ok(Along { axis, reverse })
        })?;
        Ok(all.into())
    }

    /// `{ab,bc->ac; semiring=max-add, acc=f64}`.
    fn einsum(&mut self) -> Parsed<Full> {
        let open = self.c.expect(TokenKind::LeftBrace, "einsum")?;
        let mut numbers: HashMap<u32, u16> = HashMap::new();
        let mut inputs = SmallVec::new();
        loop {
            inputs.push(self.labels("too many labels; expected at most 65535", &mut |label| {
                let next = u16::try_from(numbers.len()).ok().filter(|&n| n < u16::MAX);
                numbers.get(&label).copied().or_else(|| {
                    numbers.insert(label, next?);
                    next
                })
            })?);
            if !self.c.eat(TokenKind::Comma) {
                break;
            }
        }
        self.c.expect(TokenKind::Arrow, "einsum")?;
        let output = self.labels("unknown label; expected one of an operand", &mut |label| {
            numbers.get(&label).copied()
        })?;
        let (mut semiring, mut accumulator) = (Semiring::AddMul, None);
        if self.c.eat(TokenKind::Semicolon) {
            loop {
                if self.c.eat_word("semiring") {
                    self.c.expect(TokenKind::Equals, "einsum")?;
                    semiring = self.semiring()?;
                } else if self.c.eat_word("acc") {
                    self.c.expect(TokenKind::Equals, "einsum")?;
                    let from_name = |name: &str| name.parse::<DType>().ok();
                    accumulator = Some(self.modifier("einsum", from_name, &DType::ALL.map(DType::name))?);
                } else {
                    return Err(self.c.unexpected("einsum", "`semiring` or `acc`"));
                }
                if !self.c.eat(TokenKind::Comma) {
                    break;
                }
            }
        }
        self.c.expect(TokenKind::RightBrace, "einsum")?;
        Ok(Full::Einsum(Box::new(EinsumSpec {
            inputs,
            output,
            semiring,
            accumulator,
            span: open.span(),
        })))
    }

    /// One term; `number` returns a label's canonical number, or none, of which `unknown` is the message.
    fn labels(&mut self, unknown: &str, number: &mut dyn FnMut(u32) -> Option<u16>) -> Parsed<Labels> {
        let mut all = Labels::new();
        loop {
            let token = self.c.token();
            let source = self.c.source(token);
            let mut push = |c: &mut Cursor<'_>, label: Option<u32>, span: Span, found: &str| {
                let found = excerpt(found);
                match label.map(&mut *number) {
                    Some(Some(n)) => {
                        all.push(n);
                        Ok(())
                    }
                    Some(None) => Err(c.error(span, format!("{unknown}, found `{found}`"))),
                    None => {
                        let message = format!("malformed label; expected letters or `'52`, found `{found}`");
                        Err(c.error(span, message))
                    }
                }
            };
            match token.kind {
                TokenKind::Word => {
                    for (i, b) in source.bytes().enumerate() {
                        let label = match b {
                            b'a'..=b'z' => Some(u32::from(b - b'a')),
                            b'A'..=b'Z' => Some(u32::from(b - b'A') + 26),
                            _ => None,
                        };
                        let start = token.span().start + i;
                        let end = start + 1;
                        push(self.c, label, Span { start, end }, &source[i..=i])?;
                    }
                }
                TokenKind::Label => push(self.c, source[1..].parse().ok(), token.span(), source)?,
                _ => return Ok(all),
            }
            self.c.bump();
        }
    }

    fn semiring(&mut self) -> Parsed<Semiring> {
        let start = self.c.mark();
        let sum = self.c.expect(TokenKind::Word, "semiring")?;
        self.c.expect(TokenKind::Minus, "semiring")?;
        let product = self.c.expect(TokenKind::Word, "semiring")?;
        let name = format!("{}-{}", self.c.source(sum), self.c.source(product));
        Semiring::from_name(&name).ok_or_else(|| {
            let expected = Semiring::ALL.map(Semiring::name).join(", ");
            let span = self.c.span_since(start);
            let message = format!(
                "unknown semiring; expected one of {expected}, found `{}`",
                excerpt(&name)
            );
            self.c.error(span, message)
        })
    }
}
