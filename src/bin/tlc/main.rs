//! The tlc command: one file per command, and what they share.
//!
//! Invariants: results go to standard output, everything else to standard error; an error's first line stands alone, and
//! under `--format json` an error is an object on standard output too (`failure.rs`); output files appear complete or not at all (`staging.rs`); every end of the program has one of the
//! documented exit codes (`args.rs`), a panic included.
#![forbid(unsafe_code)]

mod args;
mod batch;
mod bench;
mod bug;
mod cache;
mod check;
mod compare;
mod completions;
mod console;
mod data;
mod disassembler;
mod einsum;
mod emit;
mod explain;
mod export;
mod failure;
mod fmt;
mod grad;
mod hwbench;
mod hwbench_gpu;
mod import;
mod info;
mod isolated;
mod onnx;
mod opt;
mod panics;
mod plan;
mod profile;
mod run;
mod session;
mod specialize;
mod stages;
mod staging;
mod timing;
mod top;
mod tune;
mod verify;

use std::ffi::OsString;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use tlc_runtime::cpu::level::LevelError;
use tlc_runtime::process::{self, LastWords, Stream};

use clap::{ColorChoice, CommandFactory, FromArgMatches, ValueEnum};

use args::{Cli, Color, Command, Format};
use console::Console;
use failure::{Code, Failure};
use session::Session;
use stages::Stages;

/// Ends the process with exit code 5 where an allocation fails that nobody handles. Unit tests link a crate that counts
/// allocations, which has an allocator of its own.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: process::EndingAllocator = process::EndingAllocator;

/// Set if results are JSON, for those who cannot ask the console.
static FOR_PROGRAMS: AtomicBool = AtomicBool::new(false);

/// What is done where memory runs out.
fn without_memory() {
    if FOR_PROGRAMS.load(Ordering::Relaxed) {
        let object = concat!(
            r#"{"schema":1,"error":{"exit_code":5,"kind":"limit","message":"out of memory","reports":"#,
            r#"[{"place":null,"line":null,"column":null,"message":"out of memory"}]}}"#,
            "\n"
        );
        process::write_unbuffered(Stream::Output, object.as_bytes());
    }
    staging::clean_up_without_memory();
}

fn main() -> ExitCode {
    process::install(LastWords {
        exit_code: Code::Limit as i32,
        message: "error: out of memory\n",
        clean_up: without_memory,
    });
    panics::install();
    staging::clean_up_on_signals();
    tlc_passes::seed_fault_from_environment();
    let cli = match parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let console = Console::new(&cli.global);
    FOR_PROGRAMS.store(console.json(), Ordering::Relaxed);
    let outcome = catch_unwind(AssertUnwindSafe(|| dispatch(&cli, console)));
    let outcome = outcome.unwrap_or_else(|_| Err(panics::failure()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            console.end(&failure);
            failure
                .code
                .map_or(ExitCode::SUCCESS, |code| ExitCode::from(code as u8))
        }
    }
}

/// The value of an option that counts before options are read: the last one given, as `--name=VALUE` or `--name VALUE`.
fn early_option<T: ValueEnum>(arguments: &[OsString], name: &str) -> Option<T> {
    let texts: Vec<&str> = arguments.iter().map(|a| a.to_str().unwrap_or_default()).collect();
    let value = |at: usize| match texts[at].strip_prefix(name)? {
        "" => texts.get(at + 1).copied(),
        rest => rest.strip_prefix('='),
    };
    let values = (1..texts.len()).rev().filter_map(value);
    values.filter_map(|v| T::from_str(v, false).ok()).next()
}

/// Reads the command line. Help, versions and usage errors are clap's; the exit code says which.
fn parse() -> Result<Cli, ExitCode> {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let choice = match early_option(&arguments, "--color") {
        Some(Color::Always) => ColorChoice::Always,
        Some(Color::Never) => ColorChoice::Never,
        Some(Color::Auto) | None => ColorChoice::Auto,
    };
    let format = early_option(&arguments, "--format");
    let parsed = Cli::command()
        .color(choice)
        .try_get_matches_from(arguments)
        .and_then(|m| Cli::from_arg_matches(&m));
    parsed.map_err(|e| {
        let printed = e.print().and_then(|()| std::io::stdout().flush());
        if !e.use_stderr() {
            return match printed {
                // A reader that has gone is nobody's fault.
                Err(why) if why.kind() != std::io::ErrorKind::BrokenPipe => {
                    let _ = writeln!(std::io::stderr(), "error: standard output: {why}");
                    ExitCode::from(Code::Limit as u8)
                }
                _ => ExitCode::SUCCESS,
            };
        }
        if format == Some(Format::Json) {
            Console::for_programs().end(&usage_error(&e.to_string()));
        }
        ExitCode::from(Code::Usage as u8)
    })
}

/// What clap says of a command line, up to its advice; it is on standard error already.
fn usage_error(text: &str) -> Failure {
    let said = text.split("\n\n").next().unwrap_or(text);
    let lines: Vec<&str> = said.lines().map(str::trim).collect();
    let message = lines.join(" ");
    Failure::new(Code::Usage, message.strip_prefix("error: ").unwrap_or(&message)).already_reported()
}

fn dispatch(cli: &Cli, console: Console) -> Result<(), Failure> {
    tlc_runtime::cpu::level::check().map_err(|e| {
        let code = match e {
            LevelError::Unknown(_) => Code::Usage,
            LevelError::Lacking(_) | LevelError::Refused(_) => Code::Unsupported,
        };
        Failure::new(code, e.to_string())
    })?;
    let session = Session {
        global: cli.global.clone(),
        console,
        stages: Stages::from_environment()?,
    };
    if !matches!(cli.command, Command::Run(_)) {
        session.stages.panic_if_asked();
    }
    let no_model = matches!(
        cli.command,
        Command::Fmt(_)
            | Command::Einsum(_)
            | Command::Hwbench(_)
            | Command::Info
            | Command::Cache(_)
            | Command::Completions(_)
            | Command::Man(_)
    );
    if let (true, Some((name, value))) = (no_model, cli.global.sets.first()) {
        let message = format!("--set {name}={value}: this command has no model; expected one with a size of that name");
        return Err(Failure::new(Code::Usage, message));
    }
    match &cli.command {
        Command::Check(args) => check::run(&session, args),
        Command::Fmt(args) => fmt::run(&session, args),
        Command::Opt(args) => opt::run(&session, args),
        Command::Explain(args) => explain::run(&session, args),
        Command::Plan(args) => plan::run(&session, args),
        Command::Emit(args) => emit::run(&session, args),
        Command::Einsum(args) => einsum::run(&session, args),
        Command::Run(args) => run::run(&session, args),
        Command::Verify(args) => verify::run(&session, args),
        Command::Reduce(args) => verify::reduce(&session, args),
        Command::Compare(args) => compare::run(&session, args),
        Command::Bench(args) => bench::run(&session, args),
        Command::Hwbench(args) => hwbench::run(&session, args),
        Command::Profile(args) => profile::run(&session, args),
        Command::Tune(args) => tune::run(&session, args),
        Command::Grad(args) => grad::run(&session, args),
        Command::Import(args) => import::run(&session, args),
        Command::Export(args) => export::run(&session, args),
        Command::Info => info::run(&session),
        Command::Cache(args) => cache::run(&session, args),
        Command::Completions(args) => completions::run(&session, args),
        Command::Man(args) => completions::man(&session, args),
    }
}
