//! Tensors of devices as other libraries exchange them: DLPack's C structures (dmlc/dlpack, `include/dlpack/dlpack.h`, the layout before
//! versions were part of it, which every library takes).

use std::ffi::c_void;
use std::ptr::{self, NonNull};

use tlc_ir::DType;

use super::RunError;
use super::resident::DeviceTensor;

/// `kDLCUDA`.
const CUDA: i32 = 2;

/// `DLDevice`: where elements are.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DlDevice {
    /// Kind of device: 1 is the processor, 2 a GPU of CUDA.
    pub device_type: i32,
    /// Its number.
    pub device_id: i32,
}

/// `DLDataType`: what elements are.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DlDataType {
    /// Kind: 0 signed, 1 unsigned, 2 float, 4 bfloat, 6 bool.
    pub code: u8,
    /// Bits of a lane.
    pub bits: u8,
    /// Lanes of an element: 1 but for types that are vectors.
    pub lanes: u16,
}

/// `DLTensor`: elements, and how they lie.
#[repr(C)]
#[derive(Debug)]
pub struct DlTensor {
    /// The memory.
    pub data: *mut c_void,
    /// Where it is.
    pub device: DlDevice,
    /// Number of axes.
    pub ndim: i32,
    /// What the elements are.
    pub dtype: DlDataType,
    /// Extents, as many as axes.
    pub shape: *mut i64,
    /// Distances between neighbours, in elements, as many as axes; null if they are those of C order.
    pub strides: *mut i64,
    /// Bytes before the first element.
    pub byte_offset: u64,
}

/// `DLManagedTensor`: a tensor, and who takes it back. Whoever has one calls the deleter once.
#[repr(C)]
#[derive(Debug)]
pub struct DlManagedTensor {
    /// The tensor.
    pub dl_tensor: DlTensor,
    /// The maker's own.
    pub manager_ctx: *mut c_void,
    /// What ends its life; null if nothing is to be done.
    pub deleter: Option<unsafe extern "C" fn(*mut DlManagedTensor)>,
}

/// What DLPack calls a type; `None` if it has no name for it.
fn named(dtype: DType) -> Option<DlDataType> {
    let code = match dtype {
        DType::Bool => 6,
        DType::BF16 => 4,
        _ if dtype.is_float() => 2,
        _ if dtype.is_signed_int() => 0,
        _ if dtype.is_int() => 1,
        // Narrower ones have names in newer versions alone.
        _ => return None,
    };
    let bits = (dtype.bytes() * 8) as u8;
    Some(DlDataType { code, bits, lanes: 1 })
}

/// A tensor that was exported, with what its description points to.
struct Exported {
    managed: DlManagedTensor,
    shape: Vec<i64>,
    _tensor: DeviceTensor,
}

/// Ends the life of what [`DeviceTensor::to_dlpack`] made.
unsafe extern "C" fn delete(managed: *mut DlManagedTensor) {
    if let Some(managed) = NonNull::new(managed) {
        // SAFETY: the pointer is the one that `to_dlpack` returned, whose context is the box around it, and it is called once.
        drop(unsafe { Box::from_raw(managed.as_ref().manager_ctx.cast::<Exported>()) });
    }
}

/// A tensor that others made, which goes back to them.
struct Imported(NonNull<DlManagedTensor>);

// SAFETY: DLPack's deleters may be called on any thread, and nothing is read through the pointer before that.
unsafe impl Send for Imported {}
// SAFETY: as above.
unsafe impl Sync for Imported {}

impl Drop for Imported {
    fn drop(&mut self) {
        // SAFETY: whoever imported it promised that it is whole until its deleter is called, which is here alone.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

impl DeviceTensor {
    /// The tensor as other libraries take it. Nothing is copied: the memory lives until the deleter of what is returned is called, which whoever
    /// takes it does. The host waits for the call that computes it, so that there is nothing to wait for before it is read.
    ///
    /// # Errors
    /// If DLPack has no name for its type, or that call failed.
    pub fn to_dlpack(&self) -> Result<NonNull<DlManagedTensor>, RunError> {
        let Some(dtype) = named(self.dtype()) else {
            return Err(RunError::Exchange {
                message: format!("there is no {} in DLPack", self.dtype()),
            });
        };
        self.synchronize()?;
        let ordinal = self.device().ordinal().unwrap_or(0);
        let mut exported = Box::new(Exported {
            managed: DlManagedTensor {
                dl_tensor: DlTensor {
                    data: ptr::without_provenance_mut(self.as_raw() as usize),
                    device: DlDevice {
                        device_type: CUDA,
                        device_id: ordinal as i32,
                    },
                    ndim: self.shape().len() as i32,
                    dtype,
                    shape: ptr::null_mut(),
                    strides: ptr::null_mut(),
                    byte_offset: 0,
                },
                manager_ctx: ptr::null_mut(),
                deleter: Some(delete),
            },
            shape: self.shape().iter().map(|d| *d as i64).collect(),
            _tensor: self.clone(),
        });
        exported.managed.dl_tensor.shape = exported.shape.as_mut_ptr();
        let exported = NonNull::from(Box::leak(exported));
        // SAFETY: the box was given up just now, and nothing else points to it.
        unsafe {
            let managed = &raw mut (*exported.as_ptr()).managed;
            (*managed).manager_ctx = exported.as_ptr().cast();
            Ok(NonNull::new_unchecked(managed))
        }
    }

    /// A tensor that another library made, in the memory of a GPU and in C order, without a copy. Its deleter is called when no clone is
    /// left. The stream is waited for, as by [`DeviceTensor::from_raw`].
    ///
    /// # Safety
    /// What it points to is whole, nobody else calls its deleter, and the memory has the elements that it says (bools as bytes of 0 and 1), which nobody
    /// writes until then but what the stream was given before.
    ///
    /// # Errors
    /// If it is not on a GPU, not in C order or of a type that tlc does not have, or as [`DeviceTensor::from_raw`]. Then it stays the
    /// caller's.
    pub unsafe fn from_dlpack(
        managed: NonNull<DlManagedTensor>,
        stream: *mut c_void,
    ) -> Result<DeviceTensor, RunError> {
        // SAFETY: the caller's promise.
        let tensor = unsafe { &managed.as_ref().dl_tensor };
        let refused = |message: String| Err(RunError::Exchange { message });
        if tensor.device.device_type != CUDA {
            return refused(format!(
                "a tensor of DLPack is on a device of kind {}; expected {CUDA}, a GPU of CUDA",
                tensor.device.device_type
            ));
        }
        let Some(dtype) = DType::ALL.iter().copied().find(|d| named(*d) == Some(tensor.dtype)) else {
            let DlDataType { code, bits, lanes } = tensor.dtype;
            return refused(format!(
                "there is no type of code {code}, {bits} bits and {lanes} lanes in tlc"
            ));
        };
        let axes = usize::try_from(tensor.ndim).unwrap_or(0);
        let numbers = |from: *mut i64| -> Vec<i64> {
            match axes == 0 || from.is_null() {
                true => Vec::new(),
                // SAFETY: the caller's promise: there are as many as axes.
                false => unsafe { std::slice::from_raw_parts(from, axes) }.to_vec(),
            }
        };
        let (extents, strides) = (numbers(tensor.shape), numbers(tensor.strides));
        let shape: Result<Vec<usize>, _> = extents.iter().map(|d| usize::try_from(*d)).collect();
        let Ok(shape) = shape else {
            return refused(format!("a tensor of DLPack has extents {extents:?}"));
        };
        let mut next = 1i64;
        let empty = extents.contains(&0);
        for (d, stride) in extents.iter().zip(&strides).rev() {
            if *d != 1 && *stride != next && !empty {
                return refused(format!(
                    "a tensor of DLPack with extents {extents:?} has strides {strides:?}; expected C order"
                ));
            }
            next = next.saturating_mul(*d);
        }
        let Ok(ordinal) = u32::try_from(tensor.device.device_id) else {
            return refused(format!("a tensor of DLPack is on GPU {}", tensor.device.device_id));
        };
        let address = (tensor.data.addr() as u64).wrapping_add(tensor.byte_offset);
        // An error leaves the tensor to the caller, so the owner comes in last.
        // SAFETY: the caller's promise.
        let mut made = unsafe { DeviceTensor::from_raw(ordinal, address, (dtype, &shape), stream, ())? };
        made.own(Imported(managed));
        Ok(made)
    }
}
