//! The tlc command: one file per command, and what they share.
//!
//! Invariants: results go to standard output, everything else to standard error; an error's first line stands alone
//! (`failure.rs`); output files appear complete or not at all (`staging.rs`); every end of the program has one of the
//! documented exit codes (`args.rs`), a panic included.
#![forbid(unsafe_code)]

mod args;
mod batch;
mod bench;
mod bug;
mod check;
mod compare;
mod completions;
mod console;
mod data;
mod einsum;
mod emit;
mod explain;
mod export;
mod failure;
mod fmt;
mod hwbench;
mod import;
mod info;
mod isolated;
mod onnx;
mod opt;
mod panics;
mod profile;
mod run;
mod session;
mod specialize;
mod stages;
mod staging;
mod timing;
mod top;
mod verify;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, FromArgMatches};

use args::{Cli, Color, Command};
use console::Console;
use failure::{Code, Failure};
use session::Session;
use stages::Stages;

fn main() -> ExitCode {
    panics::install();
    staging::clean_up_on_signals();
    tlc_passes::made::seed_from_environment();
    let cli = match parse() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let console = Console::new(&cli.global);
    let outcome = catch_unwind(AssertUnwindSafe(|| dispatch(&cli, console)));
    let outcome = outcome.unwrap_or_else(|_| Err(Failure::new(Code::Bug, panics::last_message())));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            console.failure(&failure);
            failure
                .code
                .map_or(ExitCode::SUCCESS, |code| ExitCode::from(code as u8))
        }
    }
}

/// Reads the command line. Help, versions and usage errors are clap's; the exit code says which.
fn parse() -> Result<Cli, ExitCode> {
    let arguments: Vec<std::ffi::OsString> = std::env::args_os().collect();
    // Help is colored before options are read, so this one is looked for by hand.
    let color = arguments
        .windows(2)
        .rev()
        .find_map(|w| match (w[0].to_str(), w[1].to_str()) {
            (_, Some("--color=always")) => Some(Color::Always),
            (_, Some("--color=never")) => Some(Color::Never),
            (Some("--color"), Some("always")) => Some(Color::Always),
            (Some("--color"), Some("never")) => Some(Color::Never),
            _ => None,
        });
    let choice = match color {
        Some(Color::Always) => ColorChoice::Always,
        Some(Color::Never) => ColorChoice::Never,
        _ => ColorChoice::Auto,
    };
    let parsed = Cli::command()
        .color(choice)
        .try_get_matches_from(arguments)
        .and_then(|m| Cli::from_arg_matches(&m));
    parsed.map_err(|e| {
        // A reader that has gone is nobody's fault.
        let _ = e.print();
        ExitCode::from(if e.use_stderr() { Code::Usage as u8 } else { 0 })
    })
}

fn dispatch(cli: &Cli, console: Console) -> Result<(), Failure> {
    let session = Session {
        global: cli.global.clone(),
        console,
        stages: Stages::from_environment()?,
    };
    if !matches!(cli.command, Command::Run(_)) {
        session.stages.panic_if_asked();
    }
    match &cli.command {
        Command::Check(args) => check::run(&session, args),
        Command::Fmt(args) => fmt::run(&session, args),
        Command::Opt(args) => opt::run(&session, args),
        Command::Explain(args) => explain::run(&session, args),
        Command::Emit(args) => emit::run(&session, args),
        Command::Einsum(args) => einsum::run(&session, args),
        Command::Run(args) => run::run(&session, args),
        Command::Verify(args) => verify::run(&session, args),
        Command::Reduce(args) => verify::reduce(&session, args),
        Command::Compare(args) => compare::run(&session, args),
        Command::Bench(args) => bench::run(&session, args),
        Command::Hwbench(args) => hwbench::run(&session, args),
        Command::Profile(args) => profile::run(&session, args),
        Command::Import(args) => import::run(&session, args),
        Command::Export(args) => export::run(&session, args),
        Command::Info => info::run(&session),
        Command::Completions(args) => completions::run(&session, args),
        Command::Man(args) => completions::man(&session, args),
    }
}
