//! The npy header: magic, version, length, and a Python dict literal.
//!
//! Invariants:
//! - A [`Header`] that exists is sound: its dtype is one of ours, its shape's byte count fits the address space, and
//!   `data_offset` is where the elements start.
//! - The parser accepts what Python's `ast.literal_eval` would accept for the dicts that NumPy and its imitators write:
//!   keys in any order, either quote, any whitespace, trailing commas, Python 2's `u''` and `3L`. It evaluates nothing
//!   else. Exactly the keys `descr`, `fortran_order` and `shape` must be there, once each.
//! - Every error names the byte offset in the file, what was expected and what was found.
//!
//! Reference: NumPy enhancement proposal 1 and `numpy/lib/format.py`.

use tlc_ir::dtype::DType;
use tlc_ir::tensor::element_count;

use crate::{Format, FormatError, ReadOptions};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The longest header text that is read, in bytes. NumPy's own limit is 10,000 unless pickles are allowed.
pub const MAX_HEADER_BYTES: usize = 64 * 1024;

/// The highest rank that is read, NumPy 2's own.
pub const MAX_RANK: usize = 64;

/// The order of the bytes of one element in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    /// This machine's byte order.
    pub const NATIVE: ByteOrder = if cfg!(target_endian = "big") {
        ByteOrder::Big
    } else {
        ByteOrder::Little
    };
}

/// What an npy file says about its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Major and minor format version: (1, 0), (2, 0) or (3, 0).
    pub version: (u8, u8),
    /// Element type.
    pub dtype: DType,
    /// Byte order of the elements in the file; [`ByteOrder::NATIVE`] for one-byte elements.
    pub byte_order: ByteOrder,
    /// True if the first axis varies fastest in the file.
    pub fortran_order: bool,
    /// Extents.
    pub shape: Vec<usize>,
    /// Bytes before the first element.
    pub data_offset: usize,
}

/// The fixed-size front of a header.
pub(super) struct Preamble {
    version: (u8, u8),
    /// Bytes up to the header text: 10 or 12.
    pub(super) len: usize,
    /// Bytes of header text.
    pub(super) text_len: usize,
}

impl Preamble {
    /// Bytes needed to know how long the preamble is.
    pub(super) const VERSION_END: usize = 8;

    /// The preamble's length, from its first [`Preamble::VERSION_END`] bytes (fewer are an error).
    pub(super) fn length(front: &[u8]) -> Result<usize, FormatError> {
        let seen = front.len().min(MAGIC.len());
        if let Some(at) = (0..seen).find(|&i| front[i] != MAGIC[i]) {
            return Err(FormatError::invalid(
                Format::Npy,
                at as u64,
                "the magic bytes \\x93NUMPY",
                describe(front, at),
            ));
        }
        match *front {
            [_, _, _, _, _, _, major, minor, ..] => match (major, minor) {
                (1, 0) => Ok(10),
                (2 | 3, 0) => Ok(12),
                (0, _) => Err(FormatError::invalid(
                    Format::Npy,
                    6,
                    "format version 1, 2 or 3",
                    format!("{major}.{minor}"),
                )),
                _ => Err(FormatError::unsupported(
                    Format::Npy,
                    6,
                    format!("format version {major}.{minor}"),
                )),
            },
            _ => Err(end_of_input(front.len(), "a preamble of 10 bytes")),
        }
    }

    /// The preamble, from at least [`Preamble::length`] bytes (fewer are an error).
    pub(super) fn parse(front: &[u8]) -> Result<Preamble, FormatError> {
        let len = Self::length(front)?;
        let field = front
            .get(8..len)
            .ok_or_else(|| end_of_input(front.len(), &format!("a preamble of {len} bytes")))?;
        let text_len = field.iter().rev().fold(0usize, |n, &b| n << 8 | b as usize);
        if text_len > MAX_HEADER_BYTES {
            return Err(FormatError::Limit {
                format: Format::Npy,
                what: "header length in bytes",
                requested: text_len as u64,
                limit: MAX_HEADER_BYTES as u64,
            });
        }
        Ok(Preamble {
            version: (front[6], front[7]),
            len,
            text_len,
        })
    }

    /// The header, from its text (exactly `text_len` bytes).
    pub(super) fn header(&self, text: &[u8], options: &ReadOptions) -> Result<Header, FormatError> {
        let parser = Parser {
            text,
            base: self.len,
            pos: 0,
        };
        parser.header(self, options)
    }
}

impl Header {
    /// Parses the header at the front of `bytes`; what follows it is not looked at.
    ///
    /// # Errors
    /// [`FormatError::Invalid`], [`FormatError::Unsupported`], or [`FormatError::Limit`] for a header text longer than
    /// [`MAX_HEADER_BYTES`] or a rank over [`MAX_RANK`].
    pub fn parse(bytes: &[u8]) -> Result<Header, FormatError> {
        Self::parse_with(bytes, &ReadOptions::default())
    }

    /// [`Header::parse`] with options.
    ///
    /// # Errors
    /// As [`Header::parse`]; also [`FormatError::Limit`] if the elements are over the caller's limit.
    pub fn parse_with(bytes: &[u8], options: &ReadOptions) -> Result<Header, FormatError> {
        let preamble = Preamble::parse(bytes)?;
        let end = preamble.len + preamble.text_len;
        let text = bytes
            .get(preamble.len..end)
            .ok_or_else(|| end_of_input(bytes.len(), &format!("a header that ends at byte {end}")))?;
        preamble.header(text, options)
    }

    /// Number of elements.
    pub fn element_count(&self) -> usize {
        element_count(&self.shape).expect("checked when parsed")
    }

    /// Bytes of elements that follow the header.
    pub fn data_bytes(&self) -> usize {
        self.element_count() * self.dtype.bytes()
    }

    /// Everything before the elements of a C-order tensor, laid out as NumPy does: version 1.0 unless the text is too
    /// long for it, padded with spaces so that the first axis may grow to 21 digits in place and the elements start at
    /// a multiple of 64.
    pub(super) fn encode(dtype: DType, shape: &[usize]) -> Vec<u8> {
        let dims = match shape {
            [one] => format!("({one},)"),
            _ => format!(
                "({})",
                shape.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
            ),
        };
        let mut text = format!(
            "{{'descr': '{}', 'fortran_order': False, 'shape': {dims}, }}",
            descr(dtype)
        );
        if let Some(first) = shape.first() {
            text.extend(std::iter::repeat_n(
                ' ',
                21usize.saturating_sub(first.to_string().len()),
            ));
        }
        let wide = text.len() + 75 > u16::MAX as usize;
        let preamble = if wide { 12 } else { 10 };
        let total = (preamble + text.len() + 1).next_multiple_of(64);
        let text_len = total - preamble;
        let mut bytes = Vec::with_capacity(total);
        bytes.extend_from_slice(MAGIC);
        if wide {
            bytes.extend_from_slice(&[2, 0]);
            bytes.extend_from_slice(&(text_len as u32).to_le_bytes());
        } else {
            bytes.extend_from_slice(&[1, 0]);
            bytes.extend_from_slice(&(text_len as u16).to_le_bytes());
        }
        bytes.extend_from_slice(text.as_bytes());
        bytes.resize(total - 1, b' ');
        bytes.push(b'\n');
        bytes
    }
}

/// NumPy's name of a dtype's little-endian stored form. bf16 has none and is two raw bytes, a storage type one.
fn descr(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "|b1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::F16 => "<f2",
        DType::BF16 => "|V2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        _ => "|V1",
    }
}

fn parse_descr(text: &str, offset: u64, options: &ReadOptions) -> Result<(DType, ByteOrder), FormatError> {
    let unsupported = |what: &str| {
        Err(FormatError::unsupported(
            Format::Npy,
            offset,
            format!("{what} (`{text}`)"),
        ))
    };
    let invalid = || {
        Err(FormatError::invalid(
            Format::Npy,
            offset,
            "a NumPy type such as '<f4'",
            format!("'{text}'"),
        ))
    };
    let order = text.chars().next().filter(|c| matches!(c, '<' | '>' | '|' | '='));
    let mut rest = text[order.map_or(0, char::len_utf8)..].chars();
    let Some(kind) = rest.next() else { return invalid() };
    let size = rest.as_str();
    let dtype = match (kind, size) {
        ('b', "1") | ('?', "") => DType::Bool,
        ('i', "1") => DType::I8,
        ('i', "2") => DType::I16,
        ('i', "4") => DType::I32,
        ('i', "8") => DType::I64,
        ('u', "1") => DType::U8,
        ('u', "2") => DType::U16,
        ('u', "4") => DType::U32,
        ('u', "8") => DType::U64,
        ('f', "2") => DType::F16,
        ('f', "4") => DType::F32,
        ('f', "8") => DType::F64,
        ('V', "2") if options.hint == Some(DType::BF16) && order != Some('>') => {
            return Ok((DType::BF16, ByteOrder::Little));
        }
        // What ml_dtypes calls `<f1` is its float8_e5m2; NumPy itself does not know that name.
        ('V' | 'f', "1") if let Some(storage) = options.hint.filter(|d| d.is_storage()) => {
            if kind == 'f' && storage != DType::F8E5M2 {
                return unsupported("one-byte floats that are not f8e5m2");
            }
            return Ok((storage, ByteOrder::NATIVE));
        }
        ('V', "1") => {
            return unsupported("raw one-byte elements, which are a storage type only where the caller says so");
        }
        ('V', "2") => return unsupported("raw two-byte elements, which are bf16 only where the caller says so"),
        ('f', "12" | "16") => return unsupported("extended-precision floats"),
        ('c', _) => return unsupported("complex numbers"),
        ('S' | 'a' | 'U' | 'T', _) => return unsupported("strings"),
        ('O', _) => return unsupported("Python objects"),
        ('m' | 'M', _) => return unsupported("dates and time spans"),
        ('V', _) => return unsupported("raw elements"),
        ('b' | 'i' | 'u' | 'f', s) if !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit()) => {
            return unsupported("an element width that no dtype has");
        }
        _ => return invalid(),
    };
    let byte_order = match (order, dtype.bytes()) {
        (_, 1) | (Some('=') | None, _) => ByteOrder::NATIVE,
        (Some('<'), _) => ByteOrder::Little,
        (Some('>'), _) => ByteOrder::Big,
        _ => return invalid(),
    };
    Ok((dtype, byte_order))
}

fn end_of_input(at: usize, expected: &str) -> FormatError {
    FormatError::invalid(
        Format::Npy,
        at as u64,
        expected,
        format!("the end of the input after {at} bytes"),
    )
}

/// The byte at `at`, for an error message.
fn describe(bytes: &[u8], at: usize) -> String {
    match bytes.get(at) {
        None => "the end of the header".to_string(),
        Some(b @ b' '..=b'~') => format!("`{}`", *b as char),
        Some(b) => format!("byte {b:#04x}"),
    }
}

struct Parser<'a> {
    text: &'a [u8],
    /// File offset of the text's first byte.
    base: usize,
    pos: usize,
}

impl Parser<'_> {
    fn offset(&self) -> u64 {
        (self.base + self.pos) as u64
    }

    fn error<T>(&self, expected: &str) -> Result<T, FormatError> {
        Err(FormatError::invalid(
            Format::Npy,
            self.offset(),
            expected,
            describe(self.text, self.pos),
        ))
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.pos).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r' | b'\x0c')) {
            self.pos += 1;
        }
    }

    /// Skips space, then `wanted` if it is next.
    fn eat(&mut self, wanted: u8) -> bool {
        self.skip_space();
        let found = self.peek() == Some(wanted);
        self.pos += found as usize;
        found
    }

    fn expect(&mut self, wanted: u8, expected: &str) -> Result<(), FormatError> {
        if self.eat(wanted) { Ok(()) } else { self.error(expected) }
    }

    fn header(mut self, preamble: &Preamble, options: &ReadOptions) -> Result<Header, FormatError> {
        let mut descr = None;
        let mut fortran_order = None;
        let mut shape = None;
        self.expect(b'{', "`{`")?;
        while !self.eat(b'}') {
            let key_at = self.offset();
            let key = self.string("a quoted key or `}`")?;
            let repeated = match key.as_str() {
                "descr" => descr.is_some(),
                "fortran_order" => fortran_order.is_some(),
                "shape" => shape.is_some(),
                _ => {
                    return Err(FormatError::invalid(
                        Format::Npy,
                        key_at,
                        "one of the keys 'descr', 'fortran_order', 'shape'",
                        format!("'{}'", key.escape_debug()),
                    ));
                }
            };
            if repeated {
                return Err(FormatError::invalid(
                    Format::Npy,
                    key_at,
                    "each key once",
                    format!("'{key}' again"),
                ));
            }
            self.expect(b':', "`:`")?;
            self.skip_space();
            match key.as_str() {
                "descr" => descr = Some(self.descr(options)?),
                "fortran_order" => fortran_order = Some(self.boolean()?),
                _ => shape = Some((self.offset(), self.shape()?)),
            }
            if !self.eat(b',') {
                self.expect(b'}', "`,` or `}`")?;
                break;
            }
        }
        self.skip_space();
        if self.pos < self.text.len() {
            return self.error("nothing but spaces after `}`");
        }
        let missing = |key: &str| {
            FormatError::invalid(
                Format::Npy,
                self.base as u64,
                format!("the key '{key}'"),
                "a header without it",
            )
        };
        let (dtype, byte_order) = descr.ok_or_else(|| missing("descr"))?;
        let fortran_order = fortran_order.ok_or_else(|| missing("fortran_order"))?;
        let (shape_at, shape) = shape.ok_or_else(|| missing("shape"))?;
        let data_bytes = element_count(&shape)
            .and_then(|n| n.checked_mul(dtype.bytes()))
            .filter(|&n| n <= isize::MAX as usize / 2)
            .ok_or_else(|| {
                let found = format!("{shape:?} of {dtype}");
                FormatError::invalid(
                    Format::Npy,
                    shape_at,
                    "a shape whose elements fit in the address space",
                    found,
                )
            })?;
        if data_bytes as u64 > options.limit_bytes {
            return Err(FormatError::Limit {
                format: Format::Npy,
                what: "element size in bytes",
                requested: data_bytes as u64,
                limit: options.limit_bytes,
            });
        }
        Ok(Header {
            version: preamble.version,
            dtype,
            byte_order,
            fortran_order,
            shape,
            data_offset: preamble.len + preamble.text_len,
        })
    }

    fn descr(&mut self, options: &ReadOptions) -> Result<(DType, ByteOrder), FormatError> {
        let at = self.offset();
        match self.peek() {
            Some(b'[') => Err(FormatError::unsupported(
                Format::Npy,
                at,
                "structured elements (records)",
            )),
            Some(b'(') => Err(FormatError::unsupported(Format::Npy, at, "sub-array elements")),
            _ => {
                let text = self.string("a quoted NumPy type")?;
                parse_descr(&text, at, options)
            }
        }
    }

    fn string(&mut self, expected: &str) -> Result<String, FormatError> {
        // Python 2 wrote `u'descr'` and `b'descr'`.
        if matches!(self.peek(), Some(b'u' | b'b')) && matches!(self.text.get(self.pos + 1), Some(b'\'' | b'"')) {
            self.pos += 1;
        }
        let Some(quote @ (b'\'' | b'"')) = self.peek() else {
            return self.error(expected);
        };
        self.pos += 1;
        let mut value = String::new();
        loop {
            match self.peek() {
                Some(b) if b == quote => break,
                Some(b'\\') => {
                    self.pos += 1;
                    match self.peek() {
                        Some(b @ (b'\\' | b'\'' | b'"')) => value.push(b as char),
                        _ => return self.error("an escaped quote or backslash"),
                    }
                }
                // Latin-1 in versions 1 and 2, UTF-8 in version 3; no name of ours has other than ASCII characters.
                Some(b) if b.is_ascii() && !b.is_ascii_control() => value.push(b as char),
                Some(b) if !b.is_ascii() => value.push(char::REPLACEMENT_CHARACTER),
                _ => return self.error("the string's closing quote"),
            }
            self.pos += 1;
        }
        self.pos += 1;
        Ok(value)
    }

    fn boolean(&mut self) -> Result<bool, FormatError> {
        for (word, value) in [(&b"True"[..], true), (&b"False"[..], false)] {
            if self.text[self.pos..].starts_with(word)
                && !self
                    .text
                    .get(self.pos + word.len())
                    .is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
            {
                self.pos += word.len();
                return Ok(value);
            }
        }
        self.error("True or False")
    }

    /// A tuple of extents: `()`, `(3,)`, `(3, 4)`, `(3, 4,)`.
    fn shape(&mut self) -> Result<Vec<usize>, FormatError> {
        self.expect(b'(', "a tuple of extents")?;
        let mut shape = Vec::new();
        while !self.eat(b')') {
            if shape.len() == MAX_RANK {
                return Err(FormatError::Limit {
                    format: Format::Npy,
                    what: "rank",
                    requested: MAX_RANK as u64 + 1,
                    limit: MAX_RANK as u64,
                });
            }
            shape.push(self.extent()?);
            if !self.eat(b',') {
                if shape.len() == 1 {
                    // In Python `(3)` is a number.
                    return self.error("`,` after a tuple's only extent");
                }
                self.expect(b')', "`,` or `)`")?;
                break;
            }
        }
        Ok(shape)
    }

    fn extent(&mut self) -> Result<usize, FormatError> {
        let start = self.pos;
        let mut value = 0usize;
        while let Some(digit @ b'0'..=b'9') = self.peek() {
            let next = value
                .checked_mul(10)
                .and_then(|v| v.checked_add((digit - b'0') as usize));
            let Some(next) = next else {
                self.pos = start;
                return self.error("an extent that fits in the address space");
            };
            value = next;
            self.pos += 1;
        }
        if self.pos == start {
            return self.error("an extent (a whole number, not negative) or `)`");
        }
        if self.text[start] == b'0' && value != 0 {
            self.pos = start;
            return self.error("an extent without leading zeros");
        }
        // Python 2 wrote long integers as `3L`.
        self.pos += (self.peek() == Some(b'L')) as usize;
        Ok(value)
    }
}
