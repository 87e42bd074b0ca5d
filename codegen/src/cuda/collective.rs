//! Collectives of a warp as shuffles.

use tlc_ir::DType;
use tlc_ir::kernel::CollectiveKind;
use tlc_ir::target::WARP_THREADS;

use super::CudaError;
use super::scalar::{self, value_type};
use super::write::Writer;
use crate::flat::Address;

/// All lanes of a warp.
const ALL: &str = "0xffffffffu";

impl Writer<'_, '_> {
    /// What the threads of a warp, or each so many of them, compute together, in the order that the kernel form defines: of a reduction that is what lane 0
    /// computes. The others combine with operands the other way round, of which only extrema of zeros tell: these lane 0 gives to all.
    pub(super) fn collective(
        &mut self,
        kind: CollectiveKind,
        threads: i64,
        address: &Address,
    ) -> Result<(), CudaError> {
        let place = self.place(address);
        let dtype = self.flat.kernel.memory_dtype(address.memory);
        let t = value_type(dtype);
        self.open("{");
        let first = match dtype {
            DType::Bool => format!("{place} != 0"),
            _ => place.clone(),
        };
        self.line(&format!("{t} all = {first};"));
        let combine = |writer: &mut Self, kind: CollectiveKind, args: [&str; 2]| match kind.monoid() {
            Some(monoid) => scalar::map(&mut writer.helpers, monoid.combine(), dtype, &args.map(String::from)),
            None => Ok(args[0].into()),
        };
        let width = match threads {
            WARP_THREADS => String::new(),
            part => format!(", {part}"),
        };
        match kind {
            CollectiveKind::Reduce(_) => {
                let combined = combine(self, kind, ["all", "other"])?;
                let mut half = threads / 2;
                while half > 0 {
                    self.open("{");
                    self.line(&format!("const {t} other = ({t})__shfl_xor_sync({ALL}, all, {half});"));
                    self.line(&format!("all = {combined};"));
                    self.close();
                    half /= 2;
                }
            }
            CollectiveKind::Scan(_) => {
                let combined = combine(self, kind, ["other", "all"])?;
                let mut step = 1;
                while step < threads {
                    self.open("{");
                    self.line(&format!(
                        "const {t} other = ({t})__shfl_up_sync({ALL}, all, {step}{width});"
                    ));
                    self.line(&format!(
                        "if ((int)threadIdx.x % {threads} >= {step}) all = {combined};"
                    ));
                    self.close();
                    step *= 2;
                }
            }
            CollectiveKind::Shift(monoid) => {
                let nothing = scalar::literal(monoid.identity(dtype));
                self.line(&format!(
                    "const {t} before = ({t})__shfl_up_sync({ALL}, all, 1{width});"
                ));
                self.line(&format!(
                    "all = (int)threadIdx.x % {threads} >= 1 ? before : {nothing};"
                ));
            }
            CollectiveKind::Broadcast(from) => {
                self.line(&format!("all = ({t})__shfl_sync({ALL}, all, {from}{width});"))
            }
        }
        self.line(&format!("{place} = all;"));
        self.close();
        Ok(())
    }
}
