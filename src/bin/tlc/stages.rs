//! The variable `TLC`: what the compiler shows of its work.

use std::fmt::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;

use tlc_passes::Compiled;
use tlc_passes::pipeline::{Options, PASSES, Ran, rewrite};

use crate::console::Console;
use crate::emit;
use crate::failure::{Code, Failure};
use crate::session::Model;
use crate::staging::write_file;

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stages {
    print: Vec<String>,
    verify: bool,
    /// Run only so many passes.
    pub limit: Option<usize>,
    dump: Option<PathBuf>,
    /// Panic, to see what becomes of it.
    pub panic: bool,
}

/// Stages behind the graph passes, by the names that `print=after:` takes.
const LATE: [&str; 5] = ["cluster", "lower", "schedule", "legalize", "memory"];

impl Stages {
    /// Reads the value of the variable.
    pub fn parse(text: &str) -> Result<Stages, Failure> {
        let mut stages = Stages::default();
        let usage = |message: String| Failure::new(Code::Usage, format!("TLC={text}: {message}"));
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            let (key, value) = item.split_once('=').unwrap_or((item, ""));
            match (key, value) {
                ("print", value) => {
                    let name = value.strip_prefix("after:").unwrap_or_default();
                    let known = name == "all" || LATE.contains(&name) || PASSES.iter().any(|p| p.name() == name);
                    if !known {
                        let names = PASSES
                            .iter()
                            .map(|p| p.name())
                            .chain(LATE)
                            .collect::<Vec<_>>()
                            .join(", ");
                        return Err(usage(format!(
                            "unknown `{item}`; expected print=after:PASS, PASS one of all, {names}"
                        )));
                    }
                    stages.print.push(name.to_string());
                }
                ("verify", "each") => stages.verify = true,
                ("limit", n) => {
                    stages.limit = Some(
                        n.parse()
                            .map_err(|_| usage(format!("`{n}` is no number; expected limit=N")))?,
                    );
                }
                ("dump", dir) if !dir.is_empty() => stages.dump = Some(dir.into()),
                ("fault", "panic") => stages.panic = true,
                _ => {
                    let expected = "print=after:PASS, verify=each, limit=N or dump=DIR";
                    return Err(usage(format!("unknown `{item}`; expected {expected}")));
                }
            }
        }
        Ok(stages)
    }

    /// What the environment asks for.
    pub fn from_environment() -> Result<Stages, Failure> {
        match std::env::var("TLC") {
            Ok(text) => Stages::parse(&text),
            Err(_) => Ok(Stages::default()),
        }
    }

    /// Panics if `fault=panic` asks for it, so that tests see what becomes of a panic.
    ///
    /// # Panics
    /// On request.
    pub fn panic_if_asked(&self) {
        assert!(!self.panic, "a panic was asked for by TLC=fault=panic");
    }

    /// True if the graph passes are of interest one by one.
    pub fn wants_passes(&self) -> bool {
        self.verify || self.dump.is_some() || self.print.iter().any(|p| !LATE.contains(&p.as_str()))
    }

    fn prints(&self, stage: &str) -> bool {
        self.print.iter().any(|p| p == stage || p == "all")
    }

    fn dump(&self, name: &str, text: &str) -> Result<(), Failure> {
        let Some(dir) = &self.dump else { return Ok(()) };
        std::fs::create_dir_all(dir).map_err(|e| Failure::writing(&dir.display().to_string(), &e))?;
        write_file(&dir.join(name), text.as_bytes())
    }

    /// Runs the graph passes one by one, for show.
    pub fn run_passes(&self, console: &Console, model: &Model, options: &Options) -> Result<(), Failure> {
        self.dump("00-graph.tlir", &model.graph.to_string())?;
        let options = Options {
            verify_passes: self.verify,
            ..options.clone()
        };
        let mut shown = Ok(());
        let mut show = |ran: Ran<'_>| {
            let (pass, text) = (ran.pass.name(), ran.after.to_string());
            if self.prints(pass) {
                console.note(&format!("// after {pass}\n{text}"));
            }
            shown = self.dump(&format!("{:02}-{pass}.tlir", ran.number + 1), &text);
            match shown {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        };
        rewrite(&model.graph, &options, &mut Vec::new(), &mut show)
            .map_err(|e| Failure::build(&model.file, &tlc::BuildError::Pass(e)))?;
        shown
    }

    /// Shows what follows the graph passes.
    pub fn show_compiled(&self, console: &Console, compiled: &Compiled) -> Result<(), Failure> {
        if self.print.is_empty() && self.dump.is_none() {
            return Ok(());
        }
        let plan = &compiled.planned.plan;
        let clusters = emit::clusters_text(compiled);
        let mut kernels = String::new();
        for (number, kernel) in plan.kernels.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = writeln!(kernels, "// kernel {number}\n{}", emit::kernel_text(kernel));
        }
        let plan = emit::plan_text(plan);
        for (stage, file, text) in [
            ("cluster", "clusters.txt", &clusters),
            ("legalize", "kernels.tlir", &kernels),
            ("memory", "plan.tlir", &plan),
        ] {
            // Scheduled kernels are kept in their legalized form only.
            let asked =
                self.prints(stage) || (stage == "legalize" && (self.prints("lower") || self.prints("schedule")));
            if asked {
                console.note(&format!("// after {stage}\n{text}"));
            }
            self.dump(file, text)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_read() {
        let s = Stages::parse("print=after:cluster,verify=each,limit=12,dump=dir").unwrap();
        let expected = Stages {
            print: vec!["cluster".into()],
            verify: true,
            limit: Some(12),
            dump: Some("dir".into()),
            panic: false,
        };
        assert_eq!(s, expected);
        assert_eq!(Stages::parse("").unwrap(), Stages::default());
    }

    #[test]
    fn what_it_does_not_know_is_an_error() {
        for text in ["print=after:nothing", "verify", "limit=x", "dump=", "colour=red"] {
            assert_eq!(Stages::parse(text).unwrap_err().code, Some(Code::Usage), "{text}");
        }
    }
}
