//! Whether a cluster's loops walk memory along its columns, the last parallel axis, or along its rows, the inner axes.

use tlc_ir::index::{IndexExpr, VarId};
use tlc_ir::{Graph, NodeId};

use super::{Cluster, LoopSpace, Role};
use crate::access::{Index, Variables, block_elements, loads_below, space};
use crate::contraction::layouts::multiplies_vector;
use tlc_ir::graph::infer::flat_index;

/// Columns of which a vector can be filled.
const FEWEST_COLUMNS: i64 = 4;
/// Columns of a matrix that is multiplied with a vector: they are added up as those of a wider one are.
const FEWEST_COLUMNS_OF_PRODUCTS: i64 = 2;

/// Whether a root is summed over axes of its own.
fn sums(graph: &Graph, root: NodeId) -> bool {
    let s = space(graph, root);
    s.extents.len() > s.result_rank
}

/// Loads of a reduction that walk memory along the last inner axis, and those that walk it along the last parallel one.
fn directions(
    graph: &Graph,
    root: NodeId,
    roles: &[Role],
    (last, both): (usize, bool),
    elsewhere: &dyn Fn(NodeId) -> bool,
) -> (u32, u32) {
    let s = space(graph, root);
    let mut vars = Variables::new(graph);
    let point: Index = s.extents.iter().map(|d| vars.push(d.clone()).into()).collect();
    // The places in windows of one element are always at the first.
    let long = s.extents.iter().rposition(|d| !d.is(1));
    let last_inner = VarId(long.filter(|i| *i >= s.result_rank).unwrap_or(s.extents.len() - 1) as u32);
    let Some(column) = roles.iter().position(|r| *r == Role::Parallel(last)) else {
        return (0, 0);
    };
    let column = VarId(column as u32);
    let (mut by_row, mut by_column) = (0, 0);
    for (source, index) in loads_below(graph, root, &point, &mut vars, elsewhere) {
        let flat = flat_index(&index, &graph.ty(source).shape);
        if both && !(flat.uses(column) && flat.uses(last_inner)) {
            continue;
        }
        let unit = |v: VarId| flat.affine_in(v).is_some_and(|(c, _)| c.is(1));
        // Of a matrix in blocks of columns those of a block lie side by side.
        let in_block = block_elements(&flat, column).is_some_and(|n| {
            let [number, place] = [s.extents[column.0 as usize].ceil_div(n), n.into()].map(|extent| vars.push(extent));
            let split = IndexExpr::from(number) * n.into() + place.into();
            let split = flat.replace_vars(&mut |v| (v == column).then(|| split.clone()));
            split.simplify(&vars).affine_in(place).is_some_and(|(c, _)| c.is(1))
        });
        // A window along the columns goes through the very elements that they do, whatever their distance in it.
        let window = index.iter().any(|i| i.uses(column) && i.uses(last_inner));
        by_row += (unit(last_inner) || (window && unit(column))) as u32;
        by_column += (unit(column) || in_block) as u32;
    }
    (by_row, by_column)
}

/// Whether the reductions of column-local roots load along the columns, and all that have inner axes store along them.
pub(super) fn walks_columns(graph: &Graph, roots: &[NodeId], space: &LoopSpace, is_root: &[bool]) -> bool {
    let elsewhere = |id: NodeId| is_root[id.index()] && !roots.contains(&id);
    let Some(last) = space.parallel.len().checked_sub(1) else {
        return false;
    };
    let (mut rows, mut columns) = (0, 0);
    for (&root, roles) in roots.iter().zip(&space.roles) {
        if sums(graph, root) {
            let (r, c) = directions(graph, root, roles, (last, true), &elsewhere);
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

/// Whether one of these reductions among the roots reads only what lies side by side along the last parallel axis.
pub(super) fn reads_columns<'a>(
    graph: &Graph,
    roots: &[NodeId],
    mut reductions: impl Iterator<Item = (&'a NodeId, &'a Vec<Role>)>,
    space: &LoopSpace,
    is_root: &[bool],
) -> bool {
    let elsewhere = |id: NodeId| is_root[id.index()] && !roots.contains(&id);
    let Some(last) = space.parallel.len().checked_sub(1) else {
        return false;
    };
    let wide = space.parallel[last].interval(graph).hi >= FEWEST_COLUMNS;
    wide && reductions.any(|(&root, roles)| {
        let (by_row, by_column) = directions(graph, root, roles, (last, true), &elsewhere);
        by_row == 0 && by_column > 0
    })
}

/// Whether the last parallel axis, rather than the inner ones, walks memory contiguously.
pub fn column_form(graph: &Graph, cluster: &Cluster, space: &LoopSpace, is_root: &[bool]) -> bool {
    let elsewhere = |id: NodeId| is_root[id.index()] && !cluster.roots.contains(&id);
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
        let counts = summed.map(|(&root, roles)| directions(graph, root, roles, (last, both), &elsewhere));
        counts.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    };
    // What is as large as rows times columns decides; a vector along one of the two costs nothing.
    let (by_row, by_column) = count(true);
    let fewest = match cluster.roots.iter().any(|&r| multiplies_vector(graph, r)) {
        true => FEWEST_COLUMNS_OF_PRODUCTS,
        false => FEWEST_COLUMNS,
    };
    let wide = space.parallel[last].interval(graph).hi >= fewest;
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
