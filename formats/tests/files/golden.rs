//! Files written by NumPy and by the safetensors package, read here.

use crate::expected::{golden, golden_names, tensor};
use tlc_formats::{ErrorKind, ReadOptions, npy, npz, safetensors};
use tlc_ir::dtype::DType;

const SHAPE: [usize; 3] = [2, 3, 4];
const BF16: ReadOptions = ReadOptions {
    limit_bytes: u64::MAX,
    hint: Some(DType::BF16),
};

#[test]
fn every_dtype_is_read_in_both_memory_orders_and_both_byte_orders() {
    for dtype in DType::ALL.into_iter().filter(|&d| d != DType::BF16 && !d.is_storage()) {
        let wanted = tensor(dtype, &SHAPE);
        for variant in ["c", "fortran", "big"] {
            if variant == "big" && dtype.bytes() == 1 {
                continue;
            }
            let file = golden(&format!("{dtype}_{variant}.npy"));
            assert_eq!(npy::read(&file).unwrap(), wanted, "{dtype} {variant}");
            assert_eq!(
                npy::read_from(&mut &file[..]).unwrap(),
                wanted,
                "{dtype} {variant} as a stream"
            );
        }
    }
}

#[test]
fn header_versions_ranks_and_empty_arrays_are_read() {
    let rank9 = [1, 2, 3, 1, 2, 1, 2, 2, 1];
    for (file, dtype, shape) in [
        ("f32_v2.npy", DType::F32, &SHAPE[..]),
        ("f32_v3.npy", DType::F32, &SHAPE),
        ("f32_rank0.npy", DType::F32, &[]),
        ("f64_rank1.npy", DType::F64, &[5]),
        ("f64_empty.npy", DType::F64, &[0, 3]),
        ("i32_rank9.npy", DType::I32, &rank9),
        ("i32_rank9_fortran_big.npy", DType::I32, &rank9),
        ("u16_large_fortran.npy", DType::U16, &[37, 2, 41]),
    ] {
        assert_eq!(npy::read(&golden(file)).unwrap(), tensor(dtype, shape), "{file}");
    }
    let header = npy::Header::parse(&golden("i32_rank9_fortran_big.npy")).unwrap();
    assert!(header.fortran_order);
    assert_eq!(header.byte_order, npy::ByteOrder::Big);
    assert_eq!(header.version, (1, 0));
    assert_eq!(npy::Header::parse(&golden("f32_v3.npy")).unwrap().version, (3, 0));
}

#[test]
fn bf16_is_read_only_where_the_caller_says_so() {
    let file = golden("bf16_c.npy");
    assert_eq!(npy::read_with(&file, &BF16).unwrap(), tensor(DType::BF16, &SHAPE));
    let error = npy::read(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("<V2"), "{error}");
}

fn told(dtype: DType) -> ReadOptions {
    ReadOptions {
        hint: Some(dtype),
        ..BF16
    }
}

#[test]
fn storage_types_are_read_only_where_the_caller_says_so() {
    for dtype in DType::ALL.into_iter().filter(|d| d.is_storage()) {
        for variant in ["c", "fortran"] {
            let file = golden(&format!("{dtype}_{variant}.npy"));
            let wanted = tensor(dtype, &SHAPE);
            assert_eq!(
                npy::read_with(&file, &told(dtype)).unwrap(),
                wanted,
                "{dtype} {variant}"
            );
            let stream = npy::read_from_with(&mut &file[..], &told(dtype)).unwrap();
            assert_eq!(stream, wanted, "{dtype} {variant} as a stream");
            let error = npy::read(&file).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        }
    }
    // ml_dtypes alone calls its float8_e5m2 a one-byte float.
    let file = golden("f8e5m2_c.npy");
    assert!(npy::read_with(&file, &told(DType::F8E4M3FN)).is_err());
}

#[test]
fn bits_above_a_narrow_value_are_dropped() {
    let mut file = golden("i4_c.npy");
    let last = file.len() - 1;
    file[last] |= 0xf0;
    assert_eq!(
        npy::read_with(&file, &told(DType::I4)).unwrap(),
        tensor(DType::I4, &SHAPE)
    );
}

#[test]
fn what_has_no_dtype_is_unsupported() {
    let names = golden_names();
    let unsupported = names
        .iter()
        .filter(|n| n.starts_with("unsupported_") && n.ends_with(".npy"));
    let mut count = 0;
    for name in unsupported {
        let error = npy::read(&golden(name)).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{name}: {error}");
        count += 1;
    }
    assert_eq!(count, 8);
    let error = npz::read(&golden("unsupported_bzip2.npz"), "weights").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

#[test]
fn little_endian_c_order_files_are_written_byte_for_byte_as_numpy_does() {
    let mut names: Vec<String> = golden_names().into_iter().filter(|n| n.ends_with("_c.npy")).collect();
    names.extend(["f32_rank0.npy", "f64_rank1.npy", "f64_empty.npy", "i32_rank9.npy"].map(String::from));
    assert_eq!(names.len(), 27);
    for name in names {
        let file = golden(&name);
        let dtype: Option<DType> = name.strip_suffix("_c.npy").and_then(|d| d.parse().ok());
        let hint = dtype.filter(|d| d.is_storage()).unwrap_or(DType::BF16);
        let mut written = Vec::new();
        npy::write(&npy::read_with(&file, &told(hint)).unwrap(), &mut written).unwrap();
        // ml_dtypes says `<V2`, `<V1` and, of one type, `<f1`, NumPy itself `|V2` and `|V1`; to NumPy the former are the same
        // types, and the last is none.
        let raw = dtype.filter(|d| *d == DType::BF16 || d.is_storage());
        if let Some(dtype) = raw {
            let text = String::from_utf8_lossy(&written[10..40]).into_owned();
            assert!(
                text.contains(if dtype == DType::BF16 { "'|V2'" } else { "'|V1'" }),
                "{text}"
            );
            written[21..23].copy_from_slice(&file[21..23]);
        }
        assert_eq!(written, file, "{name}");
    }
}

#[test]
fn archives_stored_and_deflated_are_read() {
    for name in ["stored.npz", "deflated.npz"] {
        let file = golden(name);
        assert_eq!(npz::names(&file).unwrap(), ["weights", "labels", "scalar"]);
        assert_eq!(npz::read(&file, "weights").unwrap(), tensor(DType::F32, &SHAPE));
        assert_eq!(npz::read(&file, "labels.npy").unwrap(), tensor(DType::U8, &[7]));
        let mut archive = npz::Archive::open(&file).unwrap();
        let scalar = archive.read("scalar", &ReadOptions::default()).unwrap();
        assert_eq!(scalar, tensor(DType::I64, &[]));
        let error = archive.read("biases", &ReadOptions::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(
            error.to_string(),
            "npz: no tensor named `biases`; there are `weights`, `labels`, `scalar`"
        );
    }
}

#[test]
fn safetensors_of_every_dtype_are_read_in_place() {
    let file = golden("all.safetensors");
    let views = safetensors::Views::parse(&file).unwrap();
    assert_eq!(views.len(), 15);
    assert_eq!(views.metadata()["made"], "by make_golden.py");
    for dtype in DType::ALL.into_iter().filter(|d| !d.is_storage()) {
        let view = views.get(dtype.name()).unwrap();
        assert_eq!((view.dtype, view.shape), (dtype, &SHAPE[..]));
        assert!(
            file.as_ptr_range().contains(&view.bytes.as_ptr()),
            "the elements lie in the file"
        );
        assert_eq!(view.to_host().unwrap(), tensor(dtype, &SHAPE));
    }
    assert_eq!(views.get("scalar").unwrap().to_host().unwrap(), tensor(DType::F32, &[]));
    assert_eq!(
        views.get("empty").unwrap().to_host().unwrap(),
        tensor(DType::F32, &[0, 3])
    );
    assert_eq!(views.get("none").unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn safetensors_of_8_and_4_bit_floats_are_read() {
    let file = golden("storage.safetensors");
    let views = safetensors::Views::parse(&file).unwrap();
    assert_eq!(views.len(), 5);
    for name in views.names() {
        let dtype: DType = name.parse().unwrap();
        assert_eq!(views.get(name).unwrap().to_host().unwrap(), tensor(dtype, &SHAPE));
    }
    // Two to a byte in the file, one in memory.
    let file = golden("f4.safetensors");
    let views = safetensors::Views::parse(&file).unwrap();
    let view = views.get("x").unwrap();
    assert_eq!((view.dtype, view.bytes.len()), (DType::F4E2M1FN, 12));
    assert_eq!(view.to_host().unwrap(), tensor(DType::F4E2M1FN, &SHAPE));
}

#[test]
fn one_unsupported_tensor_does_not_spoil_a_safetensors_file() {
    let file = golden("unsupported_f6.safetensors");
    let views = safetensors::Views::parse(&file).unwrap();
    assert_eq!(views.get("y").unwrap().to_host().unwrap(), tensor(DType::F32, &[2]));
    let error = views.get("x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("F6_E2M3"), "{error}");
    assert_eq!(safetensors::read(&file).unwrap_err().kind(), ErrorKind::Unsupported);
}
