//! Which accelerator libraries load here.
//!
//! Invariants: looking for a library loads and unloads it but calls nothing in it; a library that is absent or broken
//! is `None`, never an error.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The environment variable that names NVRTC for [`GpuLibraries::probe`]: the library itself, its folder, or a Python
/// `site-packages` folder that holds `nvidia/*/lib`.
pub const NVRTC_VARIABLE: &str = "TLC_NVRTC";

/// Accelerator libraries that load here. Each is the name or path that loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuLibraries {
    /// The CUDA driver.
    pub cuda_driver: Option<String>,
    /// NVIDIA's run-time compiler, newest first.
    pub nvrtc: Option<String>,
    /// NVIDIA's matrix library.
    pub cublaslt: Option<String>,
    /// Device files of NVIDIA GPUs (`/dev/nvidia0`, ...) that this process sees; a driver without any has nothing to
    /// drive.
    pub nvidia_devices: usize,
}

impl GpuLibraries {
    /// Looks for the libraries where the system's loader looks and where [`NVRTC_VARIABLE`] points.
    #[must_use]
    pub fn probe() -> Self {
        let hint = std::env::var_os(NVRTC_VARIABLE)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from);
        Self::probe_with(hint.as_deref())
    }

    /// As [`GpuLibraries::probe`], with `hint` in place of the environment variable.
    #[must_use]
    pub fn probe_with(hint: Option<&Path>) -> Self {
        let folders = hint.map(library_folders).unwrap_or_default();
        // A hint that names NVRTC itself comes first.
        let named = hint
            .filter(|path| path.is_file())
            .and_then(|path| path.to_str())
            .and_then(|path| first_loadable(&[path], &[]));
        GpuLibraries {
            cuda_driver: first_loadable(&["libcuda.so.1", "nvcuda.dll"], &[]),
            nvrtc: named.or_else(|| first_loadable(&["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"], &folders)),
            cublaslt: first_loadable(&["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"], &folders),
            nvidia_devices: (0..64)
                .filter(|i| Path::new(&format!("/dev/nvidia{i}")).exists())
                .count(),
        }
    }

    /// Whether CUDA kernels can be compiled here (which takes no GPU).
    #[must_use]
    pub fn can_compile_cuda(&self) -> bool {
        self.nvrtc.is_some()
    }

    /// Whether CUDA kernels can probably be run here: a driver and a device to drive.
    #[must_use]
    pub fn may_run_cuda(&self) -> bool {
        self.cuda_driver.is_some() && self.nvidia_devices > 0
    }
}

/// The folders that a hint stands for: itself (or the file's own), and `nvidia/*/lib` below it, in order of name.
pub(crate) fn library_folders(hint: &Path) -> Vec<PathBuf> {
    if hint.is_file() {
        return hint.parent().map(Path::to_path_buf).into_iter().collect();
    }
    let mut folders = vec![hint.to_path_buf()];
    for base in [hint.join("nvidia"), hint.to_path_buf()] {
        let Ok(entries) = std::fs::read_dir(base) else { continue };
        let mut below: Vec<PathBuf> = entries.flatten().map(|entry| entry.path().join("lib")).collect();
        below.retain(|folder| folder.is_dir());
        below.sort();
        // Newest first, as for the names: cu13 before cu12.
        below.reverse();
        folders.append(&mut below);
    }
    folders
}

/// The first of the names that loads, looked for in the folders first and by the system's own rules after.
fn first_loadable(names: &[&str], folders: &[PathBuf]) -> Option<String> {
    for name in names {
        for folder in folders {
            let path = folder.join(name);
            if let Some(text) = path.to_str()
                && path.is_file()
                && loads(text)
            {
                return Some(text.to_owned());
            }
        }
        if loads(name) {
            return Some((*name).to_owned());
        }
    }
    None
}

fn loads(name: &str) -> bool {
    // SAFETY: loading runs the library's initializers. These are NVIDIA's own libraries, by their fixed names or where
    // the user says they are; their initializers do nothing that depends on us.
    match unsafe { libloading::Library::new(name) } {
        Ok(_) => true,
        Err(error) => {
            tracing::debug!(%error, name, "library not loadable");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_that_are_not_there_are_none() {
        assert_eq!(
            first_loadable(&["libtlc-no-such-library.so.1"], &[PathBuf::from("/nonexistent")]),
            None
        );
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("libtlc-no-such-library.so"), "not a library").unwrap();
        assert_eq!(
            first_loadable(&["libtlc-no-such-library.so"], &[folder.path().to_path_buf()]),
            None
        );
    }

    #[test]
    fn a_hint_stands_for_a_file_a_folder_or_site_packages() {
        let folder = tempfile::tempdir().unwrap();
        let older = folder.path().join("nvidia/cu12/lib");
        let newer = folder.path().join("nvidia/cu13/lib");
        for folder in [&older, &newer] {
            std::fs::create_dir_all(folder).unwrap();
        }
        assert_eq!(library_folders(folder.path()), [folder.path(), &newer, &older]);
        let file = newer.join("libnvrtc.so.13");
        std::fs::write(&file, "").unwrap();
        assert_eq!(library_folders(&file), [newer]);
        assert_eq!(library_folders(Path::new("/nonexistent")), [Path::new("/nonexistent")]);
    }
}
