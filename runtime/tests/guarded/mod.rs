//! Memory between pages that nobody may touch.

#![cfg(target_os = "linux")]

const PAGE: usize = 4096;

/// At which end of the memory a closed page lies right beside it; at the other one it is within a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Edge {
    /// What comes before the first byte is closed.
    #[allow(dead_code, reason = "not every test that includes this asks for it")]
    Start,
    /// What comes behind the last byte is closed.
    End,
}

/// Bytes, all zero at first, with a closed page on both sides: an access beyond [`Edge`] ends the process.
pub struct Guarded {
    base: *mut u8,
    mapped: usize,
    /// The first byte.
    pub start: *mut u8,
    bytes: usize,
}

impl Guarded {
    /// So many bytes, at that edge.
    pub fn new(bytes: usize, edge: Edge) -> Guarded {
        let open = bytes.next_multiple_of(PAGE);
        let mapped = open + 2 * PAGE;
        // SAFETY: a fresh mapping, whose first and last page are then closed; what is used lies between them.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let base = libc::mmap(std::ptr::null_mut(), mapped, access, flags, -1, 0);
            assert_ne!(base, libc::MAP_FAILED);
            let base = base.cast::<u8>();
            for closed in [base, base.add(PAGE + open)] {
                assert_eq!(libc::mprotect(closed.cast(), PAGE, libc::PROT_NONE), 0);
            }
            let before = match edge {
                Edge::Start => 0,
                Edge::End => open - bytes,
            };
            Guarded {
                base,
                mapped,
                start: base.add(PAGE + before),
                bytes,
            }
        }
    }

    /// The bytes.
    #[allow(dead_code, reason = "not every test that includes this reads them so")]
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped, readable and initialized by the system; who has the pointer besides does not write meanwhile.
        unsafe { std::slice::from_raw_parts(self.start, self.bytes) }
    }

    /// The bytes, to write.
    #[allow(dead_code, reason = "not every test that includes this writes them so")]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.bytes) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: mapped with this size, and not used any more.
        unsafe { libc::munmap(self.base.cast(), self.mapped) };
    }
}
