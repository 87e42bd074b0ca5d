//! Networks on a device, against the recorded answers.

use std::path::Path;

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, Device, HostTensor, Input, compile_ir};
use tlc_formats::npz;

/// The largest difference, relative to the largest value of the output.
const RELATIVE: f64 = 1e-3;

/// What is wrong with the answer of a network to its smallest call.
fn check(folder: &Path, name: &str) -> Result<(), String> {
    let read = |ending: &str| std::fs::read(folder.join(format!("{name}.{ending}"))).map_err(|e| e.to_string());
    let recorded = read("npz")?;
    let mut archive = npz::Archive::open(&recorded).map_err(|e| e.to_string())?;
    let names: Vec<String> = archive.names().map(Into::into).collect();
    let mut array = |key: &str| -> Result<HostTensor, String> {
        archive
            .read(key, &Default::default())
            .map_err(|e| format!("{key}: {e}"))
    };
    let imported = import(&read("onnx")?, &ImportOptions::default()).map_err(|e| e.to_string())?;
    let options = CompileOptions {
        device: Device::cuda(0),
        ..CompileOptions::default()
    };
    let executable = compile_ir(&imported.graph, &options).map_err(|e| e.to_string())?;
    let inputs: Vec<String> = executable.plan().inputs.iter().map(|i| i.name.clone()).collect();
    let calls = (0..).take_while(|call| names.iter().any(|n| n.starts_with(&format!("out.{call}."))));
    let mut smallest: Option<(usize, Vec<HostTensor>)> = None;
    let mut chosen = 0;
    for call in calls {
        let given: Vec<HostTensor> = inputs
            .iter()
            .map(|i| array(&format!("in.{call}.{i}")))
            .collect::<Result<_, _>>()?;
        let bytes = given.iter().map(|t| t.bytes().len()).sum();
        if smallest.as_ref().is_none_or(|s| bytes < s.0) {
            (smallest, chosen) = (Some((bytes, given)), call);
        }
    }
    let (_, given) = smallest.ok_or("no calls")?;
    let given: Vec<Input<'_>> = given.iter().map(Into::into).collect();
    let outputs = executable.run(&given).map_err(|e| e.to_string())?;
    for output in outputs {
        let expected = array(&format!("out.{chosen}.{}", output.name))?;
        if output.shape() != expected.shape() {
            return Err(format!(
                "{}: {:?} for {:?}",
                output.name,
                output.shape(),
                expected.shape()
            ));
        }
        let (Some(found), Some(expected)) = (output.as_slice::<f32>().ok(), expected.as_slice::<f32>()) else {
            return Err(format!("{} is not of f32", output.name));
        };
        let largest = expected.iter().fold(0f64, |m, &v| m.max(v.abs().into()));
        let off = found.iter().zip(expected).map(|(&a, &b)| f64::from(a - b).abs());
        if !off.clone().all(|d| d <= RELATIVE * largest) {
            let worst = off.fold(0f64, f64::max);
            return Err(format!("{}: off by {worst:.2e} of {largest:.2e}", output.name));
        }
    }
    Ok(())
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn networks() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
        let only = std::env::var("TLC_MODEL").ok();
        let mut names: Vec<String> = std::fs::read_dir(&folder)
            .expect("a folder of models")
            .filter_map(|f| Some(f.ok()?.file_name().to_str()?.strip_suffix(".onnx")?.to_string()))
            .filter(|name| only.as_ref().is_none_or(|o| o == name))
            .collect();
        names.sort();
        let mut wrong = Vec::new();
        for name in names {
            let start = std::time::Instant::now();
            let checked = check(&folder, &name);
            println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
            wrong.extend(checked.err().map(|e| format!("{name}: {e}")));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
