//! What the stages of the compiler make of graphs: plans, schedules and kernels, judged by interpreters and counted.

mod again;
mod alike;
mod copies;
mod emitters;
mod gpu_attention;
mod gpu_schedules;
mod grids;
mod index_size;
mod kernel_plan_text;
mod kernel_size;
mod long_rows;
mod masked_loads;
#[path = "../oracle/mod.rs"]
mod oracle;
mod phases;
mod plan_bounds;
mod plan_interp;
mod plan_shapes;
mod precision;
mod product_rows;
mod queues;
mod random_schedules;
mod sequences;
mod share;
mod short_rows;
mod states;
mod streamed_lines;
mod tuning;
