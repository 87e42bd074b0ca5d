//! What the verifiers of kernels and plans say, and where: texts in `verifier_texts/*.tlir`, each with one thing wrong.
//!
//! A file is a text that ends with what is expected, an error a line:
//!
//! ```text
//! kernel @k(…) { … }
//! // expect:
//! // 3:5: @k: …
//! ```
//!
//! `TLC_BLESS=1` rewrites the expectations. A file without errors fails.

use std::path::Path;

use tlc_ir::text::{no_data, parse_module, verify_module};

const EXPECT: &str = "// expect:\n";

fn errors(text: &str) -> Vec<String> {
    let found = match parse_module(text, &mut no_data) {
        Ok(module) => verify_module(&module, text),
        Err(errors) => errors,
    };
    found.iter().map(ToString::to_string).collect()
}

#[test]
fn every_text_has_its_errors() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verifier_texts");
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    names.sort();
    assert!(names.len() > 40, "{} texts", names.len());
    let mut wrong = Vec::new();
    for path in names {
        let file = std::fs::read_to_string(&path).expect("a text");
        let (text, expected) = file.split_once(EXPECT).unwrap_or((&file, ""));
        let found = errors(text);
        assert!(!found.is_empty(), "{} has no error", path.display());
        let found: String = found.iter().map(|e| format!("// {e}\n")).collect();
        if std::env::var_os("TLC_BLESS").is_some() {
            std::fs::write(&path, format!("{text}{EXPECT}{found}")).expect("a file that can be written");
        } else if found != expected {
            wrong.push(format!("{}:\nexpected\n{expected}found\n{found}", path.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
