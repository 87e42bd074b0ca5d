//! Tokens to a [`ModuleText`].

use std::collections::HashMap;

use super::lexer::{Lexed, Token, lex};
use super::{Function, ModuleText, Operand, PtxError, Register, SourceLine, Space, Statement, Variable};

/// A declaration of more registers than this is a mistake of the text, not a kernel.
const MOST_REGISTERS: u64 = 1 << 16;

/// The largest variable that a text may declare.
const MOST_BYTES: u64 = 1 << 30;

/// How deep blocks may nest.
const MOST_SCOPES: usize = 256;

pub(crate) fn parse(text: &str) -> Result<ModuleText, PtxError> {
    let tokens = lex(text)?;
    let mut parser = Parser { tokens, at: 0 };
    let mut module = ModuleText::default();
    while !parser.is_done() {
        parser.item(&mut module)?;
    }
    module.sources = sources(text);
    // Compilers put the folder that they run in before a name.
    for file in module.files.values_mut() {
        let name = file.rsplit('/').next().unwrap_or_default();
        if module.sources.contains_key(name) {
            *file = name.into();
        }
    }
    Ok(module)
}

/// The sources in the comments of a text.
fn sources(text: &str) -> HashMap<String, Vec<String>> {
    let mut found: HashMap<String, Vec<String>> = HashMap::new();
    let mut name = None;
    for line in text.lines() {
        if let Some(next) = line.strip_prefix("//= ") {
            name = Some(next);
            found.entry(next.into()).or_default();
        } else if let (Some(of), Some(line)) = (name, line.strip_prefix("//| ")) {
            found.entry(of.into()).or_default().push(line.into());
        }
    }
    found
}

struct Parser {
    tokens: Vec<Lexed>,
    at: usize,
}

/// The bits of a fundamental type; 0 for a predicate.
pub(crate) fn type_bits(name: &str) -> Option<u32> {
    Some(match name {
        "pred" => 0,
        "b8" | "u8" | "s8" | "e4m3" | "e5m2" => 8,
        "b16" | "u16" | "s16" | "f16" | "bf16" | "e4m3x2" | "e5m2x2" => 16,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" | "tf32" | "u16x2" | "s16x2" => 32,
        "b64" | "u64" | "s64" | "f64" => 64,
        "b128" => 128,
        _ => return None,
    })
}

fn space_of(name: &str) -> Option<Space> {
    Some(match name {
        "global" => Space::Global,
        "shared" => Space::Shared,
        "local" => Space::Local,
        "const" => Space::Const,
        "param" => Space::Param,
        _ => return None,
    })
}

/// A function's names while its body is read.
struct Scopes {
    /// For each open block, what a name declared there is called in the function.
    open: Vec<HashMap<String, String>>,
    blocks: usize,
}

impl Scopes {
    fn declare(&mut self, name: &str) -> String {
        let unique = if self.open.len() <= 1 {
            name.to_string()
        } else {
            format!("{name}#{}", self.blocks)
        };
        if let Some(top) = self.open.last_mut() {
            top.insert(name.to_string(), unique.clone());
        }
        unique
    }

    fn resolve(&self, name: &str) -> String {
        self.open
            .iter()
            .rev()
            .find_map(|scope| scope.get(name))
            .cloned()
            .unwrap_or_else(|| name.to_string())
    }
}

impl Parser {
    fn is_done(&self) -> bool {
        self.at >= self.tokens.len()
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line)
    }

    fn error<T>(&self, message: impl Into<String>) -> Result<T, PtxError> {
        Err(PtxError::new(self.line(), message))
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.token)
    }

    fn next(&mut self) -> Result<Token, PtxError> {
        let Some(lexed) = self.tokens.get(self.at) else {
            return self.error("the text ends in the middle");
        };
        self.at += 1;
        Ok(lexed.token.clone())
    }

    fn takes(&mut self, c: char) -> bool {
        let found = self.peek() == Some(&Token::Punct(c));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, c: char) -> Result<(), PtxError> {
        if self.takes(c) {
            return Ok(());
        }
        let found = self.peek().map_or_else(|| "the end".to_string(), |t| format!("{t:?}"));
        self.error(format!("`{c}` expected, not {found}"))
    }

    fn word(&mut self) -> Result<String, PtxError> {
        match self.next()? {
            Token::Word(word) => Ok(word),
            other => {
                self.at -= 1;
                self.error(format!("a name expected, not {other:?}"))
            }
        }
    }

    fn dotted(&mut self) -> Option<String> {
        match self.peek() {
            Some(Token::Dotted(word)) => {
                let word = word.clone();
                self.at += 1;
                Some(word)
            }
            _ => None,
        }
    }

    fn int(&mut self) -> Result<u64, PtxError> {
        match self.next()? {
            Token::Int(value) => Ok(value),
            other => {
                self.at -= 1;
                self.error(format!("a number expected, not {other:?}"))
            }
        }
    }

    fn small(&mut self) -> Result<u32, PtxError> {
        let value = self.int()?;
        u32::try_from(value).or_else(|_| self.error(format!("{value} is too large")))
    }

    /// Skips what is between braces.
    fn skip_block(&mut self) -> Result<(), PtxError> {
        self.expect('{')?;
        let mut depth = 1_usize;
        while depth > 0 {
            match self.next()? {
                Token::Punct('{') => depth += 1,
                Token::Punct('}') => depth -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    fn item(&mut self, module: &mut ModuleText) -> Result<(), PtxError> {
        if self.takes(';') {
            return Ok(());
        }
        let Some(directive) = self.dotted() else {
            return self.error("a directive expected");
        };
        match directive.as_str() {
            "version" => {
                // `9.0` is a number and a dotted word to the lexer.
                let major = self.small()?;
                let minor = self.dotted().and_then(|m| m.parse().ok());
                let Some(minor) = minor else {
                    return self.error("`.version` needs two numbers");
                };
                module.version = (major, minor);
            }
            "target" => {
                module.target = self.word()?;
                while self.takes(',') {
                    self.word()?;
                }
            }
            "address_size" => {
                if self.int()? != 64 {
                    return self.error("only addresses of 64 bits can be run");
                }
            }
            "file" => {
                let number = self.small()?;
                let Token::Text(name) = self.next()? else {
                    return self.error("`.file` needs a name");
                };
                while self.takes(',') {
                    self.int()?;
                }
                module.files.insert(number, name);
            }
            "section" => {
                // The name may be a dotted word.
                self.next()?;
                self.skip_block()?;
            }
            "pragma" => self.pragma()?,
            "visible" | "weak" | "common" | "extern" => self.linked(module, directive == "extern")?,
            _ => {
                self.at -= 1;
                self.linked(module, false)?;
            }
        }
        Ok(())
    }

    fn pragma(&mut self) -> Result<(), PtxError> {
        while !self.takes(';') {
            self.next()?;
        }
        Ok(())
    }

    fn linked(&mut self, module: &mut ModuleText, is_extern: bool) -> Result<(), PtxError> {
        let line = self.line();
        let Some(directive) = self.dotted() else {
            return self.error("a directive expected");
        };
        match directive.as_str() {
            "entry" => {
                let name = self.word()?;
                let function = self.function(line, name, true, Vec::new())?;
                module.functions.push(function);
            }
            "func" => {
                let returns = if self.peek() == Some(&Token::Punct('(')) {
                    self.params()?
                } else {
                    Vec::new()
                };
                let name = self.word()?;
                let function = self.function(line, name, false, returns)?;
                module.functions.push(function);
            }
            name => {
                let Some(space) = space_of(name) else {
                    return self.error(format!("unknown directive `.{name}`"));
                };
                let mut variables = Vec::new();
                self.variables(space, is_extern, &mut variables)?;
                module.variables.append(&mut variables);
            }
        }
        Ok(())
    }

    /// `(.param .u64 a, .param .align 8 .b8 b[16])`
    fn params(&mut self) -> Result<Vec<Variable>, PtxError> {
        self.expect('(')?;
        let mut params = Vec::new();
        if self.takes(')') {
            return Ok(params);
        }
        loop {
            match self.dotted().as_deref() {
                Some("param" | "reg") => {}
                _ => return self.error("`.param` expected"),
            }
            params.push(self.variable(Space::Param)?);
            if self.takes(')') {
                return Ok(params);
            }
            self.expect(',')?;
        }
    }

    /// Modifiers, type, name and array size; also of the parameters' `.ptr .global .align 16`.
    fn variable(&mut self, space: Space) -> Result<Variable, PtxError> {
        let line = self.line();
        let (mut align, mut bits, mut lanes) = (None, None, 1_u64);
        let mut pointer = false;
        while let Some(word) = self.dotted() {
            match word.as_str() {
                "align" => {
                    let value = self.int()?;
                    if !value.is_power_of_two() || value > 1 << 16 {
                        return self.error("an alignment is a power of two");
                    }
                    // Behind `.ptr` it is the alignment of what the parameter points to.
                    if !pointer {
                        align = Some(value);
                    }
                }
                "ptr" => pointer = true,
                "v2" => lanes = 2,
                "v4" => lanes = 4,
                "global" | "shared" | "local" | "const" if pointer => {}
                "attribute" => self.skip_parentheses()?,
                other => match type_bits(other) {
                    Some(found) => bits = Some(found),
                    None => return self.error(format!("unknown `.{other}` in a declaration")),
                },
            }
        }
        let Some(bits) = bits.filter(|&b| b > 0) else {
            return self.error("a declaration without a type");
        };
        let name = self.word()?;
        let element = u64::from(bits / 8) * lanes;
        let mut bytes = element;
        let mut open = false;
        while self.takes('[') {
            if self.takes(']') {
                open = true;
                continue;
            }
            let count = self.int()?;
            bytes = bytes.saturating_mul(count);
            self.expect(']')?;
        }
        if open {
            bytes = 0;
        }
        if bytes > MOST_BYTES {
            return self.error(format!("`{name}` is too large"));
        }
        let align = align.unwrap_or(element);
        Ok(Variable {
            name,
            space,
            align,
            bytes,
            initial: Vec::new(),
            addresses: Vec::new(),
            is_extern: open,
            line,
        })
    }

    fn skip_parentheses(&mut self) -> Result<(), PtxError> {
        self.expect('(')?;
        while !self.takes(')') {
            self.next()?;
        }
        Ok(())
    }

    /// The declarators behind a space, to the semicolon.
    fn variables(&mut self, space: Space, is_extern: bool, into: &mut Vec<Variable>) -> Result<(), PtxError> {
        let start = self.at;
        loop {
            let mut variable = self.variable(space)?;
            let element = self.element_bytes(start);
            variable.is_extern |= is_extern;
            if self.takes('=') {
                self.initial(&mut variable, element)?;
            }
            into.push(variable);
            if self.takes(';') {
                return Ok(());
            }
            self.expect(',')?;
        }
    }

    /// The bytes of the type that the declaration beginning at a token names.
    fn element_bytes(&self, start: usize) -> usize {
        let words = self.tokens[start..self.at].iter().map_while(|t| match &t.token {
            Token::Dotted(word) => Some(type_bits(word)),
            Token::Int(_) => Some(None),
            _ => None,
        });
        words.flatten().last().map_or(1, |bits| (bits / 8) as usize)
    }

    fn initial(&mut self, variable: &mut Variable, element: usize) -> Result<(), PtxError> {
        if self.takes('{') {
            if self.takes('}') {
                return Ok(());
            }
            loop {
                self.initial(variable, element)?;
                if self.takes('}') {
                    return Ok(());
                }
                self.expect(',')?;
            }
        }
        let negative = self.takes('-');
        let value = match self.next()? {
            Token::Int(value) => value,
            Token::Single(bits) => u64::from(bits),
            Token::Double(bits) => bits,
            Token::Word(mut name) => {
                if name == "generic" && self.takes('(') {
                    name = self.word()?;
                    self.expect(')')?;
                }
                let offset = if self.takes('+') { self.int()? } else { 0 };
                variable.addresses.push((variable.initial.len() as u64, name));
                offset
            }
            other => return self.error(format!("{other:?} cannot initialize a variable")),
        };
        let value = if negative { value.wrapping_neg() } else { value };
        variable
            .initial
            .extend_from_slice(&value.to_le_bytes()[..element.clamp(1, 8)]);
        if variable.initial.len() as u64 > variable.bytes && variable.bytes > 0 {
            return self.error(format!("`{}` has more values than room", variable.name));
        }
        variable.bytes = variable.bytes.max(variable.initial.len() as u64);
        Ok(())
    }

    fn function(
        &mut self,
        line: u32,
        name: String,
        is_kernel: bool,
        returns: Vec<Variable>,
    ) -> Result<Function, PtxError> {
        let params = if self.peek() == Some(&Token::Punct('(')) {
            self.params()?
        } else {
            Vec::new()
        };
        let mut function = Function {
            name,
            is_kernel,
            line,
            returns,
            params,
            registers: Vec::new(),
            variables: Vec::new(),
            statements: Vec::new(),
            labels: HashMap::new(),
            tables: HashMap::new(),
            is_declaration: false,
        };
        loop {
            match self.peek() {
                Some(Token::Punct(';')) => {
                    self.at += 1;
                    function.is_declaration = true;
                    return Ok(function);
                }
                Some(Token::Punct('{')) => break,
                // `.maxntid 256, 1, 1`, `.minnctapersm 2`, `.noreturn`
                Some(Token::Dotted(_) | Token::Int(_) | Token::Punct(',')) => self.at += 1,
                _ => return self.error("a function's body expected"),
            }
        }
        self.body(&mut function)?;
        Ok(function)
    }

    fn body(&mut self, function: &mut Function) -> Result<(), PtxError> {
        let mut scopes = Scopes {
            open: Vec::new(),
            blocks: 0,
        };
        scopes.open.push(HashMap::new());
        self.expect('{')?;
        let mut source = SourceLine::default();
        loop {
            if self.takes('}') {
                scopes.open.pop();
                if scopes.open.is_empty() {
                    return Ok(());
                }
                continue;
            }
            if self.takes('{') {
                if scopes.open.len() >= MOST_SCOPES {
                    return self.error("blocks nest too deeply");
                }
                scopes.blocks += 1;
                scopes.open.push(HashMap::new());
                continue;
            }
            if self.takes(';') {
                continue;
            }
            if let Some(directive) = self.dotted() {
                self.body_directive(&directive, function, &mut scopes, &mut source)?;
                continue;
            }
            if let (Some(Token::Word(label)), Some(Token::Punct(':'))) =
                (self.peek(), self.tokens.get(self.at + 1).map(|t| &t.token))
            {
                let label = label.clone();
                self.at += 2;
                self.label(label, function)?;
                continue;
            }
            let statement = self.statement(&scopes, source)?;
            function.statements.push(statement);
        }
    }

    fn label(&mut self, label: String, function: &mut Function) -> Result<(), PtxError> {
        if let Some(Token::Dotted(kind)) = self.peek() {
            if kind == "branchtargets" {
                self.at += 1;
                let mut targets = vec![self.word()?];
                while self.takes(',') {
                    targets.push(self.word()?);
                }
                self.expect(';')?;
                function.tables.insert(label, targets);
                return Ok(());
            }
            if kind == "callprototype" || kind == "calltargets" {
                return self.error("calls through pointers are not supported");
            }
        }
        if function
            .labels
            .insert(label.clone(), function.statements.len())
            .is_some()
        {
            return self.error(format!("the label `{label}` is there twice"));
        }
        Ok(())
    }

    fn body_directive(
        &mut self,
        directive: &str,
        function: &mut Function,
        scopes: &mut Scopes,
        source: &mut SourceLine,
    ) -> Result<(), PtxError> {
        match directive {
            "reg" => {
                let Some(kind) = self.dotted() else {
                    return self.error("`.reg` needs a type");
                };
                let Some(bits) = type_bits(&kind) else {
                    return self.error(format!("unknown type `.{kind}`"));
                };
                loop {
                    let name = self.word()?;
                    if self.takes('<') {
                        let count = self.int()?;
                        self.expect('>')?;
                        if count + function.registers.len() as u64 > MOST_REGISTERS {
                            return self.error("too many registers");
                        }
                        for i in 0..count {
                            let name = scopes.declare(&format!("{name}{i}"));
                            function.registers.push(Register { name, bits });
                        }
                    } else {
                        let name = scopes.declare(&name);
                        function.registers.push(Register { name, bits });
                    }
                    if self.takes(';') {
                        return Ok(());
                    }
                    self.expect(',')?;
                }
            }
            "loc" => {
                source.file = self.small()?;
                source.line = self.small()?;
                self.int()?;
                // `, function_name $L, inlined_at 1 2 3`
                while self.takes(',') {
                    self.word()?;
                    while matches!(self.peek(), Some(Token::Int(_))) || self.peek() == Some(&Token::Punct('+')) {
                        self.at += 1;
                    }
                    let word_behind = matches!(self.peek(), Some(Token::Word(w)) if w.starts_with('$'));
                    if word_behind && self.tokens.get(self.at + 1).map(|t| &t.token) != Some(&Token::Punct(':')) {
                        self.at += 1;
                        if self.takes('+') {
                            self.int()?;
                        }
                    }
                }
                Ok(())
            }
            "pragma" => self.pragma(),
            "maxntid" | "reqntid" | "minnctapersm" | "maxnreg" => {
                self.int()?;
                while self.takes(',') {
                    self.int()?;
                }
                Ok(())
            }
            name => {
                let Some(space) = space_of(name) else {
                    return self.error(format!("unknown directive `.{name}`"));
                };
                let first = function.variables.len();
                self.variables(space, false, &mut function.variables)?;
                for variable in &mut function.variables[first..] {
                    variable.name = scopes.declare(&variable.name);
                }
                Ok(())
            }
        }
    }

    fn statement(&mut self, scopes: &Scopes, source: SourceLine) -> Result<Statement, PtxError> {
        let line = self.line();
        let guard = if self.takes('@') {
            let inverted = self.takes('!');
            Some((scopes.resolve(&self.word()?), inverted))
        } else {
            None
        };
        let opcode = self.word()?;
        let mut modifiers = Vec::new();
        while let Some(modifier) = self.dotted() {
            modifiers.push(modifier);
        }
        let mut operands = Vec::new();
        if !self.takes(';') {
            loop {
                operands.push(self.operand(scopes, 0)?);
                if self.takes(';') {
                    break;
                }
                self.expect(',')?;
            }
        }
        Ok(Statement {
            line,
            source,
            guard,
            opcode,
            modifiers,
            operands,
        })
    }

    fn operand(&mut self, scopes: &Scopes, depth: u32) -> Result<Operand, PtxError> {
        if depth > 4 {
            return self.error("operands nest too deeply");
        }
        let first = match self.next()? {
            Token::Punct('{') => Operand::Vector(self.operands(scopes, '}', depth)?),
            Token::Punct('(') => Operand::List(self.operands(scopes, ')', depth)?),
            Token::Punct('[') => return self.address(scopes, depth),
            Token::Punct('!') => Operand::Not(scopes.resolve(&self.word()?)),
            Token::Punct('-') => match self.next()? {
                Token::Int(value) => Operand::Int(value.wrapping_neg()),
                Token::Single(bits) => Operand::Single(bits ^ (1 << 31)),
                Token::Double(bits) => Operand::Double(bits ^ (1 << 63)),
                other => return self.error(format!("a number expected behind `-`, not {other:?}")),
            },
            Token::Int(value) => Operand::Int(value),
            Token::Single(bits) => Operand::Single(bits),
            Token::Double(bits) => Operand::Double(bits),
            Token::Word(word) if word == "_" => Operand::Sink,
            Token::Word(mut word) => {
                // `%tid.x`; `variable+4`
                if let Some(part) = self.dotted() {
                    word = format!("{word}.{part}");
                }
                let name = scopes.resolve(&word);
                if self.peek() == Some(&Token::Punct('+')) {
                    self.at += 1;
                    let offset = self.offset()?;
                    return Ok(Operand::Address(Some(name), offset));
                }
                Operand::Name(name)
            }
            other => {
                self.at -= 1;
                return self.error(format!("an operand expected, not {other:?}"));
            }
        };
        if self.takes('|') {
            let second = self.operand(scopes, depth + 1)?;
            return Ok(Operand::Pair(Box::new(first), Box::new(second)));
        }
        Ok(first)
    }

    fn operands(&mut self, scopes: &Scopes, close: char, depth: u32) -> Result<Vec<Operand>, PtxError> {
        let mut operands = Vec::new();
        if self.takes(close) {
            return Ok(operands);
        }
        loop {
            operands.push(self.operand(scopes, depth + 1)?);
            if self.takes(close) {
                return Ok(operands);
            }
            self.expect(',')?;
        }
    }

    fn offset(&mut self) -> Result<i64, PtxError> {
        let negative = self.takes('-');
        let value = self.int()? as i64;
        Ok(if negative { value.wrapping_neg() } else { value })
    }

    fn address(&mut self, scopes: &Scopes, depth: u32) -> Result<Operand, PtxError> {
        let (base, mut offset) = match self.next()? {
            Token::Word(word) => (Some(scopes.resolve(&word)), 0),
            Token::Int(value) => (None, value as i64),
            other => return self.error(format!("an address expected, not {other:?}")),
        };
        if self.takes('+') {
            offset = self.offset()?;
        } else if self.takes('-') {
            offset = self.offset()?.wrapping_neg();
        }
        if self.takes(',') {
            self.expect('{')?;
            let coordinates = self.operands(scopes, '}', depth)?;
            self.expect(']')?;
            return Ok(Operand::Place(base, offset, coordinates));
        }
        self.expect(']')?;
        Ok(Operand::Address(base, offset))
    }
}
