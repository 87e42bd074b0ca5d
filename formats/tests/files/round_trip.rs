//! What is written is read back, whatever the dtype and the shape; and the same tensors give the same bytes.

use std::collections::BTreeMap;
use std::io::Cursor;

use crate::expected::tensor;
use tlc_formats::npz::Compression;
use tlc_formats::{ErrorKind, ReadOptions, npy, npz, safetensors};
use tlc_ir::dtype::DType;
use tlc_ir::tensor::HostTensor;

const OPTIONS: ReadOptions = ReadOptions {
    limit_bytes: 1 << 20,
    hint: Some(DType::BF16),
};

/// What a reader of that dtype is given.
fn told(dtype: DType) -> ReadOptions {
    ReadOptions {
        hint: Some(if dtype.is_storage() { dtype } else { DType::BF16 }),
        ..OPTIONS
    }
}

fn all() -> Vec<(String, HostTensor)> {
    let shapes: [&[usize]; 8] = [
        &[],
        &[1],
        &[7],
        &[0],
        &[3, 0, 5],
        &[usize::MAX, 0, 2],
        &[4, 5],
        &[2, 1, 3, 1, 2, 1, 2, 1, 2],
    ];
    let mut tensors = Vec::new();
    for dtype in DType::ALL {
        for (i, shape) in shapes.into_iter().enumerate() {
            tensors.push((format!("{dtype}/shape {i} é"), tensor(dtype, shape)));
        }
    }
    tensors
}

fn borrow(tensors: &[(String, HostTensor)]) -> impl Iterator<Item = (&str, &HostTensor)> {
    tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
}

fn zipped(tensors: &[(String, HostTensor)], compression: Compression) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    npz::write(borrow(tensors), compression, &mut file).unwrap();
    file.into_inner()
}

#[test]
fn npy_keeps_every_dtype_and_shape() {
    for (name, tensor) in all() {
        let mut file = Vec::new();
        npy::write(&tensor, &mut file).unwrap();
        assert_eq!(file.len(), npy::encoded_len(&tensor));
        let options = told(tensor.dtype());
        assert_eq!(npy::read_with(&file, &options).unwrap(), tensor, "{name}");
        assert_eq!(npy::Header::parse_with(&file, &options).unwrap().data_offset % 64, 0);
    }
}

#[test]
fn arrays_follow_each_other_in_one_stream() {
    let tensors = all();
    let mut stream = Vec::new();
    tensors.iter().for_each(|(_, t)| npy::write(t, &mut stream).unwrap());
    let mut reader = &stream[..];
    let mut rest = &stream[..];
    for (name, tensor) in &tensors {
        let options = told(tensor.dtype());
        assert_eq!(&npy::read_from_with(&mut reader, &options).unwrap(), tensor, "{name}");
        let (read, used) = npy::read_prefix(rest, &options).unwrap();
        assert_eq!(&read, tensor, "{name}");
        rest = &rest[used..];
    }
    assert!(reader.is_empty() && rest.is_empty());
}

#[test]
fn npz_keeps_every_dtype_and_shape_under_any_name() {
    let tensors = all();
    for compression in [Compression::Stored, Compression::Deflated] {
        let file = zipped(&tensors, compression);
        assert_eq!(file, zipped(&tensors, compression), "the same bytes again");
        let mut archive = npz::Archive::open(&file).unwrap();
        let names: Vec<String> = archive.names().map(str::to_string).collect();
        assert_eq!(names, tensors.iter().map(|(n, _)| n.clone()).collect::<Vec<_>>());
        for (name, tensor) in &tensors {
            assert_eq!(&archive.read(name, &told(tensor.dtype())).unwrap(), tensor, "{name}");
        }
    }
    assert!(npz::names(&zipped(&[], Compression::Stored)).unwrap().is_empty());
}

#[test]
fn safetensors_keep_every_dtype_and_shape_and_the_text() {
    // The crate multiplies extents in order, so it refuses a huge extent even where another one is zero.
    let tensors: Vec<_> = all()
        .into_iter()
        .filter(|(_, t)| !t.shape().contains(&usize::MAX))
        .collect();
    let text: BTreeMap<String, String> = (0..9).map(|i| (format!("key {i}"), format!("\"{i}\"\n"))).collect();
    let write = |tensors: &[(String, HostTensor)], text| {
        let mut file = Vec::new();
        safetensors::write(borrow(tensors), text, &mut file).unwrap();
        file
    };
    let file = write(&tensors, &text);
    let backwards: Vec<_> = tensors.iter().rev().cloned().collect();
    assert_eq!(file, write(&backwards, &text), "order does not matter");
    let views = safetensors::Views::parse(&file).unwrap();
    assert_eq!(views.metadata(), &text);
    for (name, tensor) in &tensors {
        let view = views.get(name).unwrap();
        // What has no name in the format lies there as bytes.
        let bytes = tensor.dtype().value_bits() < 8 && tensor.dtype() != DType::Bool;
        let read = view.to_host().unwrap();
        let read = if bytes {
            read.bitcast(tensor.dtype()).unwrap()
        } else {
            read
        };
        assert_eq!(&read, tensor, "{name}");
        let place = view.bytes.as_ptr().addr() - file.as_ptr().addr();
        assert!(
            place.is_multiple_of(tensor.dtype().bytes()),
            "{name} is aligned in the file"
        );
    }
    let empty = safetensors::read(&write(&[], &text)).unwrap();
    assert!(empty.is_empty());
}

#[test]
fn names_that_cannot_be_written_are_refused() {
    let t = tensor(DType::F32, &[2]);
    let mut out = Cursor::new(Vec::new());
    for names in [&["a", "a"][..], &[""]] {
        let arrays = names.iter().map(|&n| (n, &t));
        let error = npz::write(arrays, Compression::Stored, &mut out).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    for names in [&["a", "a"][..], &["__metadata__"]] {
        let arrays = names.iter().map(|&n| (n, &t));
        let error = safetensors::write(arrays, &BTreeMap::new(), &mut out).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}
