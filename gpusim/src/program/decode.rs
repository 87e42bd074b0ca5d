//! A module's text to a [`Program`]: names to numbers, memory laid out, each statement to an [`Instr`].

use std::collections::HashMap;

use super::flow::resolve_meeting_points;
use super::modifiers::Modifiers;
use super::special;
use super::touched::{Touched, touched};
use super::watched::watch;
use super::{Call, Code, Global, Guard, Instr, NEVER, Op, Param, Pred, Program, Reg, Special};
use crate::arith::{Ty, low};
use crate::counters::Class;
use crate::syntax::{Function, ModuleText, Operand, PtxError, Space, Statement, Variable};

/// What an instruction is, and the class it is counted in.
pub(super) type Decoded = (Op, Class);

#[derive(Clone, Debug)]
enum Named {
    Register { index: Reg, bits: u32 },
    Predicate(Pred),
    Variable(Space, Special),
}

/// Where the parameters of a function are in its frame.
struct Signature {
    params: Vec<Param>,
    returns: Vec<Param>,
    bytes: u32,
    is_declaration: bool,
}

struct Layout<'a> {
    text: &'a ModuleText,
    signatures: Vec<Signature>,
    functions: HashMap<&'a str, usize>,
    globals: HashMap<String, usize>,
    /// Static shared memory of the module and of functions that are not kernels, by function and name.
    shared: HashMap<(usize, &'a str), u32>,
    shared_bytes: u32,
}

/// The function that variables outside of all functions belong to.
const MODULE: usize = usize::MAX;

fn aligned(at: u32, variable: &Variable) -> Result<u32, PtxError> {
    let align = variable.align.max(1);
    let start = u64::from(at).next_multiple_of(align);
    let end = start + variable.bytes;
    let fits = end <= u64::from(u32::MAX / 2);
    if fits {
        Ok(start as u32)
    } else {
        Err(PtxError::new(variable.line, "variables are too large"))
    }
}

fn signature(function: &Function) -> Result<Signature, PtxError> {
    let mut bytes = 0;
    let mut place = |variable: &Variable| {
        let offset = aligned(bytes, variable)?;
        bytes = offset + variable.bytes as u32;
        Ok(Param {
            offset,
            bytes: variable.bytes as u32,
        })
    };
    let params = function
        .params
        .iter()
        .map(&mut place)
        .collect::<Result<_, PtxError>>()?;
    let returns = function
        .returns
        .iter()
        .map(&mut place)
        .collect::<Result<_, PtxError>>()?;
    Ok(Signature {
        params,
        returns,
        bytes,
        is_declaration: function.is_declaration,
    })
}

pub(crate) fn decode_module(text: &ModuleText) -> Result<Program, PtxError> {
    let mut functions: HashMap<&str, usize> = HashMap::new();
    for (index, function) in text.functions.iter().enumerate() {
        // A declaration may stand before the definition.
        match functions.get(function.name.as_str()) {
            Some(&old) if function.is_declaration || !text.functions[old].is_declaration => {
                if !function.is_declaration {
                    return Err(PtxError::new(
                        function.line,
                        format!("`{}` is there twice", function.name),
                    ));
                }
            }
            _ => {
                functions.insert(&function.name, index);
            }
        }
    }
    let mut layout = Layout {
        text,
        signatures: text.functions.iter().map(signature).collect::<Result<_, _>>()?,
        functions,
        globals: HashMap::new(),
        shared: HashMap::new(),
        shared_bytes: 0,
    };
    let globals = layout.place_variables()?;
    let mut codes = Vec::with_capacity(text.functions.len());
    for index in 0..text.functions.len() {
        codes.push(Decoder::new(&layout, index)?.run()?);
    }
    let names = layout
        .functions
        .iter()
        .map(|(&name, &index)| (name.to_string(), index))
        .collect();
    Ok(Program {
        codes,
        names,
        globals,
        files: text.files.clone(),
        sources: text.sources.clone(),
    })
}

impl<'a> Layout<'a> {
    fn place_variables(&mut self) -> Result<Vec<Global>, PtxError> {
        let mut globals = Vec::new();
        let mut addresses = Vec::new();
        for variable in &self.text.variables {
            match variable.space {
                Space::Global | Space::Const => {
                    self.globals.insert(variable.name.clone(), globals.len());
                    addresses.push((variable.line, variable.addresses.clone()));
                    globals.push(Global {
                        name: variable.name.clone(),
                        bytes: variable.bytes,
                        initial: variable.initial.clone(),
                        addresses: Vec::new(),
                        read_only: variable.space == Space::Const,
                    });
                }
                Space::Shared => self.place_shared(MODULE, variable)?,
                Space::Generic | Space::Local | Space::Param => {
                    return Err(PtxError::new(variable.line, "such a variable belongs in a function"));
                }
            }
        }
        for (global, (line, addresses)) in globals.iter_mut().zip(addresses) {
            for (at, name) in addresses {
                let Some(&index) = self.globals.get(&name) else {
                    return Err(PtxError::new(line, format!("`{name}` is no variable of device memory")));
                };
                global.addresses.push((at, index));
            }
        }
        for (index, function) in self.text.functions.iter().enumerate() {
            if !function.is_kernel {
                for variable in &function.variables {
                    self.place_shared(index, variable)?;
                }
            }
        }
        Ok(globals)
    }

    fn place_shared(&mut self, function: usize, variable: &'a Variable) -> Result<(), PtxError> {
        if variable.space == Space::Shared && !variable.is_extern {
            let at = aligned(self.shared_bytes, variable)?;
            self.shared_bytes = at + variable.bytes as u32;
            self.shared.insert((function, &variable.name), at);
        }
        Ok(())
    }
}

/// One function while its statements are decoded.
pub(super) struct Decoder<'a> {
    layout: &'a Layout<'a>,
    function: &'a Function,
    index: usize,
    names: HashMap<&'a str, Named>,
    special_registers: HashMap<Special, Reg>,
    specials: Vec<(Reg, Special)>,
    registers: u32,
    predicates: u32,
    param_bytes: u32,
    local_bytes: u32,
    shared_bytes: u32,
    carry: Option<Pred>,
}

impl<'a> Decoder<'a> {
    fn new(layout: &'a Layout<'a>, index: usize) -> Result<Decoder<'a>, PtxError> {
        let function = &layout.text.functions[index];
        let signature = &layout.signatures[index];
        let mut decoder = Decoder {
            layout,
            function,
            index,
            names: HashMap::new(),
            special_registers: HashMap::new(),
            specials: Vec::new(),
            registers: 0,
            predicates: 0,
            param_bytes: signature.bytes,
            local_bytes: 0,
            shared_bytes: layout.shared_bytes,
            carry: None,
        };
        let formal = function.params.iter().zip(&signature.params);
        for (variable, param) in formal.chain(function.returns.iter().zip(&signature.returns)) {
            let address = Special::Constant(u64::from(param.offset));
            decoder
                .names
                .insert(&variable.name, Named::Variable(Space::Param, address));
        }
        decoder.declare()?;
        Ok(decoder)
    }

    fn declare(&mut self) -> Result<(), PtxError> {
        for register in &self.function.registers {
            let named = if register.bits == 0 {
                self.predicates += 1;
                Named::Predicate(self.predicates - 1)
            } else {
                self.registers += 1;
                Named::Register {
                    index: self.registers - 1,
                    bits: register.bits,
                }
            };
            self.names.insert(&register.name, named);
        }
        let function: &'a Function = self.function;
        for variable in &function.variables {
            let address = match variable.space {
                Space::Param => {
                    let at = aligned(self.param_bytes, variable)?;
                    self.param_bytes = at + variable.bytes as u32;
                    Special::Constant(u64::from(at))
                }
                Space::Local => {
                    let at = aligned(self.local_bytes, variable)?;
                    self.local_bytes = at + variable.bytes as u32;
                    Special::Local(i64::from(at))
                }
                Space::Shared if variable.is_extern => Special::DynamicShared(0),
                Space::Shared if !function.is_kernel => {
                    Special::Constant(u64::from(self.layout.shared[&(self.index, variable.name.as_str())]))
                }
                Space::Shared => {
                    let at = aligned(self.shared_bytes, variable)?;
                    self.shared_bytes = at + variable.bytes as u32;
                    Special::Constant(u64::from(at))
                }
                Space::Generic | Space::Global | Space::Const => {
                    return Err(PtxError::new(
                        variable.line,
                        "such a variable in a function is not supported",
                    ));
                }
            };
            self.names
                .insert(&variable.name, Named::Variable(variable.space, address));
        }
        Ok(())
    }

    fn run(mut self) -> Result<Code, PtxError> {
        let function: &'a Function = self.function;
        let mut instrs = Vec::with_capacity(function.statements.len() + 1);
        for statement in &function.statements {
            instrs.push(self.instruction(statement)?);
        }
        if !function.is_declaration && !instrs.last().is_some_and(|i: &Instr| ends(i)) {
            let line = instrs.last().map_or(function.line, |i| i.line);
            instrs.push(Instr {
                op: Op::Return,
                guard: None,
                class: Class::Control,
                line,
                source: Default::default(),
                reads: Vec::new(),
                copies: Vec::new(),
                writes: Vec::new(),
                watched: None,
            });
        }
        if !instrs.is_empty() {
            resolve_meeting_points(&mut instrs);
        }
        let copies_tiles = instrs.iter().any(|i| matches!(i.op, Op::CopyTile(_)));
        let has_products = watch(&mut instrs, self.registers as usize, &self.specials);
        let signature = &self.layout.signatures[self.index];
        Ok(Code {
            name: function.name.clone(),
            is_kernel: function.is_kernel,
            instrs,
            registers: self.registers as usize,
            specials: self.specials,
            predicates: self.predicates as usize,
            params: signature.params.clone(),
            param_bytes: self.param_bytes,
            local_bytes: self.local_bytes.next_multiple_of(16),
            shared_bytes: self.shared_bytes.next_multiple_of(16),
            has_products,
            copies_tiles,
        })
    }

    fn instruction(&mut self, statement: &'a Statement) -> Result<Instr, PtxError> {
        let guard = match &statement.guard {
            Some((name, inverted)) => {
                let pred = self.pred_named(name, statement.line)?;
                Some(Guard {
                    pred,
                    inverted: *inverted,
                })
            }
            None => None,
        };
        let (op, class) = self.op(statement)?;
        let Touched { reads, copies, writes } = touched(&op);
        Ok(Instr {
            op,
            guard,
            class,
            line: statement.line,
            source: statement.source,
            reads,
            copies,
            writes,
            watched: None,
        })
    }

    fn op(&mut self, statement: &'a Statement) -> Result<Decoded, PtxError> {
        let mut modifiers = Modifiers::new(statement);
        let decoded = match statement.opcode.as_str() {
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" => {
                self.control(statement, &mut modifiers)?
            }
            "ld" | "ldu" | "st" | "atom" | "red" | "fence" | "membar" | "cvta" | "isspacep" | "cp" | "prefetch"
            | "prefetchu" | "discard" | "applypriority" => self.memory(statement, &mut modifiers)?,
            "bar" | "barrier" | "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" | "ldmatrix"
            | "stmatrix" | "movmatrix" | "mma" | "griddepcontrol" => self.collective(statement, &mut modifiers)?,
            "wgmma" => self.warpgroup(statement, &mut modifiers)?,
            "mbarrier" => self.phase(statement, &mut modifiers)?,
            _ => self.arithmetic(statement, &mut modifiers)?,
        };
        modifiers.finish()?;
        Ok(decoded)
    }

    fn control(&mut self, statement: &Statement, m: &mut Modifiers<'_>) -> Result<Decoded, PtxError> {
        m.take("uni");
        let op = match statement.opcode.as_str() {
            "bra" => {
                let [Operand::Name(label)] = &statement.operands[..] else {
                    return Err(m.error("needs a label"));
                };
                Op::Branch {
                    to: self.label(label, statement.line)?,
                    meet: NEVER,
                }
            }
            "brx" => {
                if !m.take("idx") {
                    return Err(m.unknown());
                }
                let [index, Operand::Name(table)] = &statement.operands[..] else {
                    return Err(m.error("needs an index and a list of labels"));
                };
                let Some(labels) = self.function.tables.get(table) else {
                    return Err(m.error("names a list of labels that is not there"));
                };
                let targets = labels
                    .iter()
                    .map(|l| self.label(l, statement.line))
                    .collect::<Result<_, PtxError>>()?;
                let index = self.source(index, Ty::U32, m)?;
                Op::BranchTable {
                    index,
                    targets,
                    meet: NEVER,
                }
            }
            "call" => self.call(statement, m)?,
            "ret" if self.function.is_kernel => Op::Exit,
            "ret" => Op::Return,
            "exit" => Op::Exit,
            "trap" | "brkpt" => Op::Trap,
            _ => {
                m.take("u32");
                Op::Nop
            }
        };
        Ok((op, Class::Control))
    }

    fn label(&self, label: &str, line: u32) -> Result<u32, PtxError> {
        let found = self.function.labels.get(label).map(|&at| at as u32);
        found.ok_or_else(|| PtxError::new(line, format!("there is no label `{label}`")))
    }

    fn call(&mut self, statement: &Statement, m: &Modifiers<'_>) -> Result<Op, PtxError> {
        let empty = Vec::new();
        let (results, name, arguments) = match &statement.operands[..] {
            [Operand::Name(name)] => (&empty, name, &empty),
            [Operand::Name(name), Operand::List(arguments)] => (&empty, name, arguments),
            [Operand::List(results), Operand::Name(name)] => (results, name, &empty),
            [Operand::List(results), Operand::Name(name), Operand::List(arguments)] => (results, name, arguments),
            _ => return Err(m.error("in a form that is not supported: calls name their function")),
        };
        let Some(&function) = self.layout.functions.get(name.as_str()) else {
            return Err(m.error(&format!("calls `{name}`, which is not there")));
        };
        let signature = &self.layout.signatures[function];
        if signature.is_declaration {
            return match name.as_str() {
                "__assertfail" => Ok(Op::Assertion),
                _ => Err(m.error(&format!("calls `{name}`, which has no body"))),
            };
        }
        if signature.params.len() != arguments.len() || signature.returns.len() != results.len() {
            return Err(m.error(&format!("does not fit the parameters of `{name}`")));
        }
        let place = |operand: &Operand| match operand {
            Operand::Name(name) => match self.names.get(name.as_str()) {
                Some(Named::Variable(Space::Param, Special::Constant(at))) => Ok(*at as u32),
                _ => Err(m.error("passes something that is no `.param` variable")),
            },
            _ => Err(m.error("passes something that is no `.param` variable")),
        };
        let mut call = Call {
            function,
            arguments: Vec::new(),
            results: Vec::new(),
        };
        for (argument, param) in arguments.iter().zip(&signature.params) {
            call.arguments.push((place(argument)?, param.offset, param.bytes));
        }
        for (result, param) in results.iter().zip(&signature.returns) {
            call.results.push((param.offset, place(result)?, param.bytes));
        }
        Ok(Op::Call(Box::new(call)))
    }

    /// The architecture that the text names.
    pub(super) fn target_name(&self) -> &str {
        &self.layout.text.target
    }

    /// A register that is filled when a frame is made.
    pub(super) fn special(&mut self, special: Special) -> Reg {
        if let Some(&register) = self.special_registers.get(&special) {
            return register;
        }
        let register = self.fresh();
        self.special_registers.insert(special, register);
        self.specials.push((register, special));
        register
    }

    pub(super) fn constant(&mut self, value: u64) -> Reg {
        self.special(Special::Constant(value))
    }

    /// A register of no name.
    pub(super) fn fresh(&mut self) -> Reg {
        self.registers += 1;
        self.registers - 1
    }

    /// The flag that additions with carry share.
    pub(super) fn carry(&mut self) -> Pred {
        if let Some(pred) = self.carry {
            return pred;
        }
        self.predicates += 1;
        self.carry = Some(self.predicates - 1);
        self.predicates - 1
    }

    /// An operand that is read as a value of a type.
    pub(super) fn source(&mut self, operand: &Operand, ty: Ty, m: &Modifiers<'_>) -> Result<Reg, PtxError> {
        Ok(match operand {
            Operand::Int(value) if ty == Ty::F32 => self.constant(u64::from((*value as i64 as f32).to_bits())),
            Operand::Int(value) => self.constant(low(*value, ty.bits())),
            Operand::Single(bits) => self.constant(u64::from(*bits)),
            Operand::Double(bits) if ty == Ty::F32 => {
                self.constant(u64::from((f64::from_bits(*bits) as f32).to_bits()))
            }
            Operand::Double(bits) => self.constant(*bits),
            Operand::Name(name) => match self.names.get(name.as_str()) {
                Some(Named::Register { index, .. }) => *index,
                Some(Named::Predicate(_)) => return Err(m.error(&format!("takes no predicate, but `{name}` is one"))),
                Some(Named::Variable(_, address)) => {
                    let address = *address;
                    self.special(address)
                }
                None => self.global_or_special(name, 0, m)?,
            },
            Operand::Address(Some(name), offset) => self.address_of(name, *offset, m)?,
            _ => return Err(m.error("has an operand of a kind that does not fit")),
        })
    }

    fn global_or_special(&mut self, name: &str, offset: i64, m: &Modifiers<'_>) -> Result<Reg, PtxError> {
        if let Some(found) = special::parse(name) {
            return Ok(self.special(found));
        }
        if let Some((_, address)) = self.module_variable(name) {
            return Ok(self.special(moved(address, offset)));
        }
        Err(m.error(&format!("names `{name}`, which is not declared")))
    }

    /// A variable outside of all functions.
    fn module_variable(&self, name: &str) -> Option<(Space, Special)> {
        if let Some(&index) = self.layout.globals.get(name) {
            return Some((Space::Global, Special::Global(index, 0)));
        }
        if let Some(&at) = self.layout.shared.get(&(MODULE, name)) {
            return Some((Space::Shared, Special::Constant(u64::from(at))));
        }
        let dynamic = |v: &&Variable| v.name == name && v.space == Space::Shared;
        self.layout
            .text
            .variables
            .iter()
            .find(dynamic)
            .map(|_| (Space::Shared, Special::DynamicShared(0)))
    }

    /// The register that holds a variable's address plus an offset.
    fn address_of(&mut self, name: &str, offset: i64, m: &Modifiers<'_>) -> Result<Reg, PtxError> {
        match self.names.get(name) {
            Some(Named::Variable(_, address)) => {
                let address = moved(*address, offset);
                Ok(self.special(address))
            }
            Some(_) => Err(m.error("adds to a register where only variables have offsets")),
            None => self.global_or_special(name, offset, m),
        }
    }

    /// The base register and offset of an address in brackets.
    pub(super) fn address(&mut self, operand: &Operand, m: &Modifiers<'_>) -> Result<(Reg, i64), PtxError> {
        match operand {
            Operand::Address(None, offset) | Operand::Place(None, offset, _) => Ok((self.constant(0), *offset)),
            Operand::Address(Some(name), offset) | Operand::Place(Some(name), offset, _) => {
                match self.names.get(name.as_str()) {
                    Some(Named::Register { index, .. }) => Ok((*index, *offset)),
                    _ => Ok((self.address_of(name, *offset, m)?, 0)),
                }
            }
            _ => Err(m.error("needs an address in brackets")),
        }
    }

    /// A register that an instruction writes.
    pub(super) fn target(&mut self, operand: &Operand, m: &Modifiers<'_>) -> Result<Reg, PtxError> {
        match operand {
            Operand::Sink => Ok(self.fresh()),
            Operand::Name(name) => match self.names.get(name.as_str()) {
                Some(Named::Register { index, .. }) => Ok(*index),
                _ => Err(m.error(&format!("writes `{name}`, which is no register"))),
            },
            _ => Err(m.error("writes something that is no register")),
        }
    }

    /// The bits of a register that an instruction writes.
    pub(super) fn width(&self, operand: &Operand) -> u32 {
        match operand {
            Operand::Name(name) => match self.names.get(name.as_str()) {
                Some(Named::Register { bits, .. }) => *bits,
                _ => 64,
            },
            _ => 64,
        }
    }

    fn pred_named(&self, name: &str, line: u32) -> Result<Pred, PtxError> {
        match self.names.get(name) {
            Some(Named::Predicate(pred)) => Ok(*pred),
            _ => Err(PtxError::new(line, format!("`{name}` is no predicate"))),
        }
    }

    /// A predicate that an instruction writes; `_` is none.
    pub(super) fn target_pred(&self, operand: &Operand, m: &Modifiers<'_>) -> Result<Option<Pred>, PtxError> {
        match operand {
            Operand::Sink => Ok(None),
            Operand::Name(name) => match self.names.get(name.as_str()) {
                Some(Named::Predicate(pred)) => Ok(Some(*pred)),
                _ => Err(m.error(&format!("writes `{name}`, which is no predicate"))),
            },
            _ => Err(m.error("writes something that is no predicate")),
        }
    }

    /// A predicate that an instruction reads.
    pub(super) fn guard(&self, operand: &Operand, m: &Modifiers<'_>) -> Result<Guard, PtxError> {
        let (name, inverted) = match operand {
            Operand::Name(name) => (name, false),
            Operand::Not(name) => (name, true),
            _ => return Err(m.error("needs a predicate")),
        };
        match self.names.get(name.as_str()) {
            Some(Named::Predicate(pred)) => Ok(Guard { pred: *pred, inverted }),
            _ => Err(m.error(&format!("reads `{name}`, which is no predicate"))),
        }
    }

    /// A predicate that is the same for all lanes: one of its own, inverted or not, that nobody writes.
    pub(super) fn constant_guard(&mut self, value: bool) -> Guard {
        self.predicates += 1;
        Guard {
            pred: self.predicates - 1,
            inverted: value,
        }
    }

    /// Whether an operand is the name of a predicate.
    pub(super) fn is_pred(&self, operand: &Operand) -> bool {
        matches!(operand, Operand::Name(n) | Operand::Not(n) if matches!(self.names.get(n.as_str()), Some(Named::Predicate(_))))
    }

    /// The space of a variable that an operand names.
    pub(super) fn space_of(&self, operand: &Operand) -> Option<Space> {
        let (Operand::Name(name) | Operand::Address(Some(name), _) | Operand::Place(Some(name), ..)) = operand else {
            return None;
        };
        match self.names.get(name.as_str()) {
            Some(Named::Variable(space, _)) => Some(*space),
            Some(_) => None,
            None => self.module_variable(name).map(|(space, _)| space),
        }
    }
}

/// An address that is known when a frame is made, moved on.
const fn moved(address: Special, by: i64) -> Special {
    match address {
        Special::Constant(at) => Special::Constant(at.wrapping_add(by as u64)),
        Special::Local(at) => Special::Local(at.wrapping_add(by)),
        Special::DynamicShared(at) => Special::DynamicShared(at.wrapping_add(by)),
        Special::Global(index, at) => Special::Global(index, at.wrapping_add(by)),
        other => other,
    }
}

/// Whether control never goes on behind an instruction.
fn ends(instr: &Instr) -> bool {
    let leaves = matches!(
        instr.op,
        Op::Return | Op::Exit | Op::Branch { .. } | Op::BranchTable { .. } | Op::Trap
    );
    leaves && instr.guard.is_none()
}
