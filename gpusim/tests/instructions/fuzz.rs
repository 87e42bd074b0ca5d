//! Texts that are broken anywhere: an error or a module, never a panic; and what still parses runs, or is refused, without one.

use tlc_gpusim::{Argument, Device, Launch, Module, Options, Swizzle, TENSOR_MAP_BYTES, TensorMap};

use crate::Random;

const TEXTS: [&str; 7] = [
    include_str!("../kernels/programs.sm_80.ptx"),
    include_str!("../kernels/programs.sm_100.ptx"),
    include_str!("../kernels/broken.sm_80.ptx"),
    include_str!("../kernels/wgmma_broken.sm_90a.ptx"),
    include_str!("../kernels/tiles.sm_90a.ptx"),
    include_str!("../kernels/tiles_broken.sm_90a.ptx"),
    include_str!("../kernels/tiles_right.sm_90a.ptx"),
];

/// One kernel of a text, with what stands before the first.
fn kernel(text: &str, random: &mut Random) -> String {
    let starts: Vec<usize> = text.match_indices(".visible .entry").map(|(at, _)| at).collect();
    let pick = random.below(starts.len() as u64) as usize;
    let end = starts.get(pick + 1).copied().unwrap_or(text.len());
    format!("{}{}", &text[..starts[0]], &text[starts[pick]..end])
}

fn mutated(text: &str, other: &str, random: &mut Random) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    for _ in 0..=random.below(3) {
        let at = random.below(lines.len() as u64) as usize;
        match random.below(6) {
            0 => {
                lines.remove(at);
            }
            1 => {
                let from = random.below(lines.len() as u64) as usize;
                lines.swap(at, from);
            }
            2 => {
                let others: Vec<&str> = other.lines().collect();
                lines.insert(at, others[random.below(others.len() as u64) as usize].to_string());
            }
            3 => {
                let line = lines[at].clone();
                lines.insert(at, line);
            }
            _ => {
                let mut bytes: Vec<char> = lines[at].chars().collect();
                if !bytes.is_empty() {
                    let i = random.below(bytes.len() as u64) as usize;
                    let pool: Vec<char> = "0129.,;%[]{}+-|!@fuxbsrdpX_ 8".chars().collect();
                    let c = pool[random.below(pool.len() as u64) as usize];
                    match random.below(3) {
                        0 => bytes[i] = c,
                        1 => bytes.insert(i, c),
                        _ => {
                            bytes.remove(i);
                        }
                    }
                }
                lines[at] = bytes.into_iter().collect();
            }
        }
        if lines.is_empty() {
            break;
        }
    }
    lines.join("\n")
}

#[test]
fn mutated_texts_do_not_panic() {
    let mut random = Random::new(17);
    let (mut good, mut bad) = (0, 0);
    for _ in 0..3000 {
        let text = TEXTS[random.below(TEXTS.len() as u64) as usize];
        let one = kernel(text, &mut random);
        let other = kernel(TEXTS[random.below(TEXTS.len() as u64) as usize], &mut random);
        match Module::parse(&mutated(&one, &other, &mut random)) {
            Err(e) => {
                assert!(e.line > 0 && !e.message.is_empty());
                bad += 1;
            }
            Ok(module) => {
                good += 1;
                run(&module, &mut random);
            }
        }
    }
    assert!(good > 200 && bad > 200, "{good} good, {bad} bad");
}

/// Launches a kernel with arguments that mean nothing.
fn run(module: &Module, random: &mut Random) {
    for kernel in module.kernels() {
        let parameters = module.kernel(kernel).map(|k| k.parameters).unwrap_or_default();
        for count in 0..8 {
            let mut device = Device::default();
            let threads = if random.below(2) == 0 { 33 } else { 130 };
            let mut launch = Launch::new(2, threads).shared(if random.below(2) == 0 { 256 } else { 1 << 16 });
            for i in 0..count {
                let at = device.allocate(4096).unwrap();
                device.write(at, &[1; 4000]).unwrap();
                let is_map = parameters.get(i).is_some_and(|p| p.1 as usize == TENSOR_MAP_BYTES);
                launch = if is_map {
                    launch.arg(map(at, random))
                } else if random.below(4) == 0 {
                    launch.arg(40_u32)
                } else {
                    launch.arg(at)
                };
            }
            let options = Options {
                patience: 3_000,
                limit: 20_000,
                seed: random.next(),
                ..Options::default()
            };
            // Most do not fit the kernel's parameters.
            let _ = device.launch(module, kernel, &launch, &options);
        }
    }
}

/// The map of a tensor with tiles of any size, that is larger than its memory or not; or what is none.
fn map(at: u64, random: &mut Random) -> Argument {
    let map = TensorMap {
        address: at,
        element_bytes: 4,
        sizes: vec![32, 1 + random.below(40)],
        strides: vec![128],
        tile: vec![32, 1 + random.below(256) as u32],
        swizzle: [Swizzle::None, Swizzle::Bytes128][random.below(2) as usize],
    };
    let mut bytes = map.encode().unwrap().to_vec();
    if random.below(4) == 0 {
        bytes[random.below(TENSOR_MAP_BYTES as u64) as usize] ^= 4;
    }
    Argument(bytes)
}

#[test]
fn pieces_of_text_do_not_panic() {
    for text in TEXTS {
        for end in (0..text.len().min(12_000)).step_by(13) {
            let _ = Module::parse(&text[..end]);
            let _ = Module::parse(&text[end..text.len().min(end + 700)]);
        }
    }
    for text in [
        "",
        ";",
        "{",
        ".version",
        ".version 9.",
        ".entry",
        ".reg",
        "\0",
        "é",
        "/*",
        "\"",
        ".shared .b8 x[99999999999999999999];",
    ] {
        let _ = Module::parse(text);
    }
}

#[test]
fn what_is_not_known_names_its_line() {
    let text = ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry k() {\n.reg .b32 %r<3>;\nret;\n";
    let error = |line: &str| Module::parse(&format!("{text}{line}\n}}")).unwrap_err().to_string();
    assert_eq!(
        error("tex.1d.v4.f32.s32 {%r1}, [%r0];"),
        "PTX line 7: `tex.1d.v4.f32.s32` is not an instruction that the simulator knows"
    );
    assert_eq!(
        error("add.fancy.s32 %r0, %r1, %r2;"),
        "PTX line 7: `add.fancy.s32` has a modifier `.fancy` that the simulator does not know"
    );
    assert_eq!(
        error("add.s32 %r0, %r1, %r9;"),
        "PTX line 7: `add.s32` names `%r9`, which is not declared"
    );
}
