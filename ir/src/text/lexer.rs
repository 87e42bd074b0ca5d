//! Tokens of the text form.
//!
//! Invariants:
//! - Every token is a byte range of the text; nothing is copied or decoded here, so the token list takes memory linear in
//!   the text. The last token is [`TokenKind::End`], and no other token is.
//! - What cannot be a token becomes [`TokenKind::Bad`] and is reported here, once; the parser stays silent about it.
//! - Line ends separate nothing, but a token knows whether it is the first of its line: error recovery resumes there.

use std::fmt::Write as _;

/// A range of bytes of a text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// One past the last byte.
    pub end: usize,
}

impl Span {
    /// The smallest range that holds both.
    pub fn to(self, other: Span) -> Span {
        Span {
            start: self.start.min(other.start),
            end: self.end.max(other.end),
        }
    }
}

/// What a token is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TokenKind {
    /// `[A-Za-z_][A-Za-z0-9_]*`: keywords, mnemonics, dtypes, symbols.
    Word,
    /// `%name`, `%0` or `%"any text"`.
    Value,
    /// `@name` or `@"any text"`.
    Global,
    /// `$0`: a slot of a plan.
    Slot,
    /// `"any text"`.
    String,
    /// Digits, with an optional fraction and exponent, or `0x` and hexadecimal digits. Never signed.
    Number,
    /// `'` and digits: an einsum label beyond the letters.
    Label,
    /// `(`
    LeftParen,
    /// `)`
    RightParen,
    /// `[`
    LeftBracket,
    /// `]`
    RightBracket,
    /// `{`
    LeftBrace,
    /// `}`
    RightBrace,
    /// `,`
    Comma,
    /// `:`
    Colon,
    /// `;`
    Semicolon,
    /// `=`
    Equals,
    /// `+`
    Plus,
    /// `-`
    Minus,
    /// `*`
    Star,
    /// `->`
    Arrow,
    /// `..=`
    Through,
    /// `..`
    Range,
    /// Not a token; already reported.
    Bad,
    /// The end of the text.
    End,
}

impl TokenKind {
    /// How messages name an expected token of this kind.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            TokenKind::Word => "a word",
            TokenKind::Value => "a value like `%x`",
            TokenKind::Global => "a name like `@f`",
            TokenKind::Slot => "a slot like `$0`",
            TokenKind::String => "a quoted string",
            TokenKind::Number => "a number",
            TokenKind::Label => "a label",
            TokenKind::LeftParen => "`(`",
            TokenKind::RightParen => "`)`",
            TokenKind::LeftBracket => "`[`",
            TokenKind::RightBracket => "`]`",
            TokenKind::LeftBrace => "`{`",
            TokenKind::RightBrace => "`}`",
            TokenKind::Comma => "`,`",
            TokenKind::Colon => "`:`",
            TokenKind::Semicolon => "`;`",
            TokenKind::Equals => "`=`",
            TokenKind::Plus => "`+`",
            TokenKind::Minus => "`-`",
            TokenKind::Star => "`*`",
            TokenKind::Arrow => "`->`",
            TokenKind::Through => "`..=`",
            TokenKind::Range => "`..`",
            TokenKind::Bad => "a token",
            TokenKind::End => "the end of the text",
        }
    }
}

/// One token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) kind: TokenKind,
    /// True for the first token of a line.
    pub(crate) line_start: bool,
    start: u32,
    end: u32,
}

impl Token {
    pub(crate) fn span(self) -> Span {
        Span {
            start: self.start as usize,
            end: self.end as usize,
        }
    }
}

/// The longest text that can be lexed, in bytes.
pub(crate) const MAX_TEXT_BYTES: usize = u32::MAX as usize - 1;

fn is_word_start(b: u8) -> bool {
    b.is_ascii_alphabetic() || b == b'_'
}

fn is_word_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_'
}

struct Lexer<'t> {
    text: &'t str,
    bytes: &'t [u8],
    at: usize,
    errors: Vec<(Span, String)>,
}

/// The tokens of a text of at most [`MAX_TEXT_BYTES`], and what could not be read. At most `max_errors` are listed.
pub(crate) fn lex(text: &str, max_errors: usize) -> (Vec<Token>, Vec<(Span, String)>) {
    let mut lexer = Lexer {
        text,
        bytes: text.as_bytes(),
        at: if text.starts_with('\u{feff}') { 3 } else { 0 },
        errors: Vec::new(),
    };
    let mut tokens = Vec::new();
    let mut line_start = true;
    loop {
        line_start |= lexer.skip_blanks();
        let start = lexer.at;
        let kind = lexer.token();
        lexer.errors.truncate(max_errors);
        tokens.push(Token {
            kind,
            line_start,
            start: start as u32,
            end: lexer.at as u32,
        });
        if kind == TokenKind::End {
            return (tokens, lexer.errors);
        }
        line_start = false;
    }
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn error(&mut self, start: usize, message: impl Into<String>) -> TokenKind {
        let span = Span { start, end: self.at };
        self.errors.push((span, message.into()));
        TokenKind::Bad
    }

    /// Passes blanks and comments; returns whether a line ended.
    fn skip_blanks(&mut self) -> bool {
        let mut newline = false;
        while let Some(&b) = self.bytes.get(self.at) {
            match b {
                b'\n' => newline = true,
                b' ' | b'\t' | b'\r' => {}
                b'/' if self.peek(1) == b'/' => {
                    let rest = &self.bytes[self.at..];
                    self.at += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
                    continue;
                }
                _ => break,
            }
            self.at += 1;
        }
        newline
    }

    fn token(&mut self) -> TokenKind {
        let start = self.at;
        let Some(&b) = self.bytes.get(start) else {
            return TokenKind::End;
        };
        self.at += 1;
        match b {
            b'(' => TokenKind::LeftParen,
            b')' => TokenKind::RightParen,
            b'[' => TokenKind::LeftBracket,
            b']' => TokenKind::RightBracket,
            b'{' => TokenKind::LeftBrace,
            b'}' => TokenKind::RightBrace,
            b',' => TokenKind::Comma,
            b':' => TokenKind::Colon,
            b';' => TokenKind::Semicolon,
            b'=' => TokenKind::Equals,
            b'+' => TokenKind::Plus,
            b'*' => TokenKind::Star,
            b'-' if self.peek(0) == b'>' => {
                self.at += 1;
                TokenKind::Arrow
            }
            b'-' => TokenKind::Minus,
            b'.' if self.peek(0) == b'.' && self.peek(1) == b'=' => {
                self.at += 2;
                TokenKind::Through
            }
            b'.' if self.peek(0) == b'.' => {
                self.at += 1;
                TokenKind::Range
            }
            b'"' => self.string(start),
            b'%' => self.name(start, TokenKind::Value),
            b'@' => self.name(start, TokenKind::Global),
            b'$' => {
                if self.take_while(|b| b.is_ascii_digit()) == 0 {
                    return self.error(start, "malformed slot; expected digits after `$`");
                }
                TokenKind::Slot
            }
            b'\'' => {
                let digits = self.take_while(|b| b.is_ascii_digit());
                if digits == 0 {
                    return self.error(start, "malformed label; expected digits after `'`");
                }
                TokenKind::Label
            }
            b'0'..=b'9' => self.number(start),
            b if is_word_start(b) => {
                self.take_while(is_word_byte);
                TokenKind::Word
            }
            _ => {
                // Take the whole run of bytes that start no token, so that it is one error and ends on a character.
                while let Some(&b) = self.bytes.get(self.at) {
                    let starts_token =
                        b.is_ascii_whitespace() || is_word_byte(b) || b"()[]{},:;=+*-%@$\"'/".contains(&b);
                    if starts_token {
                        break;
                    }
                    self.at += 1;
                }
                let found = excerpt(&self.text[start..self.at]);
                self.error(start, format!("unknown character; expected a token, found `{found}`"))
            }
        }
    }

    fn take_while(&mut self, accept: impl Fn(u8) -> bool) -> usize {
        let rest = &self.bytes[self.at..];
        let n = rest.iter().position(|&b| !accept(b)).unwrap_or(rest.len());
        self.at += n;
        n
    }

    /// After `%` or `@`: a bare or quoted name.
    fn name(&mut self, start: usize, kind: TokenKind) -> TokenKind {
        if self.peek(0) == b'"' {
            self.at += 1;
            return match self.string(start) {
                TokenKind::String => kind,
                bad => bad,
            };
        }
        let mut length = self.take_while(is_word_byte);
        while length > 0 && self.peek(0) == b'.' && is_word_byte(self.peek(1)) {
            self.at += 1;
            self.take_while(is_word_byte);
        }
        if length == 0 {
            length = self.at - start;
            let sigil = &self.text[start..start + length];
            let message = format!("malformed name; expected letters, digits or a quoted string after `{sigil}`");
            return self.error(start, message);
        }
        kind
    }

    /// After the opening quote: up to the closing one. Escapes are checked when the string is used.
    fn string(&mut self, start: usize) -> TokenKind {
        loop {
            match self.bytes.get(self.at) {
                Some(b'"') => {
                    self.at += 1;
                    return TokenKind::String;
                }
                None | Some(b'\n') => {
                    return self.error(start, "unterminated string; expected `\"` before the line ends");
                }
                Some(b'\\') if self.peek(1) != b'\n' && self.at + 1 < self.bytes.len() => self.at += 2,
                Some(_) => self.at += 1,
            }
        }
    }

    /// After the first digit.
    fn number(&mut self, start: usize) -> TokenKind {
        if self.bytes[start] == b'0' && self.peek(0) == b'x' {
            self.at += 1;
            if self.take_while(|b| b.is_ascii_hexdigit()) == 0 || is_word_byte(self.peek(0)) {
                self.take_while(is_word_byte);
                return self.error(start, "malformed number; expected hexadecimal digits after `0x`");
            }
            return TokenKind::Number;
        }
        self.take_while(|b| b.is_ascii_digit());
        if self.peek(0) == b'.' && self.peek(1).is_ascii_digit() {
            self.at += 1;
            self.take_while(|b| b.is_ascii_digit());
        }
        if matches!(self.peek(0), b'e' | b'E') {
            let sign = usize::from(matches!(self.peek(1), b'+' | b'-'));
            if self.peek(1 + sign).is_ascii_digit() {
                self.at += 1 + sign;
                self.take_while(|b| b.is_ascii_digit());
            }
        }
        if is_word_byte(self.peek(0)) {
            self.take_while(is_word_byte);
            let found = excerpt(&self.text[start..self.at]);
            return self.error(start, format!("malformed number; expected digits, found `{found}`"));
        }
        TokenKind::Number
    }
}

/// A piece of source for a message, cut to a readable length.
pub(crate) fn excerpt(text: &str) -> String {
    const LONGEST: usize = 40;
    match text.char_indices().nth(LONGEST) {
        Some((cut, _)) => format!("{}…", text[..cut].escape_debug()),
        None => text.escape_debug().to_string(),
    }
}

/// The text that a quoted string (without its quotes) stands for, or what is wrong with it.
pub(crate) fn unescape(raw: &str) -> Result<String, String> {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let mut chars = rest[at + 1..].chars();
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some(c @ ('"' | '\\')) => out.push(c),
            Some('u') => {
                let body = chars.as_str().strip_prefix('{').and_then(|b| b.split_once('}'));
                let code = body.filter(|(digits, _)| (1..=6).contains(&digits.len()));
                let char = code.and_then(|(digits, _)| u32::from_str_radix(digits, 16).ok().and_then(char::from_u32));
                match (char, body) {
                    (Some(c), Some((_, after))) => {
                        out.push(c);
                        rest = after;
                        continue;
                    }
                    _ => {
                        return Err("malformed escape; expected `\\u{…}` with a character's hexadecimal number".into());
                    }
                }
            }
            other => {
                let found = other.map_or(String::new(), |c| c.escape_debug().to_string());
                let expected = "`\\n`, `\\r`, `\\t`, `\\\"`, `\\\\` or `\\u{…}`";
                return Err(format!("unknown escape; expected {expected}, found `\\{found}`"));
            }
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    Ok(out)
}

/// `name` in quotes, such that [`unescape`] gives it back.
pub(crate) fn quote(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 2);
    out.push('"');
    for c in name.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{feff}') => {
                let _ = write!(out, "\\u{{{:x}}}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// A value's or graph's name as it follows `%` or `@`: bare where possible. Names of digits only are quoted, because bare
/// numbers are the printer's own names.
pub(crate) fn sigil_name(name: &str) -> String {
    let parts_plain = name
        .split('.')
        .all(|part| !part.is_empty() && part.bytes().all(is_word_byte));
    if parts_plain && !name.bytes().all(|b| b.is_ascii_digit()) {
        name.to_string()
    } else {
        quote(name)
    }
}

/// A symbol's or output's name: bare where it is a word and has no other meaning there.
pub(crate) fn word_name(name: &str) -> String {
    let plain = name.bytes().next().is_some_and(is_word_start) && name.bytes().all(is_word_byte);
    // `i7` is how loop variables print.
    let loop_variable = name.len() > 1 && name.starts_with('i') && name.bytes().skip(1).all(|b| b.is_ascii_digit());
    if plain && !loop_variable && !matches!(name, "div" | "mod" | "min" | "max" | "in" | "where") {
        name.to_string()
    } else {
        quote(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_string_survives_quoting() {
        let mut all: String = (0..=0x2100u32).filter_map(char::from_u32).collect();
        all.push_str("\u{feff}🦀\\u{41}");
        let quoted = quote(&all);
        assert!(!quoted.contains('\n'));
        assert_eq!(unescape(&quoted[1..quoted.len() - 1]).unwrap(), all);
        let (tokens, errors) = lex(&quoted, 9);
        assert!(errors.is_empty());
        assert_eq!(tokens.len(), 2);
    }

    #[test]
    fn tokens_split_where_they_should() {
        let kinds = |text| lex(text, 9).0.iter().map(|t| t.kind).collect::<Vec<_>>();
        use TokenKind::*;
        assert_eq!(kinds("0..=4"), [Number, Through, Number, End]);
        assert_eq!(kinds("1.5e-3-2"), [Number, Minus, Number, End]);
        assert_eq!(kinds("ab'52cd->a"), [Word, Label, Word, Arrow, Word, End]);
        assert_eq!(kinds("%a.b.0 %\"x\\\"y\" @\"\""), [Value, Value, Global, End]);
        assert_eq!(kinds("// %x\n\u{e9}\u{e9}; 12ab"), [Bad, Semicolon, Bad, End]);
    }

    #[test]
    fn bad_escapes_are_errors() {
        for bad in ["\\", "\\q", "\\u", "\\u{}", "\\u{d800}", "\\u{1234567}", "\\u{12"] {
            assert!(unescape(bad).is_err(), "{bad}");
        }
    }
}
