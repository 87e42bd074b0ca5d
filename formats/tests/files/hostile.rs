//! Broken, lying and oversized files: every one is an error that names its cause, and none costs more than it carries.

use std::io::{Cursor, Read, Write};

use crate::expected::{golden, golden_names, tensor};
use tlc_formats::{ErrorKind, FormatError, ReadOptions, npy, npz, safetensors};
use tlc_ir::dtype::DType;

/// A version 1.0 file with this header text and these elements.
fn file(text: &str, elements: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(text.len() as u16).to_le_bytes());
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(elements);
    bytes
}

fn header(text: &str) -> Result<npy::Header, FormatError> {
    npy::Header::parse(&file(text, &[]))
}

#[test]
fn headers_as_other_writers_lay_them_out_are_read() {
    for text in [
        "{'descr':'<f4','fortran_order':False,'shape':(2,3)}",
        "{'shape': (2, 3,), 'fortran_order': False, 'descr': '<f4'}\n",
        " {\n \"shape\" : ( 2 ,\t3 ) , \"descr\" : \"<f4\" , \"fortran_order\" : False , } \r\n",
        "{u'descr': b'<f4', u'fortran_order': False, u'shape': (2L, 3L)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }                \n",
    ] {
        let header = header(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(
            (header.dtype, &header.shape[..], header.fortran_order),
            (DType::F32, &[2, 3][..], false)
        );
        assert_eq!(header.data_offset, 10 + text.len());
    }
    let scalar = header("{'descr': 'f4', 'fortran_order': True, 'shape': ()}").unwrap();
    assert!(scalar.shape.is_empty());
    assert_eq!(
        header("{'descr': '|b1', 'fortran_order': True, 'shape': (0,)}")
            .unwrap()
            .data_bytes(),
        0
    );
}

#[test]
fn broken_headers_say_where_and_what() {
    let cases = [
        ("", "at byte 10: expected `{`, found the end of the header"),
        ("['descr']", "at byte 10: expected `{`, found `[`"),
        ("{descr: 1}", "at byte 11: expected a quoted key or `}`, found `d`"),
        (
            "{'dtype': '<f4'}",
            "at byte 11: expected one of the keys 'descr', 'fortran_order', 'shape', found 'dtype'",
        ),
        ("{'descr' '<f4'}", "at byte 19: expected `:`, found `'`"),
        ("{'descr': <f4}", "at byte 20: expected a quoted NumPy type, found `<`"),
        (
            "{'descr': '<f4",
            "at byte 24: expected the string's closing quote, found the end of the header",
        ),
        (
            "{'descr': 'float'}",
            "at byte 20: expected a NumPy type such as '<f4', found 'float'",
        ),
        (
            "{'descr': '|f4'}",
            "at byte 20: expected a NumPy type such as '<f4', found '|f4'",
        ),
        (
            "{'descr': ''}",
            "at byte 20: expected a NumPy type such as '<f4', found ''",
        ),
        (
            "{'descr': '<f4', 'descr': '<f4'}",
            "at byte 27: expected each key once, found 'descr' again",
        ),
        (
            "{'descr': '<f4' 'shape': ()}",
            "at byte 26: expected `,` or `}`, found `'`",
        ),
        ("{'fortran_order': 0}", "at byte 28: expected True or False, found `0`"),
        (
            "{'fortran_order': Falsehood}",
            "at byte 28: expected True or False, found `F`",
        ),
        ("{'shape': 3}", "at byte 20: expected a tuple of extents, found `3`"),
        (
            "{'shape': (3)}",
            "at byte 22: expected `,` after a tuple's only extent, found `)`",
        ),
        (
            "{'shape': (,)}",
            "at byte 21: expected an extent (a whole number, not negative) or `)`, found `,`",
        ),
        (
            "{'shape': (2, -3)}",
            "at byte 24: expected an extent (a whole number, not negative) or `)`, found `-`",
        ),
        ("{'shape': (2, 3.5)}", "at byte 25: expected `,` or `)`, found `.`"),
        (
            "{'shape': (2, 03)}",
            "at byte 24: expected an extent without leading zeros, found `0`",
        ),
        (
            "{'shape': (99999999999999999999,)}",
            "at byte 21: expected an extent that fits in the address space, found `9`",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296)}",
            "at byte 60: expected a shape whose elements fit in the address space, found [4294967296, 4294967296] of f32",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,)}",
            "at byte 60: expected a shape whose elements fit in the address space, found [4611686018427387904] of f32",
        ),
        (
            "{'descr': '<f4', 'fortran_order': False, 'shape': ()} x",
            "at byte 64: expected nothing but spaces after `}`, found `x`",
        ),
        (
            "{'descr': '<f4', 'shape': ()}",
            "at byte 10: expected the key 'fortran_order', found a header without it",
        ),
        (
            "{'shape': (\u{1}",
            "at byte 21: expected an extent (a whole number, not negative) or `)`, found byte 0x01",
        ),
    ];
    for (text, message) in cases {
        let error = header(text).expect_err(text);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{text}");
        assert_eq!(error.to_string(), format!("invalid npy {message}"), "{text}");
    }
}

#[test]
fn types_without_a_dtype_are_unsupported_not_invalid() {
    for descr in [
        "'<c8'",
        "'>c16'",
        "'<U4'",
        "'|S3'",
        "'|O'",
        "'<M8[ns]'",
        "'<m8[s]'",
        "'|V4'",
        "'<V2'",
        "'<f16'",
        "'<i16'",
        "'<f3'",
        "[('x', '<f4')]",
        "('<f4', (2,))",
    ] {
        let error = header(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': ()}}")).expect_err(descr);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{descr}: {error}");
        assert!(error.to_string().starts_with("unsupported npy at byte 20: "), "{error}");
    }
}

#[test]
fn broken_fronts_are_told_apart() {
    let good = golden("f32_c.npy");
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        npy::read(&bytes).unwrap_err()
    };
    assert_eq!(
        changed(0, b'P').to_string(),
        "invalid npy at byte 0: expected the magic bytes \\x93NUMPY, found `P`"
    );
    assert_eq!(
        changed(6, 4).to_string(),
        "unsupported npy at byte 6: format version 4.0"
    );
    assert_eq!(changed(6, 0).kind(), ErrorKind::Invalid);
    for cut in 0..good.len() {
        let short = &good[..cut];
        let error = npy::read(short).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "cut at {cut}: {error}");
        let streamed = npy::read_from(&mut &short[..]).unwrap_err();
        assert_eq!(streamed.to_string(), error.to_string(), "cut at {cut}");
    }
    let mut long = good.clone();
    long.extend_from_slice(b"abc");
    assert_eq!(
        npy::read(&long).unwrap_err().to_string(),
        "invalid npy at byte 224: expected the end of the file after the last element, found 3 more bytes"
    );
    assert_eq!(npy::read_from(&mut &long[..]).unwrap(), tensor(DType::F32, &[2, 3, 4]));
}

#[test]
fn limits_come_before_allocation() {
    let huge = file(
        "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,)}",
        &[0; 64],
    );
    // Without a limit, a stream costs what it carries.
    assert_eq!(npy::read_from(&mut &huge[..]).unwrap_err().kind(), ErrorKind::Invalid);
    let options = ReadOptions {
        limit_bytes: 1000,
        hint: None,
    };
    let error = npy::read_from_with(&mut &huge[..], &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    assert_eq!(
        error.to_string(),
        "npy: element size in bytes of 8796093022208 is over the limit of 1000"
    );
    let mut long_header = b"\x93NUMPY\x02\x00".to_vec();
    long_header.extend_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(npy::read(&long_header).unwrap_err().kind(), ErrorKind::Limit);
    let rank65 = format!("{{'shape': ({})}}", "1,".repeat(65));
    assert_eq!(header(&rank65).unwrap_err().kind(), ErrorKind::Limit);
}

/// Gives one byte at a time, interrupts now and then, and fails at the end.
struct Grudging<'a>(&'a [u8], usize);

impl Read for Grudging<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.1 += 1;
        if self.1.is_multiple_of(3) {
            return Err(std::io::ErrorKind::Interrupted.into());
        }
        match self.0.split_first() {
            None => Err(std::io::Error::other("the cable is out")),
            Some((first, rest)) => {
                buffer[0] = *first;
                self.0 = rest;
                Ok(1)
            }
        }
    }
}

#[test]
fn slow_streams_are_read_and_failing_ones_reported() {
    let good = golden("i16_fortran.npy");
    assert_eq!(
        npy::read_from(&mut Grudging(&good, 0)).unwrap(),
        tensor(DType::I16, &[2, 3, 4])
    );
    let error = npy::read_from(&mut Grudging(&good[..good.len() - 1], 0)).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string()),
        (ErrorKind::Io, "npy: the cable is out".to_string())
    );
}

#[test]
fn bools_other_than_0_and_1_become_1() {
    let bytes = file("{'descr': '|b1', 'fortran_order': False, 'shape': (3,)}", &[0, 1, 255]);
    assert_eq!(npy::read(&bytes).unwrap().bytes(), [0, 1, 1]);
}

/// An archive with one deflated member `x.npy`: a header for one f32, then `extra` zeros.
fn bomb(extra: usize) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    zip.start_file("x.npy", zip::write::SimpleFileOptions::default())
        .unwrap();
    zip.write_all(&file(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
        &[0; 4],
    ))
    .unwrap();
    zip.write_all(&vec![0; extra]).unwrap();
    zip.finish().unwrap().into_inner()
}

#[test]
fn members_larger_than_their_array_are_refused_without_unpacking_them() {
    assert_eq!(npz::read(&bomb(0), "x").unwrap().len(), 1);
    let honest = bomb(1 << 24);
    assert!(honest.len() < 1 << 16, "it is a bomb");
    let error = npz::read(&honest, "x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error
            .to_string()
            .contains("expected a member of 69 bytes, as its npy header says"),
        "{error}"
    );

    // The directory lies too.
    let mut lying = honest;
    let directory = lying.windows(4).rposition(|w| w == b"PK\x01\x02").unwrap();
    lying[directory + 24..directory + 28].copy_from_slice(&69u32.to_le_bytes());
    let error = npz::read(&lying, "x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn damaged_members_and_limits_are_reported_with_the_members_name() {
    let mut damaged = golden("stored.npz");
    let at = damaged.windows(6).position(|w| w == b"\x93NUMPY").unwrap() + 140;
    damaged[at] ^= 1;
    let error = npz::read(&damaged, "weights").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.to_string().starts_with("npz member `weights`: invalid npz: "),
        "{error}"
    );
    let options = ReadOptions {
        limit_bytes: 10,
        hint: None,
    };
    let error = npz::read_with(&golden("deflated.npz"), "weights", &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
    assert_eq!(npz::names(b"no zip archive").unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn broken_safetensors_are_told_apart() {
    let parse = |header: &str, data: &[u8]| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        safetensors::Views::parse(&bytes).map(|_| ())
    };
    let one = r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    assert!(parse(one, &[0; 8]).is_ok());
    for (header, data) in [
        (one, 7),
        (one, 9),
        ("{", 0),
        ("[]", 0),
        (r#"{"x":{"dtype":"F7","shape":[2],"data_offsets":[0,8]}}"#, 8),
        (r#"{"x":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}"#, 8),
        (r#"{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#, 8),
        (r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}"#, 8),
        (r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#, 12),
        (
            r#"{"x":{"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,8]}}"#,
            8,
        ),
    ] {
        let error = parse(header, &vec![0; data]).expect_err(header);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{header}: {error}");
    }
    assert_eq!(safetensors::read(&[0; 7]).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(safetensors::read(&[255; 8]).unwrap_err().kind(), ErrorKind::Limit);
    assert_eq!(
        safetensors::read(&[1, 1, 0, 0, 0, 0, 0, 0, b'{'])
            .unwrap_err()
            .to_string(),
        "invalid safetensors at byte 0: expected a header that ends inside the file, found a header of 257 bytes in a \
         file of 9"
    );
}

/// xorshift64*; good enough to choose bytes to break.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize) % bound
    }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.below(256) as u8),
            2 => drop(bytes.remove(at)),
            3 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
            4 => bytes[at] = b"0123456789(){}[],:'\"<>=|-\\ L"[random.below(28)],
            5 => {
                let end = (at + 1 + random.below(8)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            _ => bytes[at] ^= 1 << random.below(8),
        }
    }
}

#[test]
fn mutated_files_neither_panic_nor_yield_more_than_they_carry() {
    let options = ReadOptions {
        limit_bytes: 1 << 16,
        hint: Some(DType::BF16),
    };
    let mut random = Random(0x7c1_f0f0);
    let (mut read, mut refused) = (0, 0);
    for name in golden_names() {
        let original = golden(&name);
        for _ in 0..2_000 {
            let mut bytes = original.clone();
            mutate(&mut bytes, &mut random);
            let mut note = |result: Result<usize, FormatError>, bound: usize| match result {
                Ok(size) => {
                    assert!(size <= bound, "{name}: {size} bytes out of {bound}");
                    read += 1;
                }
                Err(error) => {
                    assert_ne!(error.kind(), ErrorKind::Io, "{name}: {error}");
                    assert!(!error.to_string().is_empty());
                    refused += 1;
                }
            };
            if name.ends_with(".npy") {
                let whole = npy::read_with(&bytes, &options);
                let prefix = npy::read_prefix(&bytes, &options).map(|(tensor, _)| tensor);
                let streamed = npy::read_from_with(&mut &bytes[..], &options);
                assert_eq!(
                    prefix.as_ref().ok(),
                    streamed.as_ref().ok(),
                    "{name}: slices and streams agree"
                );
                note(whole.map(|t| t.bytes().len()), bytes.len());
                note(streamed.map(|t| t.bytes().len()), bytes.len());
            } else if name.ends_with(".npz") {
                match npz::Archive::open(&bytes) {
                    Err(error) => note(Err(error), 0),
                    Ok(mut archive) => {
                        for key in archive.names().map(str::to_string).collect::<Vec<_>>() {
                            let result = archive.read(&key, &options);
                            note(result.map(|t| t.bytes().len()), options.limit_bytes as usize);
                        }
                    }
                }
            } else {
                let total = |tensors: Vec<(String, tlc_ir::tensor::HostTensor)>| {
                    tensors.iter().map(|(_, t)| t.bytes().len()).sum()
                };
                note(safetensors::read(&bytes).map(total), bytes.len());
            }
        }
    }
    assert!(
        read > 1000 && refused > 1000,
        "both outcomes are exercised: {read} read, {refused} refused"
    );
}
