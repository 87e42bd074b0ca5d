//! Graphs on a GPU, which the stand-in for a driver simulates: `gpusim/driver`, found where cargo builds it or where `TLC_SIM_LIB` says.
//!
//! The driver is loaded once for a process and reads its settings there, so each test here runs one of the ignored ones in processes of
//! their own. What it finds (accesses outside of memory, races, operations without order) is a failure. Without the driver's library or
//! NVRTC, tests print SKIP.

#[path = "cuda/approximated.rs"]
mod approximated;
#[path = "cuda/attention.rs"]
mod attention;
#[path = "cuda/caches.rs"]
mod caches;
#[path = "cuda/child.rs"]
mod child;
#[path = "cuda/constants.rs"]
mod constants;
#[path = "cuda/counts.rs"]
mod counts;
#[path = "cuda/extrema.rs"]
mod extrema;
#[path = "cuda/faults.rs"]
mod faults;
#[path = "cuda/gradients.rs"]
mod gradients;
#[path = "cuda/graphs.rs"]
mod graphs;
#[path = "cuda/judged.rs"]
mod judged;
#[path = "cuda/launch_groups.rs"]
mod launch_groups;
#[path = "cuda/long_rows.rs"]
mod long_rows;
#[path = "cuda/memory.rs"]
mod memory;
#[path = "cuda/models.rs"]
mod models;
#[path = "cuda/onnx_attention.rs"]
mod onnx_attention;
#[path = "cuda/peers.rs"]
mod peers;
#[path = "cuda/pools.rs"]
mod pools;
#[path = "cuda/product_rows.rs"]
mod product_rows;
#[path = "cuda/products.rs"]
mod products;
#[path = "cuda/programs.rs"]
mod programs;
#[allow(dead_code, reason = "shared with another test, which uses all of it")]
#[path = "onnx/proto.rs"]
mod proto;
#[path = "cuda/queues.rs"]
mod queues;
#[path = "states/random.rs"]
mod random_states;
#[path = "cuda/recorded.rs"]
mod recorded;
#[path = "cuda/reports.rs"]
mod reports;
#[path = "cuda/resident.rs"]
mod resident;
#[path = "cuda/resident_states.rs"]
mod resident_states;
#[path = "cuda/rows.rs"]
mod rows;
#[path = "cuda/scans.rs"]
mod scans;
#[path = "cuda/scatters.rs"]
mod scatters;
#[path = "cuda/sequences.rs"]
mod sequences;
#[path = "cuda/sizes.rs"]
mod sizes;
#[path = "cuda/slots.rs"]
mod slots;
#[path = "differential/states.rs"]
mod states;
#[path = "cuda/tensor_cores.rs"]
mod tensor_cores;
#[path = "cuda/transpositions.rs"]
mod transpositions;
#[path = "cuda/words.rs"]
mod words;

use child::{Settings, simulated};
use judged::JUDGED;

/// Orders that warps run in, each with a seed of streams' delays.
const SCHEDULES: [(&str, &str); 3] = [("round-robin", "0"), ("random", "1"), ("adversarial", "2")];

#[test]
fn random_graphs_have_the_same_bits_at_three_schedules() {
    same_bits("graphs::children::random_graphs");
}

#[test]
fn large_random_graphs_have_the_same_bits_at_three_schedules() {
    same_bits("graphs::children::large_graphs");
}

#[test]
fn random_graphs_of_long_rows_have_the_same_bits_at_three_schedules() {
    same_bits("graphs::children::long_rows");
}

#[test]
fn random_graphs_of_products_have_the_same_bits_at_three_schedules() {
    same_bits("graphs::children::multiplied_graphs");
}

#[test]
fn random_graphs_of_images_have_the_same_bits_at_three_schedules() {
    same_bits("graphs::children::images_of_all_sizes");
}

#[test]
fn random_graphs_of_vast_sizes_have_the_same_bits_at_three_schedules() {
    same_bits("graphs::children::vast_sizes");
}

#[test]
fn random_graphs_of_bytes_have_the_same_bits_at_three_schedules() {
    same_bits("graphs::children::elements_of_one_byte");
}

#[test]
fn random_programs_have_the_same_bits_at_three_schedules() {
    same_bits("programs::children::random");
}

#[test]
fn parts_of_constants_that_sizes_choose_differ_from_call_to_call() {
    simulated("constants::children::parts", &[]);
}

#[test]
fn what_constants_alone_decide_in_several_kernels_is_computed_once() {
    simulated("constants::children::once", &[]);
}

#[test]
fn products_by_matrix_instructions_have_the_same_bits_at_three_schedules() {
    same_bits("tensor_cores::children::all");
}

#[test]
fn products_in_tf32_have_the_same_bits_at_three_schedules() {
    same_bits("tensor_cores::children::in_tf32");
}

/// The description of a device of one multiprocessor, which every product fills, as a file in a folder.
fn one_multiprocessor(folder: &std::path::Path) -> String {
    let h200 = include_str!("../gpusim/driver/devices/h200.toml");
    let small = h200.replace("multiprocessors = 132", "multiprocessors = 1");
    assert_ne!(small, h200);
    let file = folder.join("small.toml");
    std::fs::write(&file, small).expect("a file");
    file.to_str().expect("a path of text").into()
}

#[test]
fn large_tiles_of_products_are_right() {
    let folder = tempfile::tempdir().expect("a folder");
    let device = one_multiprocessor(folder.path());
    simulated("tensor_cores::children::in_large_tiles", &[("TLC_SIM_DEVICE", &device)]);
}

#[test]
fn products_of_whole_tiles_have_the_same_bits_at_three_schedules() {
    let folder = tempfile::tempdir().expect("a folder");
    let device = one_multiprocessor(folder.path());
    same_bits_of("tensor_cores::children::of_whole_tiles", &[("TLC_SIM_DEVICE", &device)]);
}

#[test]
fn products_of_known_and_unknown_sizes_have_the_same_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    let device = one_multiprocessor(folder.path());
    simulated(
        "tensor_cores::children::sizes_known_or_not",
        &[("TLC_SIM_DEVICE", &device)],
    );
}

#[test]
fn random_products_that_fill_a_device_have_the_same_bits_at_three_schedules() {
    let folder = tempfile::tempdir().expect("a folder");
    let device = one_multiprocessor(folder.path());
    same_bits_of("tensor_cores::children::random", &[("TLC_SIM_DEVICE", &device)]);
}

#[test]
fn few_long_rows_have_the_same_bits_at_three_schedules() {
    same_bits("long_rows::children::few");
}

#[test]
fn many_long_rows_have_the_same_bits_at_three_schedules() {
    let folder = tempfile::tempdir().expect("a folder");
    let device = one_multiprocessor(folder.path());
    same_bits_of("long_rows::children::many", &[("TLC_SIM_DEVICE", &device)]);
}

#[test]
fn long_rows_of_infinities_are_what_was_recorded() {
    same_bits("long_rows::children::of_infinities");
}

#[test]
fn rows_that_are_overwritten_have_the_same_bits_at_three_schedules() {
    same_bits("rows::children::overwritten");
}

#[test]
fn convolutions_by_four_warps_have_the_same_bits_at_three_schedules() {
    let folder = tempfile::tempdir().expect("a folder");
    let device = one_multiprocessor(folder.path());
    same_bits_of("tensor_cores::children::convolved", &[("TLC_SIM_DEVICE", &device)]);
}

#[test]
fn rows_of_products_have_the_same_bits_at_three_schedules() {
    same_bits("product_rows::children::random");
}

#[test]
fn operands_are_rounded_to_tf32_by_nearest() {
    simulated("tensor_cores::children::operands_are_rounded_to_the_nearest", &[]);
}

#[test]
fn random_products_by_matrix_instructions_have_the_same_bits_at_three_schedules() {
    same_bits("tensor_cores::children::random");
}

#[test]
fn attention_is_one_kernel_with_the_same_bits_at_three_schedules() {
    same_bits("attention::children::attentions");
}

#[test]
fn attention_by_four_warps_is_right() {
    same_bits("attention::children::four_warps");
}

#[test]
fn attention_of_many_rows_is_right() {
    simulated("attention::children::many_rows", &[("TLC_SIM_DEVICE", "laptop-4gib")]);
}

#[test]
fn onnx_attention_in_16_bits_is_one_kernel_with_the_same_bits_at_three_schedules() {
    onnx_attention::on_the_processor();
    same_bits("onnx_attention::children::all");
}

#[test]
fn one_executable_is_right_at_every_size() {
    same_bits("sizes::children::sizes");
}

#[test]
fn versions_for_sizes_that_recur_are_right() {
    simulated("sizes::children::versions", &[]);
}

#[test]
fn states_on_a_gpu_have_the_values_of_outputs() {
    simulated("graphs::children::states", &[]);
}

#[test]
fn calls_on_random_states_are_right_on_a_gpu() {
    simulated("graphs::children::calls_on_states", &[]);
}

#[test]
fn random_graphs_over_several_gpus_have_the_same_bits_at_three_schedules() {
    same_bits_of(
        "graphs::children::divided_graphs",
        &[("TLC_SIM_DEVICE", "h200,a100,h200")],
    );
}

#[test]
fn states_on_two_gpus_have_the_values_of_outputs_in_any_order() {
    for seed in ["1", "2"] {
        let two = [("TLC_SIM_DEVICE", "h200,a100"), ("TLC_SIM_SEED", seed)];
        simulated("graphs::children::states_on_two", &two);
    }
}

#[test]
fn rows_counted_by_calls_have_the_same_bits_at_three_schedules() {
    same_bits("rows::children::counted_by_calls");
}

#[test]
fn many_rows_and_few_have_the_same_bits_at_three_schedules() {
    same_bits("rows::children::counted_before");
}

#[test]
fn rows_of_other_types_have_the_same_bits_at_three_schedules() {
    same_bits("rows::children::of_other_types");
}

#[test]
fn random_transpositions_have_the_same_bits_at_three_schedules() {
    // Of a device that few blocks fill, which have several tiles each.
    let folder = tempfile::tempdir().expect("a folder");
    let device = one_multiprocessor(folder.path());
    same_bits_of("transpositions::children::random", &[("TLC_SIM_DEVICE", &device)]);
}

#[test]
fn transpositions_of_networks_have_the_same_bits_at_three_schedules() {
    same_bits("transpositions::children::of_networks");
}

#[test]
fn scans_have_the_same_bits_at_three_schedules() {
    same_bits("scans::children::of_all_kinds");
}

#[test]
fn scatters_have_the_same_bits_at_three_schedules() {
    // Of a small device, on which fewer threads walk all indices.
    same_bits_of("scatters::children::of_all_kinds", &[("TLC_SIM_DEVICE", "laptop-4gib")]);
}

#[test]
fn short_rows_have_the_same_bits_at_three_schedules() {
    same_bits("rows::children::short");
}

#[test]
fn rows_of_one_element_have_the_same_bits_at_three_schedules() {
    same_bits("rows::children::of_one_element");
}

/// Runs a test at three schedules, and compares what it says of the bits of results; those of the first one are compared with the interpreter's.
fn same_bits(test: &str) {
    same_bits_of(test, &[]);
}

/// As [`same_bits`], with more variables.
fn same_bits_of(test: &str, settings: Settings<'_>) {
    let runs: Vec<_> = SCHEDULES
        .iter()
        .enumerate()
        .filter_map(|(number, (schedule, seed))| {
            let mut order = vec![("TLC_SIM_SCHEDULE", *schedule), ("TLC_SIM_SEED", *seed)];
            order.extend((number > 0).then_some(JUDGED));
            simulated(test, &[settings, &order].concat())
        })
        .collect();
    for other in &runs {
        assert!(!other.printed("bits").is_empty(), "{test} says nothing of bits");
        assert_eq!(runs[0].printed("bits"), other.printed("bits"));
    }
}

#[test]
fn bytes_in_words_are_those_of_the_interpreter() {
    simulated("words::children::of_every_pair", &[]);
    simulated("words::children::of_two_bytes", &[]);
}

#[test]
fn small_integers_one_by_one_are_those_of_the_interpreter() {
    let folder = tempfile::tempdir().expect("a folder");
    let device = one_multiprocessor(folder.path());
    simulated("words::children::one_by_one", &[("TLC_SIM_DEVICE", &device)]);
    // What is loaded together there is a thread's own on a larger one.
    simulated("graphs::children::elements_of_one_byte", &[("TLC_SIM_DEVICE", &device)]);
}

#[test]
fn floats_as_integers_are_those_of_the_interpreter() {
    simulated("words::children::of_floats", &[]);
}

#[test]
fn zeros_have_an_order() {
    graphs::zeros(tlc::Device::cpu());
    simulated("graphs::children::zeros", &[]);
}

#[test]
fn elementwise_graphs_have_the_bits_of_the_processor() {
    simulated("graphs::children::elementwise", &[]);
}

#[test]
fn networks_answer_on_a_gpu_as_on_the_processor() {
    simulated("models::children::networks", &[]);
}

#[test]
fn networks_have_no_more_kernels_on_a_gpu_than_on_the_processor() {
    simulated("models::children::as_few_kernels", &[]);
}
