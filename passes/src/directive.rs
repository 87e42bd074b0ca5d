//! Schedule directives as data: what each one is, why it may not apply (`refusal.rs`), and its text.
//!
//! A line of text is one directive: its name, the loops and words it takes in their order, numbers by name, and flags:
//! `split i3 factor=16`, `bind i4 unroll`, `narrow i2 lanes=4 vectors=8 squares`. What follows `//` is a comment.

mod refusal;

use std::fmt;
use std::str::FromStr;

use tlc_ir::Precision;
use tlc_ir::index::VarId;
use tlc_ir::kernel::{Bind, Scope, ValueId};

pub use refusal::DirectiveRefusal;

/// The most blocks of a sum that shared memory holds at once: one that is used, and those that are copied.
pub const MOST_STAGES: i64 = 4;

/// Declares the directives, each with its name in text, and derives both directions of the text from the types of fields.
macro_rules! directives {
    ($($(#[$doc:meta])* $variant:ident $name:literal {
        $($(#[$field_doc:meta])* $field:ident: $type:ty,)*
    },)*) => {
        /// One transformation of a loop nest.
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum Directive {
            $($(#[$doc])* $variant { $($(#[$field_doc])* $field: $type,)* },)*
        }

        impl Directive {
            /// The names of all directives.
            pub const NAMES: &[&str] = &[$($name),*];
        }

        impl fmt::Display for Directive {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Directive::$variant { $($field,)* } => {
                        f.write_str($name)?;
                        $($field.write(stringify!($field), f)?;)*
                    })*
                }
                Ok(())
            }
        }

        impl FromStr for Directive {
            type Err = DirectiveError;

            fn from_str(text: &str) -> Result<Directive, DirectiveError> {
                let mut words: Vec<&str> = text.split_whitespace().collect();
                if words.is_empty() {
                    return Err(DirectiveError::Empty);
                }
                let name = words.remove(0);
                let directive = match name {
                    $($name => Directive::$variant {
                        $($field: Field::read(stringify!($field), &mut words)
                            .ok_or(DirectiveError::Missing($name, stringify!($field)))?,)*
                    },)*
                    _ => return Err(DirectiveError::Unknown(name.into())),
                };
                match words.first() {
                    None => Ok(directive),
                    Some(word) => Err(DirectiveError::Unexpected(word.to_string())),
                }
            }
        }
    };
}

directives! {
    /// `for v in n` becomes `for o in n div factor { for i in factor }`, then `for t in n mod factor` where that is not
    /// known to be empty. Returns `[o, i, t]`, without `o` and `i` where the factor is above `n`; there is always a loop, of no iteration
    /// where `n` is 0.
    Split "split" {
        /// The loop.
        var: VarId,
        /// Iterations of the inner loop.
        factor: i64,
    },
    /// `for v in n` becomes `for o in ceil(n / factor) { for i in min(factor, n - o * factor) }`: no tail, but an inner
    /// extent that varies. Returns `[o, i]`.
    Block "block" {
        /// The loop.
        var: VarId,
        /// The most iterations of the inner loop.
        factor: i64,
    },
    /// Two perfectly nested loops become one. Returns the new variable.
    Fuse "fuse" {
        /// The outer loop, whose body is just the inner.
        outer: VarId,
        /// The inner loop.
        inner: VarId,
    },
    /// As `Fuse`, also where the inner extent may be zero: indices divide by `max(extent, 1)`, which costs divisions that
    /// cannot cancel. Returns the new variable.
    FuseGuarded "fuse-guarded" {
        /// The outer loop, whose body is just the inner.
        outer: VarId,
        /// The inner loop.
        inner: VarId,
    },
    /// Two perfectly nested loops swap places.
    Interchange "interchange" {
        /// The outer loop, whose body is just the inner.
        outer: VarId,
        /// The inner loop.
        inner: VarId,
    },
    /// Sets how a loop runs.
    Bind "bind" {
        /// The loop.
        var: VarId,
        /// How.
        bind: Bind,
    },
    /// Gives every iteration of `var` accumulators of its own in registers, for the accumulations inside; they are set to
    /// the identity before the loop `around` and combined behind it.
    RFactor "rfactor" {
        /// The loop whose iterations become independent.
        var: VarId,
        /// The loop, at or outside `var`, around which the accumulators live.
        around: VarId,
    },
    /// Accumulates the iterations of `var` in a register first, or in one for each lane, and its result once into the accumulator.
    Privatize "privatize" {
        /// The loop.
        var: VarId,
        /// The lanes loop outside it, if there is one, or one inside it, each of whose lanes has an accumulator.
        lanes: Option<VarId>,
    },
    /// `for v in n` whose iterations add to floating-point sums becomes `for o in ceil(n / factor) { for i in min(factor,
    /// n - o * factor) }`, where each block of iterations has sums of its own, which are added to the others behind it.
    /// Returns `[o, i]`.
    Cascade "cascade" {
        /// The loop.
        var: VarId,
        /// The most iterations of a block.
        factor: i64,
    },
    /// Copies what two nested loops load across rows to scratch first, turned, so that the inner loop loads side by side.
    /// Returns the outer loops of the copies, one per staged load.
    Stage "stage" {
        /// The loop that walks along the loaded rows.
        outer: VarId,
        /// The loop inside it that walks from row to row.
        inner: VarId,
        /// The most iterations of the outer loop.
        rows: i64,
        /// The most iterations of the inner loop.
        columns: i64,
    },
    /// Stores of two nested loops go to scratch first, which lies as the inner loop goes, and is copied turned behind the loops. Returns the outer loop
    /// of the copy.
    StageTurned "stage-turned" {
        /// The loop that stores side by side.
        outer: VarId,
        /// The loop inside it, which stores across rows.
        inner: VarId,
        /// The most iterations of the outer loop.
        rows: i64,
        /// The most iterations of the inner loop.
        columns: i64,
    },
    /// What a phase of a row computes is kept in scratch, of which the phases behind it load what they compute alike: loops
    /// beside it of equal extents. Returns no loop.
    Keep "keep" {
        /// The phase: the outermost of a perfect nest of loops.
        var: VarId,
        /// What the innermost of them computes.
        value: ValueId,
    },
    /// The last scratch, which a phase of a row fills, lies where another is, of which each iteration of the phase is the last to read its own element,
    /// before it stores: one memory has both in turn. Returns no loop.
    Over "over" {
        /// The phase: the outermost of a perfect nest of loops.
        var: VarId,
        /// Number of the scratch that it fills.
        scratch: u32,
        /// Number of the one that it reads.
        place: u32,
    },
    /// A loop over columns, whose iterations may run in any order, becomes `for tile in ceil(n / width)`, and inside of it a
    /// loop over the columns of the tile around each run of statements, inside the loops of the body: memory is walked along
    /// its rows. Scratch has an element for each column, and so has what is dear and the same in all rows. Returns the loop
    /// over tiles, then those over columns.
    TileColumns "tile-columns" {
        /// The loop.
        var: VarId,
        /// The most columns of a tile.
        width: i64,
    },
    /// Stores of a loop to a parameter go to scratch first, which is copied behind the loop. Returns the copying loop.
    StageStores "stage-stores" {
        /// The loop, which stores side by side.
        var: VarId,
        /// The parameter.
        param: u32,
        /// The most iterations of the loop.
        length: i64,
    },
    /// Sends the rows of a few elements that iterations of `var` load and store, one each, through scratch that holds them
    /// turned. Returns the copying loops.
    StageRows "stage-rows" {
        /// The loop over rows.
        var: VarId,
        /// The most iterations of the loop.
        pitch: i64,
    },
    /// Runs several iterations of `var` at once, one in each lane, with the loops inside unrolled; then what is left one by
    /// one, or in lanes too, of which a mask says those that have an iteration. Returns `[o, l, t]` as a split does, without `o`
    /// and `l` where the loop is known to be shorter than the lanes.
    Across "across" {
        /// The loop.
        var: VarId,
        /// Iterations at once.
        lanes: i64,
        /// Whether a mask says which lanes have one of the iterations that are left. The loop may then be shorter than the lanes.
        masked: bool,
    },
    /// Splits a loop whose iterations may run in any order; each part has registers of its own. Returns `[o, i]`, and `t` for
    /// what is left over.
    Pieces "pieces" {
        /// The loop.
        var: VarId,
        /// Iterations of a piece.
        factor: i64,
        /// Whether what is left over is a whole piece, which ends where the loop ends and computes some results again. The
        /// loop then has at least `factor` iterations, and loads nothing whose place a result may take.
        again: bool,
    },
    /// Moves a loop, whose iterations may run in any order, inside the loops of its body: each run of statements becomes an
    /// unrolled loop over it. Returns these loops.
    Inward "inward" {
        /// The loop.
        var: VarId,
    },
    /// As `Inward`, of a loop that fills so many lanes or fewer: the loops have an iteration for each, of which those that the loop did not
    /// have access no memory. Returns these loops.
    InwardMasked "inward-masked" {
        /// The loop.
        var: VarId,
        /// Iterations of the new loops.
        lanes: i64,
    },
    /// Runs so many iterations of a loop at once, which may run in any order: as `Inward`, for each piece of the loop. The last piece may have
    /// more iterations than are left, which masks keep from memory; a load that the masks which it has keep inside its memory in any
    /// iteration stays as it is, and of windows that slide one is left out where the last iteration's window ends. Returns the loop over pieces,
    /// then what each of them became.
    Cover "cover" {
        /// The loop.
        var: VarId,
        /// Iterations of a piece.
        factor: i64,
    },
    /// A loop that finds the position of an extremum takes the extremum of whole blocks, then searches the block that has
    /// it; then what is left as before. Returns the loop over blocks, and the one over the rest if there may be one.
    Narrow "narrow" {
        /// The loop.
        var: VarId,
        /// Positions side by side.
        lanes: i64,
        /// Vectors of that many lanes in a block.
        vectors: i64,
        /// Whether sums of squares look for NaN in f32 and f64, which takes a multiply-add an element.
        squares: bool,
    },
    /// The first and the last iterations run in loops of their own, so that what is conditional at the edges is not in the
    /// middle. Returns the loops, without empty ones.
    Peel "peel" {
        /// The loop, which has at least as many iterations as are peeled.
        var: VarId,
        /// The first iteration of the middle.
        from: i64,
        /// Iterations behind the middle.
        behind: i64,
    },
    /// The ranges of iterations between which a condition on the loop's variable changes have a body each, of which every iteration runs
    /// one. Returns the outermost loops of all bodies.
    Cases "cases" {
        /// The loop.
        var: VarId,
    },
    /// Each iteration of a loop asks for the lines that lie so many elements behind what it reads of a parameter: in an iteration of a loop
    /// around it one of so many shares of them. Returns no loop.
    Prefetch "prefetch" {
        /// The loop, of which an iteration reads elements side by side.
        var: VarId,
        /// The loop around it.
        by: VarId,
        /// The parameter.
        param: u32,
        /// How far behind what is read.
        ahead: i64,
        /// Shares.
        shares: i64,
    },
    /// Each iteration of a loop asks for the lines that the iteration so many later reads of a parameter. Returns no loop.
    PrefetchIteration "prefetch-iteration" {
        /// The loop.
        var: VarId,
        /// The parameter.
        param: u32,
        /// How many iterations later.
        ahead: i64,
    },
    /// The whole body becomes the body of a loop with one iteration. Returns its variable.
    Enclose "enclose" {},
    /// Moves scratch to another kind of memory.
    Place "place" {
        /// Number of the scratch.
        scratch: u32,
        /// Where it goes.
        scope: Scope,
    },
    /// The iterations of `var` go to the threads of a GPU block in turn, each thread running the loops from `around` to
    /// `var` for its share; accumulations get an accumulator per thread, combined in each warp and then through
    /// shared memory. Returns the variable of warps, where there are accumulations for them, and that of threads. Barriers are `Synchronize`'s business.
    Distribute "distribute" {
        /// The outermost of a perfect nest of loops.
        around: VarId,
        /// The innermost.
        var: VarId,
        /// Threads: a power of two.
        threads: i64,
    },
    /// The iterations of two nested loops over a tile go to the threads of a block, so many neighbours of the inner loop to one, and threads side by
    /// side take what is side by side. Loops that end before the tile does leave threads out. Returns the thread loop and that over the neighbours.
    DistributeTile "distribute-tile" {
        /// The loop over the rows of the tile.
        outer: VarId,
        /// The loop inside it, over the columns.
        inner: VarId,
        /// Rows of the tile, at least as many as the outer loop may have iterations.
        rows: i64,
        /// Columns of the tile, at least as many as the inner loop may have iterations.
        columns: i64,
        /// Neighbours that a thread takes at a time, which divide the iterations of the inner loop, however many these are.
        lanes: i64,
        /// How many threads: a power of two, which whole rows of the tile are for.
        threads: i64,
    },
    /// The first statement of the loop over `var`, which fills a scratch for each iteration, is taken apart from the others, which read it:
    /// `for m { for n { kept[n] = a }; b }` becomes two loops, between which the scratch holds a tile. Returns the two loops.
    TileRows "tile-rows" {
        /// The loop over the rows of the tile.
        var: VarId,
        /// What is filled: cache scratch.
        scratch: u32,
        /// Rows of the tile, the most iterations of the loop.
        rows: i64,
        /// Elements from one row of the tile to the next, at least as many as the scratch has.
        pitch: i64,
    },
    /// Iterations of `var`, the outermost loop, go to the warps of GPU blocks, so many of them to a block; or those of a loop of a block to its warps in turn. The innermost serial loops inside go to the threads of the warp in turn, and every thread executes what is between them; accumulations get an accumulator
    /// per thread, combined in the warp, so that no barrier is needed. Where fewer threads take a row, a warp has as many rows as it has
    /// such parts. Returns the loops over blocks and over warps.
    RowsByWarps "rows-by-warps" {
        /// The loop, whose iterations may run in any order.
        var: VarId,
        /// Warps of a block.
        warps: i64,
        /// Threads of a row: those of a warp, or a power of two below that.
        threads: i64,
    },
    /// What each thread of a block loads alike in the iterations of a loop, the last statement of the thread loop, comes to shared memory, so many iterations
    /// at a time. Returns the loop over these, that of the threads that bring it, and the thread loop. Barriers are `Synchronize`'s business.
    ShareLoads "share-loads" {
        /// The thread loop, which is all of a block.
        thread: VarId,
        /// The loop inside it.
        var: VarId,
        /// Iterations whose loads are brought at a time: as many threads of a block.
        length: i64,
    },
    /// The rows that each thread of a block loop adds up for its columns, `for t thread { for r { a[t] += b } }`, go to so many groups of threads in
    /// turn: each thread adds up in registers what it has of a column, and what all groups have of it is added up through shared memory,
    /// always in the same order. Returns the thread loops.
    ShareRows "share-rows" {
        /// The thread loop, whose body is just the loop over rows.
        thread: VarId,
        /// The loop over rows.
        rows: VarId,
        /// The lanes inside, where a thread has several columns.
        lane: Option<VarId>,
        /// How many groups: a power of two.
        groups: i64,
    },
    /// Scratch of which each thread of a GPU block touches elements of its own alone becomes a thread's: its loops over turns
    /// go through these elements one after another. Returns no loop.
    Own "own" {
        /// Number of the scratch.
        scratch: u32,
    },
    /// Stores directly in the body of a block loop go to its first thread.
    OneThread "one-thread" {
        /// The block loop.
        block: VarId,
    },
    /// Two nested loops around a sum, `for m { for n { a; for k { b }; c } }`, become `for m { for n { a } }`, then `for m { for n
    /// { for k { b } } }` for each of the accumulators, then `for m { for n { c } }`: the accumulators are tiles in scratch with an
    /// element for each iteration, and what `b` and `c` need of `a` they compute themselves. Each sum keeps its order. Returns
    /// the loops of the three in that order.
    TileSum "tile-sum" {
        /// The loop over the rows of the tile.
        outer: VarId,
        /// The loop inside it over the columns.
        inner: VarId,
        /// The loop inside that which adds up, the outermost of a perfect nest.
        sum: VarId,
        /// Rows of the tile, the most iterations of the outer loop.
        rows: i64,
        /// Columns of the tile, the most iterations of the inner loop.
        columns: i64,
        /// Cache, or registers for loops of exactly that many iterations.
        scope: Scope,
    },
    /// Three nested loops that add to a tile of scratch in memory, `for m { for n { for k { t[m, n] += b } } }`, become one nest that loads
    /// the tile to registers, one that adds to it there, and one that stores it. Each sum keeps its order. Returns the loops of the three
    /// in that order, those of the sum behind the second's two.
    Hold "hold" {
        /// The loop over the rows of the tile.
        outer: VarId,
        /// The loop inside it over the columns.
        inner: VarId,
        /// The loop inside that which adds up, the outermost of a perfect nest.
        sum: VarId,
        /// Rows of the tile, the iterations of the outer loop.
        rows: i64,
        /// Columns of the tile, the iterations of the inner loop.
        columns: i64,
    },
    /// What the innermost of nested loops computes is computed before them for all iterations of those of the loops that it
    /// differs in, and put into scratch, which the nest loads. Returns the loops that fill the scratch.
    Pack "pack" {
        /// The outermost of a perfect nest of loops.
        var: VarId,
        /// What the innermost of them computes.
        value: ValueId,
        /// Where it goes.
        scope: Scope,
        /// Whether the scratch has the values of the innermost loop furthest apart, and those of the outermost side by side.
        turned: bool,
        /// Whether the loops that fill the scratch have as many iterations as the nest has at most, and leave zeros where it
        /// has none.
        padded: bool,
    },
    /// A loop over the rows of a window, around loops over its elements, over rows of results and over lanes, goes along the rows of the
    /// image: what is loaded of one is added to all results that it is a part of. Each sum keeps its order. Returns no loop.
    Slide "slide" {
        /// The loop.
        var: VarId,
        /// Whether what elements are multiplied by is loaded once and stays in registers.
        held: bool,
    },
    /// What a loop reads of a parameter that is only read, a box of at most so many rows, columns and so on, is copied to scratch
    /// before the loop, which reads it there. Returns the copying loops, those along the longest strides first. Where one loop alone goes along a side
    /// of the box, the loop that copies it has as many iterations.
    StageRegion "stage-region" {
        /// The loop.
        var: VarId,
        /// The parameter.
        param: u32,
        /// Where the copy is.
        scope: Scope,
    },
    /// Three nested loops that add up products into a tile, `for m { for n { for k { dst[m, n] += left[m, k] * right[k, n] } } }`,
    /// become one `contract` statement. The operands are elements of memory, converted at most. The products of an element are
    /// added up in the same order, blocks or not; those of floats are no longer rounded before that, as the statement says.
    /// Returns no loop.
    Contract "contract" {
        /// The loop over the rows of the tile.
        outer: VarId,
        /// The loop inside it over the columns.
        inner: VarId,
        /// The loop inside that over the sum.
        sum: VarId,
        /// Rows of the tile, the most iterations of the outer loop. Rows that the loop leaves out count as zero.
        rows: i64,
        /// Columns of the tile, the most iterations of the inner loop.
        columns: i64,
        /// Steps of the sum that are one block.
        block: i64,
        /// How exactly operands are multiplied.
        precision: Precision,
    },
    /// Tiles in cache scratch that the statements of a block loop share go to the threads, each of which holds a part: loops over
    /// the elements of such a tile and contractions into it become thread loops. Returns these.
    Spread "spread" {
        /// The block loop.
        block: VarId,
        /// Rows of the tiles.
        rows: i64,
        /// Columns of the tiles.
        columns: i64,
        /// Rows of a thread's part, which divide those of the tile.
        down: i64,
        /// Columns of a thread's part, which divide those of the tile.
        across: i64,
    },
    /// The innermost of three loops that add up products has so many iterations: in those that it did not have before, both factors
    /// are zero and nothing is loaded. A sum that is -0 may become 0. Returns no loop.
    Lengthen "lengthen" {
        /// The loop over the rows of the tile.
        outer: VarId,
        /// The loop inside it over the columns.
        inner: VarId,
        /// The loop inside that over the sum.
        sum: VarId,
        /// Iterations that it gets, at least as many as it may have had.
        length: i64,
    },
    /// The middle one of three loops that add up products into a tile has as many iterations as the tile has columns: in those that it did not have before, the
    /// factor that differs in it is zero and nothing is loaded. What is added to these columns is used nowhere. Returns no loop.
    FillColumns "fill-columns" {
        /// The loop over the rows of the tile.
        outer: VarId,
        /// The loop inside it over the columns.
        inner: VarId,
        /// The loop inside that over the sum.
        sum: VarId,
        /// Rows of the tile, the most iterations of the outer loop.
        rows: i64,
        /// Columns of the tile.
        columns: i64,
    },
    /// Rows of a scratch lie further apart than they are long, so that what goes across them meets different banks of shared
    /// memory. Returns no loop.
    Apart "apart" {
        /// Number of the scratch.
        scratch: u32,
        /// Elements of a row, which divide those of the scratch.
        row: i64,
        /// Elements between the end of a row and the next one.
        gap: i64,
    },
    /// Pieces of the rows of a scratch lie rotated, by one piece more every so many rows as a piece has elements: the elements of a column, in as many
    /// rows, are in different banks of shared memory, and those of a piece stay side by side. Returns no loop.
    Rotate "rotate" {
        /// Number of the scratch.
        scratch: u32,
        /// Elements of a row, which divide those of the scratch.
        row: i64,
        /// Elements of a piece, which divide those of a row.
        piece: i64,
    },
    /// Rows of a shared scratch are swizzled, as four warps that multiply together read them. Returns no loop.
    Swizzle "swizzle" {
        /// Number of the scratch.
        scratch: u32,
        /// Elements of a row: whole rows of swizzled memory, which divide those of the scratch.
        row: i64,
    },
    /// A multiprocessor has the registers for so many blocks of the kernel at the same time. Returns no loop.
    Reside "reside" {
        /// How many: no more than a multiprocessor ever has.
        blocks: i64,
    },
    /// As `Spread`, to the warps of the block: each holds its part as a fragment. Returns the warp loops.
    SpreadWarps "spread-warps" {
        /// The block loop.
        block: VarId,
        /// Rows of the tiles.
        rows: i64,
        /// Columns of the tiles.
        columns: i64,
        /// Rows of a warp's part, which divide those of the tile.
        down: i64,
        /// Columns of a warp's part, which divide those of the tile.
        across: i64,
    },
    /// A loop whose iterations fill shared memory, wait, use it and wait fills that of later iterations while it uses that of this
    /// one: there are several copies of the memory, and what is only copied is copied beside the threads. Returns the loop over
    /// that many iterations.
    Pipeline "pipeline" {
        /// The loop.
        var: VarId,
        /// How many copies of the memory there are: 2 to [`MOST_STAGES`].
        stages: i64,
    },
    /// Puts barriers between statements of a block loop of which one writes shared memory that the other uses.
    Synchronize "synchronize" {
        /// The block loop.
        block: VarId,
    },
}

/// Why text is no directive.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DirectiveError {
    /// There is no word.
    #[error("there is no directive; expected one")]
    Empty,
    /// No directive has that name.
    #[error("there is no directive `{0}`")]
    Unknown(String),
    /// A directive lacks something.
    #[error("`{0}` lacks its `{1}`")]
    Missing(&'static str, &'static str),
    /// A word that the directive does not take, or not as written.
    #[error("unexpected `{0}`")]
    Unexpected(String),
}

/// A kind of field, in both directions of the text.
trait Field: Sized {
    /// Writes a space and the field.
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// Takes the field out of the words of a directive.
    fn read(name: &str, words: &mut Vec<&str>) -> Option<Self>;
}

/// Takes out the first word of which something is made.
fn take<T>(words: &mut Vec<&str>, f: impl Fn(&str) -> Option<T>) -> Option<T> {
    let (at, value) = words.iter().enumerate().find_map(|(at, w)| Some((at, f(w)?)))?;
    words.remove(at);
    Some(value)
}

fn variable(word: &str) -> Option<VarId> {
    word.strip_prefix('i')?.parse().ok().map(VarId)
}

/// The text behind `name=`.
fn named<'w>(word: &'w str, name: &str) -> Option<&'w str> {
    word.strip_prefix(name)?.strip_prefix('=')
}

impl Field for VarId {
    fn write(&self, _: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " i{}", self.0)
    }
    fn read(_: &str, words: &mut Vec<&str>) -> Option<VarId> {
        take(words, variable)
    }
}

impl Field for ValueId {
    fn write(&self, _: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {self}")
    }
    fn read(_: &str, words: &mut Vec<&str>) -> Option<ValueId> {
        take(words, |w| w.strip_prefix('%')?.parse().ok().map(ValueId))
    }
}

impl Field for Option<VarId> {
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.map_or(Ok(()), |v| write!(f, " {name}=i{}", v.0))
    }
    fn read(name: &str, words: &mut Vec<&str>) -> Option<Option<VarId>> {
        Some(take(words, |w| variable(named(w, name)?)))
    }
}

impl Field for i64 {
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {name}={self}")
    }
    fn read(name: &str, words: &mut Vec<&str>) -> Option<i64> {
        take(words, |w| named(w, name)?.parse().ok())
    }
}

impl Field for u32 {
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {name}={self}")
    }
    fn read(name: &str, words: &mut Vec<&str>) -> Option<u32> {
        take(words, |w| named(w, name)?.parse().ok())
    }
}

impl Field for bool {
    fn write(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            true => write!(f, " {name}"),
            false => Ok(()),
        }
    }
    fn read(name: &str, words: &mut Vec<&str>) -> Option<bool> {
        Some(take(words, |w| (w == name).then_some(())).is_some())
    }
}

/// A word, which is left out where products are exact.
impl Field for Precision {
    fn write(&self, _: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Precision::Exact => Ok(()),
            other => write!(f, " {other}"),
        }
    }
    fn read(_: &str, words: &mut Vec<&str>) -> Option<Precision> {
        Some(take(words, |w| w.parse().ok()).unwrap_or_default())
    }
}

impl Field for Bind {
    fn write(&self, _: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {}", self.name())
    }
    fn read(_: &str, words: &mut Vec<&str>) -> Option<Bind> {
        take(words, |w| Bind::ALL.into_iter().find(|b| b.name() == w))
    }
}

impl Field for Scope {
    fn write(&self, _: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {}", self.name())
    }
    fn read(_: &str, words: &mut Vec<&str>) -> Option<Scope> {
        take(words, |w| Scope::ALL.into_iter().find(|s| s.name() == w))
    }
}

/// The directives of a text, one a line.
///
/// # Errors
/// The number of the first line, from 1, that is no directive, and why.
pub fn parse(text: &str) -> Result<Vec<Directive>, (usize, DirectiveError)> {
    let code = |line: &str| line.split("//").next().unwrap_or_default().trim().to_string();
    let lines = text.lines().map(code).enumerate().filter(|(_, line)| !line.is_empty());
    lines.map(|(at, line)| line.parse().map_err(|e| (at + 1, e))).collect()
}

/// The most iterations that are unrolled or kept in registers.
pub const MAX_UNROLL: i64 = 64;

/// The most products of all results that windows which slide have copied out.
pub const MOST_SLIDING_PRODUCTS: i64 = 200;

/// The most elements of a window of which two rows of results slide over an image.
pub const MOST_SLIDING: i64 = MOST_SLIDING_PRODUCTS / 2;

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: &str = "split i1 factor=16
block i1 factor=3
fuse i1 i2
fuse-guarded i1 i2
interchange i1 i2
bind i1 parallel
rfactor i1 i2
privatize i1 lanes=i4
privatize i1
cascade i1 factor=32
stage i1 i2 rows=64 columns=16
stage-turned i1 i2 rows=64 columns=32
keep i1 %7
over i1 scratch=3 place=2
tile-columns i1 width=256
stage-stores i1 param=2 length=64
stage-rows i1 pitch=7
across i1 lanes=4
pieces i1 factor=8 again
pieces i1 factor=8
inward i1
inward-masked i1 lanes=8
cover i1 factor=4
narrow i1 lanes=4 vectors=8 squares
peel i1 from=1 behind=0
cases i1
prefetch i1 i2 param=1 ahead=4096 shares=4
prefetch-iteration i1 param=1 ahead=2
enclose
place shared scratch=3
distribute i1 i2 threads=128
distribute-tile i1 i2 rows=32 columns=32 lanes=4 threads=256
tile-rows i1 scratch=3 rows=64 pitch=72
rows-by-warps i1 warps=4 threads=32
share-loads i1 i2 length=128
share-rows i1 i2 groups=16
share-rows i1 i2 lane=i3 groups=128
own scratch=2
one-thread i1
tile-sum i1 i2 i3 rows=4 columns=8 cache
hold i1 i2 i3 rows=4 columns=8
pack i1 %7 shared turned padded
pack i1 %7 cache
slide i1 held
slide i1
stage-region i1 param=0 shared
contract i1 i2 i3 rows=4 columns=8 block=16
contract i1 i2 i3 rows=4 columns=8 block=16 tf32
spread i1 rows=64 columns=32 down=4 across=2
lengthen i1 i2 i3 length=16
fill-columns i1 i2 i3 rows=64 columns=128
apart scratch=2 row=64 gap=8
rotate scratch=2 row=32 piece=4
swizzle scratch=2 row=64
reside blocks=3
spread-warps i1 rows=64 columns=64 down=32 across=32
pipeline i1 stages=3
synchronize i1
";

    #[test]
    fn every_directive_reads_as_it_is_written() {
        let all = parse(EVERY).unwrap_or_else(|(line, e)| panic!("line {line}: {e}"));
        let names: std::collections::BTreeSet<_> = all
            .iter()
            .map(std::mem::discriminant)
            .map(|d| format!("{d:?}"))
            .collect();
        assert_eq!(names.len(), Directive::NAMES.len(), "every directive is in the text");
        let written: String = all.iter().map(|d| format!("{d}\n")).collect();
        let words = |text: &str| -> Vec<Vec<String>> {
            let sorted = |line: &str| {
                let mut words: Vec<String> = line.split_whitespace().map(String::from).collect();
                words[1..].sort();
                words
            };
            text.lines().map(sorted).collect()
        };
        assert_eq!(words(&written), words(EVERY));
        assert_eq!(parse(&written), Ok(all));
    }

    #[test]
    fn what_is_no_directive_is_an_error_with_its_line() {
        for (line, error) in [
            ("splat i1 factor=16", DirectiveError::Unknown("splat".into())),
            ("split factor=16", DirectiveError::Missing("split", "var")),
            ("split i1", DirectiveError::Missing("split", "factor")),
            ("split i1 factor=x", DirectiveError::Missing("split", "factor")),
            ("split i1 factor=4 i2", DirectiveError::Unexpected("i2".into())),
            ("bind i1 sideways", DirectiveError::Missing("bind", "bind")),
            ("split i99999999999 factor=4", DirectiveError::Missing("split", "var")),
        ] {
            let text = format!("// a comment\n\nenclose // here\n{line}");
            assert_eq!(parse(&text), Err((4, error)), "{line}");
        }
        assert_eq!("".parse::<Directive>(), Err(DirectiveError::Empty));
    }
}
