//! Why code was stopped.

/// What an instruction does to memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// It reads.
    Read,
    /// It writes.
    Write,
}

impl std::fmt::Display for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Access::Read => "reads",
            Access::Write => "writes",
        })
    }
}

/// Why an access is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// No region holds its first byte.
    #[error("no memory is there{}", beside(.nearest))]
    Nowhere {
        /// The region that is nearest, with the bytes from its end to the access (negative: from the access to its start).
        nearest: Option<(String, i64)>,
    },
    /// It begins in a region and ends outside.
    #[error("{region} ends {inside} bytes behind the address")]
    End {
        /// The region.
        region: String,
        /// Bytes from the address to the region's end.
        inside: u64,
    },
    /// The region does not allow it.
    #[error("{region} may not be {}", match .access { Access::Read => "read", Access::Write => "written" })]
    Forbidden {
        /// The region.
        region: String,
        /// What was asked for.
        access: Access,
    },
    /// Nothing wrote what is read.
    #[error("nothing wrote byte {offset} of {region}")]
    Undefined {
        /// The region.
        region: String,
        /// Byte in the region.
        offset: usize,
    },
    /// The instruction asks for an aligned address.
    #[error("it must be a multiple of {0}")]
    Unaligned(u64),
}

fn beside(nearest: &Option<(String, i64)>) -> String {
    match nearest {
        Some((region, d)) if *d >= 0 => format!("; it is {d} bytes behind the end of {region}"),
        Some((region, d)) => format!("; it is {} bytes before {region}", d.unsigned_abs()),
        None => String::new(),
    }
}

/// Why code was stopped, with where it was: the address of the instruction, and its text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// An access that the memory refuses.
    #[error("{at:#x}: {text}: {access} {bytes} bytes at {address:#x}: {why}")]
    Access {
        /// Address of the instruction.
        at: u64,
        /// Its text.
        text: String,
        /// What it does.
        access: Access,
        /// Where.
        address: u64,
        /// Bytes.
        bytes: usize,
        /// Why that is refused.
        why: Refusal,
    },
    /// An instruction, or a form of one, that this crate does not know.
    #[error("{at:#x}: {text}: not known ({code})")]
    Unknown {
        /// Address of the instruction.
        at: u64,
        /// Its text.
        text: String,
        /// Its name in iced-x86, by which it is told from its other forms.
        code: String,
    },
    /// Bytes that are no instruction.
    #[error("{at:#x}: no instruction")]
    NoInstruction {
        /// Their address.
        at: u64,
    },
    /// A jump, a call or a way on to where no code is.
    #[error("{from:#x}: goes to {to:#x}, where there is no code and no host function")]
    NoCode {
        /// Address of the instruction.
        from: u64,
        /// Where it goes.
        to: u64,
    },
    /// A flag is read that nothing has defined.
    #[error("{at:#x}: {text}: reads {flag:?}, which is undefined")]
    UndefinedFlag {
        /// Address of the instruction.
        at: u64,
        /// Its text.
        text: String,
        /// The flag.
        flag: crate::state::Flag,
    },
    /// A division by zero, or whose quotient does not fit.
    #[error("{at:#x}: {text}: the division has no result")]
    Division {
        /// Address of the instruction.
        at: u64,
        /// Its text.
        text: String,
    },
    /// A call with the stack where the calling convention does not have it.
    #[error("{at:#x}: {text}: rsp is {rsp:#x}, no multiple of 16")]
    Stack {
        /// Address of the instruction.
        at: u64,
        /// Its text.
        text: String,
        /// The stack pointer.
        rsp: u64,
    },
    /// A host function failed.
    #[error("{at:#x}: {message}")]
    Host {
        /// Address of the call.
        at: u64,
        /// What it says.
        message: String,
    },
    /// What the caller keeps was not given back as it was.
    #[error("the function gives back {register} as {found:#x}, it was {expected:#x}")]
    Convention {
        /// The register.
        register: &'static str,
        /// What it was.
        expected: u64,
        /// What it is.
        found: u64,
    },
    /// The function left the upper halves of vector registers filled, which older instructions of callers would wait for.
    #[error("the function returns without emptying the upper half of register {0}")]
    Upper(usize),
    /// More instructions than allowed.
    #[error("{limit} instructions have run, and no end")]
    Limit {
        /// How many were allowed.
        limit: u64,
    },
}
