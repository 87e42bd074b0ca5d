//! Graphs on a GPU, which the stand-in for a driver simulates: `gpusim/driver`, found where cargo builds it or where `TLC_SIM_LIB` says.
//!
//! The driver is loaded once for a process and reads its settings there, so each test here runs one of the ignored ones in processes of
//! their own. What it finds (accesses outside of memory, races, operations without order) is a failure. Without the driver's library or
//! NVRTC, tests print SKIP.

#[path = "cuda/child.rs"]
mod child;
#[path = "cuda/counts.rs"]
mod counts;
#[path = "cuda/faults.rs"]
mod faults;
#[path = "cuda/graphs.rs"]
mod graphs;
#[path = "cuda/models.rs"]
mod models;

use child::simulated;

/// Orders that warps run in, each with a seed of streams' delays.
const SCHEDULES: [(&str, &str); 3] = [("round-robin", "0"), ("random", "1"), ("adversarial", "2")];

#[test]
fn random_graphs_have_the_same_bits_at_three_schedules() {
    let runs: Vec<_> = SCHEDULES
        .iter()
        .filter_map(|(schedule, seed)| {
            simulated(
                "graphs::children::random_graphs",
                &[("TLC_SIM_SCHEDULE", schedule), ("TLC_SIM_SEED", seed)],
            )
        })
        .collect();
    for other in &runs {
        assert_eq!(other.printed("bits").len(), 1);
        assert_eq!(runs[0].printed("bits"), other.printed("bits"));
    }
}

#[test]
fn elementwise_graphs_have_the_bits_of_the_processor() {
    simulated("graphs::children::elementwise", &[]);
}

#[test]
fn networks_answer_on_a_gpu_as_on_the_processor() {
    simulated("models::children::networks", &[]);
}
