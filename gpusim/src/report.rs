//! What a launch found and counted.

use std::fmt;

use crate::counters::Counters;
use crate::memory::Footprint;
use crate::syntax::{SourceLine, Space};

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FindingKind {
    /// An access outside of every allocation, or of the memory of its block or thread.
    OutOfBounds,
    /// An access to an allocation that was freed.
    UseAfterFree,
    /// An access whose address is no multiple of its size.
    Misaligned,
    /// A store to constant memory.
    ReadOnly,
    /// A use of memory that nobody wrote.
    Unwritten,
    /// Two accesses without an order between them, at least one of them writing.
    Race,
    /// A barrier of the block that some lanes of a warp did not come to.
    DivergentBarrier,
    /// A warp instruction whose mask does not hold the lanes that execute it.
    WarpMask,
    /// An asynchronous matrix product whose registers, shared memory or warps are not as it needs them.
    AsyncProduct,
    /// A copy of a tile whose map, place or barrier is not as it needs them, or that nobody waits for.
    AsyncCopy,
    /// A barrier in shared memory that is used before it begins to be, or whose phases are mixed up.
    Phase,
    /// Threads wait for each other, or go on without any progress.
    Deadlock,
    /// `assert` failed.
    Assertion,
    /// The kernel stopped itself.
    Trap,
}

impl FindingKind {
    /// It in words.
    pub const fn text(self) -> &'static str {
        match self {
            FindingKind::OutOfBounds => "access out of bounds",
            FindingKind::UseAfterFree => "use after free",
            FindingKind::Misaligned => "misaligned access",
            FindingKind::ReadOnly => "store to constant memory",
            FindingKind::Unwritten => "use of memory never written",
            FindingKind::Race => "race",
            FindingKind::DivergentBarrier => "barrier in divergent code",
            FindingKind::WarpMask => "warp instruction with a wrong mask",
            FindingKind::AsyncProduct => "misuse of an asynchronous product",
            FindingKind::AsyncCopy => "misuse of an asynchronous copy",
            FindingKind::Phase => "misuse of a barrier in shared memory",
            FindingKind::Deadlock => "deadlock",
            FindingKind::Assertion => "assertion failed",
            FindingKind::Trap => "trap",
        }
    }
}

/// A place in a kernel, and who was there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Site {
    /// The function, which is the kernel unless it calls others.
    pub function: String,
    /// The line of the PTX text.
    pub line: u32,
    /// The line of the source that PTX was compiled from, if a `.loc` names it.
    pub source: SourceLine,
    /// That source's name, if a `.file` names it.
    pub file: Option<String>,
    /// The words of that line, if the PTX text has its source behind it.
    pub text: Option<String>,
    /// The block.
    pub block: [u32; 3],
    /// The thread in the block.
    pub thread: [u32; 3],
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at PTX line {}", self.function, self.line)?;
        if self.source.line > 0 {
            let file = self.file.as_deref().unwrap_or("source");
            match &self.text {
                Some(text) => write!(f, " ({file}:{}: {text})", self.source.line)?,
                None => write!(f, " ({file}:{})", self.source.line)?,
            }
        }
        let ([bx, by, bz], [x, y, z]) = (self.block, self.thread);
        write!(f, ", block ({bx}, {by}, {bz}), thread ({x}, {y}, {z})")
    }
}

/// Something wrong, at the first place where it was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What.
    pub kind: FindingKind,
    /// The kernel.
    pub kernel: String,
    /// Where.
    pub site: Site,
    /// The address, in its space.
    pub address: Option<(Space, u64)>,
    /// The bytes of the access.
    pub bytes: u32,
    /// The other side of a race.
    pub other: Option<Site>,
    /// More about it.
    pub detail: String,
    /// How often the same was seen at this instruction.
    pub count: u64,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} in {}", self.kernel, self.kind.text(), self.site)?;
        if let Some((space, address)) = self.address {
            write!(f, ", {} bytes at {} address {address:#x}", self.bytes, space.name())?;
        }
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        if let Some(other) = &self.other {
            write!(f, "; the other access is {other}")?;
        }
        if self.count > 1 {
            write!(f, " ({} times)", self.count)?;
        }
        Ok(())
    }
}

/// What a launch did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The kernel.
    pub kernel: String,
    /// What is wrong, in the order in which it was found; the same at one instruction is one finding.
    pub findings: Vec<Finding>,
    /// What was counted.
    pub counters: Counters,
    /// Which bytes of device memory it accessed, if [`Options::footprint`](crate::Options::footprint) asked.
    pub footprint: Footprint,
    /// Whether all blocks ran to their end.
    pub finished: bool,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.finished
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            writeln!(f, "{finding}")?;
        }
        let c = &self.counters;
        writeln!(
            f,
            "{}: {} instructions of lanes, {} findings",
            self.kernel,
            c.lane_instructions(),
            self.findings.len()
        )
    }
}
