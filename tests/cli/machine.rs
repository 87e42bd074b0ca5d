//! info, completions, man, help, and the conventions of every command.

use std::process::Stdio;

use super::support::{CHAIN, Place};

#[test]
fn info_tells_the_machine() {
    let p = Place::new();
    let ran = p.run(&["info"]).code(0);
    for part in ["cpu", "vectors", "kernels", "caches", "nvrtc", "measured     no"] {
        assert!(ran.out.contains(part), "{part} in\n{}", ran.out);
    }
    let json = p.run(&["info", "--format", "json"]).code(0).json();
    assert!(json["machine"]["cpu"]["usable_threads"].as_u64().unwrap() >= 1);
    assert_eq!(json["kernel_level"], tlc_runtime::cpu::level::name());
    let portable = p.run_under(("TLC_CPU", "sse"), &["info"]).code(0).out;
    assert!(portable.contains("kernels      sse"), "{portable}");
}

#[test]
fn completions_and_manual_pages_are_printed() {
    let p = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(p.run(&["completions", shell]).code(0).out.contains("hwbench"));
    }
    p.run(&["completions", "tea"]).code(2);
    let page = p.run(&["man"]).code(0).out;
    assert!(page.contains(".TH") && page.contains("Exit codes"), "{page}");
    assert!(p.run(&["man", "run"]).code(0).out.contains("batch"));
    p.run(&["man", "nothing"]).code(2);
}

#[test]
fn help_tells_exit_codes_and_the_environment() {
    let p = Place::new();
    let ran = p.run(&["--help"]).code(0);
    for part in [
        "Exit codes:",
        "70",
        "print=after:PASS",
        "XDG_CACHE_HOME",
        "--max-memory",
    ] {
        assert!(ran.out.contains(part), "{part} in\n{}", ran.out);
    }
    assert!(p.run(&["--version"]).code(0).out.starts_with("tlc "));
}

#[test]
fn usage_errors_are_two() {
    let p = Place::new();
    p.run(&[]).code(2);
    p.run(&["dance"]).code(2);
    p.run(&["info", "--format", "xml"]).code(2);
    p.run(&["info", "--threads", "0"]).code(2);
    p.run(&["info", "--max-memory", "much"]).code(2);
    let ran = p.run(&["info", "--seed", "x"]).code(2);
    assert!(ran.first_error().starts_with("error: "), "{}", ran.err);
}

#[test]
fn colors_are_on_standard_error_and_only_where_wanted() {
    let p = Place::new();
    p.write("bad.tlir", "graph");
    assert!(!p.run(&["check", "bad.tlir"]).err.contains('\u{1b}'));
    assert!(
        p.run(&["check", "bad.tlir", "--color", "always"])
            .err
            .contains("\u{1b}[1;31merror:")
    );
    assert!(!p.run(&["check", "bad.tlir", "--color", "never"]).err.contains('\u{1b}'));
}

#[test]
fn a_panic_is_told_with_how_to_report_it() {
    let p = Place::new();
    let ran = p.run_under(("TLC", "fault=panic"), &["info"]).code(70);
    assert!(
        ran.first_error()
            .starts_with("error: internal error: a panic was asked for"),
        "{}",
        ran.err
    );
    assert!(
        ran.err.contains("this is a bug in tlc") && ran.err.contains("please report it"),
        "{}",
        ran.err
    );
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    let mut child = p
        .command(&["emit", "m.tlir", "--what", "asm"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()),
        (Some(0), "")
    );
}

#[cfg(target_os = "linux")]
#[test]
fn standard_output_that_is_full_is_a_resource_limit() {
    let p = Place::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = p
        .command(&["info"])
        .stdout(full)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5));
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(
        err.starts_with("error: standard output: cannot be written: No space left"),
        "{err}"
    );
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let p = Place::new();
    p.write("m.tlir", CHAIN);
    let out = |threads: &str| {
        let args = [
            "run", "m.tlir", "--set", "n=1000", "--input", "a=random", "--input", "b=random", "--input",
        ];
        p.run(&[&args[..], &["c=random", "--threads", threads]].concat())
            .code(0)
            .out
    };
    assert_eq!(out("1"), out("3"));
}
