//! Tiles of columns: how many columns a loop over rows takes together, so that what it needs again stays close. And tiles of sums of
//! products, of which a GPU's blocks take one each.

/// Rows and columns of the largest tile of sums of products.
pub const PRODUCT_SIDE: i64 = 64;
/// Rows and columns of a tile that warps multiply by matrix instructions, where there are enough of them for all of a device.
pub const LARGE_PRODUCT_SIDE: i64 = 128;
/// Rows and columns of the smallest one.
pub const SMALLEST_PRODUCT_SIDE: i64 = 16;

/// Vectors of a row that are added up side by side.
pub const VECTORS_OF_A_ROW: i64 = 4;
/// Lanes from which on they are combined by halves: a few are as fast one after the other.
pub const TREE_LANES: i64 = 8;

/// Columns of the narrowest tile of which every row is a whole cache line, in 4-byte elements.
pub const NARROWEST_TILE: i64 = 16;
/// Bytes that a tile keeps for each element: an operand, and what costs too much to compute twice, in f32.
pub const COLUMN_VALUE_BYTES: i64 = 8;
/// Columns of a tile that may take more: rows of fewer cache lines are found by no prefetcher, and a softmax over 1024 of
/// them takes 1.3 times as long with 32 columns, and 2.3 times with 16.
const WIDE_TILE: i64 = 64;
/// Times the resident bytes that it may take.
const WIDE_TIMES: i64 = 2;
/// The most columns of a tile of which rows are kept, and the columns of one that keeps only accumulators of few columns.
const WIDEST_TILE: i64 = 256;
/// Columns of a tile of accumulators of very many columns.
const VERY_WIDE_TILE: i64 = 1024;
/// How many columns those are.
const VERY_MANY_COLUMNS: i64 = 16_384;
/// Bytes that a tile keeps for each sum: one of all rows, and one of a block of them.
const SUM_BYTES: i64 = 8;

/// Columns of accumulators from which a tile is half of them, in whole steps; two steps are halved too, and what lies between would leave one
/// thread little.
const FEWEST_SHARED: i64 = 192;
/// Columns of accumulators up to which it is, where one tile would take them all.
const MOST_SHARED: i64 = 2 * WIDEST_TILE;

/// Bytes of a tile that stay close next to what streams through: as much again is for that.
const fn tile_bytes(resident_bytes: i64) -> i64 {
    resident_bytes / 2
}

/// Elements of a column of which the narrowest tile stays close, next to what streams through.
pub fn tallest_column(resident_bytes: i64) -> i64 {
    tile_bytes(resident_bytes) / (NARROWEST_TILE * COLUMN_VALUE_BYTES)
}

/// Columns of a tile of accumulators: all of them where that is not much more, else as `between` says of so many.
fn tile_of_sums(columns: Option<i64>, between: impl FnOnce(i64) -> i64) -> i64 {
    match columns {
        // A tile of an empty axis is one column wide, so that nothing divides by zero.
        Some(n) if n <= 2 * WIDEST_TILE => n.max(1),
        Some(n) if n >= VERY_MANY_COLUMNS => VERY_WIDE_TILE,
        Some(n) => between(n),
        None => WIDEST_TILE,
    }
}

/// Columns of a tile of accumulators of a processor: each thread takes one tile, of all columns if there is one thread, as long as half of the first
/// cache holds a tile's sums. Rows that are walked whole are read from memory one line behind the other, at up to 1.2 times the rate of
/// pieces of 256 bytes (hand-written loops over 768x3072 and 9216x128 elements in f32 on a Xeon of the fifth generation).
pub fn accumulator_tile(columns: Option<i64>, threads: usize, close_bytes: u64) -> i64 {
    let (step, threads) = (4 * NARROWEST_TILE, threads.max(1) as i64);
    if threads > 1
        && let Some(n @ ..=MOST_SHARED) = columns
        && (n >= FEWEST_SHARED || n == 2 * step)
    {
        return (n / 2 - 1) / step * step + step;
    }
    tile_of_sums(columns, |n| {
        let most = (close_bytes as i64 / 2 / SUM_BYTES).max(step);
        let tiles = (n + threads * most - 1) / (threads * most) * threads;
        // Of as many steps as that takes, rounded up.
        ((n - 1) / (tiles * step) * step + step).min(n)
    })
}

/// Columns of a tile of accumulators that a block of a GPU's threads takes.
pub fn block_accumulators(columns: Option<i64>) -> i64 {
    tile_of_sums(columns, |n| if n >= 4096 { 2 * WIDEST_TILE } else { WIDEST_TILE })
}

/// Columns of a tile of which each keeps so many bytes, of so many columns in all if that is known. A tile that divides the
/// columns has no column left over.
pub fn resident_tile(columns: Option<i64>, column_bytes: i64, resident_bytes: i64) -> i64 {
    let bytes = column_bytes.max(1);
    let wide = resident_bytes.saturating_mul(WIDE_TIMES) / bytes;
    let most = (tile_bytes(resident_bytes) / bytes).max(wide.min(WIDE_TILE));
    let most = (most / NARROWEST_TILE * NARROWEST_TILE).clamp(NARROWEST_TILE, WIDEST_TILE);
    let Some(n) = columns else { return most };
    if n <= most {
        return n.max(1);
    }
    let even = |step: i64| (most / 2..=most).rev().find(|w| w % step == 0 && n % w == 0);
    even(NARROWEST_TILE)
        .or_else(|| even(8))
        .or_else(|| even(4))
        .unwrap_or(most)
}

/// Rows below which each of a few long ones is no work for one thread, or for one block of a GPU.
const FEW_ROWS: i64 = 8;
/// Elements of such a row, and of all of them, from which on that is so.
const LONG_ROW: i64 = 1 << 14;
const LONG_ROWS: i64 = 1 << 16;

/// Whether rows of so many elements are too few, and long enough, to be shared out among more than their number.
pub fn are_few_rows(rows: i64, row: i64) -> bool {
    rows < FEW_ROWS && row > LONG_ROW && rows.saturating_mul(row) > LONG_ROWS
}
