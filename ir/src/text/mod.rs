//! The text form of the languages (files end in `.tlir`): printer and parser of graphs, kernels and plans.
//!
//! Invariants:
//! - `parse(print(x)) == x` for everything the builder builds (see [`difference`] for what "equal" means): inputs come
//!   first, in their order; the other nodes keep their order; constants keep their bits; names may be any string.
//! - Printing is canonical: equal graphs (whose nodes have equal names, where names print) print as equal text, and printing what was parsed from canonical text gives that
//!   text again. Comments do not survive.
//! - A graph that parses without error verifies without error. Every error of a text is reported, with its place; after one, the
//!   parser resumes at the next statement, and what depends on a broken statement is not reported again.
//! - No text makes the parser panic, hang or overflow the stack. Time and memory are linear in the text (constants' data
//!   included: it is counted before it is allocated). Nothing recurses over the input but parentheses in extents, which
//!   nest at most 64 deep, blocks of kernels, at most 128, and bodies of loops and regions, at most 16. At most [`MAX_ERRORS`] errors are reported.
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
//! order of the `where` clause, then by first occurrence. `k upto 3*n` is a size that data decides: a call of the graph binds it,
//! and buffers have room for the bound.
//!
//! **Types** are mandatory. For `reshape`, `expand`, `slice`, `iota`, `random`, `convert`, `bitcast` and `einsum` the type
//! says what the node makes (`einsum`: the dtype only); everywhere it must be the inferred type, extent for extent.
//!
//! **Constants**: `const 0.5 : f32[]` is a scalar. A list is data: nested as the type's extents say, or flat in C order;
//! `const [0.5] : f32[]` is data of rank 0. `const opaque "name" : f32[1000, 1000]` is data that the text does not hold: the
//! printer lists it in [`Printed::externals`], the parser asks its resolver. In a file it is the tensor of that name in the
//! safetensors file beside it (`model.safetensors` beside `model.tlir`). Literals are `true`, `false`, decimal or `0x`
//! integers, decimal fractions, `inf`, `-inf`, `nan`, and `nan:0x7fc00001` for a NaN with those bits. Literals of storage
//! types are numbers that they have, or that round to one; what is too large for one is an error.
//!
//! **Names of a model**: `from "name"` behind a statement's type is the node of an imported model that it came from
//! ([`PrintOptions::names`]). It means nothing, and messages about the node show it. `from gradient of exp "name"` is what a
//! rewrite made of an operation of that node: rewrites of what rewrites made are listed with `in`, the last first.
//!
//! **Einsum** labels are letters, one per axis, or `'52` and so on beyond them; `a` is `'0` and `Z` is `'51`. They are
//! renumbered by first appearance. `semiring` is `add-mul` and `acc` the accumulator of the result's dtype unless given.
//!
//! **Loops, calls and regions** have several results, whose types stand in parentheses, and are used through `project`. A loop
//! holds its body, a graph with values and symbols of its own; `symbols` gives those their values. See [`crate::graph::control`]
//! for the order of operands, inputs, outputs and results. A region holds a body, which computes its results from its operands, and
//! where it is `custom` a second one, which computes its derivative; where it is a `checkpoint`, its derivative computes it again: see
//! [`crate::graph::region`].
//!
//! ```text
//! graph @running(%x: f32[n, 4], %h: f32[4]) where n {
//!   %0 = loop %h, %x {trip=n, carried=1, slices=[0], stacks=[0 reverse]} body @step(%i: i64[], %h: f32[4], %x: f32[4]) {
//!     %0 = add %h, %x : f32[4]
//!     return %0, %0
//!   } : (f32[4], f32[n, 4])
//!   %1 = project %0 {result=1} : f32[n, 4]
//!   %2 = call sort %1 {axis=1, count=2, descending} : (f32[n, 2], i64[n, 2])
//!   %3 = project %2 {result=1} : i64[n, 2]
//!   return %1, %3
//! }
//! ```
//!
//! # A kernel
//!
//! ```text
//! kernel @row_sums(p0: f32[64*s0] read, p1: f32[s0] write) where s0 in 1..=4096 {
//!   scratch r0: f32[1] register
//!   for i0 in 0..s0 parallel {
//!     %0: f32 = const 0.0
//!     store r0[0], %0
//!     for i1 in 0..64 serial {
//!       %1: f32 = load p0[64*i0 + i1]
//!       accumulate add r0[0] with %1
//!     }
//!     %2: f32 = load r0[0]
//!     store p1[i0], %2
//!   }
//! }
//! ```
//!
//! Nothing in a kernel has a name but the kernel itself, and it need not: parameters are `p0`, symbols `s0`, scratch `r0`,
//! loop variables `i0`, values `%0`. Parameters, symbols and scratch are numbered as they are declared; variables and values
//! in any order, but without gaps. `unused %3: f32` and `unused i2 in 0..4` are numbers that no statement defines. Symbols of
//! a kernel have nothing to do with those of a graph: a launch gives their values, which keep what the kernel `requires`. See [`crate::kernel`] for what it means.
//!
//! # A plan
//!
//! ```text
//! plan @f where n in 1..=4096 {
//!   input x: f32[n, 64] = $0
//!   output sums: f32[n] = $1
//!   $0: f32[64*n] input 0 "x"
//!   $1: f32[n] output 0 "sums"
//!   steps {
//!     launch kernel 0($0, $1) symbols [n] grain 256 bytes 260*n flops 64*n "reduce add"
//!   }
//!   kernel 0(p0: f32[64*s0] read, p1: f32[s0] write) where s0 in 1..=4096 {
//!     …
//!   }
//! }
//! ```
//!
//! A plan holds its kernels. Slots, constants and kernels are numbered in order; an `unused` input has no slot. Strides of a
//! matrix product are those of its batch axes, of rows and of columns. See [`crate::plan`] for what it means.
//!
//! What parses is complete (no name without a declaration) but not thereby right: [`verify_module`] says of kernels and
//! plans what their verifiers do, with places in the text.
//!
//! # Grammar
//!
//! ```text
//! module    = { graph | kernel | plan } ;
//! graph     = "graph" section ;
//! section   = GLOBAL "(" [ input { "," input } [ "," ] ] ")" [ "where" symbol { "," symbol } ]
//!             "{" { statement } "return" [ output { "," output } ] "}" ;
//! input     = VALUE ":" type ;
//! symbol    = name [ "=" INTEGER | "in" INTEGER "..=" INTEGER | "upto" extent ] ;
//! output    = VALUE [ "as" name ] ;
//! name      = WORD | STRING ;
//! statement = VALUE "=" ( operation ":" type | tuple ":" "(" [ type { "," type } ] ")" ) [ "from" origin ] ;
//! origin    = STRING | name "of" name { "in" name "of" name } [ STRING ] ;
//! tuple     = "call" "sort" VALUE "{" "axis" "=" INTEGER "," "count" "=" extent [ "," "descending" ] "}"
//!           | "call" "nonzero" VALUE "{" "count" "=" name "}"
//!           | "call" "unique" VALUE "{" [ "axis" "=" INTEGER "," ] [ "sorted" "," ] "count" "=" name "}"
//!           | "call" "suppress" VALUE { "," VALUE } "{" [ "center" "," ] "count" "=" name "}"
//!           | "loop" [ VALUE { "," VALUE } ] "{" [ "trip" "=" extent "," ] [ "counted" "," ] [ "conditional" "," ]
//!             "carried" "=" INTEGER [ "," "slices" "=" alongs ] [ "," "stacks" "=" alongs ] [ "," "symbols" "=" extents ] "}"
//!             "body" section
//!           | "region" ( "opaque" | "checkpoint" ) [ VALUE { "," VALUE } ] [ "{" "symbols" "=" extents "}" ] "body" section
//!           | "region" "custom" [ VALUE { "," VALUE } ] [ "{" "symbols" "=" extents "}" ] "body" section "derivative" section ;
//! alongs    = "[" [ INTEGER [ "reverse" ] { "," INTEGER [ "reverse" ] } ] "]" ;
//! operation = "const" ( literal | list | "opaque" STRING )
//!           | "iota" "{" "axis" "=" INTEGER "}"
//!           | "random" VALUE "{" "stream" "=" INTEGER "}"
//!           | SCALAR_OP VALUE { "," VALUE }                         (* add, exp, select, … *)
//!           | ( "convert" | "bitcast" | "reshape" | "expand" | "copy" ) VALUE
//!           | "einsum" VALUE { "," VALUE } "{" labels { "," labels } "->" labels [ ";" einsum_option { "," einsum_option } ] "}"
//!           | "reduce" MONOID VALUE "{" "axes" "=" integers "}"
//!           | "permute" VALUE "{" "axes" "=" integers "}"
//!           | "pad" VALUE "{" "lo" "=" extents "," "hi" "=" extents "," [ "interior" "=" integers "," ]
//!                         "value" "=" literal "}"                                  (* interior: all 0 *)
//!           | "slice" VALUE "{" "start" "=" extents [ "," "step" "=" integers ] "}"      (* step: all 1 *)
//!           | "window" VALUE "{" "axis" "=" INTEGER "," "size" "=" extent
//!                            [ "," "stride" "=" INTEGER ] [ "," "dilation" "=" INTEGER ] "}"      (* both 1 *)
//!           | "gather" VALUE "," VALUE { "," VALUE } "{" "axes" "=" integers "}"
//!           | "scatter" SCATTER_OP VALUE { "," VALUE } "{" "axes" "=" integers "}"
//!           | "scan" MONOID VALUE "{" "axis" "=" INTEGER [ "," "exclusive" ] [ "," "reverse" ] "}"
//!           | "project" VALUE "{" "result" "=" INTEGER "}" ;
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
//! kernel    = "kernel" [ GLOBAL ] nest ;
//! nest      = "(" [ param { "," param } [ "," ] ] ")" [ "where" size { "," size } ] { "requires" known }
//!             [ "residents" INTEGER ] block ;
//! known     = extent ( "=" extent | "not" "negative" ) ;
//! param     = "p"NUMBER ":" DTYPE "[" extent "]" ( "read" | "write" | "readwrite" ) ;
//! size      = "s"NUMBER "in" INTEGER "..=" INTEGER ;
//! block     = "{" { entry } "}" ;
//! entry     = "scratch" "r"NUMBER ":" DTYPE "[" extent "]" ( "register" | "cache" | "shared" | "thread" | "warp_fragment"
//!             | "block_fragment" )
//!           | "unused" ( VALUE ":" DTYPE | variable )
//!           | VALUE ":" DTYPE "=" scalar
//!           | "store" element "," VALUE [ "if" VALUE ]                    (* the mask *)
//!           | "for" variable ( "serial" | "unroll" | "lanes" | "parallel" | "block" | "warp" | "thread" | "copy" | "stream" ) block
//!           | "if" VALUE block
//!           | "clamp" variable "=" VALUE
//!           | "accumulate" MONOID element { "," element } "with" VALUE { "," VALUE }
//!           | "contract" variable "," variable "over" variable "by" INTEGER ["tf32"] ["dot4"] element "with" operand "," operand
//!           | ( ( "reduce" | "scan" | "shift" ) MONOID | "broadcast" INTEGER ) ( "warp" | "block" INTEGER ) element
//!           | "fold" MONOID variable "," variable element "with" element
//!           | "each" variable "," variable "of" memory block
//!           | "copy_async" variable element "from" element [ "if" VALUE ]
//!           | "commit"
//!           | "wait" INTEGER
//!           | "barrier" ;
//! operand   = element [ "if" condition { "and" condition } ] ;
//! condition = extent "in" "0" ".." extent ;
//! scalar    = "const" literal | "index" extent | "load" element [ "if" VALUE ]
//!           | ( "convert" | "bitcast" | "short_exp2" ) VALUE | "scale" VALUE "," VALUE
//!           | [ "approximate" ] SCALAR_OP VALUE { "," VALUE } ;
//! variable  = "i"NUMBER "in" "0" ".." extent ;
//! element   = memory "[" extent "]" ;
//! memory    = "p"NUMBER | "r"NUMBER ;
//!
//! plan      = "plan" program ;
//! program   = GLOBAL [ "where" symbol { "," symbol } ] "{" { item } "}" ;
//! item      = "input" name ":" type "=" ( SLOT | "unused" )
//!           | "output" name ":" type "=" SLOT
//!           | "guard" known "at" "node" INTEGER [ "for" STRING ]
//!           | "constant" INTEGER ":" type "=" ( list | "opaque" STRING )
//!           | SLOT ":" DTYPE "[" extent "]" storage STRING
//!           | "donate" "input" INTEGER "to" "output" INTEGER
//!           | ( "init" | "steps" ) "{" { step } "}"
//!           | "kernel" INTEGER nest ;
//! storage   = ( "input" | "output" | "constant" ) INTEGER | "persistent" | "arena" | "alias" SLOT | "part" SLOT "at" extent ;
//! step      = launch
//!           | "group" "{" { launch } "}"
//!           | "sequence" "{" { launch } "}"
//!           | "gemm" DTYPE "batch" extents extent "x" extent "x" extent STRING
//!             "lhs" matrix "rhs" matrix "dst" matrix [ "workspace" SLOT ]
//!           | "copy" SLOT "to" SLOT
//!           | "call" function "shapes" "[" extents { "," extents } "]"
//!             slots "to" slots "workspace" SLOT STRING
//!           | "loop" [ "trip" extent ] [ "count" SLOT ] [ "while" SLOT ] [ "then" SLOT ] [ "symbols" extents ]
//!             "number" SLOT STRING { "carried" SLOT "to" SLOT "spare" SLOT | ( "slice" | "stack" ) walk | "capture" SLOT }
//!             "body" program ;
//! function  = "sort" "axis" INTEGER "count" extent [ "descending" ] | "nonzero" "count" name
//!           | "unique" [ "axis" INTEGER ] "count" name [ "sorted" ] | "suppress" "count" name [ "center" ] ;
//! walk      = SLOT "axis" INTEGER [ "reverse" ] [ "element" SLOT ] ;
//! slots     = "(" [ SLOT { "," SLOT } ] ")" ;
//! launch    = "launch" "kernel" INTEGER "(" [ SLOT { "," SLOT } ] ")" [ "symbols" extents ]
//!             work "bytes" extent "flops" extent STRING ;
//! work      = "grain" extent | "grid" extent "threads" INTEGER "shared" INTEGER ;
//! matrix    = SLOT "offset" extent "strides" extents [ "windows" "[" windowed { "," windowed } "]" ] ;
//! windowed  = "place" INTEGER "stride" INTEGER "dilation" INTEGER "before" extent "extent" extent "step" extent ;
//!
//! SLOT      = "$" NUMBER ;
//! VALUE     = "%" ( dotted | STRING ) ;       GLOBAL = "@" ( dotted | STRING ) ;
//! dotted    = part { "." part } ;             part   = ( LETTER | DIGIT | "_" ) { LETTER | DIGIT | "_" } ;
//! WORD      = ( LETTER | "_" ) { LETTER | DIGIT | "_" } ;
//! STRING    = '"' { any character but '"', '\' and line end | escape } '"' ;
//! escape    = "\n" | "\r" | "\t" | '\"' | "\\" | "\u{" hexadecimal digits "}" ;
//! ```
//!
//! Attributes in braces come in any order and print in the order above. An extent has at most 2^18 nodes, 8192 terms in
//! one sum, fewer factors in one product, and coefficients below 2^62.
//!
//! A section's parser takes a `Cursor` behind its keyword, reads extents and types in a `Scope` of its own, and adds to the
//! [`Module`].

mod compare;
mod constant;
pub(crate) mod cursor;
pub(crate) mod expr;
mod graph;
mod kernel;
pub(crate) mod lexer;
mod parse;
mod plan;
mod print;
mod print_plan;
mod verify;
mod view;

use std::fmt;

use crate::dtype::DType;
use crate::graph::Graph;
use crate::kernel::Kernel;
use crate::plan::Plan;
use crate::tensor::HostTensor;

pub use compare::difference;
pub use cursor::MAX_ERRORS;
pub use lexer::Span;
pub use parse::{parse_bytes, parse_graph, parse_module};
pub use print::{PrintOptions, Printed, einsum_labels, print_graph, print_module, print_plan};
pub use verify::verify_module;

/// What a text holds.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Module {
    /// Graphs in order; no two have one name.
    pub graphs: Vec<Graph>,
    /// Kernels in order, with their names; no two have one name, and any may have none.
    pub kernels: Vec<(Option<String>, Kernel)>,
    /// Plans in order, each with its kernels; no two have one name.
    pub plans: Vec<Plan>,
    order: Vec<Entry>,
    anchors: Vec<usize>,
}

/// A section of a module's text: which it is, and where its parts are.
#[derive(Clone, Debug)]
enum Entry {
    Graph(usize),
    Kernel(usize, kernel::StatementSpans),
    Plan(usize, plan::PlanSpans),
}

/// A section of a [`Module`].
#[derive(Clone, Copy, Debug)]
pub enum Section<'m> {
    /// A graph.
    Graph(&'m Graph),
    /// A kernel, and its name.
    Kernel(Option<&'m str>, &'m Kernel),
    /// A plan.
    Plan(&'m Plan),
}

impl Module {
    /// Every section, in the order of the text; a module that was not read from a text has graphs first, plans last.
    pub fn sections(&self) -> Vec<Section<'_>> {
        let (graphs, kernels, plans) = (&self.graphs, &self.kernels, &self.plans);
        let graph = |i: usize| graphs.get(i).map(Section::Graph);
        let kernel = |i: usize| kernels.get(i).map(|(name, k)| Section::Kernel(name.as_deref(), k));
        let plan = |i: usize| plans.get(i).map(Section::Plan);
        let total = graphs.len() + kernels.len() + plans.len();
        if self.order.len() == total {
            let find = |e: &Entry| match e {
                Entry::Graph(i) => graph(*i),
                Entry::Kernel(i, _) => kernel(*i),
                Entry::Plan(i, _) => plan(*i),
            };
            return self.order.iter().filter_map(find).collect();
        }
        let all = (0..graphs.len()).map(graph).chain((0..kernels.len()).map(kernel));
        all.chain((0..plans.len()).map(plan)).flatten().collect()
    }

    /// Where in the text the lines of its canonical form begin that are inside sections: the first byte of each statement
    /// and of each closing brace. As many as in canonical text, unless two statements of a graph are one node.
    pub fn line_starts(&self) -> &[usize] {
        &self.anchors
    }
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

/// How the message of an error begins that a resolver returned.
const NO_DATA: &str = "no data for ";

impl ParseError {
    /// Whether the text names data that its resolver does not have.
    pub fn lacks_data(&self) -> bool {
        self.message.starts_with(NO_DATA)
    }
}

/// Finds the data of `const opaque "name"`: called with the name, the dtype and the extents of the type. What it returns
/// must have that dtype and those extents; or why there is no such data, which may be nothing.
pub type Resolver<'r> = dyn FnMut(&str, DType, &[usize]) -> Result<HostTensor, String> + 'r;

/// The resolver of texts that hold all their data.
///
/// # Errors
/// Always: it has data of no name.
pub fn no_data(_: &str, _: DType, _: &[usize]) -> Result<HostTensor, String> {
    Err(String::new())
}
