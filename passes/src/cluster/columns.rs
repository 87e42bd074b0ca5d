//! Whether a cluster's loops walk memory along its columns, the last parallel axis, or along its rows, the inner axes.

use tlc_ir::graph::Shape;
use tlc_ir::index::VarId;
use tlc_ir::{Graph, NodeId};

use super::{Cluster, LoopSpace, Role};
use crate::access::{Index, Variables, flat_index, loads_below, space};

/// Columns of the narrowest tile of which every row is a whole cache line, in 4-byte elements.
pub const NARROWEST_TILE: i64 = 16;
/// Columns of which a vector can be filled.
const FEWEST_COLUMNS: i64 = 4;
/// Bytes that a tile keeps for each element: an operand, and what costs too much to compute twice, in f32.
pub const COLUMN_VALUE_BYTES: i64 = 8;

/// Elements of a column of which the narrowest tile stays close, next to what streams through.
pub fn tallest_column(resident_bytes: i64) -> i64 {
    tile_bytes(resident_bytes) / (NARROWEST_TILE * COLUMN_VALUE_BYTES)
}

/// Whether a root is summed over axes of its own.
fn sums(graph: &Graph, root: NodeId) -> bool {
    let s = space(graph, root);
    s.extents.len() > s.result_rank
}

/// Loads of a reduction that walk memory along the last inner axis, and those that walk it along the last parallel one.
fn directions(graph: &Graph, root: NodeId, roles: &[Role], last: usize, both: bool) -> (u32, u32) {
    let s = space(graph, root);
    let mut vars = Variables::new(graph);
    let point: Index = s.extents.iter().map(|d| vars.push(d.clone()).into()).collect();
    let last_inner = VarId(s.extents.len() as u32 - 1);
    let Some(column) = roles.iter().position(|r| *r == Role::Parallel(last)) else {
        return (0, 0);
    };
    let column = VarId(column as u32);
    let (mut by_row, mut by_column) = (0, 0);
    for (source, index) in loads_below(graph, root, &point, &mut vars) {
        let flat = flat_index(&index, &graph.ty(source).shape);
        if both && !(flat.uses(column) && flat.uses(last_inner)) {
            continue;
        }
        let unit = |v: VarId| flat.affine_in(v).is_some_and(|(c, _)| c.is(1));
        by_row += unit(last_inner) as u32;
        by_column += unit(column) as u32;
    }
    (by_row, by_column)
}

/// Whether the reductions of column-local roots load along the columns, and all that have inner axes store along them.
pub(super) fn walks_columns(graph: &Graph, roots: &[NodeId], space: &LoopSpace) -> bool {
    let Some(last) = space.parallel.len().checked_sub(1) else {
        return false;
    };
    let (mut rows, mut columns) = (0, 0);
    for (&root, roles) in roots.iter().zip(&space.roles) {
        if sums(graph, root) {
            let (r, c) = directions(graph, root, roles, last, true);
            rows += r;
            columns += c;
        } else if roles.iter().any(|r| matches!(r, Role::Inner(_))) {
            let side_by_side = roles.iter().rev().find(|r| !matches!(r, Role::Unit));
            if side_by_side != Some(&Role::Parallel(last)) {
                return false;
            }
        }
    }
    columns >= rows
}

/// Whether the last parallel axis, rather than the inner ones, walks memory contiguously.
pub fn column_form(graph: &Graph, cluster: &Cluster, space: &LoopSpace) -> bool {
    let Some(last) = space.parallel.len().checked_sub(1) else {
        return false;
    };
    if space.is_column_local() {
        return true;
    }
    let stores_rows =
        |(&root, roles): (&NodeId, &Vec<Role>)| !sums(graph, root) && roles.iter().any(|r| matches!(r, Role::Inner(_)));
    if cluster.roots.iter().zip(&space.roles).any(stores_rows) {
        return false;
    }
    let count = |both: bool| {
        let summed = cluster.roots.iter().zip(&space.roles).filter(|(r, _)| sums(graph, **r));
        let counts = summed.map(|(&root, roles)| directions(graph, root, roles, last, both));
        counts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    };
    // What is as large as rows times columns decides; a vector along one of the two costs nothing.
    let (by_row, by_column) = count(true);
    let wide = space.parallel[last].interval(graph).hi >= FEWEST_COLUMNS;
    if wide && by_row != by_column {
        return by_column > by_row;
    }
    let (by_row, by_column) = count(false);
    by_column > by_row
}

/// The last parallel axes that column-local roots have inside of all their inner axes, in order: they may be one column
/// axis.
pub fn trailing_columns(space: &LoopSpace) -> usize {
    let of_root = |roles: &Vec<Role>| {
        let real = roles.iter().rev().filter(|r| !matches!(r, Role::Unit));
        let local = roles.iter().any(|r| matches!(r, Role::Inner(_)));
        let trailing = real.take_while(|r| matches!(r, Role::Parallel(_))).count();
        (local && trailing > 0).then_some(trailing)
    };
    space.roles.iter().filter_map(of_root).min().unwrap_or(1).max(1)
}

/// Bytes of a tile that stay close next to what streams through: as much again is for that.
const fn tile_bytes(resident_bytes: i64) -> i64 {
    resident_bytes / 2
}

/// Columns of a tile that may take more: rows of fewer cache lines are found by no prefetcher, and a softmax over 1024 of
/// them takes 1.3 times as long with 32 columns, and 2.3 times with 16.
const WIDE_TILE: i64 = 64;
/// Times the resident bytes that it may take.
const WIDE_TIMES: i64 = 2;
/// The most columns of a tile.
const WIDEST_TILE: i64 = 256;

/// Columns of a tile of which each keeps so many bytes. A tile that divides the columns has no column left over.
pub fn tile_width(columns: &Shape, column_bytes: i64, resident_bytes: i64) -> i64 {
    let bytes = column_bytes.max(1);
    let wide = resident_bytes.saturating_mul(WIDE_TIMES) / bytes;
    let most = (tile_bytes(resident_bytes) / bytes).max(wide.min(WIDE_TILE));
    let most = (most / NARROWEST_TILE * NARROWEST_TILE).clamp(NARROWEST_TILE, WIDEST_TILE);
    let all = columns.iter().try_fold(1i64, |n, d| n.checked_mul(d.as_const()?));
    let Some(n) = all else { return most };
    if n <= most {
        return n.max(1);
    }
    let even = |step: i64| (most / 2..=most).rev().find(|w| w % step == 0 && n % w == 0);
    even(NARROWEST_TILE)
        .or_else(|| even(8))
        .or_else(|| even(4))
        .unwrap_or(most)
}
