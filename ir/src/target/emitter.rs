//! What a code generator has: one table of operations and conversions, by dtype and width.
//!
//! The table is a promise. Where it says [`Support::Native`] or [`Support::Formula`], a kernel of that one operation is
//! legalized, emitted and agrees with the interpreter; a refusal by the emitter is then a bug. Passes choose by the table, so
//! that a schedule is never made for an emitter that would run it another way.

use std::fmt;

use crate::dtype::DType;
use crate::precision::Precision;
use crate::scalar::ScalarOp;

/// How an emitter does something.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Support {
    /// By instructions of its own.
    Native,
    /// By other operations that it has: legalization writes them out.
    Formula,
    /// One element after another, whatever the width: by scalar code or by a call for each lane.
    PerLane,
    /// Not at all.
    Missing,
}

impl Support {
    /// Whether all lanes are done at once.
    pub const fn is_vector(self) -> bool {
        matches!(self, Support::Native | Support::Formula)
    }
}

impl fmt::Display for Support {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Support::Native => "native",
            Support::Formula => "by a formula",
            Support::PerLane => "lane by lane",
            Support::Missing => "missing",
        })
    }
}

/// How many elements an operation works on at once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// One.
    Scalar,
    /// A vector of lanes.
    Lanes,
}

impl Width {
    /// Both.
    pub const ALL: [Width; 2] = [Width::Scalar, Width::Lanes];
}

/// Bytes of a table that a byte numbers ([`Emitter::looks_bytes_up`]).
pub const BYTE_TABLE: i64 = 256;

/// How the elements of an access lie that lanes make together.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum AccessKind {
    /// Side by side.
    SideBySide,
    /// At equal distances; stored ones also as data says.
    Apart,
    /// Loaded as data says.
    Indexed,
    /// Not all of them are accessed.
    Masked,
}

impl AccessKind {
    /// Every kind.
    pub const ALL: [AccessKind; 4] = [
        AccessKind::SideBySide,
        AccessKind::Apart,
        AccessKind::Indexed,
        AccessKind::Masked,
    ];
}

impl fmt::Display for AccessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AccessKind::SideBySide => "accesses of neighbours",
            AccessKind::Apart => "accesses of elements that lie apart",
            AccessKind::Indexed => "loads of elements that data says",
            AccessKind::Masked => "masked accesses",
        })
    }
}

/// A matrix instruction, or a sequence of them that an emitter has as one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MatrixTile {
    /// Dtypes of the left and the right operand.
    pub operands: [DType; 2],
    /// Dtype that it accumulates in.
    pub accumulator: DType,
    /// How exactly it multiplies.
    pub precision: Precision,
    /// Rows and columns of the accumulator, and steps of the sum.
    pub extents: [i64; 3],
}

impl MatrixTile {
    /// Whether it cuts another of the same types without a rest.
    fn cuts(&self, other: &MatrixTile) -> bool {
        let types = |t: &MatrixTile| (t.operands, t.accumulator, t.precision);
        let whole = |(all, one): (i64, i64)| all > 0 && one > 0 && all % one == 0;
        types(self) == types(other) && other.extents.into_iter().zip(self.extents).all(whole)
    }
}

/// A tile of a contraction that is kept in vector registers, columns in lanes, while its sum is taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TileShape {
    /// Elements of a vector.
    pub lanes: i64,
    /// The most vectors of a row.
    pub vectors: i64,
    /// The most rows of a tile whose rows have as many vectors as was asked for, or the most.
    pub rows: i64,
}

/// A code generator as data.
#[derive(Clone, PartialEq, Debug)]
pub struct Emitter {
    /// Its name, for reports.
    pub name: &'static str,
    /// Bits of a vector; 0 if it has none.
    pub vector_bits: u32,
    /// Vector registers.
    pub vector_registers: u32,
    /// Whether a fused multiply-add is one instruction.
    pub has_fma: bool,
    /// By width, operation and dtype of the operands.
    maps: Vec<Support>,
    /// By width and the dtypes from and to.
    conversions: Vec<Support>,
    /// By kind of access, of all lanes.
    accesses: [Support; AccessKind::ALL.len()],
    /// What it has for contractions.
    matrices: Vec<MatrixTile>,
    /// What it has for those that four warps do together, of operands in swizzled memory: of each warp's part of the rows.
    group_matrices: Vec<MatrixTile>,
    /// The dtypes of which it has tiles in vectors.
    tiles: Vec<DType>,
    /// Whether it has blocks and their threads.
    pub has_blocks: bool,
    /// Whether it fetches what a prefetch asks for; one that does not leaves the statement out.
    pub prefetches: bool,
    /// Whether it multiplies by powers of two in one operation, as fast where the result underflows ([`crate::kernel::Op::Scale`]).
    pub scales: bool,
    /// Whether lanes load bytes of a table of 256 that bytes number by instructions for it, in a few cycles for all of them.
    pub looks_bytes_up: bool,
}

impl Emitter {
    /// An emitter with the given returns. `map` is asked for each operation and dtype of its operands that the language types,
    /// `convert` for each pair of dtypes, from and to.
    pub fn new(
        name: &'static str,
        vector_bits: u32,
        vector_registers: u32,
        has_fma: bool,
        map: impl Fn(ScalarOp, DType, Width) -> Support,
        convert: impl Fn(DType, DType, Width) -> Support,
    ) -> Emitter {
        let mut maps = Vec::with_capacity(Width::ALL.len() * ScalarOp::ALL.len() * DType::ALL.len());
        let mut conversions = Vec::with_capacity(Width::ALL.len() * DType::ALL.len() * DType::ALL.len());
        for width in Width::ALL {
            for &op in ScalarOp::ALL {
                maps.extend(DType::ALL.iter().map(|&on| match op.takes(on) {
                    true => map(op, on, width),
                    false => Support::Missing,
                }));
            }
            for from in DType::ALL {
                conversions.extend(DType::ALL.iter().map(|&to| convert(from, to, width)));
            }
        }
        Emitter {
            name,
            vector_bits,
            vector_registers,
            has_fma,
            maps,
            conversions,
            accesses: [Support::Native, Support::PerLane, Support::PerLane, Support::PerLane],
            matrices: Vec::new(),
            group_matrices: Vec::new(),
            tiles: Vec::new(),
            has_blocks: false,
            prefetches: false,
            scales: false,
            looks_bytes_up: false,
        }
    }

    /// The emitter without its vectors.
    #[must_use]
    pub fn without_vectors(mut self) -> Emitter {
        self.vector_bits = 0;
        self
    }

    /// The emitter, which also has these matrix instructions; one that is not given any has none.
    pub fn with_matrices(mut self, tiles: impl IntoIterator<Item = MatrixTile>) -> Emitter {
        self.matrices.extend(tiles);
        self
    }

    /// The emitter, which also has these instructions that four warps do together, each a part of so many rows.
    pub fn with_group_matrices(mut self, tiles: impl IntoIterator<Item = MatrixTile>) -> Emitter {
        self.group_matrices.extend(tiles);
        self
    }

    /// The emitter, which keeps tiles of contractions of these dtypes in vector registers (of i32, those whose operands are words of four
    /// bytes): it adds products in lanes by few instructions each, multiplies by one element of memory for all lanes, masks accesses of lanes of these dtypes, and turns as many
    /// vectors of 32-bit elements as each has lanes in registers.
    pub fn with_tiles(mut self, dtypes: impl IntoIterator<Item = DType>) -> Emitter {
        self.tiles.extend(dtypes);
        self
    }

    /// The tile that it has for contractions of a dtype and so many columns: the one of most rows that leaves a register for each
    /// vector of a row of the right operand and one for the left one's element, or two where they are words of bytes.
    pub fn tile(&self, dtype: DType, columns: i64) -> Option<TileShape> {
        if !self.tiles.contains(&dtype) || columns < 1 {
            return None;
        }
        let lanes = self.lanes(dtype);
        let registers = i64::from(self.vector_registers);
        let vectors = (registers / 8).max(1);
        let across = ((columns - 1) / lanes + 1).min(vectors);
        // Words of bytes may be multiplied in halves, each with a register of its own, and their products are added before the sum.
        let (parts, added) = if dtype == DType::I32 { (2, 1) } else { (1, 0) };
        let rows = (registers - parts * (across + 1) - added) / across;
        (lanes >= 2 && rows >= 1).then_some(TileShape { lanes, vectors, rows })
    }

    /// The emitter, which makes accesses of all lanes in these ways; one that is not asked makes those of neighbours at once and
    /// the others one element after another.
    pub fn with_accesses(mut self, access: impl Fn(AccessKind) -> Support) -> Emitter {
        self.accesses = AccessKind::ALL.map(access);
        self
    }

    /// The emitter, which also fetches what a prefetch asks for.
    pub fn with_prefetches(mut self) -> Emitter {
        self.prefetches = true;
        self
    }

    /// The emitter, which also multiplies by powers of two in one operation.
    pub fn with_scales(mut self) -> Emitter {
        self.scales = true;
        self
    }

    /// The emitter, which also has blocks of threads, as GPUs do.
    pub fn with_blocks(mut self) -> Emitter {
        self.has_blocks = true;
        self
    }

    /// How a contraction of these dtypes and that precision is done whose tile has so many rows and columns and whose blocks so many steps: by
    /// matrix instructions that cut all three without a rest, or by the loops that define it.
    pub fn contract(
        &self,
        operands: [DType; 2],
        accumulator: DType,
        precision: Precision,
        extents: [i64; 3],
    ) -> Support {
        let wanted = MatrixTile {
            operands,
            accumulator,
            precision,
            extents,
        };
        match self.matrices.iter().any(|t| t.cuts(&wanted)) {
            true => Support::Native,
            false => Support::Formula,
        }
    }

    /// Whether four warps do contractions together of which each has a tile of so many rows and columns, of operands in swizzled memory.
    pub fn contracts_in_groups(&self, wanted: &MatrixTile) -> bool {
        self.group_matrices.iter().any(|t| t.cuts(wanted))
    }

    /// How an operation on operands of that dtype is done (of `select`, the dtype of its two values).
    pub fn map(&self, op: ScalarOp, on: DType, width: Width) -> Support {
        let row = width as usize * ScalarOp::ALL.len() + op as usize;
        self.maps[row * DType::ALL.len() + on as usize]
    }

    /// Lanes of a vector of elements of that type.
    pub fn lanes(&self, dtype: DType) -> i64 {
        i64::from(self.vector_bits / dtype.bits())
    }

    /// Whether an access of some lanes of elements of that type is made as one of all lanes is.
    pub fn masks(&self, dtype: DType) -> bool {
        self.access(AccessKind::Masked).is_vector() || self.tiles.contains(&dtype)
    }

    /// Whether a load of every other element of that type for some lanes is made as one for all lanes is.
    pub fn masks_every_other(&self, dtype: DType) -> bool {
        let both = [AccessKind::Apart, AccessKind::Masked];
        dtype.bits() == 32 && both.into_iter().all(|kind| self.access(kind).is_vector())
    }

    /// How an access of all lanes is made.
    pub fn access(&self, kind: AccessKind) -> Support {
        self.accesses[kind as usize]
    }

    /// How a conversion is done; from a dtype to itself, whether there are values of it at all.
    pub fn convert(&self, from: DType, to: DType, width: Width) -> Support {
        let row = width as usize * DType::ALL.len() + from as usize;
        self.conversions[row * DType::ALL.len() + to as usize]
    }
}
