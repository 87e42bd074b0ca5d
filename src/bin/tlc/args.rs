//! The command line, as clap reads it.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tlc::{Device, Precision, Products};

use crate::{
    bench, cache, check, compare, completions, einsum, emit, explain, export, fmt, grad, hwbench, import, opt, plan,
    profile, run, tune, verify,
};

const AFTER_HELP: &str = "\
A MODEL is a .tlir text file (its weights, if it has any, in a .safetensors file of that name beside it) or an .onnx file; `-` is text on
standard input. Results go to standard output, everything else to standard error.
Output files are written beside their final name and renamed: a failed or interrupted run leaves none.
With --format json the result is one object with \"schema\": 1; where a command fails, standard output gets an object with
\"error\": {\"exit_code\", \"kind\", \"message\", \"reports\"} too, beside the result if there is one.

Exit codes:
  0   done
  1   a check, a comparison or a case of a batch failed; a GPU failed; the machine is too busy to be measured; for reduce, there is
      nothing to reduce
  2   wrong usage
  3   invalid input (also: an output that cannot be written for want of permission or a directory)
  4   unsupported; the message says what (also: no GPU of that number, no driver or compiler for it)
  5   a resource limit: memory (--max-memory, this machine's or a GPU's), disk space or the size of a file
  70  a bug in tlc
  130 ended by Ctrl-C; 143 by SIGTERM, 129 by SIGHUP

Environment:
  NO_COLOR        no colors, unless --color always
  XDG_CACHE_HOME  where `tlc hwbench` keeps its measurement (default ~/.cache)
  TLC_CPU         the widest instructions that kernels use: amx, avx512_bf16, avx512, avx2, sse for the portable ones, or scalar for those without vectors (default: what there is)
  TLC_CUDA_DRIVER the CUDA driver, as a file or its folder (default libcuda.so.1)
  TLC_CUBLASLT    NVIDIA's library of matrix products, as a file or its folder (default libcublasLt.so.13)
  TLC_NVRTC       NVIDIA's run-time compiler, as a file, its folder or one of Python packages
  TLC_NVDISASM    NVIDIA's disassembler, for `tlc emit --what sass` (default: beside NVRTC, or nvdisasm of the path)
  TLC_CUDA_CODE   ptx or cubin: what GPU kernels are compiled to (default: whichever fits)
  TLC_CACHE       where compiled GPU kernels are kept, or off (default tlc/cuda in the folder of caches)
  TLC             what the compiler shows of its work: a comma-separated list of
                    print=after:PASS  print the graph after a pass, what follows `cluster`, `lower` or `memory`,
                                      or `all`, to standard error
                    verify=each       verify the graph after every pass
                    limit=N           run only the first N passes
                    dump=DIR          write every stage to a file in DIR
                  as in TLC=print=after:cluster,verify=each,limit=12,dump=stages";

/// Compiles tensor graphs, runs them, and explains what it did.
#[derive(Parser, Debug)]
#[command(name = "tlc", version, after_help = AFTER_HELP, max_term_width = 120, disable_help_subcommand = false)]
pub struct Cli {
    /// Options of every command.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The form of results.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// For people.
    Human,
    /// For programs: one object with "schema": 1; an error is its field "error".
    Json,
}

/// When to color.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// Options of every command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Options of every command")]
pub struct Global {
    /// The form of results
    #[arg(long, global = true, value_enum, default_value_t = Format::Human)]
    pub format: Format,
    /// When to color messages
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto)]
    pub color: Color,
    /// Threads that kernels run on [default: all cores]
    #[arg(long, global = true, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
    /// Seed of random inputs and of searches
    #[arg(long, global = true, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Fix a symbolic size, as in --set batch=128
    #[arg(long = "set", alias = "sym", global = true, value_name = "NAME=N", value_parser = size_of_symbol)]
    pub sets: Vec<(String, i64)>,
    /// What computes: cpu, or a GPU of NVIDIA's as cuda or cuda:N [default: cpu]
    #[arg(long, global = true, value_name = "DEVICE")]
    pub device: Option<Device>,
    /// GPUs that compute it with that of --device, each a part, as cuda:1 or cuda:1,cuda:2
    #[arg(long, global = true, value_name = "DEVICES", value_delimiter = ',')]
    pub beside: Vec<Device>,
    /// How exactly a GPU computes with f32: exact; tf32, where products keep 10 bits of the mantissa; or fast, where divisions,
    /// exponentials, logarithms, tanh and erf are the GPU's approximations besides. A CPU is always exact
    #[arg(long, global = true, value_name = "PRECISION", default_value_t = Precision::Exact)]
    pub precision: Precision,
    /// What multiplies matrices on a GPU: kernels, library (cuBLASLt, for all that it can compute), or auto (the library, where there is
    /// one, for large products that it is faster at)
    #[arg(long, global = true, value_name = "WHICH", default_value_t = Products::Auto)]
    pub products: Products,
    /// Choices that `tlc tune` found to be faster on this processor; they change no result
    #[arg(long, global = true, value_name = "FILE.json")]
    pub tuned: Option<PathBuf>,
    /// A file of a model's weights in the order in which a CPU multiplies them. What it has is not put into that order again; where it
    /// lacks something `tlc run` writes it anew
    #[arg(long, global = true, value_name = "FILE")]
    pub packed: Option<PathBuf>,
    /// The most memory to use, as in 512MiB or 2G [default: this machine's]
    #[arg(long, global = true, value_name = "SIZE", value_parser = bytes)]
    pub max_memory: Option<u64>,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Report every error of every file
    Check(check::Check),
    /// Rewrite files as canonical text
    Fmt(fmt::Fmt),
    /// Run graph passes and print the result
    Opt(opt::Opt),
    /// Show what the compiler decides and why: fusion, kernels, predicted times, memory
    Explain(explain::Explain),
    /// Show what a call would take, without running it: steps, memory, predicted time
    Plan(plan::Plan),
    /// Print a stage of the compiler: graph, clusters, kernels, plan, machine code, CUDA
    Emit(emit::Emit),
    /// Contract tensors, as in `tlc einsum ij,jk->ik A.npy B.npy --output C.npy`
    Einsum(einsum::Einsum),
    /// Run a model, or a batch of cases
    Run(run::Run),
    /// Compare a compiled model with its meaning, value by value; where they differ, find the wrong decision
    Verify(verify::Verify),
    /// Find a small graph that tlc compiles as wrongly as a large one
    Reduce(verify::Reduce),
    /// Compare two models, or one under two settings
    Compare(compare::Compare),
    /// Measure the median time of a model against the hardware's limit
    Bench(bench::Bench),
    /// Measure this machine's bandwidths and peaks, and keep them
    Hwbench(hwbench::Hwbench),
    /// Show where the time of a model goes, step by step, and what would help
    Profile(profile::Profile),
    /// Measure what the compiler chooses otherwise by a model of the machine: tiles, prefetches, work of a thread; keep what is faster
    Tune(tune::Tune),
    /// Write a model with the derivatives of its outputs, as text
    Grad(grad::Grad),
    /// Write a model as text, with its weights beside it
    Import(import::Import),
    /// Write a model as an ONNX file
    Export(export::Export),
    /// Show what this machine offers: CPU, vector levels, caches, GPU and libraries
    Info,
    /// List or remove the GPU programs that are kept from one run to the next
    Cache(cache::Cache),
    /// Print a completion script for a shell
    Completions(completions::Completions),
    /// Print the manual page, of tlc or of one of its commands
    Man(completions::Man),
}

/// A model, and which of its graphs.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// A .tlir or .onnx file, or - for text on standard input
    pub model: PathBuf,
    /// The graph to take from a file that holds several [default: the first]
    #[arg(long, value_name = "NAME")]
    pub graph: Option<String>,
}

fn threads(text: &str) -> Result<usize, String> {
    let most = tlc_runtime::pool::MAX_THREADS;
    let n = text.parse::<usize>().ok().filter(|n| (1..=most).contains(n));
    n.ok_or_else(|| format!("expected a number from 1 to {most}"))
}

fn size_of_symbol(text: &str) -> Result<(String, i64), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=N, as in batch=128")?;
    let value = value.parse::<i64>().ok().filter(|v| *v >= 0);
    match value {
        Some(value) if !name.is_empty() => Ok((name.to_string(), value)),
        _ => Err("expected NAME=N with a size of 0 or more, as in batch=128".into()),
    }
}

/// A size in bytes: a number with an optional unit, of powers of 1024 (`K`, `KiB`, `M`, …) or of 1000 (`KB`, `MB`, …).
pub fn bytes(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024f64.powi(2),
        "g" | "gib" => 1024f64.powi(3),
        "t" | "tib" => 1024f64.powi(4),
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => {
            return Err(format!(
                "unknown unit `{}`; expected a size like 512MiB or 2G",
                unit.trim()
            ));
        }
    };
    match number.parse::<f64>() {
        Ok(n) if n.is_finite() && n * factor < u64::MAX as f64 => Ok((n * factor) as u64),
        _ => Err("expected a size like 512MiB or 2G".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_have_binary_and_decimal_units() {
        assert_eq!(bytes("512MiB"), Ok(512 << 20));
        assert_eq!(bytes("2G"), Ok(2 << 30));
        assert_eq!(bytes("1.5kb"), Ok(1500));
        assert_eq!(bytes("10"), Ok(10));
        assert!(bytes("ten").is_err() && bytes("1x").is_err() && bytes("").is_err() && bytes("1e400").is_err());
    }

    #[test]
    fn symbols_need_a_name_and_a_size() {
        assert_eq!(size_of_symbol("b=4"), Ok(("b".into(), 4)));
        assert!(["b", "=4", "b=-1", "b=x"].iter().all(|t| size_of_symbol(t).is_err()));
    }
}
