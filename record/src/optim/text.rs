//! Texts of optimizers taken apart.

use std::fmt;

/// What a text of an optimizer says that no optimizer has, and what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownOptimizer(pub(super) String);

impl fmt::Display for UnknownOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UnknownOptimizer {}

/// The parts of a text between `mark`s that are in no parentheses, trimmed; none of an empty text.
pub(super) fn parts(text: &str, mark: char) -> Vec<&str> {
    let (mut found, mut start, mut depth) = (vec![], 0, 0i64);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            c if c == mark && depth == 0 => {
                found.push(text[start..at].trim());
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    let last = text[start..].trim();
    if !(found.is_empty() && last.is_empty()) {
        found.push(last);
    }
    found
}

/// Whether a name matches a pattern, in which each `*` stands for any characters.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let pieces: Vec<&str> = pattern.split('*').collect();
    let [first, middle @ .., last] = &pieces[..] else {
        return pattern == name;
    };
    let Some(rest) = name.strip_prefix(first) else {
        return false;
    };
    let mut rest = rest;
    for piece in middle {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_in_parentheses_part_nothing() {
        assert_eq!(parts("lr=cosine(1,2), wd=3", ','), ["lr=cosine(1,2)", "wd=3"]);
        assert!(parts(" ", ',').is_empty());
        assert_eq!(parts("a,,b", ','), ["a", "", "b"]);
        assert_eq!(parts("),a", ','), ["),a"]);
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        assert!(matches("*.bias", "layers.0.bias"));
        assert!(matches("*", ""));
        assert!(matches("a*b*c", "aXbbc"));
        assert!(matches("name", "name"));
        assert!(!matches("name", "names"));
        assert!(!matches("a*a", "a"));
        assert!(!matches("*.bias", "layers.0.bias.x"));
    }
}
