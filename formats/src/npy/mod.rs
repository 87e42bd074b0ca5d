//! NumPy's `.npy`: one array behind a small text header.
//!
//! Invariants:
//! - Versions 1, 2 and 3 are read, in either byte order and either memory order; what comes out is C order and native.
//!   Version 1 is written, little-endian and C order, byte for byte as NumPy lays it out.
//! - bf16 and the storage types have no name in npy. bf16 is written as two raw bytes (`|V2`), a storage type as one
//!   (`|V1`, those of less than a byte too, with the value in the low bits), and both are read back only where the caller
//!   says what such elements are ([`ReadOptions::hint`]).
//! - [`read`] wants exactly one array in its bytes. [`read_prefix`] and [`read_from`] stop after the array and leave what
//!   follows alone, as `numpy.load` does, so that arrays may follow each other in one stream.

mod header;

use std::io::{ErrorKind, Read, Write};

use tlc_ir::dtype::DType;
use tlc_ir::fallible::fallibly;
use tlc_ir::tensor::HostTensor;

pub use header::{ByteOrder, Header, MAX_HEADER_BYTES, MAX_RANK};

use crate::{Format, FormatError, ReadOptions, layout};
use header::Preamble;

/// A stream is read in steps of at most this many bytes until it has proved that it is longer.
const STEP_BYTES: usize = 1 << 20;

/// Reads the bytes of one npy file.
///
/// # Errors
/// Any [`FormatError`]; bytes after the array are [`FormatError::Invalid`].
pub fn read(bytes: &[u8]) -> Result<HostTensor, FormatError> {
    read_with(bytes, &ReadOptions::default())
}

/// [`read`] with options.
///
/// # Errors
/// As [`read`].
pub fn read_with(bytes: &[u8], options: &ReadOptions) -> Result<HostTensor, FormatError> {
    let (tensor, used) = read_prefix(bytes, options)?;
    if used < bytes.len() {
        return Err(FormatError::invalid(
            Format::Npy,
            used as u64,
            "the end of the file after the last element",
            format!("{} more bytes", bytes.len() - used),
        ));
    }
    Ok(tensor)
}

/// Reads the array at the front of `bytes` and says how many bytes it took.
///
/// # Errors
/// Any [`FormatError`].
pub fn read_prefix(bytes: &[u8], options: &ReadOptions) -> Result<(HostTensor, usize), FormatError> {
    let header = Header::parse_with(bytes, options)?;
    let data = &bytes[header.data_offset..];
    let wanted = header.data_bytes();
    let data = data.get(..wanted).ok_or_else(|| truncated(&header, data.len()))?;
    Ok((decode(&header, data)?, header.data_offset + wanted))
}

/// Reads one array from a stream and leaves the stream after its last byte.
///
/// The header is not trusted with memory: the buffer grows with what has arrived, by at most the larger of 1 MiB and what
/// is there already, and never beyond what the header declares.
///
/// # Errors
/// Any [`FormatError`]; a stream that ends early is [`FormatError::Invalid`], a failing one [`FormatError::Io`].
pub fn read_from(reader: &mut impl Read) -> Result<HostTensor, FormatError> {
    read_from_with(reader, &ReadOptions::default())
}

/// [`read_from`] with options.
///
/// # Errors
/// As [`read_from`].
pub fn read_from_with(reader: &mut impl Read, options: &ReadOptions) -> Result<HostTensor, FormatError> {
    let header = read_header_from(reader, options)?;
    read_elements_from(reader, &header)
}

/// Reads the header of an array and leaves the stream before its first element.
pub(crate) fn read_header_from(reader: &mut impl Read, options: &ReadOptions) -> Result<Header, FormatError> {
    let mut front = Vec::new();
    fill(reader, Preamble::VERSION_END, &mut front)?;
    let length = Preamble::length(&front)?;
    fill(reader, length, &mut front)?;
    let preamble = Preamble::parse(&front)?;
    fill(reader, preamble.len + preamble.text_len, &mut front)?;
    if front.len() < preamble.len + preamble.text_len {
        // Too short: the slice parser words the error.
        return Header::parse_with(&front, options);
    }
    preamble.header(&front[preamble.len..], options)
}

/// Reads the elements that a header declares.
pub(crate) fn read_elements_from(reader: &mut impl Read, header: &Header) -> Result<HostTensor, FormatError> {
    let wanted = header.data_bytes();
    let mut data = Vec::new();
    fill(reader, wanted, &mut data)?;
    if data.len() < wanted {
        return Err(truncated(header, data.len()));
    }
    decode(header, &data)
}

/// Reads until `buffer` holds `wanted` bytes or the stream ends; see [`read_from`] for how the buffer grows.
fn fill(reader: &mut impl Read, wanted: usize, buffer: &mut Vec<u8>) -> Result<(), FormatError> {
    while buffer.len() < wanted {
        let start = buffer.len();
        let step = (wanted - start).min(start.max(STEP_BYTES));
        fallibly(|| buffer.try_reserve_exact(step)).map_err(|_| FormatError::OutOfMemory {
            format: Format::Npy,
            bytes: start + step,
        })?;
        buffer.resize(start + step, 0);
        let mut end = start;
        while end < start + step {
            match reader.read(&mut buffer[end..]) {
                Ok(0) => {
                    buffer.truncate(end);
                    return Ok(());
                }
                Ok(n) => end += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(FormatError::io(Format::Npy)(e)),
            }
        }
    }
    Ok(())
}

/// Elements as they are in the file to a tensor.
fn decode(header: &Header, data: &[u8]) -> Result<HostTensor, FormatError> {
    let offset = header.data_offset as u64;
    let mut tensor =
        HostTensor::zeros(header.dtype, &header.shape).map_err(|e| FormatError::tensor(Format::Npy, offset, e))?;
    let width = header.dtype.bytes();
    let target = tensor.bytes_mut();
    if header.fortran_order {
        layout::fortran_to_c(data, target, &header.shape, width);
    } else {
        target.copy_from_slice(data);
    }
    if header.byte_order != ByteOrder::NATIVE {
        layout::swap_bytes(target, width);
    }
    if header.dtype == DType::Bool {
        target.iter_mut().for_each(|b| *b = (*b != 0) as u8);
    } else if header.dtype.value_bits() < 8 {
        let value = (1u8 << header.dtype.value_bits()) - 1;
        target.iter_mut().for_each(|b| *b &= value);
    }
    Ok(tensor)
}

/// Writes one array.
///
/// # Errors
/// [`FormatError::Io`].
pub fn write(tensor: &HostTensor, writer: &mut impl Write) -> Result<(), FormatError> {
    write_elements(tensor.dtype(), tensor.shape(), tensor.bytes(), writer)
}

/// Writes one array of native-endian elements in C order, which are as many as the shape says.
///
/// # Errors
/// [`FormatError::Io`].
pub fn write_elements(dtype: DType, shape: &[usize], bytes: &[u8], writer: &mut impl Write) -> Result<(), FormatError> {
    let header = Header::encode(dtype, shape);
    writer.write_all(&header).map_err(FormatError::io(Format::Npy))?;
    layout::write_little_endian(dtype.bytes(), bytes, writer).map_err(FormatError::io(Format::Npy))
}

/// Bytes that [`write()`] will write.
pub fn encoded_len(tensor: &HostTensor) -> usize {
    Header::encode(tensor.dtype(), tensor.shape()).len() + tensor.bytes().len()
}

fn truncated(header: &Header, found: usize) -> FormatError {
    FormatError::invalid(
        Format::Npy,
        (header.data_offset + found) as u64,
        format!(
            "{} bytes of elements ({:?} of {})",
            header.data_bytes(),
            header.shape,
            header.dtype
        ),
        format!("the end of the input after {found}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lying_header_on_a_short_stream_allocates_one_step() {
        let mut buffer = Vec::new();
        fill(&mut &[7u8; 10][..], 1 << 50, &mut buffer).unwrap();
        assert_eq!(buffer, [7; 10]);
        assert!(buffer.capacity() <= STEP_BYTES);
    }

    #[test]
    fn a_stream_buffer_grows_with_what_arrived_and_ends_at_what_was_declared() {
        let wanted = 5 * STEP_BYTES + 3;
        let source = vec![1u8; wanted + 100];
        let mut buffer = Vec::new();
        let mut reader = &source[..];
        fill(&mut reader, wanted, &mut buffer).unwrap();
        assert_eq!(buffer.len(), wanted);
        assert_eq!(buffer.capacity(), wanted);
        assert_eq!(reader.len(), 100);
    }
}
