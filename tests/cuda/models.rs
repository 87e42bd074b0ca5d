//! Networks on a device, against the recorded results.

use std::path::Path;
use std::time::{Duration, Instant};

use tlc::onnx::{ImportOptions, import};
use tlc::{CompileOptions, Device, HostTensor, Input, Outputs, compile_ir};
use tlc_formats::npz;
use tlc_ir::Graph;
use tlc_ir::plan::{Plan, Step};

/// The largest difference, relative to the largest value of the output.
const RELATIVE: f64 = 1e-3;

fn array(archive: &mut npz::Archive<'_>, key: &str) -> Result<HostTensor, String> {
    let array = archive.read(key, &Default::default());
    array.map_err(|e| format!("{key}: {e}"))
}

fn read(folder: &Path, name: &str) -> Result<Graph, String> {
    let bytes = std::fs::read(folder.join(format!("{name}.onnx"))).map_err(|e| e.to_string())?;
    let imported = import(&bytes, &ImportOptions::default()).map_err(|e| e.to_string())?;
    Ok(imported.graph)
}

/// What is wrong with the results of a network's calls, which one executable runs; if nothing, how many calls there are.
fn check(folder: &Path, name: &str) -> Result<usize, String> {
    let recorded = std::fs::read(folder.join(format!("{name}.npz"))).map_err(|e| e.to_string())?;
    let mut archive = npz::Archive::open(&recorded).map_err(|e| e.to_string())?;
    let names: Vec<String> = archive.names().map(Into::into).collect();
    let options = CompileOptions {
        device: Device::cuda(0),
        ..CompileOptions::default()
    };
    let executable = compile_ir(&read(folder, name)?, &options).map_err(|e| e.to_string())?;
    let inputs: Vec<String> = executable.plan().inputs.iter().map(|i| i.name.clone()).collect();
    let is_recorded = |call: &usize| names.iter().any(|n| n.starts_with(&format!("out.{call}.")));
    let calls = (0..).take_while(is_recorded);
    let mut answered = 0;
    for call in calls {
        let of_call = |i: &String| array(&mut archive, &format!("in.{call}.{i}"));
        let given: Vec<HostTensor> = inputs.iter().map(of_call).collect::<Result<_, _>>()?;
        let given: Vec<Input<'_>> = given.iter().map(Into::into).collect();
        // The second time it is recorded, and the third is what was recorded; larger ones take too long to simulate.
        let start = Instant::now();
        for time in 0..3 {
            if time > 0 && start.elapsed() > Duration::from_millis(300) {
                break;
            }
            let outputs = executable.run(&given).map_err(|e| format!("call {call}: {e}"))?;
            let mut recorded = |output: &str| array(&mut archive, &format!("out.{call}.{output}"));
            differences(&outputs, &mut recorded).map_err(|e| format!("call {call}, time {time}: {e}"))?;
        }
        answered += 1;
    }
    Ok(answered)
}

fn differences(outputs: &Outputs, recorded: &mut dyn FnMut(&str) -> Result<HostTensor, String>) -> Result<(), String> {
    for output in outputs.iter() {
        let expected = recorded(&output.name)?;
        let (name, found, shape) = (&output.name, output.shape(), expected.shape());
        if found != shape {
            return Err(format!("{name}: {found:?} for {shape:?}"));
        }
        let (Some(found), Some(expected)) = (output.as_slice::<f32>().ok(), expected.as_slice::<f32>()) else {
            return Err(format!("{name} is not of f32"));
        };
        let largest = expected.iter().fold(0f64, |m, &v| m.max(v.abs().into()));
        let off = found.iter().zip(expected).map(|(&a, &b)| f64::from(a - b).abs());
        if !off.clone().all(|d| d <= RELATIVE * largest) {
            let worst = off.fold(0f64, f64::max);
            return Err(format!("{name}: off by {worst:.2e} of {largest:.2e}"));
        }
    }
    Ok(())
}

/// Kernels and products of a call, and of an iteration of each loop in it. A kernel behind a product in one step counts too: on a GPU
/// it is part of the product's kernel, or one that reads whole rows of it.
fn kernels(plan: &Plan) -> usize {
    let of_step = |step: &Step| match step {
        Step::Gemm(g) => 1 + usize::from(g.epilogue.is_some()) + usize::from(g.behind().is_some()),
        Step::Loop(l) => kernels(&l.body),
        _ => step.launches().len(),
    };
    plan.steps.iter().map(of_step).sum()
}

/// Networks with more kernels on a GPU than on the processor: how many more, and why.
const MORE: &[(&str, usize, &str)] = &[(
    "decoder_with_cache_script",
    1,
    "queries and keys are scaled in kernels of their own, on the processor in the one behind the product that makes them",
)];

/// Those of a network on a device.
fn kernels_on(folder: &Path, name: &str, device: Device) -> Result<usize, String> {
    let options = CompileOptions {
        device,
        ..CompileOptions::default()
    };
    let executable = compile_ir(&read(folder, name)?, &options).map_err(|e| e.to_string())?;
    Ok(kernels(executable.plan()))
}

mod children {
    use super::*;

    /// The networks, those that exporters wrote, and quantized ones; `TLC_MODEL` chooses one.
    fn each(f: &dyn Fn(&Path, &str) -> Result<String, String>) {
        let mut wrong = Vec::new();
        let only = std::env::var("TLC_MODEL").ok();
        for folder in ["tests/models", "tests/models/exported", "tests/models/quantized"] {
            let folder = Path::new(folder);
            let mut names: Vec<String> = std::fs::read_dir(folder)
                .expect("a folder of models")
                .filter_map(|f| Some(f.ok()?.file_name().to_str()?.strip_suffix(".onnx")?.to_string()))
                .filter(|name| only.as_ref().is_none_or(|o| o == name))
                .collect();
            names.sort();
            for name in names {
                let start = Instant::now();
                let said = f(folder, &name);
                let time = start.elapsed().as_secs_f64();
                println!("{name}: {}, {time:.1} s", said.as_ref().unwrap_or_else(|e| e));
                wrong.extend(said.err().map(|e| format!("{name}: {e}")));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn networks() {
        each(&|folder, name| Ok(format!("{} calls", check(folder, name)?)));
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn as_few_kernels() {
        each(&|folder, name| {
            let here = kernels_on(folder, name, Device::cpu())?;
            let there = kernels_on(folder, name, Device::cuda(0))?;
            let (_, more, why) = MORE.iter().find(|m| m.0 == name).unwrap_or(&("", 0, ""));
            let counted = format!("{there} kernels, {here} on the processor {why}");
            if there > here + more { Err(counted) } else { Ok(counted) }
        });
    }
}
