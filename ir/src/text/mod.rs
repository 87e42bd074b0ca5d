//! The text form of the languages (files end in `.tlir`): printer and parser.
//!
//! Invariants:
//! - `parse(print(x)) == x` for everything the builder builds (see [`difference`] for what "equal" means): inputs come
//!   first, in their order; the other nodes keep their order; constants keep their bits; names may be any string.
//! - Printing is canonical: equal graphs print as equal text, and printing what was parsed from canonical text gives that
//!   text again. Comments do not survive.
//! - What parses without error verifies without error. Every error of a text is reported, with its place; after one, the
//!   parser resumes at the next statement, and what depends on a broken statement is not reported again.
//! - No text makes the parser panic, hang or overflow the stack. Time and memory are linear in the text (constants' data
//!   included: it is counted before it is allocated). Nothing recurses over the input but parentheses in extents, which
//!   nest at most 64 deep. At most [`MAX_ERRORS`] errors are reported.
//!
//! # A graph
//!
//! ```text
//! // softmax numerators of attention scores
//! graph @scores(%q: f32[b, h, s, 64], %k: f32[b, h, t, 64]) where b in 1..=64, h = 12, s in 1..=4096, t {
//!   %0 = einsum %q, %k {abcd,abed->abce} : f32[b, h, s, t]
//!   %1 = reduce max %0 {axes=[3]} : f32[b, h, s]
//!   %2 = reshape %1 : f32[b, h, s, 1]
//!   %3 = expand %2 : f32[b, h, s, t]
//!   %4 = sub %0, %3 : f32[b, h, s, t]
//!   return %4, %1 as maxima
//! }
//! ```
//!
//! A graph names its inputs with their types, then the symbols that occur in extents with their ranges, then lists one
//! statement per node, and ends with its outputs. Line ends mean nothing; `//` begins a comment.
//!
//! **Values** are `%` and a name. In what is printed, inputs carry their own name and other nodes are numbered; in what is
//! read, a node may have any name that is not taken. A bare number (`%7`) is never an input's name: an input that is really
//! called `7` is `%"7"`. Two equal statements are one node under two names.
//!
//! **Symbols** without a declared range have `0..=2147483648`; `h = 12` is a range of one value. Symbols are numbered in the
//! order of the `where` clause, then by first occurrence.
//!
//! **Types** are mandatory. For `reshape`, `expand`, `slice`, `iota`, `random`, `convert` and `einsum` the type says what
//! the node makes (`einsum`: the dtype only); everywhere it must be the inferred type, extent for extent.
//!
//! **Constants**: `const 0.5 : f32[]` is a scalar. A list is data: nested as the type's extents say, or flat in C order;
//! `const [0.5] : f32[]` is data of rank 0. `const opaque "name" : f32[1000, 1000]` is data that the text does not hold: the
//! printer lists it in [`Printed::externals`], the parser asks its resolver. Literals are `true`, `false`, decimal or `0x`
//! integers, decimal fractions, `inf`, `-inf`, `nan`, and `nan:0x7fc00001` for a NaN with those bits.
//!
//! **Einsum** labels are letters, one per axis, or `'52` and so on beyond them; `a` is `'0` and `Z` is `'51`. They are
//! renumbered by first appearance. `semiring` is `add-mul` and `acc` the accumulator of the result's dtype unless given.
//!
//! # Grammar
//!
//! ```text
//! module    = { graph } ;
//! graph     = "graph" GLOBAL "(" [ input { "," input } [ "," ] ] ")" [ "where" symbol { "," symbol } ]
//!             "{" { statement } "return" [ output { "," output } ] "}" ;
//! input     = VALUE ":" type ;
//! symbol    = name [ "=" INTEGER | "in" INTEGER "..=" INTEGER ] ;
//! output    = VALUE [ "as" name ] ;
//! name      = WORD | STRING ;
//! statement = VALUE "=" operation ":" type ;
//! operation = "const" ( literal | list | "opaque" STRING )
//!           | "iota" "{" "axis" "=" INTEGER "}"
//!           | "random" VALUE "{" "stream" "=" INTEGER "}"
//!           | SCALAR_OP VALUE { "," VALUE }                         (* add, exp, select, … *)
//!           | ( "convert" | "reshape" | "expand" | "copy" ) VALUE
//!           | "einsum" VALUE { "," VALUE } "{" labels { "," labels } "->" labels [ ";" einsum_option { "," einsum_option } ] "}"
//!           | "reduce" MONOID VALUE "{" "axes" "=" integers "}"
//!           | "permute" VALUE "{" "axes" "=" integers "}"
//!           | "pad" VALUE "{" "lo" "=" extents "," "hi" "=" extents "," "value" "=" literal "}"
//!           | "slice" VALUE "{" "start" "=" extents [ "," "step" "=" integers ] "}"      (* step: all 1 *)
//!           | "window" VALUE "{" "axis" "=" INTEGER "," "size" "=" extent
//!                            [ "," "stride" "=" INTEGER ] [ "," "dilation" "=" INTEGER ] "}"      (* both 1 *)
//!           | "gather" VALUE "," VALUE { "," VALUE } "{" "axes" "=" integers "}"
//!           | "scatter" SCATTER_OP VALUE { "," VALUE } "{" "axes" "=" integers "}"
//!           | "scan" MONOID VALUE "{" "axis" "=" INTEGER [ "," "exclusive" ] [ "," "reverse" ] "}" ;
//! labels    = { LETTER | "'" DIGITS } ;
//! einsum_option = "semiring" "=" SEMIRING | "acc" "=" DTYPE ;
//! list      = "[" [ ( list | literal ) { "," ( list | literal ) } ] "]" ;
//! integers  = "[" [ [ "-" ] INTEGER { "," [ "-" ] INTEGER } ] "]" ;
//! literal   = [ "-" ] ( NUMBER | "inf" ) | "nan" [ ":" NUMBER ] | "true" | "false" ;
//! type      = DTYPE extents ;
//! extents   = "[" [ extent { "," extent } ] "]" ;
//! extent    = [ "-" ] term { ( "+" | "-" ) term } ;
//! term      = factor { "*" factor } ;
//! factor    = INTEGER | name | "(" extent ")" | ( "div" | "mod" | "min" | "max" ) "(" extent "," extent ")" ;
//!
//! VALUE     = "%" ( dotted | STRING ) ;       GLOBAL = "@" ( dotted | STRING ) ;
//! dotted    = part { "." part } ;             part   = ( LETTER | DIGIT | "_" ) { LETTER | DIGIT | "_" } ;
//! WORD      = ( LETTER | "_" ) { LETTER | DIGIT | "_" } ;
//! STRING    = '"' { any character but '"', '\' and line end | escape } '"' ;
//! escape    = "\n" | "\r" | "\t" | '\"' | "\\" | "\u{" hexadecimal digits "}" ;
//! ```
//!
//! Attributes in braces come in any order and print in the order above. An extent has at most 512 nodes and coefficients
//! below 2^62.
//!
//! # Other sections
//!
//! A kernel prints as [`Kernel`] displays itself; a name may follow the word: `kernel @name(p0: f32[s0] read) where …`.
//! `unused %3: f32` and `unused i2 in 0..4` keep table entries that no statement defines. What parses has no structural
//! violation; bounds and races are for [`crate::kernel::verify::verify`] to prove.
//!
//! `kernel` and `plan` sections share the modules `lexer`, `cursor` and `expr`: a section's parser takes a `Cursor` behind
//! its keyword, reads extents and types in a `Scope` of its own, and adds to the [`Module`].

mod compare;
mod constant;
pub(crate) mod cursor;
pub(crate) mod expr;
mod graph;
mod kernel;
pub(crate) mod lexer;
mod parse;
mod print;

use std::fmt;

use crate::dtype::DType;
use crate::graph::Graph;
use crate::kernel::Kernel;
use crate::tensor::HostTensor;

pub use compare::difference;
pub use cursor::MAX_ERRORS;
pub use lexer::Span;
pub use parse::{parse_bytes, parse_graph, parse_module};
pub use print::{PrintOptions, Printed, print_graph, print_module};

/// What a text holds.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Module {
    /// Graphs in order; no two have one name.
    pub graphs: Vec<Graph>,
    /// Kernels in order, with their names; no two have one name, and any may have none.
    pub kernels: Vec<(Option<String>, Kernel)>,
}

/// A place in a text for readers; both count from 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column, in characters.
    pub column: u32,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// One error in a text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{position}: {message}")]
pub struct ParseError {
    /// The bytes concerned.
    pub span: Span,
    /// Where they begin.
    pub position: Position,
    /// What is wrong; what was expected, what was found.
    pub message: String,
}

/// Finds the data of `const opaque "name"`: called with the name, the dtype and the extents of the type. What it answers
/// must have that dtype and those extents.
pub type Resolver<'r> = dyn FnMut(&str, DType, &[usize]) -> Option<HostTensor> + 'r;

/// The resolver of texts that hold all their data: it knows no name.
pub fn no_data(_: &str, _: DType, _: &[usize]) -> Option<HostTensor> {
    None
}
