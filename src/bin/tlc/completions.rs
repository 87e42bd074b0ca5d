//! `tlc completions` and `tlc man`: made from the command line's own description.

use clap::{Args, CommandFactory};
use clap_complete::Shell;
use serde_json::json;

use crate::args::Cli;
use crate::failure::{Code, Failure};
use crate::session::Session;

/// Arguments.
#[derive(Args, Debug)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Arguments.
#[derive(Args, Debug)]
pub struct Man {
    /// The command whose page to print [default: tlc itself]
    command: Option<String>,
}

fn print(session: &Session, bytes: Vec<u8>) -> Result<(), Failure> {
    if session.console.json() {
        return session
            .console
            .json_result(&json!({ "text": String::from_utf8_lossy(&bytes) }));
    }
    session.console.result_bytes(&bytes)
}

/// Prints a completion script.
pub fn run(session: &Session, args: &Completions) -> Result<(), Failure> {
    let mut bytes = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tlc", &mut bytes);
    print(session, bytes)
}

/// Prints a manual page.
pub fn man(session: &Session, args: &Man) -> Result<(), Failure> {
    let mut command = Cli::command();
    command.build();
    let page = match &args.command {
        None => command,
        Some(name) => {
            let known: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_string()).collect();
            let found = command.get_subcommands().find(|c| c.get_name() == name).cloned();
            found.ok_or_else(|| {
                Failure::new(
                    Code::Usage,
                    format!("no command `{name}`; expected {}", known.join(", ")),
                )
            })?
        }
    };
    let mut bytes = Vec::new();
    // Writing to a Vec cannot fail.
    let _ = clap_mangen::Man::new(page).render(&mut bytes);
    print(session, bytes)
}
