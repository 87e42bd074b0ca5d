//! ARCHITECTURE.md sends readers to files that exist.

use std::collections::BTreeSet;
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
