//! Memory: regions at addresses that the caller chooses.

use crate::fault::{Access, Refusal};

/// What may be done to a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Permission {
    /// It may be read.
    Read,
    /// It may be read and written.
    ReadWrite,
    /// It may be written; a byte may be read once it is.
    Write,
}

/// So many bytes at an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// What it is called in faults.
    pub name: String,
    /// Address of the first byte.
    pub base: u64,
    /// What is there.
    pub bytes: Vec<u8>,
    /// What may be done.
    pub permission: Permission,
    /// Which bytes were written; empty where all are there from the start.
    written: Vec<bool>,
}

impl Region {
    /// A region whose bytes are known.
    pub fn new(name: impl Into<String>, base: u64, bytes: Vec<u8>, permission: Permission) -> Region {
        let written = match permission {
            Permission::Write => vec![false; bytes.len()],
            Permission::Read | Permission::ReadWrite => Vec::new(),
        };
        Region {
            name: name.into(),
            base,
            bytes,
            permission,
            written,
        }
    }

    /// Whether every byte was written, or was there from the start.
    pub fn is_whole(&self) -> bool {
        self.written.iter().all(|w| *w)
    }

    fn end(&self) -> u64 {
        self.base.saturating_add(self.bytes.len() as u64)
    }
}

/// All memory that there is. Regions do not overlap; what lies between them may not be touched.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Memory {
    regions: Vec<Region>,
    /// The one that was touched last, which is most likely the next one.
    last: usize,
}

impl Memory {
    /// No memory.
    pub fn new() -> Memory {
        Memory::default()
    }

    /// Adds a region.
    ///
    /// # Errors
    /// The region, if it overlaps another one or ends beyond all addresses.
    pub fn add(&mut self, region: Region) -> Result<(), Box<Region>> {
        let overlaps = |r: &Region| r.base < region.end() && region.base < r.end();
        let fits = region.base.checked_add(region.bytes.len() as u64).is_some();
        if !fits || self.regions.iter().any(overlaps) {
            return Err(Box::new(region));
        }
        self.regions.push(region);
        Ok(())
    }

    /// The regions, in the order in which they were added.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The region of a name.
    pub fn region(&self, name: &str) -> Option<&Region> {
        self.regions.iter().find(|r| r.name == name)
    }

    /// The region and the first byte in it of an access.
    fn place(&mut self, address: u64, bytes: usize, access: Access) -> Result<(usize, usize), Refusal> {
        let holds = |r: &Region| address >= r.base && address < r.end();
        let known = self.regions.get(self.last).is_some_and(holds);
        let at = match known {
            true => self.last,
            false => match self.regions.iter().position(holds) {
                Some(at) => at,
                None => return Err(self.nowhere(address)),
            },
        };
        self.last = at;
        let region = &self.regions[at];
        let inside = region.end() - address;
        if (bytes as u64) > inside {
            return Err(Refusal::End {
                region: region.name.clone(),
                inside,
            });
        }
        if access == Access::Write && region.permission == Permission::Read {
            return Err(Refusal::Forbidden {
                region: region.name.clone(),
                access,
            });
        }
        Ok((at, (address - region.base) as usize))
    }

    fn nowhere(&self, address: u64) -> Refusal {
        let distance = |r: &Region| match address < r.base {
            true => -((r.base - address).min(i64::MAX as u64) as i64),
            false => (address - r.end()).min(i64::MAX as u64) as i64,
        };
        let nearest = self.regions.iter().min_by_key(|r| distance(r).unsigned_abs());
        Refusal::Nowhere {
            nearest: nearest.map(|r| (r.name.clone(), distance(r))),
        }
    }

    /// Reads so many bytes as `into` holds.
    ///
    /// # Errors
    /// Why they may not be read.
    pub fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), Refusal> {
        let (at, offset) = self.place(address, into.len(), Access::Read)?;
        let region = &self.regions[at];
        if !region.written.is_empty()
            && let Some(k) = region.written[offset..offset + into.len()].iter().position(|w| !w)
        {
            return Err(Refusal::Undefined {
                region: region.name.clone(),
                offset: offset + k,
            });
        }
        into.copy_from_slice(&region.bytes[offset..offset + into.len()]);
        Ok(())
    }

    /// Writes bytes.
    ///
    /// # Errors
    /// Why they may not be written.
    pub fn write(&mut self, address: u64, from: &[u8]) -> Result<(), Refusal> {
        let (at, offset) = self.place(address, from.len(), Access::Write)?;
        let region = &mut self.regions[at];
        region.bytes[offset..offset + from.len()].copy_from_slice(from);
        if !region.written.is_empty() {
            region.written[offset..offset + from.len()].fill(true);
        }
        Ok(())
    }
}
