//! The entry points have the signatures that NVIDIA's header has, as `cudarc` translates it.

use cudarc::cublaslt::sys;
use tlc_gpusim_cublaslt as ours;
use tlc_gpusim_driver::{TlcSimMatrix, TlcSimProduct};

/// The sizes of parameters and result.
trait Signature {
    fn sizes() -> Vec<usize>;
}

macro_rules! signatures {
    ($($t:ident)*) => {
        impl<Out, $($t),*> Signature for unsafe extern "C" fn($($t),*) -> Out {
            fn sizes() -> Vec<usize> {
                vec![size_of::<Out>(), $(size_of::<$t>()),*]
            }
        }
        impl<Out, $($t),*> Signature for unsafe fn($($t),*) -> Out {
            fn sizes() -> Vec<usize> {
                vec![size_of::<Out>(), $(size_of::<$t>()),*]
            }
        }
    };
}
signatures!();
signatures!(A);
signatures!(A B C);
signatures!(A B C D);
signatures!(A B C D E);
signatures!(A B C D E F G H I J);
signatures!(A B C D E F G H I J K L M N O P);

fn sizes<F: Signature>(_: F) -> Vec<usize> {
    F::sizes()
}

macro_rules! same {
    ($name:ident $(, $t:tt)*) => {
        let mine: unsafe extern "C" fn($($t),*) -> _ = ours::$name;
        let theirs: unsafe fn($($t),*) -> _ = sys::$name;
        assert_eq!(sizes(mine), sizes(theirs), stringify!($name));
    };
}

#[test]
fn every_entry_point_has_the_signature_of_the_real_one() {
    same!(cublasLtGetVersion);
    same!(cublasLtCreate, _);
    same!(cublasLtDestroy, _);
    same!(cublasLtMatmulDescCreate, _, _, _);
    same!(cublasLtMatmulDescSetAttribute, _, _, _, _);
    same!(cublasLtMatmulDescDestroy, _);
    same!(cublasLtMatrixLayoutCreate, _, _, _, _, _);
    same!(cublasLtMatrixLayoutSetAttribute, _, _, _, _);
    same!(cublasLtMatrixLayoutDestroy, _);
    same!(cublasLtMatmulPreferenceCreate, _);
    same!(cublasLtMatmulPreferenceSetAttribute, _, _, _, _);
    same!(cublasLtMatmulPreferenceDestroy, _);
    same!(cublasLtMatmulAlgoGetHeuristic, _, _, _, _, _, _, _, _, _, _);
    same!(cublasLtMatmulAlgoConfigGetAttribute, _, _, _, _, _);
    same!(cublasLtMatmul, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _);
    assert_eq!(size_of::<ours::Algorithm>(), size_of::<sys::cublasLtMatmulAlgo_t>());
    assert_eq!(
        size_of::<ours::Proposal>(),
        size_of::<sys::cublasLtMatmulHeuristicResult_t>()
    );
}

/// The size of a type, and where fields of it are.
macro_rules! offsets {
    ($type:ty, $($field:ident),*) => {
        [size_of::<$type>(), $(std::mem::offset_of!($type, $field)),*]
    };
}

/// Both types have their fields at the same places.
macro_rules! lie_alike {
    ($ours:ty, $theirs:ty, $($field:ident),*) => {
        assert_eq!(offsets!($ours, $($field),*), offsets!($theirs, $($field),*));
    };
}

#[test]
fn products_are_given_as_the_driver_takes_them() {
    lie_alike!(ours::Matrix, TlcSimMatrix, address, down, across, stack);
    lie_alike!(
        ours::Product,
        TlcSimProduct,
        element,
        rows,
        columns,
        terms,
        batch,
        left,
        right,
        result,
        workspace,
        workspace_bytes
    );
}
