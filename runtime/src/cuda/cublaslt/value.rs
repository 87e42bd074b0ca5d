//! Attributes and values of the library (cuBLAS library, "cuBLASLt Datatypes Reference"; a test compares them with cudarc's bindings).

/// `CUDA_R_32F`, `CUDA_R_64F`, `CUDA_R_16F` and `CUDA_R_16BF`.
pub(super) const SINGLE: u32 = 0;
pub(super) const DOUBLE: u32 = 1;
pub(super) const HALF: u32 = 2;
pub(super) const BRAIN: u32 = 14;
/// `CUBLAS_COMPUTE_32F` and `CUBLAS_COMPUTE_64F`: not `_FAST_TF32`.
pub(super) const IN_SINGLE: u32 = 68;
pub(super) const IN_DOUBLE: u32 = 70;
/// `CUBLASLT_MATMUL_DESC_TRANSA` and `_TRANSB`.
pub(super) const TURNED: [u32; 2] = [3, 4];
/// `CUBLASLT_MATMUL_DESC_EPILOGUE` and `_BIAS_POINTER`.
pub(super) const EPILOGUE: u32 = 7;
pub(super) const BIAS: u32 = 8;
/// `CUBLASLT_EPILOGUE_DEFAULT`, and the bits that `_RELU`, `_BIAS` and `_RELU_BIAS` are made of.
pub(super) const NOTHING: u32 = 1;
pub(super) const RELU: u32 = 2;
pub(super) const ADD_BIAS: u32 = 4;
/// `CUBLAS_OP_N` and `CUBLAS_OP_T`.
pub(super) const OPERATIONS: [i32; 2] = [0, 1];
/// `CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT`.
pub(super) const BATCH_COUNT: u32 = 5;
/// `CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET`.
pub(super) const BATCH_OFFSET: u32 = 6;
/// `CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES`.
pub(super) const MOST_WORKSPACE: u32 = 1;
/// `CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK`.
pub(super) const REDUCTIONS: u32 = 3;
/// `CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES`, `_B_`, `_C_` and `_D_`.
pub(super) const ALIGNMENTS: [u32; 4] = [5, 6, 7, 8];
/// `CUBLASLT_ALGO_CONFIG_SPLITK_NUM`.
pub(super) const PARTS_OF_SUM: u32 = 2;
/// `CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME`.
pub(super) const REDUCTION: u32 = 3;

#[cfg(test)]
mod tests {
    use super::super::library::Proposal;
    use super::*;

    #[test]
    fn numbers_are_those_of_the_librarys_header() {
        use cudarc::cublaslt::sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F};
        use cudarc::cublaslt::sys::cublasLtEpilogue_t::{
            CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_RELU, CUBLASLT_EPILOGUE_RELU_BIAS,
        };
        use cudarc::cublaslt::sys::cublasLtMatmulAlgoConfigAttributes_t::{
            CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
        };
        use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t::{
            CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_TRANSA,
            CUBLASLT_MATMUL_DESC_TRANSB,
        };
        use cudarc::cublaslt::sys::cublasLtMatmulPreferenceAttributes_t::{
            CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        };
        use cudarc::cublaslt::sys::cublasLtMatrixLayoutAttribute_t::{
            CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
        };
        use cudarc::cublaslt::sys::{cublasLtMatmulHeuristicResult_t, cudaDataType_t};
        assert_eq!(IN_SINGLE, CUBLAS_COMPUTE_32F as u32);
        assert_eq!(IN_DOUBLE, CUBLAS_COMPUTE_64F as u32);
        let types = [
            cudaDataType_t::CUDA_R_32F,
            cudaDataType_t::CUDA_R_64F,
            cudaDataType_t::CUDA_R_16F,
            cudaDataType_t::CUDA_R_16BF,
        ];
        assert_eq!([SINGLE, DOUBLE, HALF, BRAIN], types.map(|t| t as u32));
        assert_eq!(
            TURNED,
            [CUBLASLT_MATMUL_DESC_TRANSA as u32, CUBLASLT_MATMUL_DESC_TRANSB as u32]
        );
        assert_eq!(EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE as u32);
        assert_eq!(BIAS, CUBLASLT_MATMUL_DESC_BIAS_POINTER as u32);
        let epilogues = [
            CUBLASLT_EPILOGUE_DEFAULT,
            CUBLASLT_EPILOGUE_RELU,
            CUBLASLT_EPILOGUE_BIAS,
            CUBLASLT_EPILOGUE_RELU_BIAS,
        ];
        assert_eq!([NOTHING, RELU, ADD_BIAS, RELU | ADD_BIAS], epilogues.map(|e| e as u32));
        assert_eq!(BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT as u32);
        assert_eq!(BATCH_OFFSET, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET as u32);
        assert_eq!(MOST_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as u32);
        assert_eq!(REDUCTIONS, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK as u32);
        let alignments = [
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ];
        assert_eq!(ALIGNMENTS, alignments.map(|a| a as u32));
        assert_eq!(PARTS_OF_SUM, CUBLASLT_ALGO_CONFIG_SPLITK_NUM as u32);
        assert_eq!(REDUCTION, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME as u32);
        assert_eq!(size_of::<Proposal>(), size_of::<cublasLtMatmulHeuristicResult_t>());
    }
}
