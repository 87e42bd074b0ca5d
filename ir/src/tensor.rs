//! Host tensors: the data of constants, of interpreted values and of files.
//!
//! Invariants: elements are C-contiguous and stored in the machine's byte order; bools are 0 or 1, and bits above a type's value
//! bits are 0; the byte length is `elements * dtype.bytes()` exactly. What a tensor owns is aligned to 8 bytes, and to a cache line from one page
//! on. Bytes that another owner lends, such as a mapped file, are shared where they are, aligned or not; those of bools and of types of less than a
//! byte are copied unless they keep the invariants.

use std::alloc::{Layout, handle_alloc_error};
use std::collections::TryReserveError;
use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, OnceLock};

use half::{bf16, f16};

use crate::dtype::{DType, Scalar};
use crate::fallible::fallibly;
use crate::target::CACHE_LINE_BYTES;

/// A Rust type that is stored as elements of one [`DType`]. Bytes are checked where they are seen as `bool`, which may only be
/// 0 or 1; all others take any bits.
pub trait Element: bytemuck::NoUninit + bytemuck::CheckedBitPattern + PartialEq + fmt::Debug + Send + Sync {
    /// The dtype whose stored form this type is.
    const DTYPE: DType;
}

macro_rules! element {
    ($($t:ty => $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
element!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64,
    f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, bool => Bool);

/// Who keeps the bytes that tensors share: a mapped file, a buffer.
pub type BytesOwner = Arc<dyn AsRef<[u8]> + Send + Sync + UnwindSafe + RefUnwindSafe>;

/// A C-contiguous tensor in host memory. Cloning shares the data.
#[derive(Clone)]
pub struct HostTensor {
    dtype: DType,
    shape: Vec<usize>,
    storage: Storage,
    byte_len: usize,
}

#[derive(Clone)]
enum Storage {
    /// In a vector of its own: that can be refused memory, and is not copied when it is shared.
    Own(Arc<Words>),
    /// A part of what another keeps, from that byte on.
    Lent(BytesOwner, usize, Arc<Copies>),
}

/// Copies of what is lent, shared by all clones of a tensor.
#[derive(Default)]
struct Copies {
    /// Whether the bytes that are lent lie aligned to the elements.
    aligned: bool,
    /// Where they do not, a copy that does, made when somebody wants one.
    own: OnceLock<Words>,
    /// A copy that somebody made elsewhere.
    placed: OnceLock<BytesOwner>,
}

/// Why a host tensor could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// The product of the extents does not fit in memory's address range.
    #[error("shape {shape:?} of {dtype} has too many elements")]
    TooLarge {
        /// Element type asked for.
        dtype: DType,
        /// Extents asked for.
        shape: Vec<usize>,
    },
    /// The data does not hold as many elements as the shape says.
    #[error("shape {shape:?} wants {expected} elements, the data has {found}")]
    Length {
        /// Extents asked for.
        shape: Vec<usize>,
        /// Elements (or bytes, for byte input) the shape wants.
        expected: usize,
        /// Elements (or bytes) the data has.
        found: usize,
    },
    /// The allocator refused.
    #[error("out of memory: {bytes} bytes for a host tensor")]
    OutOfMemory {
        /// Bytes asked for.
        bytes: usize,
    },
}

/// Number of elements of a shape, or `None` on overflow.
pub fn element_count(shape: &[usize]) -> Option<usize> {
    // A zero extent makes the product zero, however large the others are.
    if shape.contains(&0) {
        return Some(0);
    }
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

/// The element at a flat index of native-endian elements.
///
/// # Panics
/// If the index is out of range.
pub fn element(dtype: DType, bytes: &[u8], index: usize) -> Scalar {
    let width = dtype.bytes();
    let raw = &bytes[index * width..(index + 1) * width];
    let bits = match width {
        1 => raw[0] as u64,
        2 => u16::from_ne_bytes([raw[0], raw[1]]) as u64,
        4 => u32::from_ne_bytes([raw[0], raw[1], raw[2], raw[3]]) as u64,
        _ => u64::from_ne_bytes(raw.try_into().expect("eight bytes")),
    };
    Scalar::from_bits(dtype, bits)
}

impl HostTensor {
    fn checked_bytes(dtype: DType, shape: &[usize]) -> Result<usize, TensorError> {
        element_count(shape)
            .and_then(|n| n.checked_mul(dtype.bytes()))
            .filter(|&b| b <= isize::MAX as usize / 2)
            .ok_or_else(|| TensorError::TooLarge {
                dtype,
                shape: shape.to_vec(),
            })
    }

    /// A tensor of zero bits.
    ///
    /// # Errors
    /// [`TensorError::TooLarge`] if the element count overflows, [`TensorError::OutOfMemory`] if memory is refused.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<HostTensor, TensorError> {
        let byte_len = Self::checked_bytes(dtype, shape)?;
        let words = fallibly(|| Words::zeros(byte_len)).map_err(|_| TensorError::OutOfMemory { bytes: byte_len })?;
        Ok(HostTensor {
            dtype,
            shape: shape.to_vec(),
            storage: Storage::Own(Arc::new(words)),
            byte_len,
        })
    }

    /// A tensor from a slice of its element type.
    ///
    /// # Errors
    /// [`TensorError::Length`] if the slice's length is not the product of the extents.
    pub fn from_slice<T: Element>(shape: &[usize], data: &[T]) -> Result<HostTensor, TensorError> {
        let expected = element_count(shape).ok_or_else(|| TensorError::TooLarge {
            dtype: T::DTYPE,
            shape: shape.to_vec(),
        })?;
        if expected != data.len() {
            return Err(TensorError::Length {
                shape: shape.to_vec(),
                expected,
                found: data.len(),
            });
        }
        Self::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(data))
    }

    /// A tensor from native-endian element bytes. Bool bytes other than 0 become 1; of the types of less than a byte, which
    /// have one for each element, the bits above the value are dropped.
    ///
    /// # Errors
    /// [`TensorError::Length`] (in bytes) if the length does not fit the shape.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<HostTensor, TensorError> {
        let expected = Self::checked_bytes(dtype, shape)?;
        if expected != bytes.len() {
            return Err(TensorError::Length {
                shape: shape.to_vec(),
                expected,
                found: bytes.len(),
            });
        }
        let mut tensor = Self::zeros(dtype, shape)?;
        let target = tensor.bytes_mut();
        target.copy_from_slice(bytes);
        if dtype == DType::Bool {
            target.iter_mut().for_each(|b| *b = (*b != 0) as u8);
        } else if dtype.value_bits() < 8 {
            let value = (1u8 << dtype.value_bits()) - 1;
            target.iter_mut().for_each(|b| *b &= value);
        }
        Ok(tensor)
    }

    /// A tensor of `owner`'s bytes from `start` on, native-endian. They are shared if they keep this type's invariants as they
    /// are, else copied as by [`HostTensor::from_bytes`]; they need not be aligned (see [`HostTensor::aligned_bytes`]). The owner gives the same bytes whenever it is asked.
    ///
    /// # Errors
    /// [`TensorError::Length`] (in bytes) if there are too few for the shape.
    pub fn from_owner(
        dtype: DType,
        shape: &[usize],
        owner: &BytesOwner,
        start: usize,
    ) -> Result<HostTensor, TensorError> {
        let byte_len = Self::checked_bytes(dtype, shape)?;
        let all: &[u8] = (**owner).as_ref();
        let rest = all.get(start..).unwrap_or_default();
        let bytes = rest.get(..byte_len).ok_or_else(|| TensorError::Length {
            shape: shape.to_vec(),
            expected: byte_len,
            found: rest.len(),
        })?;
        if bytes.is_empty() {
            // There is nothing to share, and readers of elements expect even an empty slice to be aligned.
            return Self::zeros(dtype, shape);
        }
        let aligned = bytes.as_ptr().addr().is_multiple_of(dtype.bytes());
        let value = match dtype {
            DType::Bool => 1,
            d if d.value_bits() < 8 => (1u8 << d.value_bits()) - 1,
            _ => u8::MAX,
        };
        if value < u8::MAX && bytes.iter().any(|&b| b > value) {
            return Self::from_bytes(dtype, shape, bytes);
        }
        Ok(HostTensor {
            dtype,
            shape: shape.to_vec(),
            storage: Storage::Lent(
                owner.clone(),
                start,
                Arc::new(Copies {
                    aligned,
                    ..Copies::default()
                }),
            ),
            byte_len,
        })
    }

    /// A tensor with every element equal to `value`.
    ///
    /// # Errors
    /// As [`HostTensor::zeros`].
    pub fn full(shape: &[usize], value: Scalar) -> Result<HostTensor, TensorError> {
        let mut tensor = Self::zeros(value.dtype(), shape)?;
        if value.bits() != 0 {
            let raw = value.bits().to_ne_bytes();
            let width = value.dtype().bytes();
            let low: &[u8] = if cfg!(target_endian = "little") {
                &raw[..width]
            } else {
                &raw[8 - width..]
            };
            tensor
                .bytes_mut()
                .chunks_exact_mut(width)
                .for_each(|c| c.copy_from_slice(low));
        }
        Ok(tensor)
    }

    /// A rank-0 tensor.
    pub fn scalar(value: Scalar) -> HostTensor {
        Self::full(&[], value).expect("one element always fits")
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Extents.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.byte_len / self.dtype.bytes()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.byte_len == 0
    }

    /// The element bytes, native-endian, C order; of a tensor made by [`HostTensor::from_owner`] not necessarily aligned.
    pub fn bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Own(words) => &words.bytes()[..self.byte_len],
            Storage::Lent(owner, start, _) => &(**owner).as_ref()[*start..*start + self.byte_len],
        }
    }

    /// The element bytes, aligned to the elements: copied the first time if they are not, and kept as long as the tensor.
    pub fn aligned_bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::Lent(.., copies) => match self.placed_bytes() {
                Some(bytes) => bytes,
                None if copies.aligned => self.bytes(),
                None => {
                    let words = copies.own.get_or_init(|| Words::copied(self.bytes()));
                    &words.bytes()[..self.byte_len]
                }
            },
            Storage::Own(_) => self.bytes(),
        }
    }

    /// Keeps a copy of bytes that are lent, in memory which is better for those who read them again and again;
    /// [`HostTensor::placed_bytes`] gives it from then on, of all clones. Nothing happens if there is one already, or if the tensor has its bytes to itself.
    ///
    /// # Panics
    /// If the copy has other bytes, or is not aligned to the elements.
    pub fn place(&self, copy: BytesOwner) {
        let bytes: &[u8] = (*copy).as_ref();
        assert_eq!(bytes.len(), self.byte_len, "a copy of another length");
        assert!(
            bytes.as_ptr().addr().is_multiple_of(self.dtype.bytes()),
            "a copy that is not aligned"
        );
        debug_assert!(bytes == self.bytes(), "a copy of other bytes");
        if let Storage::Lent(.., copies) = &self.storage {
            // Whoever comes second has made a copy for nothing.
            let _ = copies.placed.set(copy);
        }
    }

    /// The bytes of the copy that [`HostTensor::place`] was given.
    pub fn placed_bytes(&self) -> Option<&[u8]> {
        match &self.storage {
            Storage::Lent(.., copies) => copies.placed.get().map(|owner| (**owner).as_ref()),
            Storage::Own(_) => None,
        }
    }

    /// Bytes of the copy that [`HostTensor::aligned_bytes`] has made.
    pub fn copied_bytes(&self) -> usize {
        match &self.storage {
            Storage::Lent(.., copies) if copies.own.get().is_some() => self.byte_len,
            _ => 0,
        }
    }

    /// The element bytes, writable; the data is copied first if it is shared. Writers of bool keep it 0 or 1.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let unshared = match &mut self.storage {
            Storage::Own(words) => Arc::get_mut(words).is_some(),
            Storage::Lent(..) => false,
        };
        if !unshared {
            self.storage = Storage::Own(Arc::new(Words::copied(self.bytes())));
        }
        match &mut self.storage {
            Storage::Own(words) => {
                let words = Arc::get_mut(words).expect("unshared just now");
                &mut words.bytes_mut()[..self.byte_len]
            }
            Storage::Lent(..) => unreachable!("owned just now"),
        }
    }

    /// The elements, if `T` is the element type.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        (T::DTYPE == self.dtype).then(|| bytemuck::checked::try_cast_slice(self.aligned_bytes()).ok())?
    }

    /// The elements, writable, if `T` is the element type.
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        (T::DTYPE == self.dtype).then(|| bytemuck::checked::try_cast_slice_mut(self.bytes_mut()).ok())?
    }

    /// The element at a flat C-order index.
    ///
    /// # Panics
    /// If the index is out of range.
    pub fn get(&self, index: usize) -> Scalar {
        element(self.dtype, self.bytes(), index)
    }

    /// Writes the element at a flat C-order index; `value` must have the tensor's dtype.
    ///
    /// # Panics
    /// If the index is out of range or the dtype differs.
    pub fn set(&mut self, index: usize, value: Scalar) {
        assert_eq!(value.dtype(), self.dtype, "element written with another dtype");
        let width = self.dtype.bytes();
        let bits = value.bits();
        let target = &mut self.bytes_mut()[index * width..(index + 1) * width];
        match width {
            1 => target[0] = bits as u8,
            2 => target.copy_from_slice(&(bits as u16).to_ne_bytes()),
            4 => target.copy_from_slice(&(bits as u32).to_ne_bytes()),
            _ => target.copy_from_slice(&bits.to_ne_bytes()),
        }
    }

    /// The same data under another shape of as many elements.
    ///
    /// # Errors
    /// [`TensorError::Length`] if the element counts differ.
    pub fn reshaped(&self, shape: &[usize]) -> Result<HostTensor, TensorError> {
        match element_count(shape) {
            Some(n) if n == self.len() => Ok(HostTensor {
                shape: shape.to_vec(),
                ..self.clone()
            }),
            other => Err(TensorError::Length {
                shape: shape.to_vec(),
                expected: other.unwrap_or(usize::MAX),
                found: self.len(),
            }),
        }
    }

    /// The same bits as another dtype of as many stored bits: the meaning of the graph's `bitcast`.
    ///
    /// # Errors
    /// [`TensorError::OutOfMemory`] if memory is refused.
    ///
    /// # Panics
    /// If the widths differ.
    pub fn bitcast(&self, dtype: DType) -> Result<HostTensor, TensorError> {
        assert_eq!(self.dtype.bits(), dtype.bits(), "bits of another width");
        if dtype == DType::Bool || dtype.value_bits() < 8 {
            return Self::from_bytes(dtype, &self.shape, self.bytes());
        }
        Ok(HostTensor { dtype, ..self.clone() })
    }

    /// True if both handles share one buffer.
    pub fn same_data(&self, other: &HostTensor) -> bool {
        match (&self.storage, &other.storage) {
            (Storage::Own(a), Storage::Own(b)) => Arc::ptr_eq(a, b),
            (Storage::Lent(..), Storage::Lent(..)) => {
                self.data_address() == other.data_address() && self.byte_len == other.byte_len
            }
            _ => false,
        }
    }

    /// The address of the shared data, which identifies a large constant without hashing it.
    pub fn data_address(&self) -> usize {
        self.bytes().as_ptr().addr()
    }
}

/// Bytes in memory of their own, zeros behind them. From [`LINED`] bytes on they begin at a cache line: a vector of 64 bytes that
/// begins elsewhere is two lines for each load and store, and an allocator puts large blocks 16 bytes behind a page's start.
struct Words {
    words: Vec<u64>,
    /// The word that the bytes begin with. They lie there as long as the vector does, which never grows.
    start: usize,
}

const LINE: usize = CACHE_LINE_BYTES as usize;

/// Tensors of as many bytes begin at a line: below a page the words in front of it are much beside the tensor's.
const LINED: usize = 4096;

impl Words {
    /// Zeros, at least `bytes` of them.
    fn zeros(bytes: usize) -> Result<Words, TryReserveError> {
        let len = bytes.div_ceil(8);
        let spare = if bytes < LINED { 0 } else { LINE / 8 - 1 };
        let mut words: Vec<u64> = Vec::new();
        words.try_reserve_exact(len + spare)?;
        let to_line = words.as_ptr().addr().next_multiple_of(LINE) - words.as_ptr().addr();
        let start = if spare == 0 { 0 } else { to_line / 8 };
        words.resize(start + len, 0);
        Ok(Words { words, start })
    }

    fn copied(bytes: &[u8]) -> Words {
        let mut words = Words::zeros(bytes.len()).unwrap_or_else(|_| handle_alloc_error(Layout::for_value(bytes)));
        words.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        words
    }

    /// All bytes, those behind the tensor's as well.
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.words[self.start..])
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.words[self.start..])
    }
}

impl PartialEq for HostTensor {
    /// Same dtype, shape and bits.
    fn eq(&self, other: &HostTensor) -> bool {
        self.dtype == other.dtype
            && self.shape == other.shape
            && (self.same_data(other) || self.bytes() == other.bytes())
    }
}

impl fmt::Debug for HostTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}[", self.dtype, self.shape)?;
        for i in 0..self.len().min(16) {
            write!(f, "{}{}", if i == 0 { "" } else { ", " }, self.get(i))?;
        }
        f.write_str(if self.len() > 16 { ", …]" } else { "]" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_elements_of_every_width() {
        for d in DType::ALL {
            let mut t = HostTensor::zeros(d, &[3, 2]).unwrap();
            t.set(5, d.one());
            assert_eq!(t.get(5), d.one());
            assert_eq!(t.get(4), d.zero());
            assert_eq!(HostTensor::full(&[2], d.one()).unwrap().get(1), d.one());
        }
    }

    #[test]
    fn large_tensors_begin_at_a_line() {
        for elements in [1024, 1031, 100_000] {
            let zeros = HostTensor::zeros(DType::F32, &[elements]).unwrap();
            let mut written = zeros.clone();
            written.set(elements - 1, Scalar::from_f64(DType::F32, 3.0));
            for tensor in [&zeros, &written] {
                assert!(tensor.data_address().is_multiple_of(LINE), "{elements}");
                assert_eq!(tensor.bytes().len(), elements * 4);
            }
            assert_eq!(zeros.get(elements - 1).as_f64(), 0.0);
            assert_eq!(written.get(elements - 1).as_f64(), 3.0);
        }
    }

    #[test]
    fn overflowing_shapes_are_errors() {
        assert!(HostTensor::zeros(DType::F32, &[usize::MAX, 2]).is_err());
        assert_eq!(HostTensor::zeros(DType::F32, &[usize::MAX, 0]).unwrap().len(), 0);
    }

    #[test]
    fn lent_bytes_are_shared_where_they_can_be() {
        let words: Vec<u64> = vec![0x0101_0101_0101_0100, u64::MAX];
        struct Words(Vec<u64>);
        impl AsRef<[u8]> for Words {
            fn as_ref(&self) -> &[u8] {
                bytemuck::cast_slice(&self.0)
            }
        }
        let owner: BytesOwner = Arc::new(Words(words));
        let start = (*owner).as_ref().as_ptr().addr();
        let lent = |dtype, shape: &[usize], at| HostTensor::from_owner(dtype, shape, &owner, at);
        let f = lent(DType::F32, &[2], 4).unwrap();
        assert_eq!(f.data_address(), start + 4);
        assert!(f.same_data(&lent(DType::F32, &[2], 4).unwrap()) && !f.same_data(&lent(DType::F32, &[2], 8).unwrap()));
        // Nothing, wherever it lies.
        for at in [1, 16, 99] {
            let none = lent(DType::F32, &[0, 3], at).unwrap();
            assert_eq!(none.as_slice::<f32>(), Some(&[][..]));
            assert!(none.aligned_bytes().as_ptr().addr().is_multiple_of(4) && none.bytes().is_empty());
        }
        // Not aligned: copied when somebody wants elements.
        let odd = lent(DType::F32, &[2], 1).unwrap();
        assert_eq!((odd.data_address(), odd.copied_bytes()), (start + 1, 0));
        let bits = odd.get(1).bits() as u32;
        assert_eq!(odd.clone().as_slice::<f32>().unwrap()[1].to_bits(), bits);
        assert_eq!((odd.data_address(), odd.copied_bytes()), (start + 1, 8));
        // Not bools: copied, and mended.
        assert_eq!(lent(DType::Bool, &[8], 0).unwrap().data_address(), start);
        assert_eq!(lent(DType::Bool, &[2], 8).unwrap().bytes(), [1, 1]);
        assert_eq!(lent(DType::U4, &[1], 8).unwrap().bytes(), [15]);
        assert_eq!(lent(DType::F64, &[0], 16).unwrap().len(), 0);
        for (dtype, at) in [(DType::F64, 16), (DType::U8, usize::MAX)] {
            assert!(matches!(lent(dtype, &[1], at), Err(TensorError::Length { .. })));
        }
        let mut own = f.clone();
        own.as_mut_slice::<f32>().unwrap()[0] = 3.0;
        assert_eq!(own.get(0).as_f64(), 3.0);
        assert_ne!(f.get(0).as_f64(), 3.0);
    }

    #[test]
    fn writing_a_shared_tensor_copies_it() {
        let a = HostTensor::from_slice(&[2], &[1.0f32, 2.0]).unwrap();
        let mut b = a.clone();
        b.as_mut_slice::<f32>().unwrap()[0] = 9.0;
        assert_eq!(a.as_slice::<f32>().unwrap(), [1.0, 2.0]);
    }
}
