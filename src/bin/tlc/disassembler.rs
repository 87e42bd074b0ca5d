//! Machine code of GPUs as text, by NVIDIA's `nvdisasm`.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::NamedTempFile;
use tlc_runtime::nvrtc::Nvrtc;

use crate::failure::{Code, Failure};

const NAME: &str = if cfg!(windows) { "nvdisasm.exe" } else { "nvdisasm" };

/// The disassembler.
pub struct Disassembler {
    program: OsString,
}

impl Disassembler {
    /// What `TLC_NVDISASM` names; else the one of the toolkit or of the Python packages that NVRTC is of, of `/usr/local/cuda`, or of the
    /// search path.
    pub fn find(nvrtc: &Nvrtc) -> Disassembler {
        let set = std::env::var_os("TLC_NVDISASM").filter(|set| !set.is_empty());
        let beside = nvrtc.path().parent().and_then(Path::parent).map(|p| p.join("bin"));
        let folders = beside.into_iter().chain([PathBuf::from("/usr/local/cuda/bin")]);
        let there = || folders.map(|f| f.join(NAME)).find(|p| p.is_file());
        Disassembler {
            program: set
                .or_else(|| there().map(PathBuf::into_os_string))
                .unwrap_or_else(|| NAME.into()),
        }
    }

    /// The instructions of a CUBIN.
    pub fn disassemble(&self, cubin: &[u8]) -> Result<String, Failure> {
        let program = self.program.to_string_lossy();
        let unwritten = |e: std::io::Error| Failure::new(Code::Limit, format!("a temporary file for {program}: {e}"));
        // It reads no standard input.
        let mut file = NamedTempFile::new().map_err(unwritten)?;
        file.write_all(cubin).map_err(unwritten)?;
        let ran = Command::new(&self.program)
            .arg(file.path())
            .stdin(Stdio::null())
            .output();
        let output = ran.map_err(|e| {
            let why = match e.kind() {
                ErrorKind::NotFound => {
                    "not found; the Python package nvidia-cuda-nvdisasm or the CUDA toolkit has it, and TLC_NVDISASM may say where it is".into()
                }
                _ => e.to_string(),
            };
            Failure::new(Code::Unsupported, format!("{program}: {why}"))
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let first = said.lines().find(|l| !l.trim().is_empty()).unwrap_or("it said nothing");
            return Err(Failure::new(
                Code::Unsupported,
                format!("{program}: {}: {first}", output.status),
            ));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
