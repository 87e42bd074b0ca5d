//! Scalar operations as C++ expressions, with exactly the meaning of [`tlc_ir::scalar`].
//!
//! Anything whose C++ operator means something else (or is undefined where ours is not) is a call to a named device
//! function, whose text [`Helpers`] collects. Code is compiled with `--fmad=false`, so `a * b + c` rounds twice; only
//! `fma` contracts.

use tlc_ir::dtype::{DType, Scalar};
use tlc_ir::scalar::{Cost, ScalarOp};

use super::CudaError;
use super::index::Width;
use crate::flat::MOST_GROUPS;

/// Bytes of a word.
pub(super) const WORD: u32 = super::words::BYTES as u32;

/// Device functions that a kernel needs, in an order in which each knows those it calls.
#[derive(Default)]
pub(super) struct Helpers {
    texts: Vec<(String, String)>,
    /// The types of integers that words of them are computed of.
    in_words: Vec<&'static str>,
}

impl Helpers {
    /// Their definitions.
    pub(super) fn text(&self) -> String {
        self.texts.iter().map(|t| &t.1[..]).collect()
    }

    /// Adds a function unless it is there. What it calls must have been added before.
    pub(super) fn need(&mut self, name: String, text: impl FnOnce(&str) -> String) -> String {
        if !self.texts.iter().any(|t| t.0 == name) {
            let body = text(&name);
            self.texts
                .push((name.clone(), format!("static __device__ __forceinline__ {body}\n")));
        }
        name
    }

    /// Has integers of a type that are accessed together be words as well.
    pub(super) fn have_words(&mut self, of: DType) {
        self.in_words.push(memory_type(of));
    }

    /// Whether they are.
    pub(super) fn has_words(&self, of: DType) -> bool {
        self.in_words.contains(&memory_type(of))
    }

    /// The type of so many elements that are accessed together.
    pub(super) fn together(&mut self, dtype: DType, lanes: u32) -> String {
        let element = memory_type(dtype);
        let bytes = dtype.bytes() as u32 * lanes;
        // NVRTC keeps in words what is accessed as either, which costs elements that are put together one by one.
        let words = self.in_words.contains(&element) && bytes.is_multiple_of(WORD);
        let (name, parts) = match words {
            true => (
                format!("{element}x{lanes}_words"),
                format!("union {{ {element} e[{lanes}]; u32 w[{}]; }};", bytes / WORD),
            ),
            false => (format!("{element}x{lanes}"), format!("{element} e[{lanes}];")),
        };
        if !self.texts.iter().any(|t| t.0 == name) {
            let text = format!("struct __align__({bytes}) {name} {{ {parts} }};\n");
            self.texts.push((name.clone(), text));
        }
        name
    }

    /// An index from data, forced into a range.
    pub(super) fn clamp_index(&mut self) {
        self.need("clamp_index".into(), |n| {
            format!("i64 {n}(i64 x, i64 last) {{\n    x = x < last ? x : last;\n    return x > 0 ? x : 0;\n}}")
        });
    }

    /// An index as the compiler knows nothing of.
    pub(super) fn opaque(&mut self, width: Width) -> String {
        let (name, t, register) = match width {
            Width::Narrow => ("opaque", "int", 'r'),
            Width::Wide => ("opaque_i64", "i64", 'l'),
        };
        self.need(name.into(), |n| {
            format!("{t} {n}({t} x) {{\n    asm(\"\" : \"+{register}\"(x));\n    return x;\n}}")
        })
    }

    /// The nearest tf32 of the f32 with these bits, of two that are as near the one further from zero; the result's bits.
    fn rounding_to_tf32(&mut self) -> String {
        self.need("to_tf32".into(), |n| {
            format!(
                "unsigned {n}(unsigned bits) {{\n    unsigned r;\n    asm(\"cvt.rna.tf32.f32 %0, %1;\" : \"=r\"(r) : \"f\"(__uint_as_float(bits)));\n    return r;\n}}"
            )
        })
    }

    /// Four matrices of 8 rows from shared memory, by rows of 16 bytes: turned or not, and rounded to tf32 or not, which those are not
    /// that are turned. Those of a left operand fill four registers, those of a right one two registers of two columns of tiles each.
    pub(super) fn load_matrices(&mut self, turned: bool, left: bool, tf32: bool) -> String {
        let (suffix, modifier) = if turned { ("_turned", ".trans") } else { ("", "") };
        let (side, param, registers) = operand_registers(left);
        let [a, b, c, d] = registers;
        let load = self.need(format!("load_{side}{suffix}"), |n| {
            format!(
                "void {n}({param}, const void* from) {{\n    asm volatile(\"ldmatrix.sync.aligned.m8n8.x4{modifier}.shared.b16 {{%0, %1, %2, %3}}, [%4];\"\n        : \"=r\"({a}), \"=r\"({b}), \"=r\"({c}), \"=r\"({d}) : \"r\"((unsigned)__cvta_generic_to_shared(from)) : \"memory\");\n}}"
            )
        });
        if !tf32 {
            return load;
        }
        let round = self.rounding_to_tf32();
        self.need(format!("load_{side}_tf32"), |n| {
            let rounded: String = registers.iter().map(|r| format!("    {r} = {round}({r});\n")).collect();
            format!("void {n}({param}, const void* from) {{\n    {load}(r, from);\n{rounded}}}")
        })
    }

    /// As `load_matrices` with rounding to tf32, of elements that lie together across the sum; `further` is how far apart those are that
    /// lie four steps of it apart. A thread begins at the first that it multiplies.
    pub(super) fn load_elements(&mut self, left: bool, further: i64) -> String {
        let round = self.rounding_to_tf32();
        let (side, param, registers) = operand_registers(left);
        // The second half of the rows, or of the columns, is 8 elements away.
        let places = match left {
            true => [0, 8, further, further + 8],
            false => [0, further, 8, further + 8],
        };
        self.need(format!("load_{side}_elements_{further}"), |n| {
            let loads: String = registers
                .iter()
                .zip(places)
                .map(|(r, at)| format!("    {r} = {round}(__float_as_uint(from[{at}]));\n"))
                .collect();
            format!("void {n}({param}, const f32* from) {{\n{loads}}}")
        })
    }

    /// Two f32 rounded to 16 bits, the first in the lower half.
    pub(super) fn round_pair(&mut self, dtype: DType) -> String {
        self.need(format!("round_pair_{dtype}"), |n| {
            format!(
                "u32 {n}(f32 low, f32 high) {{\n    u32 r;\n    asm(\"cvt.rn.{dtype}x2.f32 %0, %1, %2;\" : \"=r\"(r) : \"f\"(high), \"f\"(low));\n    return r;\n}}"
            )
        })
    }

    /// The left operand of an instruction from what a thread holds of its tiles: pairs of neighbours, or of tf32 each element by itself.
    pub(super) fn take_matrix(&mut self, dtype: DType) -> String {
        let element = memory_type(dtype);
        if dtype.bytes() == 2 {
            return self.need(format!("take_{element}"), |n| {
                let pairs = (0..4).map(|r| format!("    r[{r}] = *(const unsigned*)(from + {});\n", 2 * r));
                format!(
                    "void {n}(unsigned (&r)[4], const {element}* from) {{\n{}}}",
                    pairs.collect::<String>()
                )
            });
        }
        let round = self.rounding_to_tf32();
        self.need(format!("take_{element}"), |n| {
            let of = |(r, at)| format!("    r[{r}] = {round}(__float_as_uint(from[{at}]));\n");
            let each = [0, 2, 1, 3].into_iter().enumerate().map(of);
            format!(
                "void {n}(unsigned (&r)[4], const {element}* from) {{\n{}}}",
                each.collect::<String>()
            )
        })
    }

    /// Has the registers of a left operand written before what follows.
    pub(super) fn pin_matrix(&mut self) -> String {
        let names = all_of(4, |i| format!("\"+r\"(r[{i}])"));
        self.need("pin_matrix".into(), |n| {
            format!("void {n}(unsigned (&r)[4]) {{\n    asm volatile(\"\" : {names} :: \"memory\");\n}}")
        })
    }

    /// `d += a * b` of matrices of 16 by so many steps and so many by 8, accumulated in f32.
    pub(super) fn multiply_matrices(&mut self, kind: &str, steps: i64) -> String {
        self.need(format!("multiply_{kind}"), |n| {
            format!(
                "void {n}(f32* d, const unsigned (&a)[4], const unsigned (&b)[2]) {{\n    asm(\"mma.sync.aligned.m16n8k{steps}.row.col.f32.{kind}.{kind}.f32 {{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};\"\n        : \"+f\"(d[0]), \"+f\"(d[1]), \"+f\"(d[2]), \"+f\"(d[3]) : \"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"r\"(b[0]), \"r\"(b[1]));\n}}"
            )
        })
    }

    /// What says to instructions of four warps where a matrix in swizzled memory is (PTX ISA, "Matrix Descriptor Format"): its first byte, and, in units of
    /// 16 bytes, how far stretches of it and periods of its rows are apart.
    pub(super) fn describe_matrix(&mut self) -> String {
        self.need("describe_matrix".into(), |n| {
            format!(
                "unsigned long long {n}(unsigned at, unsigned stretches, unsigned periods) {{\n    return (at & 0x3ffff) >> 4 | (unsigned long long)stretches << 16 | (unsigned long long)periods << 32 | 1ULL << 62;\n}}"
            )
        })
    }

    /// What is in front of a product of four warps into so many elements that a thread holds: they are written.
    pub(super) fn begin_group(&mut self, held: i64) -> String {
        let names = all_of(held, |i| format!("\"+f\"(d[{i}])"));
        self.need(format!("begin_group_{held}"), |n| {
            format!("void {n}(f32* d) {{\n    asm volatile(\"wgmma.fence.sync.aligned;\" : {names} :: \"memory\");\n}}")
        })
    }

    /// The end of a product of four warps: its sums are there.
    pub(super) fn end_group(&mut self, held: i64) -> String {
        let names = all_of(held, |i| format!("\"+f\"(d[{i}])"));
        self.need(format!("end_group_{held}"), |n| {
            format!(
                "void {n}(f32* d) {{\n    asm volatile(\"wgmma.wait_group.sync.aligned 0;\" : {names} :: \"memory\");\n}}"
            )
        })
    }

    /// `d += a * b` of 64 rows, 16 steps and so many columns. `left` says of a left operand in shared memory whether elements of a step of the
    /// sum lie together there, `right` of the right one.
    pub(super) fn multiply_group(&mut self, kind: &str, columns: i64, left: Option<bool>, right: bool) -> String {
        let held = columns / 2;
        let d = all_of(held, |i| format!("%{i}"));
        let operands = all_of(held, |i| format!("\"+f\"(d[{i}])"));
        let (side, param, a, given, turns) = match left {
            Some(turned) => {
                let name = if turned { "_turned" } else { "" };
                let a = format!("%{held}");
                (
                    name,
                    "unsigned long long a",
                    a,
                    "\"l\"(a)".to_string(),
                    format!("{}, ", i32::from(turned)),
                )
            }
            None => {
                let a = format!("{{{}}}", all_of(4, |i| format!("%{}", held + i)));
                let given = all_of(4, |i| format!("\"r\"(a[{i}])"));
                ("_held", "const unsigned (&a)[4]", a, given, String::new())
            }
        };
        let b = held + if left.is_some() { 1 } else { 4 };
        let turned = i32::from(right);
        self.need(format!("multiply_group_{kind}_{columns}{side}_{turned}"), |n| {
            format!(
                "void {n}(f32* d, {param}, unsigned long long b) {{\n    asm volatile(\"{{\\n.reg .pred p;\\nsetp.ne.b32 p, 1, 0;\\nwgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{d}}}, {a}, %{b}, p, 1, 1, {turns}{turned};\\n}}\"\n        : {operands} : {given}, \"l\"(b));\n}}"
            )
        })
    }

    /// Which thread of a block it is, as if it had not been asked before.
    pub(super) fn which_thread(&mut self) -> String {
        self.need("which_thread".into(), |n| {
            format!(
                "int {n}() {{\n    int r;\n    asm volatile(\"mov.u32 %0, %%tid.x;\" : \"=r\"(r));\n    return r;\n}}"
            )
        })
    }

    /// A copy of so many bytes to shared memory beside the thread, of which the last argument says how many are read; the rest is zero. What is
    /// read `again` soon goes through the first-level cache.
    pub(super) fn copy_async(&mut self, bytes: i64, again: bool) -> String {
        // Only whole 16 bytes can go past it.
        let cached = if bytes == 16 && !again { "cg" } else { "ca" };
        self.need(format!("copy_async_{bytes}"), |n| {
            format!(
                "void {n}(void* to, const void* from, int read) {{\n    asm volatile(\"cp.async.{cached}.shared.global [%0], [%1], {bytes}, %2;\"\n        :: \"r\"((unsigned)__cvta_generic_to_shared(to)), \"l\"(__cvta_generic_to_global(from)), \"r\"(read) : \"memory\");\n}}"
            )
        })
    }

    /// Makes the barriers that count the bytes of groups of tiles.
    pub(super) fn make_barriers(&mut self) -> String {
        self.need("make_barriers".into(), |n| {
            format!(
                "void {n}(unsigned long long* barriers) {{\n    if (threadIdx.x != 0) return;\n    for (int i = 0; i < {MOST_GROUPS}; ++i)\n        asm volatile(\"mbarrier.init.shared::cta.b64 [%0], 1;\" :: \"r\"((unsigned)__cvta_generic_to_shared(barriers + i)) : \"memory\");\n    asm volatile(\"fence.mbarrier_init.release.cluster;\" ::: \"memory\");\n}}"
            )
        })
    }

    /// Begins the copy of a tile of a matrix, or of one of several, whose bytes a barrier counts.
    pub(super) fn copy_tile(&mut self, of_several: bool) -> String {
        let (name, number, dimensions, at, counter, given) = match of_several {
            true => ("copy_tile_of", ", int number", 3, "%2, %3, %4", "%5", ", \"r\"(number)"),
            false => ("copy_tile", "", 2, "%2, %3", "%4", ""),
        };
        self.need(name.into(), |n| {
            format!(
                "void {n}(void* to, const tiled_matrix* from, int column, int row{number}, unsigned long long* barrier, int bytes) {{\n    const unsigned counter = (unsigned)__cvta_generic_to_shared(barrier);\n    asm volatile(\"mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;\" :: \"r\"(counter), \"r\"(bytes) : \"memory\");\n    asm volatile(\"cp.async.bulk.tensor.{dimensions}d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {{{at}}}], [{counter}];\"\n        :: \"r\"((unsigned)__cvta_generic_to_shared(to)), \"l\"(from), \"r\"(column), \"r\"(row){given}, \"r\"(counter) : \"memory\");\n}}"
            )
        })
    }

    /// Tells a barrier that no more bytes of its phase will be announced.
    pub(super) fn arrive(&mut self) -> String {
        self.need("arrive".into(), |n| {
            format!(
                "void {n}(unsigned long long* barrier) {{\n    asm volatile(\"mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];\" :: \"r\"((unsigned)__cvta_generic_to_shared(barrier)) : \"memory\");\n}}"
            )
        })
    }

    /// Waits for a phase of a barrier.
    pub(super) fn wait_for_tiles(&mut self) -> String {
        self.need("wait_for_tiles".into(), |n| {
            format!(
                "void {n}(unsigned long long* barrier, unsigned phase) {{\n    unsigned done;\n    do\n        asm volatile(\"{{\\n.reg .pred p;\\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%1], %2;\\nselp.u32 %0, 1, 0, p;\\n}}\"\n            : \"=r\"(done) : \"r\"((unsigned)__cvta_generic_to_shared(barrier)), \"r\"(phase) : \"memory\");\n    while (!done);\n}}"
            )
        })
    }

    /// Stores the pairs that four threads beside each other have of four groups of eight elements, each thread a group. It is given where its own
    /// pair of the first group belongs.
    pub(super) fn store_quad(&mut self) -> String {
        self.need("store_quad".into(), |n| {
            format!(
                "void {n}(void* to, unsigned v0, unsigned v1, unsigned v2, unsigned v3) {{\n    const unsigned all = 0xffffffffu, q = threadIdx.x % 4;\n    const bool odd = q & 1, upper = q & 2;\n    const unsigned a = odd ? v1 : v0, b = __shfl_xor_sync(all, odd ? v0 : v1, 1);\n    const unsigned c = odd ? v3 : v2, d = __shfl_xor_sync(all, odd ? v2 : v3, 1);\n    const unsigned x0 = odd ? b : a, x1 = odd ? a : b, y0 = odd ? d : c, y1 = odd ? c : d;\n    const unsigned s0 = __shfl_xor_sync(all, upper ? x0 : y0, 2), s1 = __shfl_xor_sync(all, upper ? x1 : y1, 2);\n    const uint4 group = {{upper ? s0 : x0, upper ? s1 : x1, upper ? y0 : s0, upper ? y1 : s1}};\n    *(uint4*)((char*)to + 12 * q) = group;\n}}"
            )
        })
    }

    /// Quotients and remainders of indices by a number whose reciprocal is known.
    pub(super) fn reciprocals(&mut self) {
        self.need("index_quotient".into(), |n| {
            format!(
                "int {n}(int x, unsigned factor, int shift) {{\n    return (int)(__umulhi((unsigned)x, factor) >> shift);\n}}"
            )
        });
        self.need("index_remainder".into(), |n| {
            format!(
                "int {n}(int x, unsigned factor, int shift, int of) {{\n    return index_quotient(x, factor, shift) * -of + x;\n}}"
            )
        });
    }

    /// Floored division and remainder of indices, both widths.
    pub(super) fn floor_division(&mut self) {
        for (suffix, t) in [("", "int"), ("_i64", "i64")] {
            self.need(format!("floor_div{suffix}"), |n| {
                format!("{t} {n}({t} a, {t} b) {{\n    {t} q = a / b;\n    return a % b < 0 ? q - 1 : q;\n}}")
            });
            self.need(format!("floor_mod{suffix}"), |n| {
                format!("{t} {n}({t} a, {t} b) {{\n    {t} r = a % b;\n    return r < 0 ? r + b : r;\n}}")
            });
        }
    }
}

/// What stands for each of so many elements, with commas between.
fn all_of(count: i64, each: impl Fn(i64) -> String) -> String {
    (0..count).map(each).collect::<Vec<_>>().join(", ")
}

/// The name of a side of a product, and the parameter and registers of a thread for its matrices.
fn operand_registers(left: bool) -> (&'static str, &'static str, [&'static str; 4]) {
    match left {
        true => ("left", "unsigned (&r)[4]", ["r[0]", "r[1]", "r[2]", "r[3]"]),
        false => (
            "right",
            "unsigned (*r)[2]",
            ["r[0][0]", "r[0][1]", "r[1][0]", "r[1][1]"],
        ),
    }
}

/// The C++ type of a value (f16, bf16 and storage types as bits).
pub(super) const fn value_type(d: DType) -> &'static str {
    match d {
        DType::Bool => "bool",
        d => d.name(),
    }
}

/// The C++ type of an element in memory.
pub(super) const fn memory_type(d: DType) -> &'static str {
    match d {
        DType::Bool => "u8",
        d => d.name(),
    }
}

fn unsigned(d: DType) -> &'static str {
    if d.bits() == 64 { "u64" } else { "u32" }
}

/// The bit pattern as an integer literal.
fn bits_literal(bits: u64, width: u32) -> String {
    match width {
        64 => format!("0x{bits:016x}ULL"),
        32 => format!("0x{bits:08x}u"),
        _ => format!("0x{bits:04x}"),
    }
}

/// A constant as a literal.
pub(super) fn literal(value: Scalar) -> String {
    let d = value.dtype();
    match d {
        DType::Bool => value.as_bool().to_string(),
        DType::F16 | DType::BF16 => format!("({d}){}", bits_literal(value.bits(), 16)),
        DType::F32 | DType::F64 => {
            let v = value.as_f64();
            if !v.is_finite() {
                return match d {
                    DType::F32 => format!("__uint_as_float({})", bits_literal(value.bits(), 32)),
                    _ => format!("__longlong_as_double({})", bits_literal(value.bits(), 64)),
                };
            }
            let text = match d {
                DType::F32 => format!("{:?}f", v as f32),
                _ => format!("{v:?}"),
            };
            if text.starts_with('-') {
                format!("({text})")
            } else {
                text
            }
        }
        DType::I64 if value.as_i64() == i64::MIN => "(-9223372036854775807LL - 1)".into(),
        DType::I32 if value.as_i64() == i32::MIN as i64 => "(-2147483647 - 1)".into(),
        d if d.is_signed_int() => {
            let suffix = if d == DType::I64 { "LL" } else { "" };
            let v = value.as_i64();
            let text = format!("{v}{suffix}");
            let text = if v < 0 { format!("({text})") } else { text };
            if d.bits() < 32 { format!("({d}){text}") } else { text }
        }
        DType::U64 => format!("{}ULL", value.bits()),
        DType::U32 => format!("{}u", value.bits()),
        d => format!("({d}){}", value.bits()),
    }
}

/// Name of the C math function on floats, if that is what an operation is. Functions that were not legalized have C's names.
fn math_function(op: ScalarOp) -> Option<&'static str> {
    use ScalarOp::*;
    Some(match op {
        Abs => "fabs",
        Floor => "floor",
        Ceil => "ceil",
        Round => "rint",
        Trunc => "trunc",
        Sqrt => "sqrt",
        Rem => "fmod",
        Fma => "fma",
        op if op.cost() == Cost::Function => op.name(),
        _ => return None,
    })
}

/// A scalar operation on operands of dtype `on` (for select: its values).
pub(super) fn map(h: &mut Helpers, op: ScalarOp, on: DType, a: &[String]) -> Result<String, CudaError> {
    use ScalarOp::*;
    // Other exponentials have become formulas: what is left is `Op::ShortExp2` of the kernel language.
    if op == Exp2 && on == DType::F32 {
        let f = h.need("short_exp2".into(), |n| {
            format!(
                "f32 {n}(f32 x) {{\n    f32 r;\n    asm(\"ex2.approx.ftz.f32 %0, %1;\" : \"=f\"(r) : \"f\"(x));\n    return r;\n}}"
            )
        });
        return Ok(format!("{f}({})", a[0]));
    }
    let arg = |i: usize| a.get(i).map_or("", |s| &s[..]);
    let (x, y) = (arg(0), arg(1));
    if op == Select {
        return Ok(format!("{x} ? {y} : {}", arg(2)));
    }
    if matches!(on, DType::F16 | DType::BF16) {
        return Err(CudaError::Unsupported(format!("{op} on {on}")));
    }
    match op {
        Eq => return Ok(format!("{x} == {y}")),
        Ne => return Ok(format!("{x} != {y}")),
        Lt => return Ok(format!("{x} < {y}")),
        Le => return Ok(format!("{x} <= {y}")),
        _ => {}
    }
    if on.is_float() {
        return float(h, op, on, a);
    }
    if on == DType::Bool {
        return Ok(match op {
            Not => format!("!{x}"),
            And | Min => format!("{x} & {y}"),
            Or | Max => format!("{x} | {y}"),
            Xor => format!("{x} ^ {y}"),
            _ => return Err(CudaError::Unsupported(format!("{op} on bool"))),
        });
    }
    integer(h, op, on, x, y)
}

/// An operation on f32 by the device's approximation.
pub(super) fn approximate(h: &mut Helpers, op: ScalarOp, a: &[String]) -> Result<String, CudaError> {
    let unary = match op {
        ScalarOp::Exp2 => "ex2.approx.ftz.f32",
        // Of these it matters what is no normal number, and costs no more than an instruction or two.
        ScalarOp::Log2 => "lg2.approx.f32",
        ScalarOp::Sqrt => "sqrt.approx.f32",
        ScalarOp::Rsqrt => "rsqrt.approx.f32",
        ScalarOp::Div => "rcp.approx.ftz.f32",
        _ => return Err(CudaError::Unsupported(format!("an approximate {op}"))),
    };
    let (name, of) = match op {
        ScalarOp::Div => ("approximate_reciprocal".into(), &a[1]),
        _ => (format!("approximate_{op}"), &a[0]),
    };
    let f = h.need(name, |n| {
        format!(
            "f32 {n}(f32 x) {{\n    f32 r;\n    asm(\"{unary} %0, %1;\" : \"=f\"(r) : \"f\"(x));\n    return r;\n}}"
        )
    });
    Ok(match op {
        ScalarOp::Div => format!("{} * {f}({of})", a[0]),
        _ => format!("{f}({of})"),
    })
}

fn float(h: &mut Helpers, op: ScalarOp, on: DType, a: &[String]) -> Result<String, CudaError> {
    use ScalarOp::*;
    let suffix = if on == DType::F32 { "f" } else { "" };
    let t = on.name();
    let (one, zero) = if on == DType::F32 {
        ("1.0f", "0.0f")
    } else {
        ("1.0", "0.0")
    };
    if let Some(name) = math_function(op) {
        return Ok(format!("{name}{suffix}({})", a.join(", ")));
    }
    let arg = |i: usize| a.get(i).map_or("", |s| &s[..]);
    let (x, y) = (arg(0), arg(1));
    Ok(match op {
        Neg => format!("-{x}"),
        Add => format!("{x} + {y}"),
        Sub => format!("{x} - {y}"),
        Mul => format!("{x} * {y}"),
        Div => format!("{x} / {y}"),
        Rsqrt => format!("{one} / sqrt{suffix}({x})"),
        Sign => {
            let f = h.need(format!("sign_{t}"), |n| {
                format!("{t} {n}({t} x) {{ return x > {zero} ? {one} : x < {zero} ? -{one} : x; }}")
            });
            format!("{f}({x})")
        }
        // PTX orders zeros (PTX ISA, "max").
        Max | Min if on == DType::F32 => {
            let f = h.need(format!("{op}_{t}"), |n| {
                format!(
                    "{t} {n}({t} a, {t} b) {{\n    {t} r;\n    asm(\"{op}.NaN.f32 %0, %1, %2;\" : \"=f\"(r) : \"f\"(a), \"f\"(b));\n    \
                     return r;\n}}"
                )
            });
            format!("{f}({x}, {y})")
        }
        // There is none for NaN in f64. What is equal has equal bits but for zeros.
        Max | Min => {
            let (sign, joined) = if op == Max { (">", "&") } else { ("<", "|") };
            let f = h.need(format!("{op}_{t}"), |n| {
                format!(
                    "{t} {n}({t} a, {t} b) {{\n    if (a == b) return __longlong_as_double(__double_as_longlong(a) {joined} \
                     __double_as_longlong(b));\n    return a != a ? a : (b {sign} a || b != b) ? b : a;\n}}"
                )
            });
            format!("{f}({x}, {y})")
        }
        Mod => {
            let f = h.need(format!("mod_{t}"), |n| {
                format!(
                    "{t} {n}({t} x, {t} y) {{\n    {t} r = fmod{suffix}(x, y);\n    if (r == {zero}) return \
                     copysign{suffix}(r, y);\n    return (r < {zero}) != (y < {zero}) ? r + y : r;\n}}"
                )
            });
            format!("{f}({x}, {y})")
        }
        _ => return Err(CudaError::Unsupported(format!("{op} on {on}"))),
    })
}

fn integer(h: &mut Helpers, op: ScalarOp, on: DType, x: &str, y: &str) -> Result<String, CudaError> {
    use ScalarOp::*;
    let t = on.name();
    let u = unsigned(on);
    let signed = on.is_signed_int();
    // Arithmetic wraps: it is done on unsigned numbers of at least 32 bits.
    let wrap = |sign: &str| {
        if on == DType::U32 || on == DType::U64 {
            format!("{x} {sign} {y}")
        } else {
            format!("({t})(({u}){x} {sign} ({u}){y})")
        }
    };
    let two = |h: &mut Helpers, body: String| {
        let f = h.need(format!("{op}_{t}"), |n| {
            format!("{t} {n}({t} a, {t} b) {{\n    {body}\n}}")
        });
        format!("{f}({x}, {y})")
    };
    let bits = on.bits();
    Ok(match op {
        Add => wrap("+"),
        Sub => wrap("-"),
        Mul => wrap("*"),
        Neg => format!("({t})(({u})0 - ({u}){x})"),
        Abs if !signed => x.to_string(),
        Abs => format!("({x} < 0 ? ({t})(({u})0 - ({u}){x}) : {x})"),
        Sign if !signed => format!("({t})({x} != 0)"),
        Sign => format!("({t})(({x} > 0) - ({x} < 0))"),
        Not => format!("({t})~{x}"),
        And => format!("({t})({x} & {y})"),
        Or => format!("({t})({x} | {y})"),
        Xor => format!("({t})({x} ^ {y})"),
        Max => format!("({x} > {y} ? {x} : {y})"),
        Min => format!("({x} < {y} ? {x} : {y})"),
        // The device's own instruction for bytes of two signs is in PTX alone.
        Dot4 => two(
            h,
            "return (a & 255) * (i8)b + (a >> 8 & 255) * (i8)(b >> 8) + (a >> 16 & 255) * (i8)(b >> 16) + (a >> 24 & 255) * \
             (i8)(b >> 24);"
                .into(),
        ),
        Div if signed => two(
            h,
            format!("return b == 0 ? ({t})0 : b == -1 ? ({t})(({u})0 - ({u})a) : ({t})(a / b);"),
        ),
        Div => two(h, format!("return b == 0 ? ({t})0 : ({t})(a / b);")),
        Rem if signed => two(h, format!("return b == 0 ? a : b == -1 ? ({t})0 : ({t})(a % b);")),
        Mod if signed => two(
            h,
            format!(
                "if (b == 0) return a;\n    if (b == -1) return 0;\n    {t} r = ({t})(a % b);\n    return r != 0 && (r < 0) \
                 != (b < 0) ? ({t})(r + b) : r;"
            ),
        ),
        Rem | Mod => two(h, format!("return b == 0 ? a : ({t})(a % b);")),
        Shl if signed => two(
            h,
            format!("return b < 0 || b >= {bits} ? ({t})0 : ({t})(({u})a << (int)b);"),
        ),
        Shl => two(h, format!("return b >= {bits} ? ({t})0 : ({t})(({u})a << (int)b);")),
        Shr if signed => two(
            h,
            format!("return ({t})(b < 0 || b >= {bits} ? (a < 0 ? -1 : 0) : a >> (int)b);"),
        ),
        Shr => two(h, format!("return b >= {bits} ? ({t})0 : ({t})(a >> (int)b);")),
        _ => return Err(CudaError::Unsupported(format!("{op} on {on}"))),
    })
}

/// The same bits as another dtype of equal width.
pub(super) fn bitcast(to: DType, from: DType, x: &str) -> Result<String, CudaError> {
    if to.bits() != from.bits() || to == DType::Bool || from == DType::Bool {
        return Err(CudaError::Unsupported(format!("bitcast of {from} to {to}")));
    }
    Ok(match (to, from) {
        (DType::F32, _) => format!("__int_as_float((i32){x})"),
        (_, DType::F32) => format!("({to})__float_as_int({x})"),
        (DType::F64, _) => format!("__longlong_as_double((i64){x})"),
        (_, DType::F64) => format!("({to})__double_as_longlong({x})"),
        // The bits above a narrower value are dropped.
        _ if to.value_bits() < 8 && from.value_bits() > to.value_bits() => {
            format!("({to})({x} & {})", (1 << to.value_bits()) - 1)
        }
        // f16, bf16 and storage values are their bits.
        _ => format!("({to}){x}"),
    })
}

/// Conversion between dtypes.
pub(super) fn convert(h: &mut Helpers, to: DType, from: DType, x: &str) -> Result<String, CudaError> {
    use DType::*;
    if to == from {
        return Ok(x.to_string());
    }
    if to.is_storage() || from.is_storage() {
        return Err(CudaError::Unsupported(format!("{from} to {to} (legalize to integers)")));
    }
    if matches!(from, F16 | BF16) {
        let wide = widen(h, from, x);
        return if to == F32 {
            Ok(wide)
        } else {
            convert(h, to, F32, &wide)
        };
    }
    Ok(match to {
        Bool => format!("{x} != 0"),
        F16 => match from {
            // Whole numbers that f32 would round are infinite in f16 either way.
            F64 => {
                let f = h.need("f16_of_f64".into(), |n| {
                    format!(
                        "f16 {n}(f64 x) {{\n    f16 r;\n    asm(\"cvt.rn.f16.f64 %0, %1;\" : \"=h\"(r) : \"d\"(x));\n    \
                         return r;\n}}"
                    )
                });
                format!("{f}({x})")
            }
            _ => {
                let f = h.need("f16_of_f32".into(), |n| {
                    format!(
                        "f16 {n}(f32 x) {{\n    f16 r;\n    asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(r) : \"f\"(x));\n    \
                         return r;\n}}"
                    )
                });
                format!("{f}((f32){x})")
            }
        },
        BF16 => bf16_of(h, from, x),
        F32 | F64 => format!("({to}){x}"),
        _ if from.is_float() => int_of_float(h, to, from, x),
        _ => format!("({to}){x}"),
    })
}

/// f16 or bf16 as f32, exactly.
fn widen(h: &mut Helpers, from: DType, x: &str) -> String {
    let f = match from {
        DType::F16 => h.need("f32_of_f16".into(), |n| {
            format!(
                "f32 {n}(f16 x) {{\n    f32 r;\n    asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(r) : \"h\"(x));\n    return r;\n}}"
            )
        }),
        _ => h.need("f32_of_bf16".into(), |n| {
            format!("f32 {n}(bf16 x) {{ return __uint_as_float((u32)x << 16); }}")
        }),
    };
    format!("{f}({x})")
}

/// A float rounded to bf16 and widened again. The instruction that rounds two at once has the second in its upper half, where it is the float:
/// that which rounds one is of a unit with a quarter of the throughput (SASS of CUDA 13: `F2FP` and `F2F`).
pub(super) fn rounded_to_bf16(h: &mut Helpers, x: &str) -> String {
    let rounded = h.need("rounded_to_bf16".into(), |n| {
        format!(
            "f32 {n}(f32 x) {{\n    u32 r;\n    asm(\"cvt.rn.bf16x2.f32 %0, %1, %2;\" : \"=r\"(r) : \"f\"(x), \"f\"(0.0f));\n    return __uint_as_float(r);\n}}"
        )
    });
    format!("{rounded}({x})")
}

/// To bf16, rounded once to nearest, ties to even.
fn bf16_of(h: &mut Helpers, from: DType, x: &str) -> String {
    let narrow = h.need("bf16_of_f32".into(), |n| {
        format!(
            "bf16 {n}(f32 x) {{\n    bf16 r;\n    asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(r) : \"f\"(x));\n    return r;\n}}"
        )
    });
    let exact_in_f32 = from == DType::F32 || from == DType::Bool || (from.is_int() && from.bits() <= 16);
    if exact_in_f32 {
        return format!("{narrow}((f32){x})");
    }
    // Round to odd in f32 first, so that the second rounding sees that bits were lost.
    let double = h.need("bf16_of_f64".into(), |n| {
        format!(
            "bf16 {n}(f64 x) {{\n    f32 s = __double2float_rz(x);\n    bool inexact = (f64)s != x && x == x && fabsf(s) <= \
             3.4028235e38f;\n    return {narrow}(inexact ? __uint_as_float(__float_as_uint(s) | 1u) : (f32)s);\n}}"
        )
    });
    if from == DType::F64 || from.bits() <= 32 {
        return format!("{double}((f64){x})");
    }
    let (to_double, back) = if from == DType::I64 {
        ("__ll2double_rz", "i64")
    } else {
        ("__ull2double_rz", "u64")
    };
    let f = h.need(format!("bf16_of_{from}"), |n| {
        format!(
            "bf16 {n}({from} x) {{\n    f64 d = {to_double}(x);\n    bool inexact = ({back})d != x;\n    return \
             {double}(inexact ? __longlong_as_double(__double_as_longlong(d) | 1LL) : d);\n}}"
        )
    });
    format!("{f}({x})")
}

/// Truncated, saturated, NaN is 0: as the instruction does, but that NaN is the least number where one of the two has 64 bits (PTX ISA, "cvt").
fn int_of_float(h: &mut Helpers, to: DType, from: DType, x: &str) -> String {
    let sign = if to.is_signed_int() { 's' } else { 'u' };
    let bits = to.bits().max(32);
    let (register, through) = match (bits, to.is_signed_int()) {
        (32, true) => ('r', "int"),
        (32, false) => ('r', "u32"),
        (_, true) => ('l', "i64"),
        (_, false) => ('l', "u64"),
    };
    let source = if from == DType::F64 { 'd' } else { 'f' };
    let nan = if bits == 64 || from == DType::F64 {
        "    if (x != x) return 0;\n"
    } else {
        ""
    };
    let mut inside = String::from("r");
    if to.bits() < 32 {
        inside = format!("r < {0} ? r : {0}", to.highest().as_i64());
        if to.is_signed_int() {
            inside = format!("r > {0} ? ({inside}) : {0}", to.lowest().as_i64());
        }
    }
    let f = h.need(format!("{to}_of_{from}"), |n| {
        format!(
            "{to} {n}({from} x) {{\n{nan}    {through} r;\n    asm(\"cvt.rzi.{sign}{bits}.f{width} %0, %1;\" : \"={register}\"(r) : \"{source}\"(x));\n    return ({to})({inside});\n}}",
            width = from.bits(),
        )
    });
    format!("{f}({x})")
}
