//! The driver's library and the entry points that are used.
//!
//! Where it is looked for, in order: `TLC_CUDA_DRIVER` (a file, or a folder that has one; if set, nowhere else); `libcuda.so.1` by the
//! dynamic linker. Which devices there are is the driver's to say, who reads `CUDA_VISIBLE_DEVICES`.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Loaded, RTLD_NOW};

use crate::error::Unavailable;

/// The name of the library.
const NAME: &str = "libcuda.so.1";
/// The oldest driver that takes what NVRTC 13 makes: 13.0, which the packages number 580.
const OLDEST: c_int = 13_000;

/// What every entry point returns; 0 is success.
pub(super) type Code = c_uint;
/// Something of the driver's.
pub(super) type Handle = *mut c_void;
/// An address in a device's memory.
pub(super) type Address = u64;

/// What happens to a slot of an arena, as it is announced to the simulated driver; see `TlcSimSlot` there.
#[repr(C)]
pub(super) struct SimulatedSlot {
    pub(super) address: Address,
    pub(super) bytes: u64,
    /// 0: it is born. 2: it dies.
    pub(super) event: u32,
    pub(super) reserved: u32,
    pub(super) name: *const c_char,
}

/// `tlcSimSlots`.
pub(super) type Slots = unsafe extern "C" fn(Handle, c_uint, *const SimulatedSlot) -> Code;

/// How a node of a graph launches a kernel: `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
pub(super) struct KernelParams {
    pub(super) function: Handle,
    pub(super) grid: [c_uint; 3],
    pub(super) block: [c_uint; 3],
    /// Dynamic ones.
    pub(super) shared_bytes: c_uint,
    pub(super) values: *mut *mut c_void,
    pub(super) extra: *mut *mut c_void,
    pub(super) kernel: Handle,
    pub(super) context: Handle,
}

/// What a pool of memory is of: `CUmemPoolProps`.
#[repr(C)]
pub(super) struct PoolProps {
    /// Pinned memory: 1.
    pub(super) allocation: c_uint,
    /// What it can be exported as.
    pub(super) handles: c_uint,
    /// A device: 1.
    pub(super) location: c_uint,
    pub(super) device: c_int,
    pub(super) security: *mut c_void,
    /// 0 leaves it to the driver.
    pub(super) most_bytes: usize,
    pub(super) usage: u16,
    pub(super) reserved: [u8; 54],
}

impl PoolProps {
    /// Of memory of the device of that number, which no other process may open.
    pub(super) fn of_device(ordinal: u32) -> PoolProps {
        PoolProps {
            allocation: 1,
            handles: 0,
            location: 1,
            device: ordinal as c_int,
            security: std::ptr::null_mut(),
            most_bytes: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

/// Who may access the memory of a pool, and how: `CUmemAccessDesc`.
#[repr(C)]
pub(super) struct PoolAccess {
    /// A device: 1.
    pub(super) location: c_uint,
    pub(super) device: c_int,
    /// For reading and writing: 3.
    pub(super) flags: c_uint,
}

/// What a node of a graph copies: `CUDA_MEMCPY3D`.
#[repr(C)]
pub(super) struct CopyParams {
    pub(super) src_x_bytes: usize,
    pub(super) src_y: usize,
    pub(super) src_z: usize,
    pub(super) src_lod: usize,
    pub(super) src_type: c_uint,
    pub(super) src_host: *const c_void,
    pub(super) src_device: Address,
    pub(super) src_array: Handle,
    pub(super) reserved: Handle,
    pub(super) src_pitch: usize,
    pub(super) src_height: usize,
    pub(super) dst_x_bytes: usize,
    pub(super) dst_y: usize,
    pub(super) dst_z: usize,
    pub(super) dst_lod: usize,
    pub(super) dst_type: c_uint,
    pub(super) dst_host: *mut c_void,
    pub(super) dst_device: Address,
    pub(super) dst_array: Handle,
    pub(super) reserved_too: Handle,
    pub(super) dst_pitch: usize,
    pub(super) dst_height: usize,
    pub(super) width_bytes: usize,
    pub(super) height: usize,
    pub(super) depth: usize,
}

impl Default for CopyParams {
    fn default() -> CopyParams {
        // SAFETY: null pointers and zeros are values of all of its fields.
        unsafe { std::mem::zeroed() }
    }
}

/// A type that is inferred.
#[cfg(test)]
macro_rules! any {
    ($arg:ty) => {
        _
    };
}

macro_rules! entry_points {
    ($($name:ident($($arg:ty),*);)*) => {
        /// The loaded driver.
        #[allow(non_snake_case, reason = "the driver's own names")]
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> Code,)*
            /// Of the simulated driver alone.
            pub(super) slots: Option<Slots>,
            version: c_int,
            path: PathBuf,
            // The functions are in it.
            _loaded: Loaded,
        }

        impl Library {
            /// Looks up everything.
            fn of(loaded: Loaded, version: c_int, path: &Path) -> Result<Library, Unavailable> {
                Ok(Library {
                    $(
                        // SAFETY: the type is that of the declaration in cuda.h, as the test of signatures says.
                        $name: *unsafe { loaded.get(concat!(stringify!($name), "\0").as_bytes()) }.map_err(|_| {
                            Unavailable::EntryPoint { name: stringify!($name), version: version_text(version) }
                        })?,
                    )*
                    // SAFETY: the type is that of gpusim's function, and nothing else has this name.
                    slots: unsafe { loaded.get::<Slots>(b"tlcSimSlots\0") }.ok().map(|f| *f),
                    version,
                    path: path.to_path_buf(),
                    _loaded: loaded,
                })
            }
        }

        /// By entry point: its signature here, and in the bindings of cudarc.
        #[cfg(test)]
        fn signatures() -> Vec<(&'static str, Vec<tests::Kind>, Vec<tests::Kind>)> {
            vec![$({
                type Ours = unsafe extern "C" fn($($arg),*) -> Code;
                let theirs: unsafe fn($(any!($arg)),*) -> _ = cudarc::driver::sys::$name;
                (stringify!($name), <Ours as tests::Signature>::kinds(), tests::kinds(theirs))
            }),*]
        }
    };
}

entry_points! {
    cuInit(c_uint);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuDeviceGetAttribute(*mut c_int, c_uint, c_int);
    cuDeviceTotalMem_v2(*mut usize, c_int);
    cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    cuDeviceCanAccessPeer(*mut c_int, c_int, c_int);
    cuCtxEnablePeerAccess(Handle, c_uint);
    cuCtxSetCurrent(Handle);
    cuModuleLoadDataEx(*mut Handle, *const c_void, c_uint, *mut c_uint, *mut *mut c_void);
    cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    cuModuleUnload(Handle);
    cuFuncGetAttribute(*mut c_int, c_uint, Handle);
    cuFuncSetAttribute(Handle, c_uint, c_int);
    cuLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
    cuMemAlloc_v2(*mut Address, usize);
    cuMemFree_v2(Address);
    cuMemGetInfo_v2(*mut usize, *mut usize);
    cuMemPoolCreate(*mut Handle, *const PoolProps);
    cuMemPoolDestroy(Handle);
    cuMemPoolSetAttribute(Handle, c_uint, *mut c_void);
    cuMemPoolGetAttribute(Handle, c_uint, *mut c_void);
    cuMemPoolSetAccess(Handle, *const PoolAccess, usize);
    cuMemPoolTrimTo(Handle, usize);
    cuMemAllocFromPoolAsync(*mut Address, usize, Handle, Handle);
    cuMemFreeAsync(Address, Handle);
    cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    cuMemFreeHost(*mut c_void);
    cuMemcpyHtoDAsync_v2(Address, *const c_void, usize, Handle);
    cuMemcpyDtoHAsync_v2(*mut c_void, Address, usize, Handle);
    cuMemcpyDtoDAsync_v2(Address, Address, usize, Handle);
    cuMemcpyPeerAsync(Address, Handle, Address, Handle, usize, Handle);
    cuMemsetD8Async(Address, u8, usize, Handle);
    cuStreamCreate(*mut Handle, c_uint);
    cuStreamDestroy_v2(Handle);
    cuStreamSynchronize(Handle);
    cuStreamWaitEvent(Handle, Handle, c_uint);
    cuStreamBeginCapture_v2(Handle, c_uint);
    cuStreamEndCapture(Handle, *mut Handle);
    cuStreamGetCaptureInfo_v3(
        Handle, *mut c_uint, *mut u64, *mut Handle, *mut *const Handle, *mut *const c_void, *mut usize
    );
    cuGraphInstantiateWithFlags(*mut Handle, Handle, u64);
    cuGraphLaunch(Handle, Handle);
    cuGraphExecKernelNodeSetParams_v2(Handle, Handle, *const KernelParams);
    cuGraphExecMemcpyNodeSetParams(Handle, Handle, *const CopyParams, Handle);
    cuGraphAddChildGraphNode(*mut Handle, Handle, *const Handle, usize, Handle);
    cuGraphExecChildGraphNodeSetParams(Handle, Handle, Handle);
    cuStreamUpdateCaptureDependencies_v2(Handle, *mut Handle, *const c_void, usize, c_uint);
    cuGraphExecDestroy(Handle);
    cuGraphDestroy(Handle);
    cuEventCreate(*mut Handle, c_uint);
    cuEventRecord(Handle, Handle);
    cuEventSynchronize(Handle);
    cuEventDestroy_v2(Handle);
    cuEventElapsedTime_v2(*mut f32, Handle, Handle);
    cuTensorMapEncodeTiled(
        *mut c_void, c_uint, c_uint, *mut c_void, *const u64, *const u64, *const c_uint, *const c_uint, c_uint, c_uint,
        c_uint, c_uint
    );
    cuGetErrorName(Code, *mut *const c_char);
    cuGetErrorString(Code, *mut *const c_char);
}

/// What an entry point said that did not succeed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) call: &'static str,
    pub(super) code: Code,
    /// The driver's name of the error and its sentence.
    pub(super) text: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.call, self.text)
    }
}

/// A driver's version as NVIDIA writes it.
fn version_text(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Paths to try.
fn candidates() -> Vec<PathBuf> {
    match std::env::var_os("TLC_CUDA_DRIVER").filter(|v| !v.is_empty()) {
        Some(set) => {
            let set = PathBuf::from(set);
            vec![if set.is_dir() { set.join(NAME) } else { set }]
        }
        None => vec![PathBuf::from(NAME)],
    }
}

impl Library {
    /// Finds the driver, loads it and has it look for devices.
    pub(super) fn load() -> Result<Library, Unavailable> {
        let mut tried = Vec::new();
        for path in candidates() {
            // SAFETY: initializers of a CUDA driver have no preconditions; the file is one by its name, or because the user says so.
            match unsafe { Loaded::open(Some(&path), RTLD_NOW) } {
                Ok(loaded) => return Library::checked(loaded, &path),
                Err(e) => {
                    // The linker's own words begin with the path.
                    let why = std::error::Error::source(&e).map(ToString::to_string);
                    tried.push(why.unwrap_or_else(|| format!("{}: {e}", path.display())));
                }
            }
        }
        Err(Unavailable::Driver {
            tried: tried.join("; "),
        })
    }

    fn checked(loaded: Loaded, path: &Path) -> Result<Library, Unavailable> {
        let mut version = 0;
        // SAFETY: the type is that of the declaration in cuda.h; the function may be called before any other.
        let code = unsafe {
            let get = loaded.get::<unsafe extern "C" fn(*mut c_int) -> Code>(b"cuDriverGetVersion\0");
            let get = get.map_err(|_| Unavailable::EntryPoint {
                name: "cuDriverGetVersion",
                version: "unknown".into(),
            })?;
            get(&mut version)
        };
        if code == 0 && version < OLDEST {
            return Err(Unavailable::OldDriver {
                found: version_text(version),
                expected: version_text(OLDEST),
            });
        }
        let library = Library::of(loaded, version, path)?;
        // SAFETY: the entry point takes no pointers.
        let started = library.check("cuInit", unsafe { (library.cuInit)(0) });
        match started {
            Ok(()) => Ok(library),
            // CUDA_ERROR_NO_DEVICE
            Err(e) if e.code == 100 => Err(Unavailable::Device { ordinal: 0, count: 0 }),
            Err(e) => Err(Unavailable::Driver {
                tried: format!("{}: {e}", path.display()),
            }),
        }
    }

    /// Its version.
    pub(super) fn version(&self) -> String {
        version_text(self.version)
    }

    /// The file, or the name that the dynamic linker found it by.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// An error unless a call succeeded.
    pub(super) fn check(&self, call: &'static str, code: Code) -> Result<(), Refusal> {
        match code {
            0 => Ok(()),
            code => Err(Refusal {
                call,
                code,
                text: self.text(code),
            }),
        }
    }

    fn text(&self, code: Code) -> String {
        let said = |get: unsafe extern "C" fn(Code, *mut *const c_char) -> Code| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: `text` is a valid place for the result.
            let known = unsafe { get(code, &mut text) };
            // SAFETY: what the driver gives is static and NUL-terminated.
            (known == 0 && !text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (said(self.cuGetErrorName), said(self.cuGetErrorString)) {
            (Some(name), Some(text)) => format!("{name} ({text})"),
            (Some(name), None) => name,
            (None, _) => format!("error {code}"),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::any::type_name;

    /// A parameter or result: its size and alignment, and how pointers lead to it.
    #[derive(PartialEq, Eq, Debug)]
    pub(in super::super) struct Kind {
        size: usize,
        align: usize,
        pointers: String,
    }

    impl Kind {
        fn of<T>() -> Kind {
            let is_pointer = |w: &&str| w.starts_with('*');
            // What is behind a handle is nobody's business but the driver's.
            let pointers: Vec<&str> = type_name::<T>().split(' ').take_while(is_pointer).collect();
            Kind {
                size: size_of::<T>(),
                align: align_of::<T>(),
                pointers: pointers.join(" "),
            }
        }
    }

    pub(in super::super) trait Signature {
        fn kinds() -> Vec<Kind>;
    }

    pub(in super::super) fn kinds<F: Signature>(_: F) -> Vec<Kind> {
        F::kinds()
    }

    macro_rules! signatures {
        ($($t:ident)*) => {
            impl<Out, $($t),*> Signature for unsafe extern "C" fn($($t),*) -> Out {
                fn kinds() -> Vec<Kind> {
                    vec![Kind::of::<Out>(), $(Kind::of::<$t>()),*]
                }
            }
            impl<Out, $($t),*> Signature for unsafe fn($($t),*) -> Out {
                fn kinds() -> Vec<Kind> {
                    vec![Kind::of::<Out>(), $(Kind::of::<$t>()),*]
                }
            }
        };
    }
    signatures!(A);
    signatures!(A B);
    signatures!(A B C);
    signatures!(A B C D);
    signatures!(A B C D E);
    signatures!(A B C D E F);
    signatures!(A B C D E F G);
    signatures!(A B C D E F G H I J);
    signatures!(A B C D E F G H I J K);
    signatures!(A B C D E F G H I J K L);
    signatures!(A B C D E F G H I J K L M N O P);

    /// Offsets of fields of a type.
    macro_rules! offsets {
        ($type:ty, $($field:ident),*) => {
            [size_of::<$type>(), $(std::mem::offset_of!($type, $field)),*]
        };
    }

    #[test]
    fn what_is_passed_by_address_lies_as_in_the_drivers_header() {
        use super::{CopyParams, KernelParams, PoolProps};
        use cudarc::driver::sys::{CUDA_KERNEL_NODE_PARAMS_v2_st, CUDA_MEMCPY3D_st, CUmemPoolProps_st};
        assert_eq!(
            offsets!(
                PoolProps, allocation, handles, location, security, most_bytes, usage, reserved
            ),
            offsets!(
                CUmemPoolProps_st,
                allocType,
                handleTypes,
                location,
                win32SecurityAttributes,
                maxSize,
                usage,
                reserved
            )
        );
        assert_eq!(
            offsets!(
                KernelParams,
                function,
                grid,
                block,
                shared_bytes,
                values,
                extra,
                kernel,
                context
            ),
            offsets!(
                CUDA_KERNEL_NODE_PARAMS_v2_st,
                func,
                gridDimX,
                blockDimX,
                sharedMemBytes,
                kernelParams,
                extra,
                kern,
                ctx
            )
        );
        assert_eq!(
            offsets!(
                CopyParams,
                src_x_bytes,
                src_type,
                src_host,
                src_device,
                src_array,
                src_pitch,
                src_height,
                dst_x_bytes,
                dst_type,
                dst_host,
                dst_device,
                dst_array,
                dst_pitch,
                dst_height,
                width_bytes,
                height,
                depth
            ),
            offsets!(
                CUDA_MEMCPY3D_st,
                srcXInBytes,
                srcMemoryType,
                srcHost,
                srcDevice,
                srcArray,
                srcPitch,
                srcHeight,
                dstXInBytes,
                dstMemoryType,
                dstHost,
                dstDevice,
                dstArray,
                dstPitch,
                dstHeight,
                WidthInBytes,
                Height,
                Depth
            )
        );
    }

    #[test]
    fn the_table_has_the_signatures_of_the_drivers_header() {
        for (name, ours, theirs) in super::signatures() {
            assert_eq!(ours, theirs, "{name}");
        }
    }
}
