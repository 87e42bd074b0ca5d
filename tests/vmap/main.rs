//! Functions over a batch: against the function of each example alone, for every kind of node, on random graphs and for derivatives.
#![forbid(unsafe_code)]

mod against;
mod control;
mod derivatives;
mod draws;
mod kinds;
mod random;
mod refusals;
