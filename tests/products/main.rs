//! Products and what is made of them: einsums, attention, convolutions and their gradients, and what runs behind them in their steps.

mod attention;
mod bytes;
mod channels_together;
mod convolutions;
mod dequantized;
mod dilated;
mod direct_convolutions;
mod einsum_numpy;
mod epilogues;
mod few_rows;
mod half;
mod orders;
mod pools_of_bytes;
mod quotients;
mod regrouping;
mod stacks_of_bytes;
mod tables;
mod tuned;
mod vectors;
mod weight_gradients;
