//! Maps of tensors, for copies of their tiles: where a tensor lies in device memory, and what a tile of it is.
//!
//! A kernel gets a map as 128 bytes that mean something to the device alone. These are of the simulator's own making: what it
//! did not encode, and what was changed since, is told apart.

/// Bytes of a map.
pub const TENSOR_MAP_BYTES: usize = 128;

/// What a map begins with.
const MAGIC: u64 = u64::from_le_bytes(*b"tlc tile");

/// Where in a map its parts are.
const ADDRESS: usize = 8;
const SIZES: usize = 16;
const STRIDES: usize = 56;
const TILE: usize = 88;
const KINDS: usize = 98;
const CHECK: usize = 120;

/// The most dimensions of a tensor.
const MOST_DIMENSIONS: usize = 5;

/// How pieces of 16 bytes are permuted in shared memory: within so many bytes, by the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Swizzle {
    /// They are not.
    None,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes.
    Bytes128,
}

impl Swizzle {
    const ALL: [Swizzle; 4] = [Swizzle::None, Swizzle::Bytes32, Swizzle::Bytes64, Swizzle::Bytes128];

    /// The bytes within which it permutes, if it does.
    pub const fn span(self) -> Option<u32> {
        match self {
            Swizzle::None => None,
            Swizzle::Bytes32 => Some(32),
            Swizzle::Bytes64 => Some(64),
            Swizzle::Bytes128 => Some(128),
        }
    }

    /// Where a byte goes that would be at an address of shared memory.
    pub const fn place(self, address: u64) -> u64 {
        let bits = match self {
            Swizzle::None => 0,
            Swizzle::Bytes32 => 0x10,
            Swizzle::Bytes64 => 0x30,
            Swizzle::Bytes128 => 0x70,
        };
        address ^ (address >> 3 & bits)
    }
}

/// A tensor in device memory and its tiles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorMap {
    /// Where the tensor begins.
    pub address: u64,
    /// Bytes of an element: 1, 2, 4 or 8.
    pub element_bytes: u32,
    /// Elements of each dimension, the one that is dense in memory first.
    pub sizes: Vec<u64>,
    /// Bytes from one element to the next, of each dimension but the first.
    pub strides: Vec<u64>,
    /// Elements of a tile of each dimension.
    pub tile: Vec<u32>,
    /// How a tile lies in shared memory.
    pub swizzle: Swizzle,
}

/// Why a tensor has no map.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct TensorMapError(String);

impl TensorMap {
    /// The bytes that a kernel is given.
    ///
    /// # Errors
    /// [`TensorMapError`] for what the CUDA driver refuses.
    pub fn encode(&self) -> Result<[u8; TENSOR_MAP_BYTES], TensorMapError> {
        self.check().map_err(TensorMapError)?;
        let mut bytes = [0; TENSOR_MAP_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &MAGIC.to_le_bytes());
        put(ADDRESS, &self.address.to_le_bytes());
        for (i, size) in self.sizes.iter().enumerate() {
            put(SIZES + 8 * i, &size.to_le_bytes());
        }
        for (i, stride) in self.strides.iter().enumerate() {
            put(STRIDES + 8 * i, &stride.to_le_bytes());
        }
        for (i, &tile) in self.tile.iter().enumerate() {
            put(TILE + 2 * i, &(tile as u16).to_le_bytes());
        }
        let swizzle = Swizzle::ALL.iter().position(|&s| s == self.swizzle).unwrap_or(0);
        put(
            KINDS,
            &[self.element_bytes as u8, self.sizes.len() as u8, swizzle as u8],
        );
        let check = sum(&bytes[..CHECK]);
        bytes[CHECK..].copy_from_slice(&check.to_le_bytes());
        Ok(bytes)
    }

    /// Reads what a kernel was given; what is wrong with it otherwise.
    pub(crate) fn decode(bytes: &[u8; TENSOR_MAP_BYTES]) -> Result<TensorMap, &'static str> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        if word(0) != MAGIC {
            return Err("the map of the tensor was never encoded");
        }
        let [element_bytes, dimensions, swizzle] = [0, 1, 2].map(|i| bytes[KINDS + i]);
        let dimensions = dimensions as usize;
        if sum(&bytes[..CHECK]) != word(CHECK) || dimensions > MOST_DIMENSIONS {
            return Err("the map of the tensor was changed after it was encoded");
        }
        let tile = |i: usize| u32::from(u16::from_le_bytes([bytes[TILE + 2 * i], bytes[TILE + 2 * i + 1]]));
        Ok(TensorMap {
            address: word(ADDRESS),
            element_bytes: u32::from(element_bytes),
            sizes: (0..dimensions).map(|i| word(SIZES + 8 * i)).collect(),
            strides: (1..dimensions).map(|i| word(STRIDES + 8 * (i - 1))).collect(),
            tile: (0..dimensions).map(tile).collect(),
            swizzle: Swizzle::ALL[swizzle as usize % Swizzle::ALL.len()],
        })
    }

    /// Bytes of a tile, those of elements outside of the tensor included.
    pub fn tile_bytes(&self) -> u64 {
        self.tile.iter().map(|&n| u64::from(n)).product::<u64>() * u64::from(self.element_bytes)
    }

    /// Bytes of a tile along the first dimension.
    pub fn row_bytes(&self) -> u64 {
        self.tile.first().map_or(0, |&n| u64::from(n)) * u64::from(self.element_bytes)
    }

    fn check(&self) -> Result<(), String> {
        let dimensions = self.sizes.len();
        if !(1..=MOST_DIMENSIONS).contains(&dimensions) {
            return Err(format!("a tensor of {dimensions} dimensions has no tiles"));
        }
        if self.strides.len() != dimensions - 1 || self.tile.len() != dimensions {
            return Err("each dimension has a size of tiles, and each but the first a stride".to_string());
        }
        if !matches!(self.element_bytes, 1 | 2 | 4 | 8) {
            return Err(format!("elements of {} bytes are none", self.element_bytes));
        }
        if !self.address.is_multiple_of(16) {
            return Err(format!("{:#x} is no multiple of 16 bytes", self.address));
        }
        if let Some(size) = self.sizes.iter().find(|&&n| n == 0 || n > 1 << 31) {
            return Err(format!("a dimension of {size} elements has no tiles"));
        }
        if let Some(stride) = self.strides.iter().find(|s| !s.is_multiple_of(16) || **s >= 1 << 40) {
            return Err(format!("a stride of {stride} bytes is none"));
        }
        if let Some(tile) = self.tile.iter().find(|n| !(1..=256).contains(*n)) {
            return Err(format!("a tile has at most 256 elements a dimension, not {tile}"));
        }
        let row = self.row_bytes();
        let most = self.swizzle.span().map_or(u64::MAX, u64::from);
        if !row.is_multiple_of(16) || row > most {
            return Err(format!("a tile with rows of {row} bytes is none"));
        }
        Ok(())
    }
}

/// A number that bytes hardly share with others.
fn sum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, &byte: &u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
