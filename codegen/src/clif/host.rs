//! Functions of the host that generated code calls: what has no instruction and no kernel form.

use cranelift_codegen::ir::{
    AbiParam, ExtFuncData, ExternalName, InstBuilder, Signature, Type, UserExternalName, Value, types,
};

use super::{Result, Translator};

/// A function of the host, called by number. The runtime supplies one address per entry of [`HOST_FUNCTIONS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostFunction {
    /// `fma(f32, f32, f32) -> f32`, rounded once.
    FmaF32,
    /// `fma(f64, f64, f64) -> f64`, rounded once.
    FmaF64,
    /// C's `fmodf`.
    RemF32,
    /// C's `fmod`.
    RemF64,
    /// Floored remainder, f32.
    ModF32,
    /// Floored remainder, f64.
    ModF64,
    /// f16 bits (in the low half of a u32) to f32.
    F16ToF32,
    /// f64 to f16 bits (in a u32), rounded once.
    F64ToF16,
    /// f64 to bf16 bits (in a u32), rounded once.
    F64ToBF16,
    /// i64 to f16 bits (in a u32), rounded once.
    I64ToF16,
    /// i64 to bf16 bits (in a u32), rounded once.
    I64ToBF16,
    /// u64 to f16 bits (in a u32), rounded once.
    U64ToF16,
    /// u64 to bf16 bits (in a u32), rounded once.
    U64ToBF16,
}

/// Every host function, in the order of their numbers.
pub const HOST_FUNCTIONS: [HostFunction; 13] = [
    HostFunction::FmaF32,
    HostFunction::FmaF64,
    HostFunction::RemF32,
    HostFunction::RemF64,
    HostFunction::ModF32,
    HostFunction::ModF64,
    HostFunction::F16ToF32,
    HostFunction::F64ToF16,
    HostFunction::F64ToBF16,
    HostFunction::I64ToF16,
    HostFunction::I64ToBF16,
    HostFunction::U64ToF16,
    HostFunction::U64ToBF16,
];

impl HostFunction {
    /// Parameter types and result type.
    pub fn types(self) -> (&'static [Type], Type) {
        use HostFunction::*;
        const F32: &[Type] = &[types::F32, types::F32, types::F32];
        const F64: &[Type] = &[types::F64, types::F64, types::F64];
        match self {
            FmaF32 => (F32, types::F32),
            FmaF64 => (F64, types::F64),
            RemF32 | ModF32 => (&F32[..2], types::F32),
            RemF64 | ModF64 => (&F64[..2], types::F64),
            F16ToF32 => (&[types::I32], types::F32),
            F64ToF16 | F64ToBF16 => (&F64[..1], types::I32),
            I64ToF16 | I64ToBF16 | U64ToF16 | U64ToBF16 => (&[types::I64], types::I32),
        }
    }

    /// The symbol name the runtime registers.
    pub fn name(self) -> String {
        format!("tlc_{self:?}")
    }
}

impl Translator<'_, '_> {
    /// Calls a host function on scalars.
    pub(super) fn call_host(&mut self, f: HostFunction, args: &[Value]) -> Result<Value> {
        let number = HOST_FUNCTIONS
            .iter()
            .position(|h| *h == f)
            .expect("every function is listed");
        let reference = match self.host[number] {
            Some(r) => r,
            None => {
                let (params, result) = f.types();
                let mut signature = Signature::new(self.builder.func.signature.call_conv);
                signature.params.extend(params.iter().map(|&t| AbiParam::new(t)));
                signature.returns.push(AbiParam::new(result));
                let signature = self.builder.import_signature(signature);
                let name = UserExternalName {
                    namespace: 0,
                    index: number as u32,
                };
                let name = self.builder.func.declare_imported_user_function(name);
                let r = self.builder.import_function(ExtFuncData {
                    name: ExternalName::user(name),
                    signature,
                    colocated: false,
                    patchable: false,
                });
                self.host[number] = Some(r);
                r
            }
        };
        let call = self.builder.ins().call(reference, args);
        Ok(self.builder.inst_results(call)[0])
    }
}
