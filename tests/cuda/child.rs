//! A process with a simulated device.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tlc_runtime::nvrtc::Nvrtc;

/// Variables of the process.
pub type Settings<'s> = &'s [(&'s str, &'s str)];

/// What a process printed.
pub struct Printed {
    text: String,
}

impl Printed {
    /// The lines that begin with a word.
    pub fn printed(&self, word: &str) -> Vec<&str> {
        self.text
            .lines()
            .filter(|l| l.split(' ').next() == Some(word))
            .collect()
    }
}

/// The stand-in for a driver.
pub fn library() -> Option<PathBuf> {
    if let Some(set) = std::env::var_os("TLC_SIM_LIB") {
        return Some(PathBuf::from(set));
    }
    beside("libtlc_gpusim_driver.so")
}

/// A library that cargo builds for tests, or was asked to build.
pub fn beside(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let target = test.ancestors().nth(3)?;
    // Beside this test is where cargo puts what it builds for tests.
    let folders = [
        test.parent()?.to_path_buf(),
        target.join("release"),
        target.join("debug"),
    ];
    let libraries = folders.map(|f| f.join(name));
    libraries.into_iter().find(|p| p.exists())
}

/// Where what NVRTC makes is kept, from one run to the next.
pub fn cache() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("cuda-cache")
}

/// What `TLC_TEST_GPU` says of the GPU of these tests: `required` is a simulated one without which they fail, `real` one of the system.
fn asked(gpu: &str) -> bool {
    std::env::var("TLC_TEST_GPU").is_ok_and(|v| v == gpu)
}

/// Says why a test does not run, which is a failure where it is required to.
pub fn skip(why: &str) {
    assert!(!asked("required"), "this test must run here: {why}");
    println!("SKIP: {why}");
}

/// Runs an ignored test of this file in a process with a simulated device, which must end well and find nothing. `None`, and a line, where
/// that cannot be done.
pub fn simulated(test: &str, settings: Settings<'_>) -> Option<Printed> {
    let (printed, found) = with_findings(test, settings)?;
    assert!(found.is_empty(), "{test} {settings:?}: {found}\n{}", printed.text);
    Some(printed)
}

/// Whether the GPU of these tests is one of the system.
pub fn real() -> bool {
    asked("real")
}

/// As [`simulated`], of a test that may find something, which must end well all the same.
pub fn with_findings(test: &str, settings: Settings<'_>) -> Option<(Printed, String)> {
    let real = real();
    // Faults, machines to choose from and counters.
    let simulated_alone = ["TLC_SIM_FAULT", "TLC_SIM_MEMORY", "TLC_SIM_DEVICE", "TLC_SIM_COUNTERS"];
    if real && settings.iter().any(|s| simulated_alone.contains(&s.0)) {
        skip("a real GPU does not do that when it is asked");
        return None;
    }
    let Some(library) = library().or(real.then(PathBuf::new)) else {
        skip("no libtlc_gpusim_driver.so; `cargo build --release -p tlc-gpusim-driver` makes it");
        return None;
    };
    if let Err(e) = Nvrtc::load() {
        skip(&e.to_string());
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let findings = folder.path().join("findings");
    let mut run = Command::new(std::env::current_exe().expect("this test"));
    if !real {
        run.env("TLC_CUDA_DRIVER", library)
            .env("TLC_CUDA_CODE", "ptx")
            .env("TLC_CACHE", cache())
            .env("TLC_SIM_FINDINGS", &findings);
    }
    let run = run
        .args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .envs(settings.iter().copied())
        .stdin(Stdio::null())
        .output()
        .expect("this test runs again");
    // What the test prints first would stand behind its name.
    let text = String::from_utf8_lossy(&run.stdout).replacen(" ... ", " ...\n", 1);
    let errors = String::from_utf8_lossy(&run.stderr);
    assert!(
        run.status.success(),
        "{test} {settings:?}: {}\n{text}\n{errors}",
        run.status
    );
    assert!(text.contains("1 passed"), "{test} is not a test:\n{text}");
    let found = std::fs::read_to_string(&findings).unwrap_or_default();
    Some((Printed { text }, found))
}
