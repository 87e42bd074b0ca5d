//! PTX as text says it: a module of variables and functions, each function a list of statements with its names resolved.
//!
//! What a statement means is not known here; `program` decides that. Invariants:
//! - Every statement has its line in the text, and the source line that the last `.loc` before it named.
//! - A name that is declared in a nested block is made unique, so that a function has one flat set of names.
//! - A text may have the sources that it was compiled from behind it, as comments: `//= NAME` begins one, and each line of it is behind `//| `. What is
//!   found in a line is then said with its words.
//! - No text makes the parser panic: what it does not know is an error with a line.

mod lexer;
mod parser;

use std::collections::HashMap;

pub(crate) use parser::parse;

/// Why a text is not PTX that can be run.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("PTX line {line}: {message}")]
pub struct PtxError {
    /// The line, from 1.
    pub line: u32,
    /// What is wrong with it.
    pub message: String,
}

impl PtxError {
    pub(crate) fn new(line: u32, message: impl Into<String>) -> PtxError {
        PtxError {
            line,
            message: message.into(),
        }
    }
}

/// A line of the source that PTX was compiled from, as `.loc` and `.file` name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct SourceLine {
    /// The number that `.file` gives the file; 0 if nothing was said.
    pub file: u32,
    /// The line, from 1; 0 if nothing was said.
    pub line: u32,
}

/// Where a variable or an access is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Space {
    /// Any of the others, by a generic address.
    Generic,
    /// Device memory.
    Global,
    /// Memory of a block.
    Shared,
    /// Memory of a thread.
    Local,
    /// Device memory that a kernel only reads.
    Const,
    /// Parameters of kernels and functions.
    Param,
}

impl Space {
    /// Its name in PTX.
    pub const fn name(self) -> &'static str {
        match self {
            Space::Generic => "generic",
            Space::Global => "global",
            Space::Shared => "shared",
            Space::Local => "local",
            Space::Const => "const",
            Space::Param => "param",
        }
    }
}

/// A variable in memory.
#[derive(Clone, Debug)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) space: Space,
    pub(crate) align: u64,
    pub(crate) bytes: u64,
    /// The bytes it starts with; shorter than `bytes` where the rest is zero.
    pub(crate) initial: Vec<u8>,
    /// Places in `initial` that hold the address of another variable plus what is written there.
    pub(crate) addresses: Vec<(u64, String)>,
    /// Declared `.extern`: dynamic shared memory if it is shared.
    pub(crate) is_extern: bool,
    pub(crate) line: u32,
}

/// Registers that one declaration makes.
#[derive(Clone, Debug)]
pub(crate) struct Register {
    pub(crate) name: String,
    /// 0 for a predicate.
    pub(crate) bits: u32,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Operand {
    /// A register, label, variable or function.
    Name(String),
    /// A predicate that is inverted.
    Not(String),
    Int(u64),
    /// The bits of an f32.
    Single(u32),
    /// The bits of an f64.
    Double(u64),
    Vector(Vec<Operand>),
    /// `[base + offset]`; no base is an absolute address.
    Address(Option<String>, i64),
    /// `[base + offset, {x, y}]`: a place in a tensor that a map at the address tells of.
    Place(Option<String>, i64, Vec<Operand>),
    /// `a|b`: two results.
    Pair(Box<Operand>, Box<Operand>),
    /// `(a, b)`: the parameters of a call.
    List(Vec<Operand>),
    /// `_`: a result that nobody wants.
    Sink,
}

#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) line: u32,
    pub(crate) source: SourceLine,
    /// The guard's predicate, and whether it is inverted.
    pub(crate) guard: Option<(String, bool)>,
    pub(crate) opcode: String,
    pub(crate) modifiers: Vec<String>,
    pub(crate) operands: Vec<Operand>,
}

#[derive(Clone, Debug)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) is_kernel: bool,
    pub(crate) line: u32,
    pub(crate) returns: Vec<Variable>,
    pub(crate) params: Vec<Variable>,
    pub(crate) registers: Vec<Register>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) statements: Vec<Statement>,
    /// Label to the statement it stands before.
    pub(crate) labels: HashMap<String, usize>,
    /// Lists of labels for indirect branches.
    pub(crate) tables: HashMap<String, Vec<String>>,
    /// Declared without a body.
    pub(crate) is_declaration: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ModuleText {
    pub(crate) version: (u32, u32),
    pub(crate) target: String,
    pub(crate) files: HashMap<u32, String>,
    /// The lines of sources, by name, of which the text has any.
    pub(crate) sources: HashMap<String, Vec<String>>,
    pub(crate) variables: Vec<Variable>,
    pub(crate) functions: Vec<Function>,
}
