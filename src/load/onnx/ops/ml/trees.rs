//! Ensembles of trees: rows walk down all trees, and what stands at the leaves is added up.
//!
//! Where every test compares ([`walk`]), the walk is one operation; of sets of numbers and tests for equality, all rows go
//! down all trees a level at a time.

mod walk;

use std::collections::{HashMap, HashSet};

use super::super::super::node::At;
use super::super::super::tensor;
use super::{Transform, both_classes, labels, largest, rows, set_labels, transform};
use crate::error::Result;
use crate::ir::{Binary, Compare, DType, Op, ReduceKind, Size, Tensor, Unary, ValueId};

/// How a node decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Leaf,
    Compare(Compare),
    /// In a set of numbers.
    Member,
}

/// The nodes of all trees, each by its number.
#[derive(Default)]
struct Forest {
    features: Vec<i64>,
    values: Vec<f64>,
    modes: Vec<Mode>,
    yes: Vec<usize>,
    no: Vec<usize>,
    /// Whether what is missing takes the branch of yes.
    missing: Vec<bool>,
    /// The numbers of a node's set.
    members: Vec<Vec<f64>>,
    roots: Vec<usize>,
    /// Of each leaf: which results it adds to, and what.
    weights: HashMap<usize, Vec<(usize, f64)>>,
}

/// What a node that is no leaf asks, and where it goes on.
struct Branch {
    feature: i64,
    value: f64,
    mode: Mode,
    members: Vec<f64>,
    yes: usize,
    no: usize,
    missing_is_yes: bool,
}

impl Forest {
    fn push_branch(&mut self, branch: Branch) {
        self.features.push(branch.feature);
        self.values.push(branch.value);
        self.modes.push(branch.mode);
        self.members.push(branch.members);
        self.yes.push(branch.yes);
        self.no.push(branch.no);
        self.missing.push(branch.missing_is_yes);
    }

    /// A leaf goes on at itself, so that rows that are there already may walk on with the others.
    fn push_leaf(&mut self, weights: Vec<(usize, f64)>) {
        let number = self.modes.len();
        self.push_branch(Branch {
            feature: 0,
            value: 0.0,
            mode: Mode::Leaf,
            members: Vec::new(),
            yes: number,
            no: number,
            missing_is_yes: false,
        });
        self.weights.insert(number, weights);
    }
}

fn mode(at: &At<'_>, name: &str) -> Result<Mode> {
    Ok(match name {
        "LEAF" => Mode::Leaf,
        "BRANCH_LEQ" => Mode::Compare(Compare::Le),
        "BRANCH_LT" => Mode::Compare(Compare::Lt),
        "BRANCH_GTE" => Mode::Compare(Compare::Ge),
        "BRANCH_GT" => Mode::Compare(Compare::Gt),
        "BRANCH_EQ" => Mode::Compare(Compare::Eq),
        "BRANCH_NEQ" => Mode::Compare(Compare::Ne),
        "BRANCH_MEMBER" => Mode::Member,
        other => return Err(at.wrong(format!("{other:?} is no mode of a node"))),
    })
}

/// Numbers that are floats, or of opset 3 a tensor of doubles.
fn reals(at: &At<'_>, name: &str) -> Result<Vec<f64>> {
    if let Some(proto) = at.tensor(&format!("{name}_as_tensor"))? {
        return Ok(tensor::inline(proto.clone(), &tensor::header(proto)?)?.to_f64());
    }
    Ok(at.floats(name)?.unwrap_or_default())
}

/// The trees of the older operators, whose leaves add to targets or classes (`kind`).
fn forest(at: &At<'_>, kind: &str) -> Result<Forest> {
    stated_forest(at, kind).map(walk::arranged)
}

fn stated_forest(at: &At<'_>, kind: &str) -> Result<Forest> {
    at.ignore(&["nodes_hitrates", "nodes_hitrates_as_tensor"]);
    let ints = |name: &str| Ok(at.ints(name)?.unwrap_or_default());
    let (trees, ids) = (ints("nodes_treeids")?, ints("nodes_nodeids")?);
    let (yes, no) = (ints("nodes_truenodeids")?, ints("nodes_falsenodeids")?);
    let modes = at.texts("nodes_modes")?.unwrap_or_default();
    let mut forest = Forest {
        features: ints("nodes_featureids")?,
        values: reals(at, "nodes_values")?,
        ..Forest::default()
    };
    let count = trees.len();
    let lengths = [ids.len(), yes.len(), no.len(), modes.len(), forest.features.len(), forest.values.len()];
    if lengths.iter().any(|&length| length != count) || count == 0 {
        return Err(at.wrong("the lists of its nodes differ in length"));
    }
    let missing = at.ints("nodes_missing_value_tracks_true")?.unwrap_or_default();
    forest.missing = (0..count).map(|i| missing.get(i).is_some_and(|&tracks| tracks != 0)).collect();
    let numbers: HashMap<(i64, i64), usize> = (0..count).map(|i| ((trees[i], ids[i]), i)).collect();
    let find = |tree: i64, node: i64| {
        numbers.get(&(tree, node)).copied().ok_or_else(|| at.wrong(format!("tree {tree} has no node {node}")))
    };
    let mut seen = HashSet::new();
    for i in 0..count {
        let mode = mode(at, &modes[i])?;
        let leaf = mode == Mode::Leaf;
        forest.modes.push(mode);
        forest.yes.push(if leaf { i } else { find(trees[i], yes[i])? });
        forest.no.push(if leaf { i } else { find(trees[i], no[i])? });
        // The first node of a tree is its root.
        if seen.insert(trees[i]) {
            forest.roots.push(i);
        }
    }
    forest.members = vec![Vec::new(); count];
    let (leaf_trees, leaf_ids) = (ints(&format!("{kind}_treeids"))?, ints(&format!("{kind}_nodeids"))?);
    let results = ints(&format!("{kind}_ids"))?;
    let weights = reals(at, &format!("{kind}_weights"))?;
    if [leaf_ids.len(), results.len(), weights.len()] != [leaf_trees.len(); 3] {
        return Err(at.wrong("the lists of its leaves differ in length"));
    }
    for i in 0..leaf_trees.len() {
        let leaf = find(leaf_trees[i], leaf_ids[i])?;
        let result = usize::try_from(results[i]).map_err(|_| at.wrong("a result's number is negative"))?;
        forest.weights.entry(leaf).or_default().push((result, weights[i]));
    }
    Ok(forest)
}

/// How the nodes of version 5 decide, by number.
const MODES: [Mode; 7] = [
    Mode::Compare(Compare::Le),
    Mode::Compare(Compare::Lt),
    Mode::Compare(Compare::Ge),
    Mode::Compare(Compare::Gt),
    Mode::Compare(Compare::Eq),
    Mode::Compare(Compare::Ne),
    Mode::Member,
];

/// The attributes of version 5, which knows nodes and leaves by their positions in lists.
struct Lists {
    features: Vec<i64>,
    splits: Vec<f64>,
    modes: Vec<f64>,
    /// Where a node goes on, and whether that is a leaf.
    yes: Vec<(i64, bool)>,
    no: Vec<(i64, bool)>,
    missing_is_yes: Vec<i64>,
    /// Sets of numbers one after the other, each ended by one that is none.
    members: Vec<f64>,
    /// Of each leaf: the result it adds to, and what.
    targets: Vec<i64>,
    weights: Vec<f64>,
    roots: Vec<i64>,
}

impl Lists {
    fn of(at: &At<'_>) -> Result<Self> {
        at.ignore(&["nodes_hitrates"]);
        let ints = |name: &str| Ok(at.ints(name)?.unwrap_or_default());
        let numbers = |name: &str| -> Result<Vec<f64>> {
            match at.tensor(name)? {
                Some(proto) => Ok(tensor::inline(proto.clone(), &tensor::header(proto)?)?.to_f64()),
                None => Ok(Vec::new()),
            }
        };
        let differ = || at.wrong("the lists of its nodes differ in length");
        let next = |nodes: &str, leaves: &str| -> Result<Vec<(i64, bool)>> {
            let (nodes, leaves) = (ints(nodes)?, ints(leaves)?);
            if nodes.len() != leaves.len() {
                return Err(differ());
            }
            Ok(nodes.into_iter().zip(leaves).map(|(node, leaf)| (node, leaf != 0)).collect())
        };
        let lists = Self {
            features: ints("nodes_featureids")?,
            splits: numbers("nodes_splits")?,
            modes: numbers("nodes_modes")?,
            yes: next("nodes_truenodeids", "nodes_trueleafs")?,
            no: next("nodes_falsenodeids", "nodes_falseleafs")?,
            missing_is_yes: ints("nodes_missing_value_tracks_true")?,
            members: numbers("membership_values")?,
            targets: ints("leaf_targetids")?,
            weights: numbers("leaf_weights")?,
            roots: ints("tree_roots")?,
        };
        let lengths = [lists.splits.len(), lists.modes.len(), lists.yes.len(), lists.no.len()];
        if lengths != [lists.features.len(); 4] || lists.weights.len() != lists.targets.len() {
            return Err(differ());
        }
        Ok(lists)
    }

    /// The number in the forest, where leaves come after all other nodes.
    fn number(&self, at: &At<'_>, (position, is_leaf): (i64, bool)) -> Result<usize> {
        let (first, count) =
            if is_leaf { (self.features.len(), self.targets.len()) } else { (0, self.features.len()) };
        let position = usize::try_from(position).ok().filter(|&position| position < count);
        position.map(|own| first + own).ok_or_else(|| at.wrong("a node goes on at one that there is not"))
    }
}

fn forest_of_lists(at: &At<'_>) -> Result<Forest> {
    stated_lists(at).map(walk::arranged)
}

fn stated_lists(at: &At<'_>) -> Result<Forest> {
    let lists = Lists::of(at)?;
    let mut forest = Forest::default();
    let mut sets = lists.members.split(|value| value.is_nan());
    for node in 0..lists.features.len() {
        let mode = MODES.get(lists.modes[node] as usize).copied();
        let mode = mode.ok_or_else(|| at.wrong("a node has no mode"))?;
        let is_member = mode == Mode::Member;
        forest.push_branch(Branch {
            feature: lists.features[node],
            value: lists.splits[node],
            mode,
            members: if is_member { sets.next().unwrap_or_default().to_vec() } else { Vec::new() },
            yes: lists.number(at, lists.yes[node])?,
            no: lists.number(at, lists.no[node])?,
            missing_is_yes: lists.missing_is_yes.get(node).is_some_and(|&tracks| tracks != 0),
        });
    }
    for (&target, &weight) in lists.targets.iter().zip(&lists.weights) {
        let target = usize::try_from(target).map_err(|_| at.wrong("a result's number is negative"))?;
        forest.push_leaf(vec![(target, weight)]);
    }
    for &root in &lists.roots {
        forest.roots.push(lists.number(at, (root, false))?);
    }
    Ok(forest)
}

impl Forest {
    /// The longest way from a root to a leaf. Error: a way has no end.
    fn depth(&self, at: &At<'_>) -> Result<usize> {
        let mut level: Vec<usize> = self.roots.clone();
        for depth in 0..=self.modes.len() {
            level.retain(|&node| self.modes[node] != Mode::Leaf);
            if level.is_empty() {
                return Ok(depth);
            }
            level = level.iter().flat_map(|&node| [self.yes[node], self.no[node]]).collect();
            if level.len() > 2 * self.modes.len() {
                break;
            }
        }
        Err(at.wrong("its nodes are no trees"))
    }

    /// The leaf of each row in each tree, `[rows, trees]`.
    fn leaves(&self, at: &mut At<'_>, x: ValueId) -> Result<ValueId> {
        let depth = self.depth(at)?;
        match walk::leaves(self, at, x, depth)? {
            Some(leaves) => Ok(leaves),
            None => self.level_by_level(at, x, depth),
        }
    }

    fn level_by_level(&self, at: &mut At<'_>, x: ValueId, depth: usize) -> Result<ValueId> {
        let (count, trees) = (self.modes.len() as i64, self.roots.len() as i64);
        let narrow = |at: &At<'_>, number: i64| {
            i32::try_from(number)
                .map_err(|_| at.wrong("it has more nodes or columns than are counted in 32 bits"))
        };
        narrow(at, 2 * count)?;
        let features =
            self.features.iter().map(|&feature| narrow(at, feature)).collect::<Result<Vec<_>>>()?;
        let features = numbers(at, &[count], &features)?;
        let dtype = at.graph().ty(x).dtype;
        let values = at.real_constant(dtype, &[count], &self.values)?;
        // Where each node goes on: where its test fails, and where it holds.
        let next: Vec<i32> =
            self.no.iter().zip(&self.yes).flat_map(|(&no, &yes)| [no as i32, yes as i32]).collect();
        let next = numbers(at, &[2 * count], &next)?;
        let rows = at.sizes_of(x)[0].clone();
        let roots: Vec<i32> = self.roots.iter().map(|&root| root as i32).collect();
        let mut place = numbers(at, &[1, trees], &roots)?;
        place = at.broadcast(place, crate::ir::Shape::new([rows, Size::Known(trees)]))?;
        for _ in 0..depth {
            let feature = at.gather(features, place, 0)?;
            let value = at.apply(Op::GatherElements { axis: 1 }, &[x, feature])?;
            let split = at.gather(values, place, 0)?;
            let holds = self.decided(at, place, value, split)?;
            let holds = at.convert(holds, DType::I32)?;
            let twice = at.add(place, place)?;
            let way = at.add(twice, holds)?;
            place = at.gather(next, way, 0)?;
        }
        Ok(place)
    }

    /// Whether each node's test holds.
    fn decided(&self, at: &mut At<'_>, place: ValueId, value: ValueId, split: ValueId) -> Result<ValueId> {
        let mut kinds: Vec<Mode> = Vec::new();
        for &mode in self.modes.iter().filter(|&&mode| mode != Mode::Leaf) {
            if !kinds.contains(&mode) {
                kinds.push(mode);
            }
        }
        let mut result = None;
        for &kind in &kinds {
            let holds = match kind {
                Mode::Compare(compare) => at.compare(compare, value, split)?,
                Mode::Member => self.is_member(at, place, value)?,
                Mode::Leaf => continue,
            };
            result = Some(match result {
                None => holds,
                Some(others) => {
                    let of_kind = self.table(at, place, |node| self.modes[node] == kind)?;
                    at.select(of_kind, holds, others)?
                }
            });
        }
        let Some(result) = result else { return Err(at.wrong("its nodes are all leaves")) };
        if !self.missing.contains(&true) {
            return Ok(result);
        }
        let missing = at.unary(Unary::IsNan, value)?;
        let tracks = self.table(at, place, |node| self.missing[node])?;
        let missing = at.and(missing, tracks)?;
        at.binary(Binary::Or, result, missing)
    }

    /// A property of each node.
    fn table(&self, at: &mut At<'_>, place: ValueId, holds: impl Fn(usize) -> bool) -> Result<ValueId> {
        let bytes: Vec<u8> = (0..self.modes.len()).map(|node| u8::from(holds(node))).collect();
        let table = at.constant(Tensor::new(DType::Bool, vec![bytes.len() as u64], bytes)?);
        at.gather(table, place, 0)
    }

    /// Whether a value is one of its node's set.
    fn is_member(&self, at: &mut At<'_>, place: ValueId, value: ValueId) -> Result<ValueId> {
        let width = self.members.iter().map(Vec::len).max().unwrap_or(0).max(1);
        let mut table = Vec::new();
        for set in &self.members {
            table.extend(set.iter().copied().chain(std::iter::repeat(f64::NAN)).take(width));
        }
        let dtype = at.graph().ty(value).dtype;
        let table = at.real_constant(dtype, &[self.members.len() as i64, width as i64], &table)?;
        let sets = at.gather(table, place, 0)?;
        let value = at.with_axis(value, 2)?;
        let same = at.compare(Compare::Eq, sets, value)?;
        let bytes = at.convert(same, DType::U8)?;
        let any = at.reduce(ReduceKind::Max, bytes, [2], false)?;
        at.convert(any, DType::Bool)
    }

    /// What the trees add up to, `[rows, results]`.
    fn scores(
        &self,
        at: &mut At<'_>,
        leaves: ValueId,
        results: usize,
        aggregate: ReduceKind,
    ) -> Result<ValueId> {
        let mut table = vec![0.0; self.modes.len() * results];
        for (&leaf, weights) in &self.weights {
            for &(result, weight) in weights {
                if result >= results {
                    return Err(at.wrong(format!("there is no result {result}")));
                }
                table[leaf * results + result] += weight;
            }
        }
        let table = at.real_constant(DType::F32, &[self.modes.len() as i64, results as i64], &table)?;
        let parts = at.gather(table, leaves, 0)?;
        at.reduce(aggregate, parts, [1], false)
    }
}

impl Forest {
    /// The scores of the classes that some leaf of a row names, and the lowest number for all others: runtimes choose
    /// among the former, although a class without a score has 0.
    fn named_only(
        &self,
        at: &mut At<'_>,
        leaves: ValueId,
        scores: ValueId,
        classes: usize,
    ) -> Result<ValueId> {
        let mut named = vec![0u8; self.modes.len() * classes];
        for (&leaf, weights) in &self.weights {
            weights.iter().for_each(|&(class, _)| named[leaf * classes + class] = 1);
        }
        let is_leaf = |node: usize| self.modes[node] == Mode::Leaf;
        if (0..self.modes.len())
            .filter(|&node| is_leaf(node))
            .all(|node| !named[node * classes..][..classes].contains(&0))
        {
            return Ok(scores);
        }
        let dims = vec![self.modes.len() as u64, classes as u64];
        let table = at.constant(Tensor::new(DType::U8, dims, named)?);
        let votes = at.gather(table, leaves, 0)?;
        let votes = at.reduce(ReduceKind::Max, votes, [1], false)?;
        let is_named = at.convert(votes, DType::Bool)?;
        let lowest = at.real_constant(DType::F32, &[], &[f64::from(f32::MIN)])?;
        at.select(is_named, scores, lowest)
    }
}

fn numbers(at: &mut At<'_>, dims: &[i64], list: &[i32]) -> Result<ValueId> {
    let bytes: Vec<u8> = list.iter().flat_map(|number| number.to_le_bytes()).collect();
    Ok(at.constant(Tensor::new(DType::I32, dims.iter().map(|&dim| dim as u64).collect(), bytes)?))
}

fn aggregate(at: &At<'_>) -> Result<ReduceKind> {
    Ok(match at.text("aggregate_function", "SUM")?.as_str() {
        "SUM" => ReduceKind::Sum,
        "AVERAGE" => ReduceKind::Mean,
        "MIN" => ReduceKind::Min,
        "MAX" => ReduceKind::Max,
        other => return Err(at.wrong(format!("{other:?} is no aggregate"))),
    })
}

fn with_base(at: &mut At<'_>, scores: ValueId) -> Result<ValueId> {
    let base = reals(at, "base_values")?;
    if base.is_empty() {
        return Ok(scores);
    }
    let base = at.real_constant(DType::F32, &[base.len() as i64], &base)?;
    at.add(scores, base)
}

/// The rows that trees compare: f64 where they are given so, as their tests are then.
fn tested(at: &mut At<'_>) -> Result<ValueId> {
    if at.ty(0)?.dtype == DType::F64 && at.rank(0)? == 2 {
        return at.value(0);
    }
    rows(at, 0)
}

pub(in super::super) fn regressor(at: &mut At<'_>) -> Result<()> {
    let mut forest = forest(at, "target")?;
    let targets = usize::try_from(at.int_or("n_targets", 1)?).unwrap_or(1);
    if targets == 1 {
        // The converter of scikit-learn writes a leaf's number once for each class: onnxruntime takes the first.
        forest.weights.values_mut().for_each(|weights| weights.truncate(1));
    }
    let (aggregate, transform) = (aggregate(at)?, transform(at)?);
    let x = tested(at)?;
    let leaves = forest.leaves(at, x)?;
    let y = forest.scores(at, leaves, targets, aggregate)?;
    let y = with_base(at, y)?;
    let y = transform.apply(at, y)?;
    at.set(0, y);
    Ok(())
}

pub(in super::super) fn classifier(at: &mut At<'_>) -> Result<()> {
    let forest = forest(at, "class")?;
    let labels = labels(at, ["classlabels_int64s", "classlabels_strings"])?;
    let transform = transform(at)?;
    let x = tested(at)?;
    let leaves = forest.leaves(at, x)?;
    let used: Vec<usize> = forest.weights.values().flatten().map(|&(class, _)| class).collect();
    let single = labels.count == 2 && used.iter().all(|&class| class == used[0]) && !used.is_empty();
    if single {
        return binary(at, &forest, leaves, &labels, (used[0], transform));
    }
    let scores = forest.scores(at, leaves, labels.count, ReduceKind::Sum)?;
    let scores = with_base(at, scores)?;
    let votes = forest.named_only(at, leaves, scores, labels.count)?;
    let class = largest(at, votes)?;
    set_labels(at, &labels, class)?;
    let scores = transform.apply(at, scores)?;
    at.set(1, scores);
    Ok(())
}

/// Two classes of which only one is scored: a probability where all weights are positive, else a number whose sign
/// decides.
fn binary(
    at: &mut At<'_>,
    forest: &Forest,
    leaves: ValueId,
    labels: &super::Labels,
    (scored, transform): (usize, Transform),
) -> Result<()> {
    let all = forest.scores(at, leaves, scored + 1, ReduceKind::Sum)?;
    let mut score = at.part(all, 1, Size::Known(scored as i64), Size::Known(1))?;
    let base = reals(at, "base_values")?;
    if let Some(&base) = if base.len() == 2 { base.get(1) } else { base.first() } {
        score = at.binary_scalar(Binary::Add, score, base)?;
    }
    let positive = forest.weights.values().flatten().all(|&(_, weight)| weight >= 0.0);
    let above = at.compare_scalar(Compare::Gt, score, if positive { 0.5 } else { 0.0 })?;
    let class = at.convert(above, DType::I64)?;
    let class = at.without_axis(class, 1)?;
    set_labels(at, labels, class)?;
    if scored == 1 {
        // The class of the negative label keeps its 0.
        let zero = at.binary_scalar(Binary::Mul, score, 0.0)?;
        let both = at.concat(&[zero, score], 1)?;
        let scores = transform.apply(at, both)?;
        at.set(1, scores);
        return Ok(());
    }
    let scores = match (positive, transform) {
        (_, Transform::Logistic) => {
            let both = both_classes(at, score, false)?;
            at.unary(Unary::Sigmoid, both)?
        }
        (positive, _) => both_classes(at, score, positive)?,
    };
    at.set(1, scores);
    Ok(())
}

pub(in super::super) fn ensemble(at: &mut At<'_>) -> Result<()> {
    let forest = forest_of_lists(at)?;
    let targets = usize::try_from(at.int_or("n_targets", 1)?).unwrap_or(1);
    let aggregate = match at.int_or("aggregate_function", 1)? {
        0 => ReduceKind::Mean,
        1 => ReduceKind::Sum,
        2 => ReduceKind::Min,
        3 => ReduceKind::Max,
        other => return Err(at.wrong(format!("{other} is no aggregate"))),
    };
    let transform = transform(at)?;
    let dtype = at.ty(0)?.dtype;
    let x = tested(at)?;
    let leaves = forest.leaves(at, x)?;
    let y = forest.scores(at, leaves, targets, aggregate)?;
    let y = transform.apply(at, y)?;
    let y = at.convert(y, dtype)?;
    at.set(0, y);
    Ok(())
}
