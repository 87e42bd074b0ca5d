//! Tensors that stay on a device between calls.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use tlc::{
    CompileOptions, DType, Device, DeviceTensor, DlDataType, DlDevice, DlManagedTensor, DlTensor, Executable, Graph,
    HostTensor, Input, Specialize, compile_ir, inputs,
};
use tlc_ir::testgen::{GenOptions, random_case};

use crate::child::simulated;
use crate::recorded::{compiled, network, network_inputs, ten_warm_calls};

#[test]
fn tensors_on_a_device_have_the_values_of_those_of_the_host() {
    simulated("resident::children::random_graphs", &[]);
}

#[test]
fn a_state_that_is_given_away_stays_where_it_is() {
    let Some(calls) = ten_warm_calls("resident::children::steps", &[]) else {
        return;
    };
    assert_eq!(calls, given_alone(10, &[]));
}

/// What so many calls ask of the driver that nobody waits for, and further calls: each ends at an event, which is used again once the host
/// has seen it reached.
pub fn given_alone(calls: i64, further: &[(&str, i64)]) -> BTreeMap<String, i64> {
    let each = ["cuGraphLaunch", "cuEventRecord", "cuEventCreate", "cuEventDestroy_v2"];
    let all = each
        .into_iter()
        .map(|name| (name, calls))
        .chain(further.iter().copied());
    all.map(|(name, n)| (name.to_string(), n)).collect()
}

/// Tensors that are elsewhere in each call cost a call of the driver for each launch that touches them; those that take turns nothing.
#[test]
fn what_moved_is_changed_in_the_graph() {
    for (test, moved) in [("one", &["x"][..]), ("two", &["x", "b"])] {
        let touched = touching(moved);
        assert!((1..=3).contains(&touched), "{touched} launches");
        let Some(calls) = ten_warm_calls(&format!("resident::children::moved_{test}"), &[]) else {
            return;
        };
        let moved = [("cuGraphExecKernelNodeSetParams_v2", 10 * touched as i64)];
        assert_eq!(calls, given_alone(10, &moved));
    }
    if let Some(calls) = ten_warm_calls("resident::children::in_turn", &[]) {
        assert_eq!(calls, given_alone(30, &[]));
    }
    simulated("resident::children::taking_turns", &[]);
}

/// How many launches of the network have one of these inputs as an operand.
fn touching(inputs: &[&str]) -> usize {
    let host = tlc_ir::target::Cpu::modest(tlc_codegen::clif::emitter(true).into());
    let gpu = tlc_ir::target::Gpu {
        products: None,
        ..tlc_ir::target::Gpu::any(tlc_codegen::cuda::emitter().into())
    };
    let options = tlc_passes::Options {
        caller: tlc_ir::plan::DeviceId(1),
        ..tlc_passes::Options::new(tlc_passes::devices::Devices::new(host, [gpu]))
    };
    let graph = network().finish().expect("a graph");
    let plan = tlc_passes::compile(&graph, &options).expect("it compiles").planned.plan;
    let slots: Vec<_> = plan
        .inputs
        .iter()
        .filter(|i| inputs.contains(&&*i.name))
        .filter_map(|i| i.slot)
        .collect();
    assert_eq!(slots.len(), inputs.len());
    // Those that are done in turn are one.
    let touches = |s: &&tlc_ir::plan::Step| {
        let mut args = s.launches().iter().flat_map(|l| &l.args);
        args.any(|a| slots.contains(&plan.root(*a)))
    };
    plan.steps.iter().filter(touches).count()
}

#[test]
fn what_does_not_fit_is_refused() {
    simulated("resident::children::refusals", &[("TLC_SIM_DEVICE", "h200,a100")]);
}

#[test]
fn sizes_that_do_not_come_again_do_not_fill_a_device() {
    simulated("resident::children::growing", &[("TLC_SIM_MEMORY", "8388608")]);
}

#[test]
fn other_libraries_take_tensors_and_give_some() {
    simulated("resident::children::exchanges", &[]);
}

#[test]
fn a_copy_to_the_host_goes_on_by_itself() {
    simulated("resident::children::downloads", &[]);
}

/// Tensors pass between executables, are given away and dropped, and the host's memory changes, while the device is still at it.
#[test]
fn calls_come_behind_those_that_are_under_way() {
    for (schedule, seed) in crate::SCHEDULES {
        let order = [("TLC_SIM_SCHEDULE", schedule), ("TLC_SIM_SEED", seed)];
        simulated("resident::children::under_way", &order);
        simulated("resident::children::threads", &order);
    }
}

#[test]
fn what_fails_behind_a_call_is_said_where_it_is_waited_for() {
    simulated("resident::children::late_fault", &[("TLC_SIM_FAULT", "launch:5")]);
}

/// A step of momentum: the new state and velocity, each of which may lie where the old one was.
fn step() -> Graph {
    let g = Graph::new("step");
    let (x, v) = (g.input("x", DType::F32, [300, 7]), g.input("v", DType::F32, [300, 7]));
    let w = g.input("w", DType::F32, [7, 7]);
    let v = &v * 0.9 + x.matmul(&w).softmax(0);
    g.output("v", &v);
    g.output("x", &(&x - &v * 0.125));
    g
}

fn data(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 13 % 29) as f32 / 8.0 - 1.5).collect()
}

fn bits(tensor: &HostTensor) -> Vec<u8> {
    tensor.bytes().to_vec()
}

mod children {
    use super::*;

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn random_graphs() {
        let mut failures = Vec::new();
        for seed in 7000..7050u64 {
            let case = random_case(seed, &GenOptions::default());
            let inputs = case.input_data(seed);
            let names = case.graph.symbols().iter().map(|s| s.name.clone());
            let options = CompileOptions {
                threads: Some(2),
                symbols: names.zip(case.binding.iter().copied()).collect(),
                specialize: Specialize::Never,
                device: Device::cuda(0),
                ..CompileOptions::default()
            };
            let check = || -> Result<(), String> {
                let executable = compile_ir(&case.graph, &options).map_err(|e| e.to_string())?;
                let given: Vec<Input<'_>> = inputs.iter().map(Input::from).collect();
                let expected = executable.run(&given).map_err(|e| e.to_string())?;
                // Every other input is on the device. The third call with the same addresses is recorded.
                let uploaded: Vec<Option<DeviceTensor>> = (inputs.iter().enumerate())
                    .map(|(k, t)| (k % 2 == 0).then(|| Device::cuda(0).upload(t)).transpose())
                    .collect::<Result<_, _>>()
                    .map_err(|e| e.to_string())?;
                for call in 0..4 {
                    let given = inputs.iter().zip(&uploaded).map(|(host, there)| match there {
                        Some(there) => Input::from(there),
                        None => Input::from(host),
                    });
                    let found = executable
                        .run_on_device(given)
                        .map_err(|e| format!("call {call}: {e}"))?;
                    for (found, expected) in found.iter().zip(expected.iter()) {
                        let here = found.to_host().map_err(|e| e.to_string())?;
                        let expected = expected.to_host();
                        if here.shape() != expected.shape() || bits(&here) != bits(&expected) {
                            return Err(format!("call {call}: {here:?} for {expected:?}"));
                        }
                    }
                }
                Ok(())
            };
            match catch_unwind(AssertUnwindSafe(check)) {
                Ok(Ok(())) => {}
                Ok(Err(e)) => failures.push(format!("seed {seed}: {e}")),
                Err(_) => failures.push(format!("seed {seed}: panic")),
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn steps() {
        let g = step();
        let (here, there) = (compiled(&g, Device::cpu()), compiled(&g, Device::cuda(0)));
        let x = HostTensor::from_slice(&[300, 7], &data(2100)).expect("as many");
        let w = HostTensor::from_slice(&[7, 7], &data(49)).expect("as many");
        let device = Device::cuda(0);
        let mut on_host = (x.clone(), x.clone());
        let weights = device.upload(&w).expect("room");
        let mut on_device = (device.upload(&x).expect("room"), device.upload(&x).expect("room"));
        let begin = [on_device.0.as_raw(), on_device.1.as_raw()];
        for _ in 0..crate::recorded::times() {
            let mut found = here.run(&inputs![&on_host.0, &on_host.1, &w]).expect("it runs");
            on_host = (found.remove(1).to_host(), found.remove(0).to_host());
            let mut found = there
                .run_on_device(inputs![on_device.0, on_device.1, &weights])
                .expect("it runs");
            on_device = (found.remove(1), found.remove(0));
        }
        let mut end = [on_device.0.as_raw(), on_device.1.as_raw()];
        end.sort_unstable();
        assert!(
            begin.contains(&end[0]) || begin.contains(&end[1]),
            "nothing was computed in place"
        );
        for (found, expected) in [(&on_device.0, &on_host.0), (&on_device.1, &on_host.1)] {
            let found = found.to_host().expect("it is there");
            let (found, expected) = (found.as_slice::<f32>(), expected.as_slice::<f32>());
            for (f, e) in found.expect("f32").iter().zip(expected.expect("f32")) {
                assert!((f - e).abs() <= 1e-3 * e.abs().max(1.0), "{f} for {e}");
            }
        }
    }

    /// Calls the network so often, with inputs of these names each at one of so many addresses. Returns what is allocated on the device
    /// behind each call.
    fn turns(times: usize, moved: &[&str], places: usize, every: impl Fn(usize) -> [usize; 3]) -> Vec<u64> {
        let there = compiled(&network(), Device::cuda(0));
        let here = compiled(&network(), Device::cpu());
        let context = tlc_runtime::cuda::open(0).expect("a device");
        let names = ["x", "a", "b"];
        let hosts: Vec<Vec<HostTensor>> = (0..places).map(|k| network_inputs(30, k * 5)).collect();
        let on_device: Vec<Vec<DeviceTensor>> = hosts
            .iter()
            .map(|all| all.iter().map(|t| Device::cuda(0).upload(t).expect("room")).collect())
            .collect();
        let mut live = Vec::new();
        for call in 0..times {
            let turn = every(call);
            let which = |k: usize| if moved.contains(&names[k]) { turn[k] } else { 0 };
            let given: Vec<Input<'_>> = (0..3).map(|k| Input::from(&on_device[which(k)][k])).collect();
            let found = there.run_on_device(given).expect("it runs");
            live.push(context.live_bytes());
            // Copies to the host would be counted with the calls.
            if times < 200 && call + 1 < times {
                continue;
            }
            let given: Vec<HostTensor> = (0..3).map(|k| hosts[which(k)][k].clone()).collect();
            let expected = crate::recorded::run(&here, &given).expect("it runs");
            for (found, expected) in found.iter().zip(&expected) {
                let found = found.to_host().expect("it is there");
                let (found, expected) = (found.as_slice::<f32>(), expected.as_slice::<f32>());
                for (f, e) in found.expect("f32").iter().zip(expected.expect("f32")) {
                    assert!((f - e).abs() <= 1e-4 * e.abs().max(1.0), "{f} for {e} in call {call}");
                }
            }
        }
        live
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn moved_one() {
        turns(crate::recorded::times(), &["x"], 14, |call| [call; 3]);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn moved_two() {
        turns(crate::recorded::times(), &["x", "b"], 14, |call| [call; 3]);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn in_turn() {
        turns(crate::recorded::times() * 3, &["x", "b"], 3, |call| [call % 3; 3]);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn taking_turns() {
        // Each input at one of three addresses, in an order of its own.
        let turn = |call: usize| [call % 3, call / 2 % 3, call * call % 7 % 3];
        let live = turns(200, &["x", "a", "b"], 3, turn);
        assert!(live[10..].iter().all(|n| *n == live[10]), "{live:?}");
    }

    /// Two executables of matrices of one size: a product with a sum, and something of each element.
    fn pair(device: Device) -> [Executable; 2] {
        let g = Graph::new("mixed");
        let (x, w) = (g.input("x", DType::F32, [48, 48]), g.input("w", DType::F32, [48, 48]));
        g.output("y", &(&x.matmul(&w) * 0.02 + &x));
        let h = Graph::new("scaled");
        let (x, k) = (h.input("x", DType::F32, [48, 48]), h.input("k", DType::F32, [48, 48]));
        h.output("z", &(&x * &k + 0.25));
        h.output("s", &(&x - &k));
        [compiled(&g, device), compiled(&h, device)]
    }

    fn matrix(seed: usize) -> HostTensor {
        let values: Vec<f32> = (0..48 * 48)
            .map(|i| ((i * 13 + seed * 7) % 29) as f32 / 16.0 - 0.9)
            .collect();
        HostTensor::from_slice(&[48, 48], &values).expect("as many")
    }

    fn close(found: &HostTensor, expected: &HostTensor, what: &str) {
        let (found, expected) = (found.as_slice::<f32>(), expected.as_slice::<f32>());
        for (f, e) in found.expect("f32").iter().zip(expected.expect("f32")) {
            assert!((f - e).abs() <= 1e-3 * e.abs().max(1.0), "{f} for {e} in {what}");
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn under_way() {
        let ([mix, scale], [mix_here, scale_here]) = (pair(Device::cuda(0)), pair(Device::cpu()));
        let w = matrix(3);
        let weights = Device::cuda(0).upload(&w).expect("room");
        let mut x = Device::cuda(0).upload(matrix(1)).expect("room");
        let mut x_here = matrix(1);
        let mut last = None;
        for round in 0..10 {
            let y = mix.run_on_device(inputs![&x, &weights]).expect("it runs").remove(0);
            // The host's memory is its own as soon as the call returns.
            let mut k = matrix(round);
            let mut found = scale.run_on_device(inputs![&y, &k]).expect("it runs");
            let k_here = k.clone();
            k.bytes_mut().fill(0xff);
            let (z, s) = (found.remove(0), found.remove(0));
            // Dropped while the other executable may still read it, and its memory taken by the next.
            drop(y);
            let again = mix.run_on_device(inputs![&s, &z]).expect("it runs").remove(0);
            drop(last.replace(again));
            // Given away to the executable that did not make it.
            x = mix.run_on_device(inputs![z, &weights]).expect("it runs").remove(0);
            let y_here = mix_here
                .run(&inputs![&x_here, &w])
                .expect("it runs")
                .remove(0)
                .to_host();
            let mut found = scale_here.run(&inputs![&y_here, &k_here]).expect("it runs");
            let z_here = found.remove(0).to_host();
            x_here = mix_here
                .run(&inputs![&z_here, &w])
                .expect("it runs")
                .remove(0)
                .to_host();
            if round % 4 == 3 {
                close(&x.to_host().expect("it is there"), &x_here, "a round");
                let s_here = found.remove(0).to_host();
                let again = mix_here.run(&inputs![&s_here, &z_here]).expect("it runs").remove(0);
                let last = last.as_ref().expect("one was made");
                let copied = last.to_host_async().expect("room").wait().expect("it is there");
                close(&copied, &again.to_host(), "what was made beside");
                last.synchronize().expect("it is done");
            }
        }
        // Executables go while they are under way, and what they made stays.
        let y = mix.run_on_device(inputs![&x, &weights]).expect("it runs").remove(0);
        drop(mix);
        let expected = mix_here.run(&inputs![&x_here, &w]).expect("it runs").remove(0);
        close(&y.to_host().expect("it is there"), &expected.to_host(), "the last call");
        let z = scale.run_on_device(inputs![&y, &w]).expect("it runs").remove(0);
        scale.synchronize().expect("it runs");
        assert_ne!(z.as_raw(), 0);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn threads() {
        let ([mix, scale], [mix_here, scale_here]) = (pair(Device::cuda(0)), pair(Device::cpu()));
        let weights = Device::cuda(0).upload(matrix(3)).expect("room");
        std::thread::scope(|all| {
            for thread in 0..3 {
                let (mix, scale, weights) = (&mix, &scale, &weights);
                let (mix_here, scale_here) = (&mix_here, &scale_here);
                all.spawn(move || {
                    let mut x = Device::cuda(0).upload(matrix(thread)).expect("room");
                    let mut here = matrix(thread);
                    for round in 0..6 {
                        let y = mix.run_on_device(inputs![x, weights]).expect("it runs").remove(0);
                        let k = matrix(round);
                        x = scale.run_on_device(inputs![&y, &k]).expect("it runs").remove(0);
                        let y = mix_here
                            .run(&inputs![&here, &matrix(3)])
                            .expect("it runs")
                            .remove(0)
                            .to_host();
                        here = scale_here.run(&inputs![&y, &k]).expect("it runs").remove(0).to_host();
                    }
                    close(&x.to_host().expect("it is there"), &here, "a thread");
                });
            }
        });
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn late_fault() {
        let [mix, _] = pair(Device::cuda(0));
        let weights = Device::cuda(0).upload(matrix(3)).expect("room");
        let mut x = Device::cuda(0).upload(matrix(1)).expect("room");
        let mut refused = None;
        for _ in 0..8 {
            match mix.run_on_device(inputs![&x, &weights]) {
                Ok(mut found) => x = found.remove(0),
                // The device may have failed before the last call was given.
                Err(e) => refused = Some(e.to_string()),
            }
        }
        let late = x.to_host().expect_err("a launch failed").to_string();
        let message = refused.unwrap_or(late.clone());
        assert!(
            message.contains("CUDA_ERROR_LAUNCH_FAILED") || late.contains("CUDA_ERROR_LAUNCH_FAILED"),
            "{message}\n{late}"
        );
        assert!(late.contains("found at step"), "{late}");
        assert!(mix.synchronize().is_err() || mix.run_on_device(inputs![&x, &weights]).is_err());
        let again = mix
            .run_on_device(inputs![&x, &weights])
            .expect_err("the device is lost")
            .to_string();
        assert!(again.contains("is lost since"), "{again}");
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn growing() {
        let g = Graph::new("growing");
        let n = g.symbol("n", 1..=200);
        let x = g.input("x", DType::F32, (&n, 512));
        g.output("y", &(&x * 2.0));
        let there = compiled(&g, Device::cuda(0));
        // More than twice the memory of the device, one after another.
        for n in 1..=150 {
            let x = vec![1.5f32; n * 512];
            let y = there.run_on_device(inputs![&x]).expect("it runs");
            let y = y["y"].to_host().expect("it is there");
            assert_eq!(y.as_slice::<f32>().expect("f32")[n * 512 - 1], 3.0);
        }
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn refusals() {
        let g = step();
        let (here, there) = (compiled(&g, Device::cpu()), compiled(&g, Device::cuda(0)));
        let (x, w) = (data(2100), data(49));
        let refused =
            |e: &Executable, given: Vec<Input<'_>>| e.run_on_device(given).expect_err("it is refused").to_string();
        let message = refused(&here, inputs![&x, &x, &w].into());
        assert!(message.contains("compiled for the processor alone"), "{message}");
        let message = Device::cpu().upload(&x).expect_err("it is refused").to_string();
        assert!(message.contains("compiled for the processor alone"), "{message}");
        let far = Device::cuda(1).upload(HostTensor::from_slice(&[300, 7], &x).expect("as many"));
        let message = refused(&there, inputs![&far.expect("room"), &x, &w].into());
        assert!(
            message.contains("input `x` is in the memory of another device"),
            "{message}"
        );
        let near = Device::cuda(0).upload(&x).expect("room");
        let message = refused(&there, inputs![&near, &x, &w].into());
        assert!(message.contains("input `x`") && message.contains("[2100]"), "{message}");
        let near = Device::cuda(0)
            .upload(HostTensor::from_slice(&[300, 7], &x).expect("as many"))
            .expect("room");
        let message = there
            .run(&inputs![&near, &x, &w])
            .expect_err("it is refused")
            .to_string();
        assert!(
            message.contains("expected a call of Executable::run_on_device"),
            "{message}"
        );
        // Clones keep what is given away as it is, and memory of others may be given as well.
        let copy = near.clone();
        let before = near.to_host().expect("it is there");
        // SAFETY: the tensor lives as long as its clone, and nothing writes to it.
        let raw =
            unsafe { DeviceTensor::from_raw(0, near.as_raw(), (DType::F32, &[300, 7]), null_mut(), near.clone()) };
        let raw = raw.expect("a tensor");
        for _ in 0..3 {
            there
                .run_on_device(inputs![near.clone(), raw.clone(), &w])
                .expect("it runs");
        }
        assert_eq!(bits(&copy.to_host().expect("it is there")), bits(&before));
        // SAFETY: it is refused.
        let odd = unsafe { DeviceTensor::from_raw(0, near.as_raw() + 2, (DType::F32, &[7]), null_mut(), ()) };
        assert!(odd.is_err());
    }

    /// How often [`count`] was called.
    static DELETED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn count(_: *mut DlManagedTensor) {
        DELETED.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn exchanges() {
        let values = HostTensor::from_slice(&[30, 7], &data(210)).expect("as many");
        let made = Device::cuda(0).upload(&values).expect("room");
        let address = made.as_raw();
        let exported = made.to_dlpack().expect("it has a name");
        drop(made);
        // SAFETY: it was exported just now, and is imported once.
        let back = unsafe { DeviceTensor::from_dlpack(exported, null_mut()) }.expect("it is whole");
        assert_eq!(
            (back.as_raw(), back.shape(), back.dtype()),
            (address, &[30, 7][..], DType::F32)
        );
        assert_eq!(bits(&back.to_host().expect("it is there")), bits(&values));

        let float = DlDataType {
            code: 2,
            bits: 32,
            lanes: 1,
        };
        let import = |kind: i32, dtype: DlDataType, shape: &[i64], strides: &[i64], offset: u64| {
            let (mut shape, mut strides) = (shape.to_vec(), strides.to_vec());
            let mut managed = DlManagedTensor {
                dl_tensor: DlTensor {
                    data: std::ptr::without_provenance_mut::<c_void>(address as usize),
                    device: DlDevice {
                        device_type: kind,
                        device_id: 0,
                    },
                    ndim: shape.len() as i32,
                    dtype,
                    shape: shape.as_mut_ptr(),
                    strides: if strides.is_empty() {
                        null_mut()
                    } else {
                        strides.as_mut_ptr()
                    },
                    byte_offset: offset,
                },
                manager_ctx: null_mut(),
                deleter: Some(count),
            };
            // SAFETY: it is whole, and what is imported is dropped before it goes.
            let tensor = unsafe { DeviceTensor::from_dlpack(NonNull::from(&mut managed), null_mut()) };
            tensor
                .map(|t| t.to_host().expect("it is there"))
                .map_err(|e| e.to_string())
        };
        let part = import(2, float, &[2, 7], &[7, 1], 28 * 4).expect("it is whole");
        assert_eq!(part.as_slice::<f32>(), Some(&data(210)[28..42]));
        assert_eq!(DELETED.load(Ordering::SeqCst), 1);
        // Axes of one element and tensors without any have whatever strides.
        for (shape, strides) in [
            (&[1, 7][..], &[99, 1][..]),
            (&[0, 7], &[1, 1]),
            (&[], &[]),
            (&[5, 1, 2], &[]),
        ] {
            import(2, float, shape, strides, 0).expect("it is whole");
        }
        assert_eq!(DELETED.load(Ordering::SeqCst), 5);
        let refused = [
            (import(1, float, &[7], &[], 0), "device of kind 1"),
            (import(2, float, &[7, 30], &[1, 7], 0), "expected C order"),
            (import(2, float, &[-7], &[], 0), "extents [-7]"),
            (import(2, float, &[7], &[], 2), "expected a multiple of 4"),
            (import(2, DlDataType { code: 5, ..float }, &[7], &[], 0), "code 5"),
            (import(2, DlDataType { lanes: 4, ..float }, &[7], &[], 0), "4 lanes"),
        ];
        for (found, part) in refused {
            let message = found.expect_err("it is refused");
            assert!(message.contains(part), "{part} in {message}");
        }
        // Kernels read 16 bytes at once, which views of others need not be aligned for.
        let g = Graph::new("twice");
        let n = g.symbol("n", 0..=1000);
        g.output("y", &(&g.input("x", DType::F32, [n]) * 2.0));
        let there = compiled(&g, Device::cuda(0));
        for (first, count) in [(1, 203), (3, 4), (4, 200), (2, 1)] {
            // SAFETY: the tensor has those elements, and lives as long as its clone.
            let view = unsafe {
                let address = address + 4 * first as u64;
                DeviceTensor::from_raw(0, address, (DType::F32, &[count]), null_mut(), back.clone())
            };
            let y = there.run_on_device(inputs![view.expect("aligned to its elements")]);
            let y = y.expect("it runs").remove(0).to_host().expect("it is there");
            let expected: Vec<f32> = data(210)[first..first + count].iter().map(|x| 2.0 * x).collect();
            assert_eq!(y.as_slice::<f32>(), Some(&expected[..]));
        }
        // What is refused stays the caller's.
        assert_eq!(DELETED.load(Ordering::SeqCst), 5);
    }

    #[test]
    #[ignore = "run by tests of tests/cuda.rs, with a simulated device"]
    fn downloads() {
        let there = compiled(&step(), Device::cuda(0));
        let upload = |shape: &[usize]| {
            let values = data(shape.iter().product());
            let tensor = HostTensor::from_slice(shape, &values).expect("as many");
            Device::cuda(0).upload(&tensor).expect("room")
        };
        let (mut x, mut v, w) = (upload(&[300, 7]), upload(&[300, 7]), upload(&[7, 7]));
        for call in 0..6 {
            let expected = x.to_host().expect("it is there");
            let on_its_way = x.to_host_async().expect("it begins");
            // The tensor is given away meanwhile.
            let mut new = there.run_on_device(inputs![x, v, &w]).expect("it runs");
            (v, x) = (new.remove(0), new.remove(0));
            if call == 3 {
                drop(on_its_way);
                continue;
            }
            assert_eq!(bits(&on_its_way.wait().expect("it is there")), bits(&expected));
        }
        let empty = upload(&[0, 7]).to_host_async().expect("it begins");
        assert_eq!(empty.wait().expect("nothing").shape(), [0, 7]);
    }
}
