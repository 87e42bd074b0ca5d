//! A directory for one test, and the binary in it.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;
use tlc::HostTensor;
use tlc_formats::npy;

/// `y = relu(a * b + c)` and its sum.
pub const CHAIN: &str = "graph @chain(%a: f32[n, 4], %b: f32[n, 4], %c: f32[4]) where n in 1..=1024 {
  %0 = mul %a, %b : f32[n, 4]
  %1 = expand %c : f32[n, 4]
  %2 = add %0, %1 : f32[n, 4]
  %3 = const 0.0 : f32[]
  %4 = expand %3 : f32[n, 4]
  %5 = max %2, %4 : f32[n, 4]
  %6 = reduce add %5 {axes=[0, 1]} : f32[]
  return %5 as y, %6 as total
}
";

/// A matrix product that the library takes, and a sum behind it.
pub const PRODUCT: &str = "graph @product(%a: f32[256, 128], %b: f32[128, 192]) {
  %0 = einsum %a, %b {ab,bc->ac} : f32[256, 192]
  %1 = reduce add %0 {axes=[1]} : f32[256]
  return %0 as product, %1 as sums
}
";

/// What a run of the binary gave.
pub struct Ran {
    /// The exit code; -1 after a signal.
    pub code: i32,
    /// Standard output, lossily.
    pub out: String,
    /// Standard output's bytes.
    pub bytes: Vec<u8>,
    /// Standard error, lossily.
    pub err: String,
}

impl Ran {
    /// The same, if the exit code is the expected one.
    #[track_caller]
    pub fn code(self, expected: i32) -> Ran {
        assert_eq!(self.code, expected, "stdout:\n{}\nstderr:\n{}", self.out, self.err);
        self
    }

    /// Standard output as JSON of schema 1.
    #[track_caller]
    pub fn json(&self) -> Value {
        let value: Value = serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e} in\n{}", self.out));
        assert_eq!(value["schema"], 1, "{}", self.out);
        value
    }

    /// The first line of standard error.
    pub fn first_error(&self) -> &str {
        self.err.lines().next().unwrap_or_default()
    }
}

/// A directory of its own, which is also the cache directory.
pub struct Place {
    dir: TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place {
            dir: TempDir::new().expect("a temporary directory"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).expect("a file in a temporary directory");
        path
    }

    pub fn npy(&self, name: &str, tensor: &HostTensor) -> PathBuf {
        let mut bytes = Vec::new();
        npy::write(tensor, &mut bytes).expect("writing to memory");
        self.write(name, bytes)
    }

    pub fn f32s(&self, name: &str, shape: &[usize], data: &[f32]) -> PathBuf {
        self.npy(name, &HostTensor::from_slice(shape, data).expect("data that fits"))
    }

    #[track_caller]
    pub fn read(&self, name: &str) -> HostTensor {
        let bytes = std::fs::read(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"));
        npy::read(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Names in a subdirectory (`.` for the place itself), sorted.
    pub fn list(&self, name: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(name)).map(|all| all.flatten().collect::<Vec<_>>());
        let mut names: Vec<String> = entries
            .unwrap_or_default()
            .iter()
            .map(|e| e.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tlc"));
        command
            .args(args)
            .current_dir(self.dir.path())
            .env("XDG_CACHE_HOME", self.dir.path());
        command
            .env_remove("TLC")
            .env_remove("NO_COLOR")
            .env_remove("RUST_BACKTRACE");
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        finish(&mut self.command(args), b"")
    }

    pub fn run_with(&self, args: &[&str], stdin: &[u8]) -> Ran {
        finish(&mut self.command(args), stdin)
    }

    pub fn run_under(&self, variable: (&str, &str), args: &[&str]) -> Ran {
        finish(self.command(args).env(variable.0, variable.1), b"")
    }
}

/// Runs a command to its end.
pub fn finish(command: &mut Command, stdin: &[u8]) -> Ran {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    // It may end without reading.
    let _ = child.stdin.take().expect("piped").write_all(stdin);
    let output = child.wait_with_output().expect("the binary ends");
    Ran {
        code: output.status.code().unwrap_or(-1),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        bytes: output.stdout,
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
