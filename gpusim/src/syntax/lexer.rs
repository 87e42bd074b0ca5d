//! Text to tokens.

use super::PtxError;

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Token {
    /// An identifier, without dots: `%r1`, `$L__BB0_2`, `_ZZ3redE1s`.
    Word(String),
    /// A dot and the word behind it, without white space between: `.reg`, `.f32`, `.shared::cta`.
    Dotted(String),
    Int(u64),
    Single(u32),
    Double(u64),
    Text(String),
    /// Any other character.
    Punct(char),
}

pub(super) struct Lexed {
    pub(super) token: Token,
    pub(super) line: u32,
}

const fn starts_word(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%')
}

const fn continues_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$')
}

pub(super) fn lex(text: &str) -> Result<Vec<Lexed>, PtxError> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::with_capacity(bytes.len() / 4);
    let (mut at, mut line) = (0, 1);
    while at < bytes.len() {
        let c = bytes[at];
        match c {
            b'\n' => {
                line += 1;
                at += 1;
            }
            b' ' | b'\t' | b'\r' | 0 => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let opened = line;
                at += 2;
                loop {
                    match bytes.get(at) {
                        None => return Err(PtxError::new(opened, "a comment that does not end")),
                        Some(b'*') if bytes.get(at + 1) == Some(&b'/') => break,
                        Some(b'\n') => line += 1,
                        Some(_) => {}
                    }
                    at += 1;
                }
                at += 2;
            }
            b'"' => {
                let start = at + 1;
                at = start;
                while at < bytes.len() && bytes[at] != b'"' && bytes[at] != b'\n' {
                    at += if bytes[at] == b'\\' { 2 } else { 1 };
                }
                if bytes.get(at) != Some(&b'"') {
                    return Err(PtxError::new(line, "a string that does not end"));
                }
                let inner = String::from_utf8_lossy(&bytes[start..at]).into_owned();
                tokens.push(Lexed {
                    token: Token::Text(inner),
                    line,
                });
                at += 1;
            }
            b'.' if bytes.get(at + 1).is_some_and(|&c| continues_word(c)) => {
                let start = at + 1;
                at = start;
                while at < bytes.len() {
                    if continues_word(bytes[at]) {
                        at += 1;
                    } else if bytes[at..].starts_with(b"::") && bytes.get(at + 2).is_some_and(|&c| continues_word(c)) {
                        at += 2;
                    } else {
                        break;
                    }
                }
                tokens.push(Lexed {
                    token: Token::Dotted(ascii(&bytes[start..at])),
                    line,
                });
            }
            _ if starts_word(c) => {
                let start = at;
                at += 1;
                while at < bytes.len() && continues_word(bytes[at]) {
                    at += 1;
                }
                tokens.push(Lexed {
                    token: Token::Word(ascii(&bytes[start..at])),
                    line,
                });
            }
            _ if c.is_ascii_digit() => {
                let start = at;
                while at < bytes.len() && bytes[at].is_ascii_alphanumeric() {
                    at += 1;
                }
                tokens.push(Lexed {
                    token: number(&ascii(&bytes[start..at]), line)?,
                    line,
                });
            }
            _ if c.is_ascii() => {
                tokens.push(Lexed {
                    token: Token::Punct(c as char),
                    line,
                });
                at += 1;
            }
            _ => {
                return Err(PtxError::new(
                    line,
                    "a character that is not ASCII outside of a comment or string",
                ));
            }
        }
    }
    Ok(tokens)
}

fn ascii(bytes: &[u8]) -> String {
    bytes.iter().map(|&b| b as char).collect()
}

fn number(text: &str, line: u32) -> Result<Token, PtxError> {
    let wrong = || PtxError::new(line, format!("`{text}` is not a number"));
    let lower = text.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0f").filter(|h| h.len() == 8) {
        return u32::from_str_radix(hex, 16).map(Token::Single).map_err(|_| wrong());
    }
    if let Some(hex) = lower.strip_prefix("0d").filter(|h| h.len() == 16) {
        return u64::from_str_radix(hex, 16).map(Token::Double).map_err(|_| wrong());
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    let (digits, radix) = match digits.as_bytes() {
        [b'0', b'x', ..] => (&digits[2..], 16),
        [b'0', b'b', ..] => (&digits[2..], 2),
        [b'0', _, ..] => (&digits[1..], 8),
        _ => (digits, 10),
    };
    u64::from_str_radix(digits, radix).map(Token::Int).map_err(|_| wrong())
}
