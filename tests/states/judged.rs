//! Calls on random states: see `random.rs`.

use tlc::Device;

use crate::random::{LARGE, SMALL, check_all};

#[test]
fn calls_on_random_states_match_the_interpreter() {
    check_all(0..300, SMALL, Device::cpu());
}

#[test]
fn calls_on_large_random_states_match_the_interpreter() {
    check_all(0..6, LARGE, Device::cpu());
}
