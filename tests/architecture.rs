//! ARCHITECTURE.md sends readers to files that exist, and modules import each other in one direction.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Every file and folder below `folder`, as paths from it; build outputs and hidden folders apart.
fn listed(folder: &Path, prefix: &str, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with('.') || name == "target" {
            continue;
        }
        let path = format!("{prefix}{name}");
        if entry.file_type().unwrap().is_dir() {
            listed(&entry.path(), &format!("{path}/"), found);
        }
        found.insert(path);
    }
}

/// What stands in backquotes and is a path: `a/b/`, `a/b.rs`, `b.rs`, with `{a,b}` for either.
fn named(text: &str) -> Vec<String> {
    let is_file = |w: &str| [".rs", ".py", ".md", ".toml"].iter().any(|end| w.ends_with(end));
    let plain = |w: &str| w.chars().all(|c| c.is_ascii_alphanumeric() || "/._-{},".contains(c));
    let quoted = text.split('`').skip(1).step_by(2);
    let paths = quoted.filter(|w| plain(w) && (w.ends_with('/') || is_file(w)));
    paths
        .flat_map(|w| match (w.find('{'), w.find('}')) {
            (Some(open), Some(close)) => {
                let either = w[open + 1..close].split(',');
                either
                    .map(|part| format!("{}{part}{}", &w[..open], &w[close + 1..]))
                    .collect()
            }
            _ => vec![w.to_string()],
        })
        .collect()
}

#[test]
fn every_path_in_the_architecture_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = BTreeSet::new();
    listed(root, "", &mut files);
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let paths = named(&text);
    assert!(paths.len() > 60, "{paths:?}");
    let missing: Vec<&String> = paths
        .iter()
        .filter(|path| {
            let path = path.trim_end_matches('/');
            // A name without a folder, or with a part of its way, is that of a file in the folder that the sentence is about.
            let below = format!("/{path}");
            !files.contains(path) && !files.iter().any(|f| f.ends_with(&below))
        })
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names {missing:?}");
}

#[test]
fn a_view_is_known_in_few_files_and_all_of_them_are_in_the_walk_through() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let walk = text.split("### A view\n").nth(1).and_then(|t| t.split("\n### ").next());
    let walk: BTreeSet<String> = named(walk.unwrap()).into_iter().collect();
    assert!((1..=7).contains(&walk.len()), "{walk:?}");
    // What names every view has to be changed for a new one.
    let views = ["Reshape", "Permute", "Expand", "Pad", "Slice", "Window"];
    let mut files = BTreeSet::new();
    listed(root, "", &mut files);
    let is_source = |f: &&String| f.ends_with(".rs") && (f.starts_with("src/") || f.contains("/src/"));
    let names_all = |f: &&String| {
        let text = std::fs::read_to_string(root.join(f)).unwrap();
        if !text.contains("View") {
            return false;
        }
        let code = code(&text);
        let is_named = |v: &&&str| {
            ["View::", "ViewKind::"]
                .iter()
                .any(|ty| code.contains(&format!("{ty}{v}")))
        };
        views.iter().filter(is_named).count() == views.len()
    };
    let naming: Vec<&String> = files.iter().filter(is_source).filter(names_all).collect();
    assert!(naming.len() >= 4, "{naming:?}");
    let missing: Vec<_> = naming.iter().filter(|f| !walk.contains(f.as_str())).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md says nothing of {missing:?}");
}

/// The code of a file without comments and without its tests at the end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let line = |l: &str| l.split("//").next().unwrap_or_default().to_string();
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    &text[..end.unwrap_or(text.len())]
}

/// The modules of the crate's root that a file of the module at `depth` folders below the root names.
fn named_modules(code: &str, depth: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let above = "super::".repeat(depth);
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(list) => {
                let list = list.split(';').next().unwrap_or_default();
                found.extend(list.split([',', '{', '}', ' ', '\n']).map(|w| word(w).to_string()));
            }
            None => drop(found.insert(word(rest).to_string())),
        }
    }
    for (at, _) in code.match_indices(&above) {
        if !code[..at].ends_with("super::") {
            found.insert(word(&code[at + above.len()..]).to_string());
        }
    }
    found
}

#[test]
fn modules_import_each_other_in_one_direction() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut edges = 0;
    for krate in [
        "ir",
        "passes",
        "codegen",
        "runtime",
        "formats",
        "record",
        "onnx",
        "gpusim",
        "gpusim/driver",
        "gpusim/cublaslt",
        "x86sim",
    ] {
        let source = root.join(krate).join("src");
        let mut files = BTreeSet::new();
        listed(&source, "", &mut files);
        let files: Vec<&String> = files.iter().filter(|f| f.ends_with(".rs") && *f != "lib.rs").collect();
        let module = |file: &str| word(file).to_string();
        let modules: BTreeSet<String> = files.iter().map(|f| module(f)).collect();
        let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for file in files {
            let text = std::fs::read_to_string(source.join(file)).unwrap();
            let depth = file.matches('/').count() + usize::from(!file.ends_with("mod.rs"));
            let own = module(file);
            let named = named_modules(&code(&text), depth);
            let others = named.into_iter().filter(|m| modules.contains(m) && *m != own);
            imports.entry(own.clone()).or_default().extend(others);
        }
        edges += imports.values().map(BTreeSet::len).sum::<usize>();
        // Modules that import nothing that is left are taken away until none is left, or only circles.
        loop {
            let done: Vec<String> = imports
                .iter()
                .filter(|(_, to)| to.is_empty())
                .map(|(m, _)| m.clone())
                .collect();
            if done.is_empty() {
                break;
            }
            for module in done {
                imports.remove(&module);
                imports.values_mut().for_each(|to| to.retain(|m| *m != module));
            }
        }
        assert!(
            imports.is_empty(),
            "modules of {krate} import each other in a circle: {imports:?}"
        );
    }
    assert!(edges > 100, "{edges} imports");
}
