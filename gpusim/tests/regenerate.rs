//! The PTX texts beside the CUDA C++ sources are what NVRTC makes of them.
//!
//! Skipped where NVRTC is not, or is another build than the one that made them; `TLC_GPUSIM_REGENERATE=1` writes them in place of
//! comparing.

use std::path::Path;

use tlc_runtime::nvrtc::Nvrtc;

/// Source, text, and what NVRTC is given.
const TEXTS: [(&str, &str, &str, &[&str]); 11] = [
    ("programs.cu", "programs.sm_80.ptx", "compute_80", &[]),
    ("programs.cu", "programs.sm_100.ptx", "compute_100", &[]),
    ("broken.cu", "broken.sm_80.ptx", "compute_80", &["-DBROKEN"]),
    ("broken.cu", "right.sm_80.ptx", "compute_80", &[]),
    ("wgmma.cu", "wgmma.sm_90a.ptx", "compute_90a", &[]),
    (
        "wgmma_broken.cu",
        "wgmma_broken.sm_90a.ptx",
        "compute_90a",
        &["-DBROKEN"],
    ),
    ("wgmma_broken.cu", "wgmma_right.sm_90a.ptx", "compute_90a", &[]),
    ("tiles.cu", "tiles.sm_90a.ptx", "compute_90a", &[]),
    (
        "tiles_broken.cu",
        "tiles_broken.sm_90a.ptx",
        "compute_90a",
        &["-DBROKEN"],
    ),
    ("tiles_broken.cu", "tiles_right.sm_90a.ptx", "compute_90a", &[]),
    ("tlc_gather.cu", "tlc_gather.sm_80.ptx", "compute_80", &[]),
];

/// Without the folder that NVRTC puts before the name of the source.
fn without_folder(ptx: &str) -> String {
    let line = |l: &str| {
        let named = l.split_once("\t\"").or_else(|| l.split_once(" \""));
        match named.filter(|_| l.contains(".file")) {
            Some((before, path)) => format!("{before} \"{}", path.rsplit('/').next().unwrap_or(path)),
            None => l.to_string(),
        }
    };
    ptx.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

/// The line that says which build of the compiler made a text.
fn build(ptx: &str) -> Option<&str> {
    ptx.lines().find(|l| l.contains("Compiler Build ID"))
}

#[test]
fn texts_are_what_nvrtc_makes() {
    let nvrtc = match Nvrtc::load() {
        Ok(nvrtc) => nvrtc,
        Err(e) => {
            println!("SKIP: {e}");
            return;
        }
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels");
    for (source, text, arch, options) in TEXTS {
        let code = std::fs::read_to_string(folder.join(source)).unwrap();
        let options = [options, &["-lineinfo"]].concat();
        let made = nvrtc.compile_to_ptx(&code, source, arch, &options).unwrap();
        let made = without_folder(&made);
        if std::env::var_os("TLC_GPUSIM_REGENERATE").is_some() {
            std::fs::write(folder.join(text), &made).unwrap();
        }
        let kept = std::fs::read_to_string(folder.join(text)).unwrap();
        if build(&made) != build(&kept) {
            println!(
                "SKIP: {text} is of another build of NVRTC: {:?}, not {:?}",
                build(&kept),
                build(&made)
            );
            return;
        }
        assert!(made == kept, "{text} is not up to date");
    }
}
