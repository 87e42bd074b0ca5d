//! The cursor over tokens that every section's parser shares: expectations, names, numbers, recovery, diagnostics.
//!
//! Invariants:
//! - The cursor stands on a token of the list; [`TokenKind::End`] is never passed, so no loop that advances runs on.
//! - [`Reported`] means that a diagnostic exists: whoever receives it recovers, and says nothing.
//! - At most [`MAX_ERRORS`] diagnostics are kept. When they are full, [`Cursor::gave_up`] is true and parsers stop: a
//!   message may be longer than the statement that it is about, and memory stays linear in the text.

use super::lexer::{self, Span, Token, TokenKind, excerpt};
use super::{ParseError, Position};

/// The most errors that one parse reports.
pub const MAX_ERRORS: usize = 1000;

/// The longest message that is kept whole, in bytes.
const MAX_MESSAGE: usize = 4000;

/// The mark of a failure that was already reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reported;

/// What parsing functions return.
pub(crate) type Parsed<T> = Result<T, Reported>;

/// A place among the tokens, to come back to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Mark(usize);

/// The position in a token list, and the errors found so far.
pub(crate) struct Cursor<'t> {
    text: &'t str,
    tokens: Vec<Token>,
    at: usize,
    errors: Vec<(Span, String)>,
    anchors: Vec<usize>,
    locator: Locator<'t>,
}

impl<'t> Cursor<'t> {
    /// A cursor at the first token of a text.
    pub(crate) fn new(text: &'t str) -> Cursor<'t> {
        let mut errors = Vec::new();
        let mut tokens = Vec::new();
        if text.len() <= lexer::MAX_TEXT_BYTES {
            (tokens, errors) = lexer::lex(text, MAX_ERRORS);
        } else {
            let problem = format!(
                "text of {} bytes; expected at most {}",
                text.len(),
                lexer::MAX_TEXT_BYTES
            );
            errors.push((Span::default(), problem));
            tokens.extend(lexer::lex("", 0).0);
        }
        Cursor {
            text,
            tokens,
            at: 0,
            errors,
            anchors: Vec::new(),
            locator: Locator::new(text),
        }
    }

    /// The token under the cursor.
    pub(crate) fn token(&self) -> Token {
        self.tokens[self.at]
    }

    /// The kind of the token under the cursor.
    pub(crate) fn kind(&self) -> TokenKind {
        self.token().kind
    }

    /// The kind of the token after that.
    pub(crate) fn next_kind(&self) -> TokenKind {
        self.tokens[(self.at + 1).min(self.tokens.len() - 1)].kind
    }

    /// A token's source.
    pub(crate) fn source(&self, token: Token) -> &'t str {
        &self.text[token.span().start..token.span().end]
    }

    /// Passes the token under the cursor, unless it is the end.
    pub(crate) fn bump(&mut self) -> Token {
        let token = self.token();
        if token.kind != TokenKind::End {
            self.at += 1;
        }
        token
    }

    /// Passes a token of that kind, if it is there.
    pub(crate) fn eat(&mut self, kind: TokenKind) -> bool {
        let there = self.kind() == kind;
        if there {
            self.bump();
        }
        there
    }

    /// True if the token under the cursor is that word.
    pub(crate) fn at_word(&self, word: &str) -> bool {
        self.kind() == TokenKind::Word && self.source(self.token()) == word
    }

    /// True if the token after the one under the cursor is that word.
    pub(crate) fn word_follows(&self, word: &str) -> bool {
        let next = self.tokens[(self.at + 1).min(self.tokens.len() - 1)];
        next.kind == TokenKind::Word && self.source(next) == word
    }

    /// Passes that word, if it is there.
    pub(crate) fn eat_word(&mut self, word: &str) -> bool {
        let there = self.at_word(word);
        if there {
            self.bump();
        }
        there
    }

    /// Passes a token of that kind; `context` names what is being read.
    pub(crate) fn expect(&mut self, kind: TokenKind, context: &str) -> Parsed<Token> {
        if self.kind() == kind {
            Ok(self.bump())
        } else {
            Err(self.unexpected(context, kind.describe()))
        }
    }

    /// Reports the token under the cursor: "malformed `context`; expected …, found …".
    pub(crate) fn unexpected(&mut self, context: &str, expected: &str) -> Reported {
        let token = self.token();
        let found = match token.kind {
            // The lexer has said what is wrong here.
            TokenKind::Bad => return Reported,
            // Recovery from another failure ended here.
            _ if self.errors.last().is_some_and(|(span, _)| *span == token.span()) => return Reported,
            TokenKind::End => "the end of the text".to_string(),
            _ => format!("`{}`", excerpt(self.source(token))),
        };
        self.error(
            token.span(),
            format!("malformed {context}; expected {expected}, found {found}"),
        )
    }

    /// Reports an error.
    pub(crate) fn error(&mut self, span: Span, message: impl Into<String>) -> Reported {
        if self.errors.len() < MAX_ERRORS {
            let mut message: String = message.into();
            if message.len() > MAX_MESSAGE {
                message.truncate(message.floor_char_boundary(MAX_MESSAGE));
                message.push('…');
            }
            self.errors.push((span, message));
        }
        Reported
    }

    /// True when no more errors are taken.
    pub(crate) fn gave_up(&self) -> bool {
        self.errors.len() >= MAX_ERRORS
    }

    /// How many errors were reported.
    pub(crate) fn errors(&self) -> usize {
        self.errors.len()
    }

    /// Reports a symbol's second declaration, which began at a mark.
    pub(crate) fn declared_twice(&mut self, start: Mark, name: &str) -> Reported {
        let message = format!("symbol `{}` declared twice; expected one declaration", excerpt(name));
        self.error(self.span_since(start), message)
    }

    /// Notes that the token under the cursor begins something that canonical text begins a line with.
    pub(crate) fn anchor(&mut self) {
        self.anchors.push(self.token().span().start);
    }

    /// What was noted, in order.
    pub(crate) fn take_anchors(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.anchors)
    }

    /// Where the cursor is.
    pub(crate) fn mark(&self) -> Mark {
        Mark(self.at)
    }

    /// Back, or forth, to a mark.
    pub(crate) fn reset(&mut self, mark: Mark) {
        self.at = mark.0;
    }

    /// From the token at a mark through the last token passed.
    pub(crate) fn span_since(&self, mark: Mark) -> Span {
        let last = self.at.max(mark.0 + 1) - 1;
        self.tokens[mark.0].span().to(self.tokens[last].span())
    }

    /// Line and column of a byte. Cheap while the bytes asked for ascend.
    pub(crate) fn position(&mut self, byte: usize) -> Position {
        self.locator.position(byte)
    }

    /// The string that a quoted token stands for; `sigil` bytes come before the opening quote.
    fn unquote(&mut self, token: Token, sigil: usize) -> Parsed<String> {
        let source = self.source(token);
        lexer::unescape(&source[sigil + 1..source.len() - 1]).map_err(|problem| self.error(token.span(), problem))
    }

    /// A quoted string.
    pub(crate) fn string(&mut self, context: &str) -> Parsed<String> {
        let token = self.expect(TokenKind::String, context)?;
        self.unquote(token, 0)
    }

    /// A word, or any text in quotes.
    pub(crate) fn word_or_string(&mut self, context: &str) -> Parsed<String> {
        match self.kind() {
            TokenKind::String => self.string(context),
            TokenKind::Word => {
                let token = self.bump();
                Ok(self.source(token).to_string())
            }
            _ => Err(self.unexpected(context, "a word or a quoted string")),
        }
    }

    /// What follows `%` or `@` in a token of kind Value or Global, and whether it was a bare number.
    pub(crate) fn sigil_name(&mut self, token: Token) -> Parsed<(String, bool)> {
        let body = &self.source(token)[1..];
        if body.starts_with('"') {
            Ok((self.unquote(token, 1)?, false))
        } else {
            Ok((body.to_string(), body.bytes().all(|b| b.is_ascii_digit())))
        }
    }

    /// An integer with an optional sign, in a range.
    pub(crate) fn integer(&mut self, context: &str, lo: i64, hi: i64) -> Parsed<i64> {
        let start = self.mark();
        let negative = lo < 0 && self.eat(TokenKind::Minus);
        let token = self.expect(TokenKind::Number, context)?;
        let span = self.span_since(start);
        let source = self.source(token);
        let magnitude = match source.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None if source.bytes().all(|b| b.is_ascii_digit()) => source.parse::<u64>().ok(),
            None => {
                let message = format!("malformed {context}; expected an integer, found `{}`", excerpt(source));
                return Err(self.error(span, message));
            }
        };
        let value = magnitude.map(|m| if negative { -i128::from(m) } else { i128::from(m) });
        match value
            .and_then(|v| i64::try_from(v).ok())
            .filter(|v| (lo..=hi).contains(v))
        {
            Some(v) => Ok(v),
            None => {
                let found = excerpt(&self.text[span.start..span.end]);
                let expected = format!("an integer in {lo}..={hi}");
                Err(self.error(
                    span,
                    format!("{context} out of range; expected {expected}, found `{found}`"),
                ))
            }
        }
    }

    /// Elements up to a closing token, separated by commas; a comma may follow the last.
    pub(crate) fn list<T>(
        &mut self,
        close: TokenKind,
        context: &str,
        mut element: impl FnMut(&mut Self) -> Parsed<T>,
    ) -> Parsed<Vec<T>> {
        let mut all = Vec::new();
        loop {
            if self.eat(close) {
                return Ok(all);
            }
            all.push(element(self)?);
            if !self.eat(TokenKind::Comma) && self.kind() != close {
                return Err(self.unexpected(context, &format!("`,` or {}", close.describe())));
            }
        }
    }

    /// After an opening parenthesis: to behind the one that closes it; false if none does. Stops at braces.
    pub(crate) fn skip_parenthesized(&mut self) -> bool {
        let mut depth = 1usize;
        loop {
            match self.kind() {
                TokenKind::LeftParen => depth += 1,
                TokenKind::RightParen => depth -= 1,
                TokenKind::End | TokenKind::LeftBrace | TokenKind::RightBrace => return false,
                _ => {}
            }
            self.bump();
            if depth == 0 {
                return true;
            }
        }
    }

    /// After an opening brace: to behind the one that closes it, or to the end.
    pub(crate) fn skip_braced(&mut self) {
        let mut depth = 1usize;
        while depth > 0 && self.kind() != TokenKind::End {
            match self.bump().kind {
                TokenKind::LeftBrace => depth += 1,
                TokenKind::RightBrace => depth -= 1,
                _ => {}
            }
        }
    }

    /// After an error in the head of a block: to the brace that opens the block, if it is there.
    pub(crate) fn find_block(&mut self) -> bool {
        while !matches!(
            self.kind(),
            TokenKind::LeftBrace | TokenKind::RightBrace | TokenKind::End
        ) && !self.token().line_start
        {
            self.bump();
        }
        self.kind() == TokenKind::LeftBrace
    }

    /// True where a section begins, which nothing else can be part of: a line with its word, and with what follows it.
    pub(crate) fn at_section(&self) -> bool {
        let named = matches!(self.next_kind(), TokenKind::Global | TokenKind::LeftParen);
        self.token().line_start && named && ["graph", "kernel", "plan"].iter().any(|w| self.at_word(w))
    }

    /// After an error in the statement that began at `start`: to the next line that begins a statement, or to the brace
    /// that closes the section. Always advances, except when that brace is under the cursor already.
    pub(crate) fn recover_statement(&mut self, start: Mark, keywords: &[&str]) {
        let mut depth = 0usize;
        for t in &self.tokens[start.0..self.at] {
            match t.kind {
                TokenKind::LeftBrace => depth += 1,
                TokenKind::RightBrace => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
        if self.at == start.0 && (depth > 0 || self.kind() != TokenKind::RightBrace) {
            depth += usize::from(self.bump().kind == TokenKind::LeftBrace);
        }
        loop {
            let token = self.token();
            let starts = match token.kind {
                TokenKind::Value | TokenKind::Slot => true,
                TokenKind::Word => keywords.contains(&self.source(token)),
                _ => false,
            };
            match token.kind {
                TokenKind::End => return,
                TokenKind::RightBrace if depth == 0 => return,
                TokenKind::RightBrace => depth -= 1,
                TokenKind::LeftBrace => depth += 1,
                _ if starts && token.line_start => return,
                _ => {}
            }
            self.bump();
        }
    }

    /// To the next line that begins with one of these words. Always advances.
    pub(crate) fn recover_section(&mut self, keywords: &[&str]) {
        self.bump();
        while self.kind() != TokenKind::End {
            let token = self.token();
            if token.line_start && token.kind == TokenKind::Word && keywords.contains(&self.source(token)) {
                return;
            }
            self.bump();
        }
    }

    /// Every error, in order of the text; empty if the text is good.
    pub(crate) fn finish(mut self) -> Vec<ParseError> {
        let full = self.gave_up();
        self.errors.sort_by_key(|e| e.0);
        let mut locator = Locator::new(self.text);
        let mut all: Vec<ParseError> = Vec::with_capacity(self.errors.len() + 1);
        for (span, message) in self.errors {
            let position = locator.position(span.start);
            all.push(ParseError {
                span,
                position,
                message,
            });
        }
        if full && let Some(last) = all.last() {
            let message = format!("too many errors; expected fewer than {MAX_ERRORS}, the rest is not reported");
            all.push(ParseError {
                message,
                ..last.clone()
            });
        }
        all
    }
}

/// Turns bytes into lines and columns, in one pass over the text when they ascend.
pub(super) struct Locator<'t> {
    text: &'t str,
    byte: usize,
    position: Position,
}

impl<'t> Locator<'t> {
    pub(super) fn new(text: &'t str) -> Locator<'t> {
        let position = Position { line: 1, column: 1 };
        Locator {
            text,
            byte: 0,
            position,
        }
    }

    pub(super) fn position(&mut self, byte: usize) -> Position {
        let byte = self.text.floor_char_boundary(byte);
        if byte < self.byte {
            *self = Locator::new(self.text);
        }
        for c in self.text[self.byte..byte].chars() {
            if c == '\n' {
                self.position.line = self.position.line.saturating_add(1);
                self.position.column = 1;
            } else {
                self.position.column = self.position.column.saturating_add(1);
            }
        }
        self.byte = byte;
        self.position
    }
}
