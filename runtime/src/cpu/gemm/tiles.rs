//! Pieces of a product by the micro-kernels of the crate `gemm`, under loops of our own.
//!
//! A micro-kernel computes a tile of the result: a *panel* of the operand whose elements lie along the result's unit stride,
//! read as whole vectors, times a few rows (the *strip*) of the other operand, read one element at a time. Panels are
//! copied so that their vectors lie one after the other, a block of the summed axis at a time; strips are read where they
//! are unless that would touch a page for every element. Few rows, or columns, times a matrix whose elements lie together across
//! the sum are computed in another way, to the same bits ([`few`]).
//!
//! Why not the crate's own driver: it allocates its packing memory at each call, in pages of 4 KiB whose colours collide in
//! the second-level cache, transposes an operand element by element, and has no notion of a stack of products.

mod amx;
mod few;
mod halves;
mod pack;
mod padded;
mod pairs;
mod series;
mod streamed;
mod strips;
mod windows;
mod words;

use std::sync::OnceLock;

use tlc_ir::DType;

use super::{Operand, PackedLayout, Product, Progress, Side, StridedDim, Unit};

/// Bytes along the summed axis of one block: a strip of that length and what of a panel is in use fit the first-level
/// cache. The order of summation depends on it, so it is the same on every machine.
const BLOCK_BYTES: usize = tlc_ir::target::LIBRARY_BLOCK_BYTES;
/// Panels from which on packing strips pays.
const MANY_PANELS: usize = 2;
/// Strips up to which panels are read where they are, if they can be.
const FEW_STRIPS: usize = 8;
/// Bytes from line to line up to which they are: every strip reads a panel again, and lines that are further apart share sets of the
/// caches and are found by no prefetcher.
const NEAR_LINES: usize = 4096;
/// Bytes from row to row of a strip from which on rows are copied together: further apart they share sets of the first-level cache.
const FAR_ROWS: usize = 4096;
/// Strips packed at once: what lies beside each other in memory goes into the cache together.
const STRIPS_AT_ONCE: usize = 8;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Bytes of complete lines from which on it pays to call what follows them.
const REPORT_BYTES: usize = 16 << 10;
/// Panels of one pass over the strips, at most.
const MAX_PANELS: usize = 16;

/// A micro-kernel: `(rows, columns, depth, dst, panel, strip, dst column stride, dst row stride, panel stride along the
/// sum, strip stride along the sum, strip stride across, alpha, beta, alpha status, three conjugations, unused)`. Rows are
/// along the panel. With status 0 it writes `beta` times the sum, with 1 it adds that to the result.
type MicroKernel<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    *const T,
    *const T,
    isize,
    isize,
    isize,
    isize,
    isize,
    T,
    T,
    u8,
    bool,
    bool,
    bool,
    *const T,
);

/// How operands are cut for one instruction set and element type.
trait Panels {
    type Element: Copy + 'static;
    /// Elements of a vector.
    const LANES: usize;
    /// Elements across a panel: a few vectors.
    const PANEL: usize;
    /// Elements across a strip.
    const STRIP: usize;
    /// Whether strips are multiplied as a whole, however few of their elements there are.
    const WHOLE_STRIPS: bool = false;
    /// Copies panels; see [`pack`].
    ///
    /// # Safety
    /// As for [`pack::panels`].
    unsafe fn pack(from: pack::Source<Self::Element>, to: *mut Self::Element);
    /// Copies panels of a composite operand; see [`pack`].
    ///
    /// # Safety
    /// As for [`pack::composite_panels`].
    unsafe fn pack_composite(from: pack::CompositeSource<'_, Self::Element>, to: *mut Self::Element);
    /// What computes few rows, if there is such; see [`few`].
    const FEW: Option<FewRows<Self::Element>> = None;
}

/// The micro-kernels of one instruction set and element type.
trait Tiles: Panels {
    const ONE: Self::Element;
    const ZERO: Self::Element;
    /// The kernel for that many vectors of a panel and elements of a strip, both at least 1.
    fn kernel(vectors: usize, strip: usize) -> MicroKernel<Self::Element>;
    /// Copies strips; see [`pack`].
    ///
    /// # Safety
    /// As for [`pack::strips`].
    unsafe fn pack_strips(from: pack::Source<Self::Element>, to: *mut Self::Element);
    /// What multiplies windows by few rows where they lie, if there is such; see [`windows`].
    const WINDOWS: Option<InPlaceWindows> = None;
    /// What multiplies panels from afar by few strips, if there is such; see [`streamed`].
    const STREAMED: Option<StreamedPanels<Self::Element>> = None;
}

/// Computes few rows, with scratch; see [`few`].
type FewRows<T> = unsafe fn(few::Part<T>, *mut T);

/// Multiplies windows of f32, with scratch; see [`windows`].
type InPlaceWindows = unsafe fn(windows::Part<'_>, *mut isize);

/// Multiplies panels by few strips; see [`streamed`].
type StreamedPanels<T> = unsafe fn(streamed::Part<T>);

macro_rules! tiles {
    ($name:ident, $element:ident, $library:ident, $set:ident, $lanes:literal, $pack:ident, $composite:ident, $few:expr $(, $windows:expr, $streamed:expr)?) => {
        struct $name;
        impl Panels for $name {
            type Element = $element;
            const LANES: usize = $lanes;
            const PANEL: usize = $lanes * $library::microkernel::$set::$element::UKR.len();
            const STRIP: usize = $library::microkernel::$set::$element::UKR[0].len();
            const FEW: Option<FewRows<$element>> = $few;
            unsafe fn pack(from: pack::Source<$element>, to: *mut $element) {
                // SAFETY: the caller's promise.
                unsafe { pack::$pack::<{ $name::PANEL }, $lanes>(from, to) };
            }
            unsafe fn pack_composite(from: pack::CompositeSource<'_, $element>, to: *mut $element) {
                // SAFETY: the caller's promise.
                unsafe { pack::$composite::<{ $name::PANEL }, $lanes>(from, to) };
            }
        }
        impl Tiles for $name {
            const ONE: $element = 1.0;
            const ZERO: $element = 0.0;
            fn kernel(vectors: usize, strip: usize) -> MicroKernel<$element> {
                static KERNELS: [[MicroKernel<$element>; $name::STRIP]; $name::PANEL / $name::LANES] =
                    $library::microkernel::$set::$element::UKR;
                KERNELS[vectors - 1][strip - 1]
            }
            $(const WINDOWS: Option<InPlaceWindows> = Some($windows);
            const STREAMED: Option<StreamedPanels<$element>> = Some($streamed);)?
            unsafe fn pack_strips(from: pack::Source<$element>, to: *mut $element) {
                // SAFETY: the caller's promise.
                unsafe { pack::strips::<_, { $name::STRIP }>(from, to) };
            }
        }
    };
}

tiles!(
    Avx512F32,
    f32,
    gemm_f32,
    avx512f,
    16,
    panels_avx_f32,
    composite_avx512_f32,
    Some(few::avx512_f32),
    windows::avx512_f32,
    streamed::avx512_f32
);
const _: () = assert!(Avx512F32::PANEL == streamed::PANEL);
tiles!(
    Avx512F64,
    f64,
    gemm_f64,
    avx512f,
    8,
    panels_avx_f64,
    composite_avx_f64,
    Some(few::avx512_f64)
);
tiles!(
    FmaF32,
    f32,
    gemm_f32,
    fma,
    8,
    panels_avx_f32,
    composite_avx_f32,
    Some(few::fma_f32)
);
tiles!(
    FmaF64,
    f64,
    gemm_f64,
    fma,
    4,
    panels_avx_f64,
    composite_avx_f64,
    Some(few::fma_f64)
);
tiles!(ScalarF32, f32, gemm_f32, scalar, 1, panels_f32, composite_f32, None);
tiles!(ScalarF64, f64, gemm_f64, scalar, 1, panels_f64, composite_f64, None);

/// Words of four bytes, by the processor's matrix instructions ([`words`]); those of halves have the same sides. They are moved as f32, which have
/// as many bits.
struct AmxWords;

impl Panels for AmxWords {
    type Element = f32;
    const LANES: usize = amx::STEP;
    const PANEL: usize = amx::BLOCK;
    const STRIP: usize = amx::BLOCK;
    const WHOLE_STRIPS: bool = true;
    unsafe fn pack(from: pack::Source<f32>, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { pack::panels_avx_f32::<{ amx::BLOCK }, { amx::STEP }>(from, to) };
    }
    unsafe fn pack_composite(from: pack::CompositeSource<'_, f32>, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { pack::composite_avx512_f32::<{ amx::BLOCK }, { amx::STEP }>(from, to) };
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Set {
    Avx512,
    Fma,
    Scalar,
}

/// The widest instruction set of this machine.
fn set() -> Set {
    if std::is_x86_feature_detected!("avx512f") {
        Set::Avx512
    } else if std::is_x86_feature_detected!("fma") && std::is_x86_feature_detected!("avx") {
        Set::Fma
    } else {
        Set::Scalar
    }
}

/// Whether sums are chains of multiply-adds that round once, in vectors.
pub(super) fn has_multiply_adds() -> bool {
    set() != Set::Scalar
}

/// Calls `$f::<K>($arg...)` with the panels of a dtype on this machine.
macro_rules! with_panels {
    ($dtype:expr, $f:ident ( $($arg:expr),* )) => {
        match $dtype {
            DType::I32 | DType::BF16 => $f::<AmxWords>($($arg),*),
            _ => with_tiles!($dtype, $f($($arg),*)),
        }
    };
}

/// Calls `$f::<K>($arg...)` with the micro-kernels for a dtype on this machine.
macro_rules! with_tiles {
    ($dtype:expr, $f:ident ( $($arg:expr),* )) => {
        match ($dtype, set()) {
            (DType::F64, Set::Avx512) => $f::<Avx512F64>($($arg),*),
            (DType::F64, Set::Fma) => $f::<FmaF64>($($arg),*),
            (DType::F64, Set::Scalar) => $f::<ScalarF64>($($arg),*),
            (_, Set::Avx512) => $f::<Avx512F32>($($arg),*),
            (_, Set::Fma) => $f::<FmaF32>($($arg),*),
            (_, Set::Scalar) => $f::<ScalarF32>($($arg),*),
        }
    };
}

/// True if panels run along the rows of the result, because that is where its elements lie together.
fn along_rows(p: &Product<'_>) -> bool {
    // A composite operand can only be packed in panels.
    match (p.lhs.composite, p.rhs.composite) {
        (Some(_), _) => true,
        (_, Some(_)) => false,
        _ => p.dst.row.unsigned_abs() < p.dst.column.unsigned_abs(),
    }
}

/// Strips of a result up to which it is cut within strips: threads have equal parts of 16 rows then, and a part of a strip takes about its part of
/// the time (8 rows by 256 columns 1.36 times what 6 take, on Zen 4).
const CUT_STRIPS: usize = 8;
/// What such cuts are multiples of.
const CUT: usize = 2;

/// The unit of cuts: one panel by one strip, or less of it where there are few.
pub(super) fn unit(p: &Product<'_>) -> Unit {
    fn sides<K: Panels>(across: usize) -> (usize, usize) {
        match !K::WHOLE_STRIPS && across <= CUT_STRIPS * K::STRIP {
            true => (K::PANEL, CUT.min(K::STRIP)),
            false => (K::PANEL, K::STRIP),
        }
    }
    let turned = along_rows(p);
    let (panel, strip) = with_panels!(p.dtype, sides(if turned { p.n } else { p.m }));
    let (rows, columns) = if turned { (panel, strip) } else { (strip, panel) };
    Unit {
        rows,
        columns,
        partial: true,
    }
}

/// Elements along the sum of each block but the last; no two blocks differ by much.
fn block<K: Tiles>(k: usize) -> usize {
    let most = BLOCK_BYTES / size_of::<K::Element>();
    match k {
        _ if k <= most => k.max(1),
        _ => k.div_ceil(k.div_ceil(most)),
    }
}

/// Elements along the sum of each block but the last, of a product of floats.
pub(super) fn block_elements(p: &Product<'_>) -> usize {
    with_tiles!(p.dtype, block(p.k))
}

/// Bytes of the second-level cache.
fn second_level_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| crate::machine::second_level_bytes() as usize)
}

/// Panels of one pass: half of the second-level cache holds them.
fn panels_of_a_pass<K: Tiles>() -> usize {
    (second_level_bytes() / 2 / (BLOCK_BYTES * K::PANEL)).clamp(1, MAX_PANELS)
}

/// The operand with windows over axes that end, if there is one.
fn padded_windows<'a>(p: &Product<'a>) -> Option<padded::Windows<'a>> {
    let rows = along_rows(p);
    let composite = if rows { p.lhs.composite } else { p.rhs.composite };
    composite.as_ref().and_then(|c| padded::Windows::of(c, rows))
}

/// Scratch that a piece needs.
pub(super) fn scratch_bytes(p: &Product<'_>) -> usize {
    fn bytes<K: Tiles>(p: &Product<'_>) -> usize {
        let size = size_of::<K::Element>();
        let wide = if along_rows(p) { p.m } else { p.n };
        if let Some(w) = padded_windows(p) {
            return padded::scratch::<K>(&w, wide) * size;
        }
        let panels = wide.div_ceil(K::PANEL).min(panels_of_a_pass::<K>());
        let packed = (panels * K::PANEL + STRIPS_AT_ONCE * K::STRIP) * block::<K>(p.k);
        let tall = if along_rows(p) { p.n } else { p.m };
        packed.max(few::scratch(tall.min(few::ROWS), wide)) * size
    }
    match p.dtype {
        DType::BF16 => halves::scratch_bytes(p),
        DType::I32 => words::scratch_bytes(p),
        _ => with_tiles!(p.dtype, bytes(p)),
    }
}

/// Elements that a piece of that size packs.
pub(super) fn packed_elements(p: &Product<'_>, tall: usize, wide: usize) -> usize {
    fn in_blocks<K: Panels>(across: &[StridedDim], depth: &[StridedDim]) -> bool {
        Blocks::of(across, depth, K::PANEL).is_some()
    }
    let dims = match (p.lhs.composite, p.rhs.composite) {
        (Some(w), _) => Some((w.rows, w.columns)),
        (_, Some(w)) => Some((w.columns, w.rows)),
        _ => None,
    };
    let as_it_is = |(across, depth): (&[StridedDim], &[StridedDim])| match p.dtype {
        DType::BF16 => halves::is_in_blocks(across, depth),
        _ => with_panels!(p.dtype, in_blocks(across, depth)),
    };
    if dims.is_some_and(as_it_is) {
        return 0;
    }
    let across = if along_rows(p) { tall } else { wide };
    across.saturating_mul(p.k)
}

/// How a piece reads a plain operand whose panels run across the sum.
enum Reading<T> {
    /// By [`few`].
    Few(FewRows<T>),
    /// Panels where they are.
    InPlace,
    /// Copies of panels.
    Copied,
}

/// How panels of a pass are read by so many elements of strips.
fn reading<K: Panels>(across: usize, tall: usize, (stride_across, stride_sum): (isize, isize)) -> Reading<K::Element> {
    let near = match tall <= FEW_STRIPS * K::STRIP {
        true => NEAR_LINES / size_of::<K::Element>(),
        false => super::PANEL_ELEMENTS as usize,
    };
    let whole = across.is_multiple_of(K::LANES) && stride_sum.unsigned_abs() <= near;
    match K::FEW {
        _ if stride_across != 1 => Reading::Copied,
        _ if whole => Reading::InPlace,
        Some(f) if tall <= few::ROWS => Reading::Few(f),
        _ => Reading::Copied,
    }
}

/// The operand of which a piece of that size copies panels.
pub(super) fn copied(p: &Product<'_>, tall: usize, wide: usize) -> Option<Operand> {
    fn copies<K: Panels>(across: usize, tall: usize, strides: (isize, isize)) -> bool {
        matches!(reading::<K>(across, tall, strides), Reading::Copied)
    }
    if p.dtype == DType::BF16 || padded_windows(p).is_some() {
        // Words are made of it, or it has parts left out, which no layout of elements says.
        return None;
    }
    let rows = along_rows(p);
    let (across, strips, strides) = match rows {
        true => (tall, wide, (p.lhs.row, p.lhs.column)),
        false => (wide, tall, (p.rhs.column, p.rhs.row)),
    };
    let copies = match p.lhs.composite.is_some() || p.rhs.composite.is_some() {
        true => packed_elements(p, tall, wide) > 0,
        false => with_panels!(p.dtype, copies(across, strips, strides)),
    };
    let operand = if rows { Operand::Lhs } else { Operand::Rhs };
    (copies && across > 0 && p.k > 0).then_some(operand)
}

/// Elements across a panel.
pub(super) fn panel_width(dtype: DType) -> usize {
    fn width<K: Panels>() -> usize {
        K::PANEL
    }
    with_panels!(dtype, width())
}

/// Copies a panel of `across` elements from number `first` on.
///
/// # Safety
/// As for [`super::pack`].
pub(super) unsafe fn pack(layout: &PackedLayout, (first, across): (usize, usize), from: *const u8, to: *mut u8) {
    /// # Safety
    /// As for [`pack`], and this machine has the instruction set of `K`.
    unsafe fn typed<K: Panels>(layout: &PackedLayout, first: usize, across: usize, from: *const u8, to: *mut u8) {
        let (start, to, depth) = (from.cast(), to.cast(), layout.elements_along());
        // SAFETY: the caller's promise.
        unsafe {
            if let ([one], [along]) = (&layout.across[..], &layout.depth[..]) {
                let source: pack::Source<K::Element> = pack::Source {
                    start,
                    across,
                    depth,
                    stride_across: one.stride,
                    stride_depth: along.stride,
                };
                let start = source.start.wrapping_offset(first as isize * one.stride);
                K::pack(pack::Source { start, ..source }, to);
            } else {
                let source = pack::CompositeSource {
                    start,
                    dims_across: &layout.across,
                    dims_depth: &layout.depth,
                    first,
                    across,
                    begin: 0,
                    depth,
                };
                K::pack_composite(source, to);
            }
        }
    }
    // SAFETY: the caller's promise; `set` found the instructions.
    unsafe { with_panels!(layout.dtype, typed(layout, first, across, from, to)) };
}

/// An operand that is multiplied where it lies: blocks of panels, each with its steps along the sum one after the other.
#[derive(Clone, Copy)]
struct Blocks {
    /// Elements across a block.
    width: usize,
    /// Elements across all of them.
    elements: usize,
    /// Stride between blocks.
    stride: isize,
    /// Stride along the sum.
    sum: isize,
}

impl Blocks {
    /// The blocks of a composite operand with those dimensions, if that is how it lies.
    fn of(across: &[StridedDim], depth: &[StridedDim], panel: usize) -> Option<Blocks> {
        let (outer, inner) = match across {
            [inner] => (None, inner),
            [outer, inner] => (Some(outer), inner),
            _ => return None,
        };
        let [depth] = depth else { return None };
        let together = inner.stride == 1 && depth.stride == inner.extent as isize;
        (together && inner.extent <= super::PANEL_ELEMENTS as usize && inner.extent.is_multiple_of(panel)).then_some(
            Blocks {
                width: inner.extent,
                elements: inner.extent.saturating_mul(outer.map_or(1, |l| l.extent)),
                stride: outer.map_or(0, |l| l.stride),
                sum: depth.stride,
            },
        )
    }

    /// Where an element across begins.
    fn at(self, number: usize) -> isize {
        (number / self.width) as isize * self.stride + (number % self.width) as isize
    }
}

/// Asks for the cache lines of a row that will be read soon.
fn prefetch_row<T>(start: *const T, elements: usize, size: usize) {
    for offset in (0..elements * size).step_by(LINE_BYTES) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint, for any address.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(start.cast::<i8>().wrapping_add(offset));
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (start, offset);
    }
}

/// Computes a piece, and reports its lines as they are complete.
///
/// # Safety
/// As for [`super::multiply`], with scratch for one worker.
pub(super) unsafe fn run(p: &Product<'_>, scratch: *mut u8, mut progress: Progress<'_>) {
    let mut tell = Tell {
        reported: 0,
        // Elements of a line, where lines are across strips; otherwise all are complete at the end.
        width: match &progress {
            Some((Side::Rows, _)) if !along_rows(p) => Some(p.n),
            Some((Side::Columns, _)) if along_rows(p) => Some(p.m),
            _ => None,
        },
        to: progress.as_mut().map(|(_, f)| &mut **f as &mut dyn FnMut(usize)),
    };
    let session = (p.dtype == DType::I32 || p.dtype == DType::BF16 && halves::by_tiles()).then(amx::Session::begin);
    // SAFETY: the caller's promise.
    unsafe {
        match p.dtype {
            DType::BF16 => halves::run(p, scratch, &mut tell),
            DType::I32 => words::run(p, scratch, &mut tell),
            _ => with_tiles!(p.dtype, typed(p, scratch, &mut tell)),
        }
    };
    drop(session);
    if let Some((side, f)) = progress {
        f(p.lines(side));
    }
}

/// Reports how many lines are complete, from time to time.
struct Tell<'a> {
    reported: usize,
    width: Option<usize>,
    to: Option<&'a mut dyn FnMut(usize)>,
}

impl Tell<'_> {
    /// Whether anyone wants to know.
    fn is_asked(&self) -> bool {
        self.width.is_some() && self.to.is_some()
    }

    /// So many lines are complete.
    fn complete(&mut self, lines: usize, size: usize) {
        if let (Some(width), Some(f)) = (self.width, &mut self.to)
            && (lines - self.reported).saturating_mul(width * size) >= REPORT_BYTES
        {
            self.reported = lines;
            f(lines);
        }
    }
}

/// # Safety
/// As for [`run`], and this machine has the instruction set of `K`.
unsafe fn typed<K: Tiles>(p: &Product<'_>, scratch: *mut u8, tell: &mut Tell<'_>) {
    let size = size_of::<K::Element>();
    let dst = p.dst.start.cast::<K::Element>();
    let (lhs, rhs) = (p.lhs.start.cast::<K::Element>(), p.rhs.start.cast::<K::Element>());
    // Everything as if panels ran along columns: `wide` counts along panels, `tall` along strips.
    let rows = along_rows(p);
    let (tall, wide, dst_tall, dst_wide) = match rows {
        true => (p.n, p.m, p.dst.column, p.dst.row),
        false => (p.m, p.n, p.dst.row, p.dst.column),
    };
    let (panel, panel_wide, panel_sum) = match rows {
        true => (lhs, p.lhs.row, p.lhs.column),
        false => (rhs, p.rhs.column, p.rhs.row),
    };
    let (strip, strip_tall, strip_sum) = match rows {
        true => (rhs, p.rhs.column, p.rhs.row),
        false => (lhs, p.lhs.row, p.lhs.column),
    };
    // Dimensions across panels and along the sum, and the number of the first element across.
    let composite = match rows {
        true => p.lhs.composite.map(|w| (w.rows, w.columns, w.first_row)),
        false => p.rhs.composite.map(|w| (w.columns, w.rows, w.first_column)),
    };
    let blocks = composite.and_then(|(across, depth, origin)| {
        let blocks = Blocks::of(across, depth, K::PANEL)?;
        // Parts begin between panels, and end there or in what the last block has to spare, so that every vector is whole.
        let end = origin + wide.next_multiple_of(K::LANES);
        (origin.is_multiple_of(K::PANEL) && end <= blocks.elements).then_some((blocks, origin))
    });
    if p.k == 0 {
        for i in 0..tall as isize {
            for j in 0..wide as isize {
                // SAFETY: an element of the result.
                unsafe { *dst.wrapping_offset(i * dst_tall + j * dst_wide) = K::ZERO };
            }
        }
        return;
    }
    if let Some(windows) = padded_windows(p) {
        let part = padded::Part {
            image: panel,
            windows,
            wide,
            rows: strip,
            row_count: tall,
            row_strides: (strip_tall, strip_sum),
            results: dst,
            result_strides: (dst_tall, dst_wide),
        };
        // SAFETY: the caller's promise.
        return unsafe { padded::run::<K>(&part, scratch.cast()) };
    }
    if let (None, Reading::Few(few)) = (composite, reading::<K>(wide, tall, (panel_wide, panel_sum))) {
        let part = few::Part {
            lines: panel,
            line_stride: panel_sum,
            rows: strip,
            row_strides: (strip_tall, strip_sum),
            results: dst,
            result_strides: (dst_tall, dst_wide),
            row_count: tall,
            columns: wide,
            k: p.k,
            block: block::<K>(p.k),
            ahead: wide.saturating_mul(p.k).saturating_mul(size) > second_level_bytes() / 2
                && !crate::machine::streams_lines(),
        };
        // SAFETY: the caller's promise; scratch has room for the accumulators of so many rows.
        return unsafe { few(part, scratch.cast()) };
    }
    // Lines of a matrix are windows of one element.
    let plain = [
        StridedDim {
            extent: wide,
            stride: 1,
        },
        StridedDim {
            extent: p.k,
            stride: panel_sum,
        },
    ];
    let is_copied = || matches!(reading::<K>(wide, tall, (panel_wide, panel_sum)), Reading::Copied);
    let in_place = match composite {
        None if panel_wide == 1 && windows::takes_lines(p.k, tall) && is_copied() => {
            Some((&plain[..1], &plain[1..], 0))
        }
        None => None,
        Some(_) if blocks.is_some() => None,
        Some(windows) => Some(windows),
    };
    if let (Some(multiply), Some((across, depth, first))) = (K::WINDOWS, in_place)
        && windows::takes(across, tall)
        && dst_wide == 1
    {
        // So many rows that what follows finds them in the second-level cache; all of them, if that holds not even those of a tile: the image, which is
        // as large, is then read once.
        let most = match second_level_bytes() / 4 / (wide * size).max(1) / windows::ROWS {
            0 => tall,
            strips => strips * windows::ROWS,
        };
        let reach = |d: &StridedDim| d.extent.saturating_sub(1).saturating_mul(d.stride.unsigned_abs());
        let span: usize = across.iter().chain(depth).map(reach).fold(0, usize::saturating_add);
        for top in (0..tall).step_by(most) {
            let height = most.min(tall - top);
            let part = windows::Part {
                image: panel.cast(),
                across,
                depth,
                first,
                windows: wide,
                rows: strip.wrapping_offset(top as isize * strip_tall).cast(),
                row_strides: (strip_tall, strip_sum),
                row_count: height,
                results: dst.wrapping_offset(top as isize * dst_tall).cast(),
                result_stride: dst_tall,
                k: p.k,
                block: block::<K>(p.k),
                far: span.saturating_mul(size) > second_level_bytes(),
            };
            // SAFETY: the caller's promise; scratch has room for many elements of a block, and elements are f32 where windows are read in place.
            unsafe { multiply(part, scratch.cast()) };
            tell.complete(top + height, size);
        }
        return;
    }
    let bytes = |a: usize, b: usize| a.saturating_mul(b).saturating_mul(size);
    let lies_in_panels = blocks.is_some()
        || composite.is_none()
            && wide.is_multiple_of(K::PANEL)
            && matches!(reading::<K>(wide, tall, (panel_wide, panel_sum)), Reading::InPlace);
    if let Some(multiply) = K::STREAMED
        && lies_in_panels
        && (strip_sum, dst_wide) == (1, 1)
        && streamed::takes(tall)
        && bytes(wide, p.k) > second_level_bytes() / 2
        && !crate::machine::feeds_tiles()
    {
        let part = streamed::Part {
            panels: panel,
            blocks: blocks.map_or((usize::MAX, 0), |(b, _)| (b.width, b.stride)),
            first: blocks.map_or(0, |(_, origin)| origin),
            panel_sum: blocks.map_or(panel_sum, |(b, _)| b.sum),
            columns: wide,
            rows: strip,
            row_stride: strip_tall,
            row_count: tall,
            results: dst,
            result_stride: dst_tall,
            k: p.k,
            block: block::<K>(p.k),
        };
        // SAFETY: the caller's promise; blocks are whole panels, and so is what is read in place.
        return unsafe { multiply(part) };
    }
    // Whether a strip or a tile that is not asked for in time may lie beyond the second-level cache.
    let far = [bytes(p.m, p.k), bytes(p.k, p.n), bytes(p.m, p.n)]
        .into_iter()
        .fold(0, usize::saturating_add)
        > second_level_bytes();
    let block = block::<K>(p.k);
    let pass = panels_of_a_pass::<K>() * K::PANEL;
    let panels = scratch.cast::<K::Element>();
    let strips = panels.wrapping_add(wide.div_ceil(K::PANEL).min(pass / K::PANEL) * K::PANEL * block);
    for first in (0..wide).step_by(pass) {
        let across = pass.min(wide - first);
        let direct =
            composite.is_none() && matches!(reading::<K>(across, tall, (panel_wide, panel_sum)), Reading::InPlace);
        let pack_strips = strip_sum != 1 && across > MANY_PANELS * K::PANEL;
        for begin in (0..p.k).step_by(block) {
            let depth = block.min(p.k - begin);
            let from = panel.wrapping_offset(first as isize * panel_wide + begin as isize * panel_sum);
            if let Some((dims_across, dims_depth, origin)) = composite.filter(|_| blocks.is_none()) {
                let source = pack::CompositeSource {
                    start: panel,
                    dims_across,
                    dims_depth,
                    first: origin + first,
                    across,
                    begin,
                    depth,
                };
                // SAFETY: the source is part of the operand, and scratch has room for whole panels of a block.
                unsafe { K::pack_composite(source, panels) };
            } else if !direct && blocks.is_none() {
                let source = pack::Source {
                    start: from,
                    across,
                    depth,
                    stride_across: panel_wide,
                    stride_depth: panel_sum,
                };
                // SAFETY: the source is part of the operand, and scratch has room for whole panels of a block.
                unsafe { K::pack(source, panels) };
            }
            for top in (0..tall).step_by(K::STRIP) {
                let height = K::STRIP.min(tall - top);
                let mut strip = strip.wrapping_offset(top as isize * strip_tall + begin as isize * strip_sum);
                let (mut sum, mut next) = (strip_sum, strip_tall);
                if pack_strips {
                    let behind = top / K::STRIP % STRIPS_AT_ONCE;
                    if behind == 0 {
                        let source = pack::Source {
                            start: strip,
                            across: (STRIPS_AT_ONCE * K::STRIP).min(tall - top),
                            depth,
                            stride_across: strip_tall,
                            stride_depth: strip_sum,
                        };
                        // SAFETY: the source is part of the operand, and scratch has room for these strips of a block.
                        unsafe { K::pack_strips(source, strips) };
                    }
                    strip = strips.wrapping_add(behind * depth * K::STRIP);
                    (sum, next) = (K::STRIP as isize, 1);
                }
                for left in (0..across).step_by(K::PANEL) {
                    let width = K::PANEL.min(across - left);
                    let to = top as isize * dst_tall + (first + left) as isize * dst_wide;
                    // A tile is read and written at the end of its sum, one after the other, where nothing hides a miss.
                    if far {
                        for i in 0..height as isize {
                            prefetch_row(dst.wrapping_offset(to + i * dst_tall), width, size);
                        }
                    }
                    if far && strip_sum == 1 && top + K::STRIP < tall {
                        // What the next strip needs of its rows, a part with each panel of this one.
                        let part = depth.div_ceil(across.div_ceil(K::PANEL));
                        let at = part * (left / K::PANEL);
                        let rows = K::STRIP.min(tall - top - K::STRIP);
                        for i in 0..rows as isize {
                            let row = strip.wrapping_offset((K::STRIP as isize + i) * strip_tall);
                            prefetch_row(row.wrapping_add(at), part.min(depth.saturating_sub(at)), size);
                        }
                    }
                    let (vectors, sum_panel) = match blocks {
                        Some((blocks, origin)) => {
                            let to = blocks.at(origin + first + left) + begin as isize * blocks.sum;
                            (panel.wrapping_offset(to), blocks.sum)
                        }
                        None if direct => (from.wrapping_add(left), panel_sum),
                        None => (panels.wrapping_add(left * depth), K::PANEL as isize),
                    };
                    let kernel = K::kernel(width.div_ceil(K::LANES), height);
                    // SAFETY: the tile lies in the result, strip and panel in the operands or in scratch, where panels are
                    // padded to whole vectors (read in place, they are whole vectors). `set` found the instructions.
                    unsafe {
                        kernel(
                            width,
                            height,
                            depth,
                            dst.wrapping_offset(to),
                            vectors,
                            strip,
                            dst_tall,
                            dst_wide,
                            sum_panel,
                            sum,
                            next,
                            K::ONE,
                            K::ONE,
                            u8::from(begin > 0),
                            false,
                            false,
                            false,
                            std::ptr::null(),
                        );
                    }
                }
                // After several passes most of a line has left the cache, and what follows it would drive the panels out.
                if across == wide && begin + depth == p.k {
                    tell.complete(top + height, size);
                }
            }
        }
    }
}
