//! The packages that are not of the workspace are built and tested as well, so that `cargo test --workspace` tests everything: by
//! runs of cargo that share what is built with the workspace.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where this test was built: `target`, unless cargo was given another folder.
fn target() -> PathBuf {
    let built = std::env::current_exe().expect("a test has a file");
    let profile = built.ancestors().find(|p| p.ends_with("deps")).and_then(Path::parent);
    profile
        .and_then(Path::parent)
        .map_or_else(|| root().join("target"), Path::to_path_buf)
}

/// Runs cargo, and returns what it printed.
fn cargo(folder: &Path, arguments: &[&str], target: &Path) -> String {
    let mut command = Command::new(env!("CARGO"));
    // What cargo sets for its tests is not meant for another cargo.
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|n| n.starts_with("CARGO_PKG_") || n.starts_with("CARGO_MANIFEST_"))
        {
            command.env_remove(name);
        }
    }
    let output = command
        .args(arguments)
        .env("CARGO_TARGET_DIR", target)
        .current_dir(folder)
        .output()
        .expect("cargo runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {}: {text}", arguments.join(" "));
    println!("{text}");
    text
}

/// How packages outside of the workspace are built here: dependencies as in the workspace, so that what is built of them is shared,
/// and the crates of the workspace without optimization, which would take minutes and which these tests say nothing about.
fn profile() -> String {
    let mut text = String::from("\n[profile.dev]\ndebug = false\nopt-level = 2\n");
    for name in [
        "tlc",
        "tlc-codegen",
        "tlc-formats",
        "tlc-ir",
        "tlc-onnx",
        "tlc-passes",
        "tlc-record",
        "tlc-runtime",
        "embed",
        "program",
        "user",
    ] {
        let _ = writeln!(text, "[profile.dev.package.{name}]\nopt-level = 0");
    }
    text
}

/// A package of this repository as one of the packages in `folder`, at the same place, and with the sources where they are.
///
/// Its manifest is the same but for what makes it a workspace of its own; where cargo would have to change the package's lock
/// file to build it, that is an error.
fn with_its_sources(folder: &Path, name: &str) {
    let original = root().join(name);
    cargo(&original, &["tree", "--locked", "--depth", "0"], &target());
    let package = folder.join(name);
    std::fs::create_dir_all(&package).expect("a folder");
    for entry in std::fs::read_dir(&original).expect("a package") {
        let entry = entry.expect("an entry");
        if entry.file_name() != "Cargo.toml" && entry.file_name() != "Cargo.lock" {
            std::os::unix::fs::symlink(entry.path(), package.join(entry.file_name())).expect("a link");
        }
    }
    let manifest = std::fs::read_to_string(original.join("Cargo.toml")).expect("a manifest");
    assert!(manifest.contains("[workspace]\n") && manifest.contains("path = \"../..\""));
    let tables = manifest
        .replace("[workspace]\n", "")
        .replace("\"../..\"", &quoted_root());
    // Profiles are those of the workspace.
    let tables = tables.split("\n[profile").next().unwrap_or_default();
    std::fs::write(package.join("Cargo.toml"), tables).expect("written");
}

/// The repository's folder as a string in TOML.
fn quoted_root() -> String {
    format!("\"{}\"", root().display())
}

/// The programs of the README as a package in `folder`: its dependencies as well as its sources are what the README says.
fn programs_of_the_readme(folder: &Path, readme: &str) -> usize {
    let dependencies = blocks(readme, "toml");
    let programs = blocks(readme, "rust");
    assert_eq!(dependencies.len(), 1);
    assert!(programs.len() >= 2);
    let package = folder.join("program");
    std::fs::create_dir_all(package.join("src/bin")).expect("a folder");
    // The README has the repository beside the program's folder; the path is the one thing that is changed.
    assert!(dependencies[0].contains("path = \"../tlc\""));
    let dependencies = dependencies[0].replace("\"../tlc\"", &quoted_root());
    let manifest = "[package]\nname = \"program\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n";
    std::fs::write(package.join("Cargo.toml"), format!("{manifest}{dependencies}\n")).expect("written");
    for (k, program) in programs.iter().enumerate() {
        std::fs::write(package.join(format!("src/bin/program{k}.rs")), program).expect("written");
    }
    programs.len()
}

/// A program that depends on tlc and ndarray alone, the example with a package of its own, and the programs of the README, as
/// pasted. They are built together, so that the crates of the workspace are built once for all; that the library builds with the
/// features that it asks for itself, without those of other packages, is what continuous integration checks of it alone.
#[test]
fn packages_outside_of_the_workspace_compile_run_and_pass_their_tests() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("there is a README");
    let folder = target().join("packages");
    let _ = std::fs::remove_dir_all(&folder);
    for name in ["tests/user", "examples/embed"] {
        with_its_sources(&folder, name);
    }
    let programs = programs_of_the_readme(&folder, &readme);
    let members = "[workspace]\nresolver = \"3\"\nmembers = [\"tests/user\", \"examples/embed\", \"program\"]\n";
    std::fs::write(folder.join("Cargo.toml"), members.to_string() + &profile()).expect("written");
    std::fs::copy(root().join("examples/embed/Cargo.lock"), folder.join("Cargo.lock")).expect("copied");
    // Where the example looks for what was fetched.
    std::fs::create_dir_all(root().join("target/weights")).expect("a folder");
    std::fs::create_dir(folder.join("target")).expect("a folder");
    std::os::unix::fs::symlink(root().join("target/weights"), folder.join("target/weights")).expect("a link");

    // All of them each time: cargo chooses features by what it is asked to build.
    let text = cargo(&folder, &["test", "--workspace", "--bins"], &target());
    assert!(text.contains("embeddings_are_the_reference_s_in_batches_of_any_size_and_length ... ok"));
    cargo(&folder, &["build", "--workspace"], &target());
    let built = |name: &str| {
        // Where what they write is not taken for a part of the repository.
        let run = Command::new(target().join("debug").join(name))
            .current_dir(&folder)
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(
            run.status.success(),
            "{name}: {text}{}",
            String::from_utf8_lossy(&run.stderr)
        );
        text
    };
    assert!(built("user").contains("done"));
    let expected = blocks(&readme, "text");
    for k in 0..programs {
        // A program that needs a file of the reader's compiles, and that is all.
        if !blocks(&readme, "rust")[k].contains(".onnx") {
            let text = built(&format!("program{k}"));
            let expected = expected.get(k).copied().unwrap_or_default();
            assert!(
                text.starts_with(expected),
                "program {k} printed\n{text}\nexpected\n{expected}"
            );
        }
    }
}

/// The blocks of a language in the README, in their order.
fn blocks<'t>(readme: &'t str, language: &str) -> Vec<&'t str> {
    let fence = format!("\n```{language}\n");
    let rest = readme.split(fence.as_str()).skip(1);
    rest.map(|r| r.split("\n```").next().unwrap_or_default()).collect()
}
