//! Which instructions the wide emitter may use here.
//!
//! `TLC_CPU` forces a level: `avx512`, or `sse` for the portable emitter alone. A level that the processor lacks is not offered, whatever
//! it says.

use std::sync::OnceLock;

use tlc_codegen::wide::Level;

/// The environment variable that forces a level.
pub const VARIABLE: &str = "TLC_CPU";

/// The widest level of this machine, if the wide emitter has one for it.
pub fn wide() -> Option<Level> {
    static LEVEL: OnceLock<Option<Level>> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var(VARIABLE).as_deref() {
        Ok("sse") => None,
        _ => detect(),
    })
}

#[cfg(all(target_arch = "x86_64", unix))]
fn detect() -> Option<Level> {
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512cd")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    avx512.then_some(Level::Avx512)
}

/// Its code is for x86-64 and the System V calling convention.
#[cfg(not(all(target_arch = "x86_64", unix)))]
fn detect() -> Option<Level> {
    None
}
