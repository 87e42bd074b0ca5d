//! Each instruction on random and on extreme operands, against references that share nothing with the simulator.

mod floats;
mod fuzz;
mod integers;
mod lanes;
mod small;

use tlc_gpusim::{Device, Launch, Module, Options};

/// Bits without a pattern.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) const fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }
}

/// How many lanes run an instruction.
pub(crate) const COUNT: usize = 2048;

/// The bits of a register type.
fn bits(ty: &str) -> usize {
    match ty {
        "pred" => 1,
        t if t.ends_with('8') => 8,
        "f16" | "bf16" => 16,
        t if t.ends_with("x2") => 32,
        t if t.ends_with("16") => 16,
        t if t.ends_with("32") => 32,
        _ => 64,
    }
}

/// Runs `instruction`, which reads `%a`, `%b` and `%c` and writes `%d`, each of 16, 32 or 64 bits, on columns of operands.
pub(crate) fn run(instruction: &str, d: &str, sources: [&str; 3], operands: &[[u64; 3]]) -> Vec<u64> {
    let width = |ty: &str| bits(ty).max(16);
    let mut text = String::from(".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k(");
    text += ".param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {\n";
    text += ".reg .b32 %i; .reg .b32 %n; .reg .b64 %at; .reg .b64 %p; .reg .pred %q, %r;\n";
    for (name, ty) in ["a", "b", "c", "d"].iter().zip([sources[0], sources[1], sources[2], d]) {
        text += &format!(".reg .b{} %{name};\n", width(ty));
    }
    text += "mov.u32 %i, %tid.x; mov.u32 %n, %ctaid.x; mad.lo.s32 %i, %n, 128, %i;\n";
    for (name, ty) in ["a", "b", "c"].iter().zip(sources) {
        text += &format!(
            "ld.param.u64 %p, [p{name}]; mul.wide.u32 %at, %i, {}; add.s64 %at, %at, %p;\n",
            width(ty) / 8
        );
        text += &format!("ld.global.b{} %{name}, [%at];\n", width(ty));
    }
    text += instruction;
    text += &format!(
        "\nld.param.u64 %p, [pd]; mul.wide.u32 %at, %i, {}; add.s64 %at, %at, %p;\n",
        width(d) / 8
    );
    text += &format!("st.global.b{} [%at], %d; ret; }}\n", width(d));
    let module = Module::parse(&text).unwrap_or_else(|e| panic!("{instruction}: {e}"));
    let mut device = Device::default();
    let count = operands.len().next_multiple_of(128);
    let mut launch = Launch::new((count / 128) as u32, 128);
    for (column, ty) in sources.iter().enumerate() {
        let bytes = width(ty) / 8;
        let at = device.allocate((count * bytes) as u64).unwrap();
        let value = |i: usize| operands.get(i).map_or(0, |o| o[column]);
        let data: Vec<u8> = (0..count)
            .flat_map(|i| value(i).to_le_bytes()[..bytes].to_vec())
            .collect();
        device.write(at, &data).unwrap();
        launch = launch.arg(at);
    }
    let bytes = width(d) / 8;
    let out = device.allocate((count * bytes) as u64).unwrap();
    let report = device
        .launch(&module, "k", &launch.arg(out), &Options::default())
        .unwrap();
    assert!(report.is_clean(), "{instruction}: {report}");
    let mut data = vec![0; count * bytes];
    device.read(out, &mut data).unwrap();
    let value = |chunk: &[u8]| {
        let mut all = [0; 8];
        all[..bytes].copy_from_slice(chunk);
        u64::from_le_bytes(all)
    };
    data.chunks(bytes).take(operands.len()).map(value).collect()
}

/// Operands of some widths: edges and any bits.
pub(crate) fn any_bits(widths: [usize; 3], seed: u64) -> Vec<[u64; 3]> {
    let mut random = Random::new(seed);
    let mut one = |width: usize| {
        let mask = if width == 64 { u64::MAX } else { (1 << width) - 1 };
        let edges = [
            0,
            1,
            2,
            mask,
            mask >> 1,
            (mask >> 1) + 1,
            mask - 1,
            width as u64,
            width as u64 - 1,
        ];
        match random.below(4) {
            0 => edges[random.below(9) as usize] & mask,
            1 => random.below(2 * width as u64) & mask,
            _ => random.next() & mask,
        }
    };
    (0..COUNT).map(|_| widths.map(&mut one)).collect()
}
