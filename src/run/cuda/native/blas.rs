//! cuBLASLt: matrix products with a bias and a matrix added, an activation, and sums of an operand.
//!
//! The library's matrices are column by column, ours row by row: it is asked for the transposed product,
//! whose left operand (A) is our right one. The sums of A over what is multiplied (BGRADA) are one for each
//! row of its result, which are our columns; those of B (BGRADB) one for each of our rows.
//!
//! Contains `unsafe`: calls of the library.

use cudarc::cublaslt::{result, sys};
use cudarc::driver::sys::CUstream;

use super::super::driver::{Activation, Algorithm, Fault, FaultKind, Gemm, GemmArgs, Outcome, Side};
use crate::ir::DType;
use crate::kernel::program::Strides;

/// Most ways that are asked for.
const WAYS: usize = 8;

/// The library on one GPU.
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: created in `open`, destroyed once. There is nothing to do about a failure.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// A description, destroyed at its end.
struct Owned<T: Copy>(T, unsafe fn(T) -> Result<(), result::CublasError>);

impl<T: Copy> Drop for Owned<T> {
    fn drop(&mut self) {
        // SAFETY: created just before it was wrapped, destroyed once. There is nothing to do about a
        // failure.
        let _ = unsafe { (self.1)(self.0) };
    }
}

/// A product as the library describes it.
struct Described {
    product: Owned<sys::cublasLtMatmulDesc_t>,
    left: Owned<sys::cublasLtMatrixLayout_t>,
    right: Owned<sys::cublasLtMatrixLayout_t>,
    /// What is added; the result where that is nothing.
    addend: Owned<sys::cublasLtMatrixLayout_t>,
    out: Owned<sys::cublasLtMatrixLayout_t>,
}

type Made<T> = Result<T, result::CublasError>;

impl Blas {
    /// None where the library is not there or does not start.
    pub(super) fn open() -> Option<Self> {
        // SAFETY: loads NVIDIA's library, whose initialisers are trusted.
        if !unsafe { sys::is_culib_present() } {
            return None;
        }
        result::create_handle().ok().map(|handle| Self { handle })
    }

    /// The library's name and version.
    pub(super) fn version(&self) -> String {
        // SAFETY: takes nothing and gives a number; the library is loaded.
        format!("cuBLASLt {}", unsafe { sys::cublasLtGetVersion() })
    }

    /// Ways of computing a product of operands that lie so, best guess first.
    pub(super) fn algorithms(&self, gemm: &Gemm, args: &GemmArgs) -> Vec<Algorithm> {
        self.heuristic(gemm, args).unwrap_or_default()
    }

    fn heuristic(&self, gemm: &Gemm, args: &GemmArgs) -> Made<Vec<Algorithm>> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Key;
        let described = describe(gemm, args)?;
        let preference = Owned(result::create_matmul_pref()?, result::destroy_matmul_pref);
        let give = |key: Key, value: *const std::ffi::c_void, bytes: usize| {
            // SAFETY: the preference is alive, and the value is read at once.
            unsafe { result::set_matmul_pref_attribute(preference.0, key, value, bytes) }
        };
        set(&args.partial.bytes, |value, bytes| {
            give(Key::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, value, bytes)
        })?;
        // Without these the library takes matrices to begin at multiples of 256. All are told what the least
        // aligned is: a way is kept for other products whose operands are aligned as much, each in its own
        // place.
        for key in [
            Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            set(&args.alignment(), |value, bytes| give(key, value, bytes))?;
        }
        let mut found =
            [const { std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::uninit() }; WAYS];
        let mut count = 0;
        // SAFETY: all descriptions are alive, and there is room for so many results.
        unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.handle,
                described.product.0,
                described.left.0,
                described.right.0,
                described.addend.0,
                described.out.0,
                preference.0,
                WAYS as i32,
                found.as_mut_ptr().cast(),
                &mut count,
            )
            .result()?;
        }
        // Entries behind the count were not written.
        let found = found.iter().take(count.max(0) as usize);
        // SAFETY: the library wrote so many.
        let found = found.map(|one| unsafe { one.assume_init_ref() });
        let good = found.filter(|one| one.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(good
            .map(|one| Algorithm(one.algo.data.iter().flat_map(|word| word.to_le_bytes()).collect()))
            .collect())
    }

    /// # Safety
    ///
    /// As of `Driver::multiply`.
    pub(super) unsafe fn multiply(
        &self,
        stream: CUstream,
        gemm: &Gemm,
        algorithm: &Algorithm,
        args: &GemmArgs,
    ) -> Outcome<()> {
        let refused = |error: result::CublasError| {
            use sys::cublasStatus_t as Status;
            let kind = match error.0 {
                Status::CUBLAS_STATUS_NOT_SUPPORTED
                | Status::CUBLAS_STATUS_INVALID_VALUE
                | Status::CUBLAS_STATUS_INTERNAL_ERROR
                | Status::CUBLAS_STATUS_ARCH_MISMATCH => FaultKind::Unsupported,
                Status::CUBLAS_STATUS_ALLOC_FAILED => FaultKind::OutOfMemory,
                _ => FaultKind::Other,
            };
            Fault::new(kind, format!("cublasLtMatmul: {:?}", error.0))
        };
        let words: Vec<u64> = algorithm
            .0
            .chunks_exact(8)
            .filter_map(|bytes| bytes.try_into().ok().map(u64::from_le_bytes))
            .collect();
        let data: [u64; 8] =
            words.try_into().map_err(|_| Fault::new(FaultKind::Image, "a kept algorithm is damaged"))?;
        let way = sys::cublasLtMatmulAlgo_t { data };
        let described = describe(gemm, args).map_err(refused)?;
        // Without an addend the library must not read the result, which is not there yet.
        let added = if gemm.addend.is_some() { 1.0 } else { 0.0 };
        let (narrow, wide) = ([1.0f32, added as f32], [1.0f64, added]);
        let (alpha, beta) = match gemm.dtype {
            DType::F64 => (wide.as_ptr().cast(), wide[1..].as_ptr().cast()),
            _ => (narrow.as_ptr().cast(), narrow[1..].as_ptr().cast()),
        };
        let at = |pointer: u64| std::ptr::with_exposed_provenance_mut::<std::ffi::c_void>(pointer as usize);
        // SAFETY: as the caller promises; the descriptions live until the call returns.
        unsafe {
            result::matmul(
                self.handle,
                described.product.0,
                alpha,
                beta,
                at(args.right.0),
                described.left.0,
                at(args.left.0),
                described.right.0,
                at(args.addend.unwrap_or(args.out).0),
                described.addend.0,
                at(args.out.0),
                described.out.0,
                &way,
                at(args.partial.at.0),
                args.partial.bytes as usize,
                stream.cast(),
            )
        }
        .map_err(refused)
    }
}

/// Hands a value over as the library takes attributes.
fn set<T>(value: &T, give: impl FnOnce(*const std::ffi::c_void, usize) -> Made<()>) -> Made<()> {
    give(std::ptr::from_ref(value).cast(), size_of::<T>())
}

/// What the library calls `left` is our right operand.
fn describe(gemm: &Gemm, args: &GemmArgs) -> Made<Described> {
    use sys::cublasLtMatmulDescAttributes_t as Key;
    let (compute, scale) = match gemm.dtype {
        DType::F64 => (sys::cublasComputeType_t::CUBLAS_COMPUTE_64F, sys::cudaDataType::CUDA_R_64F),
        _ => (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType::CUDA_R_32F),
    };
    let product = Owned(result::create_matmul_desc(compute, scale)?, result::destroy_matmul_desc);
    let give = |key: Key, value: *const std::ffi::c_void, bytes: usize| {
        // SAFETY: the description is alive, and the value is read at once.
        unsafe { result::set_matmul_desc_attribute(product.0, key, value, bytes) }
    };
    let (x, turned_x) = matrix(gemm, gemm.dtype, gemm.right, [gemm.inner, gemm.columns])?;
    let (y, turned_y) = matrix(gemm, gemm.dtype, gemm.left, [gemm.rows, gemm.inner])?;
    let (out, _) = matrix(gemm, gemm.made, gemm.out, [gemm.rows, gemm.columns])?;
    let (addend, _) = matrix(gemm, gemm.made, gemm.addend.unwrap_or(gemm.out), [gemm.rows, gemm.columns])?;
    set(&i32::from(turned_x), |value, bytes| give(Key::CUBLASLT_MATMUL_DESC_TRANSA, value, bytes))?;
    set(&i32::from(turned_y), |value, bytes| give(Key::CUBLASLT_MATMUL_DESC_TRANSB, value, bytes))?;
    use sys::cublasLtEpilogue_t as Epilogue;
    let epilogue = match (gemm.sums, gemm.activation, gemm.bias) {
        (Some(Side::Right), ..) => Epilogue::CUBLASLT_EPILOGUE_BGRADA,
        (Some(Side::Left), ..) => Epilogue::CUBLASLT_EPILOGUE_BGRADB,
        (None, Activation::None, false) => Epilogue::CUBLASLT_EPILOGUE_DEFAULT,
        (None, Activation::None, true) => Epilogue::CUBLASLT_EPILOGUE_BIAS,
        (None, Activation::Relu, false) => Epilogue::CUBLASLT_EPILOGUE_RELU,
        (None, Activation::Relu, true) => Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS,
        (None, Activation::GeluTanh, false) => Epilogue::CUBLASLT_EPILOGUE_GELU,
        (None, Activation::GeluTanh, true) => Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS,
    };
    set(&epilogue, |value, bytes| give(Key::CUBLASLT_MATMUL_DESC_EPILOGUE, value, bytes))?;
    // Sums go where a bias would come from; either is of the elements' type.
    if let Some(vector) = args.sums.or(args.bias) {
        set(&vector.0, |value, bytes| give(Key::CUBLASLT_MATMUL_DESC_BIAS_POINTER, value, bytes))?;
    }
    Ok(Described { product, left: x, right: y, addend, out })
}

/// A matrix of ours, which is transposed as the library sees it; whether it is to be transposed again.
fn matrix(
    gemm: &Gemm,
    dtype: DType,
    strides: Strides,
    [rows, columns]: [i64; 2],
) -> Made<(Owned<sys::cublasLtMatrixLayout_t>, bool)> {
    use sys::cublasLtMatrixLayoutAttribute_t as Key;
    let kind = match dtype {
        DType::F16 => sys::cudaDataType::CUDA_R_16F,
        DType::Bf16 => sys::cudaDataType::CUDA_R_16BF,
        DType::F64 => sys::cudaDataType::CUDA_R_64F,
        _ => sys::cudaDataType::CUDA_R_32F,
    };
    // Rows of ours are columns of the library's.
    let by_rows = strides.column == 1;
    let (height, width, pitch) =
        if by_rows { (columns, rows, strides.row) } else { (rows, columns, strides.column) };
    let made = result::create_matrix_layout(kind, height.unsigned_abs(), width.unsigned_abs(), pitch)?;
    let layout = Owned(made, result::destroy_matrix_layout);
    if gemm.batch > 1 {
        let count = i32::try_from(gemm.batch).unwrap_or(i32::MAX);
        let give = |key: Key, value: *const std::ffi::c_void, bytes: usize| {
            // SAFETY: the layout is alive, and the value is read at once.
            unsafe { result::set_matrix_layout_attribute(layout.0, key, value, bytes) }
        };
        set(&count, |value, bytes| give(Key::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, value, bytes))?;
        set(&strides.batch, |value, bytes| {
            give(Key::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, value, bytes)
        })?;
    }
    Ok((layout, !by_rows))
}
