//! How fast the simulator is: lane-instructions a second, with and without checks.
//!
//! `cargo run --release -p tlc-gpusim --example speed`

use std::time::Instant;

use tlc_gpusim::{Device, Launch, Module, Options};

const TEXT: &str = include_str!("../tests/kernels/programs.sm_80.ptx");

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let module = Module::parse(TEXT)?;
    let mut device = Device::default();
    let n = 1_u32 << 18;
    let (x, y, z) = (
        device.allocate(4 << 18)?,
        device.allocate(4 << 18)?,
        device.allocate(4 << 18)?,
    );
    let ones: Vec<u8> = (0..n).flat_map(|i| (i % 1000 + 1).to_le_bytes()).collect();
    for at in [x, y, z] {
        device.write(at, &ones)?;
    }
    let mut product = Launch::new(1, 1)
        .arg(x)
        .arg(y)
        .arg(z)
        .arg(256_i32)
        .arg(256_i32)
        .arg(256_i32);
    product.grid = [16, 16, 1];
    product.block = [16, 16, 1];
    let launches = [
        ("product", product),
        ("grid_stride", Launch::new(256, 256).arg(x).arg(y).arg(z).arg(n as i32)),
        ("collatz", Launch::new(256, 256).arg(x).arg(y).arg(65_536_i32)),
        ("softmax", Launch::new(256, 128).shared(512).arg(x).arg(z).arg(1024_i32)),
    ];
    for (kernel, launch) in launches {
        for (name, options) in [("with all checks", Options::default()), ("without", Options::fast())] {
            let start = Instant::now();
            let report = device.launch(&module, kernel, &launch, &options)?;
            let seconds = start.elapsed().as_secs_f64();
            let count = report.counters.lane_instructions();
            println!(
                "{kernel:12} {name:15} {:7.1} M lane-instructions a second ({count})",
                count as f64 / seconds / 1e6
            );
        }
    }
    Ok(())
}
