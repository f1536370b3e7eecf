//! What follows from positions: the same outputs on random graphs whose sizes were open, and what becomes of lookups.

use partition::unstable::ir::text::parse;
use partition::unstable::ir::*;
use partition::unstable::pass::positions;
#[cfg(feature = "run")]
use proptest::prelude::*;

use crate::random_graph::Random;

fn after(before: &Graph) -> Graph {
    let mut graph = before.clone();
    positions(&mut graph).unwrap();
    verify(&graph).unwrap_or_else(|error| panic!("{error}\n{before}\n{graph}"));
    graph
}

fn names(graph: &Graph) -> Vec<&'static str> {
    graph.node_ids().map(|id| graph.node(id).op.name()).collect()
}

fn integers(dims: &[u64], values: &[i64]) -> Tensor {
    Tensor::from_i64(dims.to_vec(), values).unwrap()
}

/// Integers and truths of open sizes, made of positions, constants and an input.
fn of_positions(seed: u64) -> Graph {
    let mut random = Random::new(seed);
    let mut graph = Graph::new("positions");
    let source = graph.add_source(Source::new("x", "input", SourceRole::Data));
    let [b, s] = ["b", "s"].map(|name| Size::dim(graph.dim(name)));
    let longer = s.add(&Size::Known(2)).unwrap();
    let sizes = [b.clone(), s.clone(), longer, Size::Known(1), Size::Known(3)];
    let of = |sizes: &[&Size]| Type::new(DType::I64, Shape::new(sizes.iter().copied().cloned()));
    let mut pool = vec![
        graph.add_input("x", of(&[&b, &s]), source),
        graph.add_iota(of(&[&s]), 0, source),
        graph.add_iota(of(&[&b, &s]), random.below(2) as u32, source),
        graph.add_iota(of(&[&b, &Size::Known(1)]), 0, source),
        graph.add_iota(of(&[&s, &Size::Known(1)]), 0, source),
        graph.add_constant(integers(&[], &[random.below(4) as i64 - 1]), source),
        graph.add_constant(integers(&[1, 3], &[4, 2, 0]), source),
        graph.add_constant(integers(&[1, 1], &[1]), source),
    ];
    for _ in 0..60 {
        let [x, y, z] = [(); 3].map(|()| pool[random.below(pool.len())]);
        let ty = graph.ty(x).clone();
        let rank = ty.shape.rank();
        let axis = random.below(rank.max(1)) as u32;
        let with = |place: usize, size: Size, starts: &[Size]| {
            let mut all = starts.to_vec();
            all.get_mut(place).into_iter().for_each(|own| *own = size.clone());
            all
        };
        let other = sizes[random.below(sizes.len())].clone();
        let (op, operands) = match random.below(16) {
            0 | 1 => {
                let binary = [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max, Binary::Min];
                (Op::Binary(random.pick(&binary)), vec![x, y])
            }
            2 => {
                let all = [Compare::Eq, Compare::Ne, Compare::Lt, Compare::Le, Compare::Gt, Compare::Ge];
                (Op::Compare(random.pick(&all)), vec![x, y])
            }
            3 => (Op::Select, vec![x, y, z]),
            4 => (Op::Convert { to: random.pick(&[DType::I64, DType::Bool, DType::I32]) }, vec![x]),
            5 => (Op::Unary(random.pick(&[Unary::Neg, Unary::Not, Unary::Abs])), vec![x]),
            6 | 7 => {
                let zeros = vec![Size::Known(0); rank];
                let starts = with(axis as usize, Size::Known(random.below(2) as i64), &zeros);
                let less = ty.shape.sizes().get(axis as usize).and_then(|size| size.sub(&Size::Known(1)));
                let size = [less.unwrap_or(Size::Known(1)), Size::Known(1)][random.below(2)].clone();
                let sizes = with(axis as usize, size, ty.shape.sizes());
                (Op::Slice(Box::new(Slice { starts, sizes, steps: vec![1; rank] })), vec![x])
            }
            8 => (Op::Concat { axis }, vec![x, y]),
            9 => (Op::CumSum { axis, exclusive: random.one_in(2), reverse: random.one_in(3) }, vec![x]),
            10 => (Op::Gather { axis }, vec![x, y]),
            11 | 12 => {
                // Places of two axes, side by side.
                let wide = |at: ValueId, graph: &mut Graph| {
                    let mut wide = graph.ty(at).shape.sizes().to_vec();
                    wide.push(Size::Known(1));
                    graph.apply(Op::Reshape { shape: Shape::new(wide) }, &[at], source)
                };
                let (Ok(first), Ok(second)) = (wide(y, &mut graph), wide(z, &mut graph)) else { continue };
                let last = graph.ty(first).shape.rank() as u32 - 1;
                let Ok(places) = graph.apply(Op::Concat { axis: last }, &[first, second], source) else {
                    continue;
                };
                (Op::GatherNd { batch_dims: 0 }, vec![x, places])
            }
            13 => {
                let mut shape = ty.shape.sizes().to_vec();
                shape.insert(random.below(rank + 1), Size::Known(1));
                (Op::Reshape { shape: Shape::new(shape) }, vec![x])
            }
            14 => {
                let mut shape = ty.shape.sizes().to_vec();
                shape.insert(0, other);
                (Op::Broadcast { shape: Shape::new(shape) }, vec![x])
            }
            _ => (Op::Transpose { perm: (0..rank as u32).rev().collect() }, vec![x]),
        };
        let fits = |ty: &Type| ty.shape.rank() <= 4;
        if let Ok(made) = graph.apply(op, &operands, source)
            && fits(graph.ty(made))
        {
            pool.push(made);
        }
    }
    for (at, value) in pool.into_iter().enumerate().skip(8) {
        graph.add_output(format!("y{at}"), value);
    }
    graph
}

#[cfg(feature = "run")]
proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn numbers_are_those_of_each_place(seed in any::<u64>(), b in 1u64..4, s in 1u64..6) {
        let before = of_positions(seed);
        let after = after(&before);
        let bound = |graph: &Graph| {
            let mut graph = graph.clone();
            let dims = [("b".to_owned(), b as i64), ("s".to_owned(), s as i64)];
            graph.bind(&dims.into_iter().collect()).map(|()| graph)
        };
        let Ok(bound_before) = bound(&before) else { return Ok(()) };
        // A lookup without results may be outside its table.
        let is_empty = |value: ValueId| bound_before.ty(value).elements() == Some(0);
        if bound_before.outputs().iter().any(|(_, value)| is_empty(*value)) {
            return Ok(());
        }
        let mut random = Random::new(seed ^ 1);
        let values: Vec<i64> = (0..b * s).map(|_| random.below(5) as i64 - 1).collect();
        let inputs = [("x".to_owned(), integers(&[b, s], &values))];
        let none = |_| unreachable!("a graph without parameters");
        // Where a place is outside a table nothing is said.
        let run = |graph: &Graph| partition::unstable::run::interpret(graph, &inputs, &none);
        let Ok(expected) = run(&bound_before) else { return Ok(()) };
        let found = run(&bound(&after).unwrap()).unwrap();
        for ((name, expected), (_, found)) in expected.iter().zip(&found) {
            prop_assert_eq!(expected, found, "{} of seed {}\n{}\n{}", name, seed, &before, &after);
        }
    }
}

/// Places of tokens that are compared with places of others, as packed texts are told apart.
#[test]
fn comparisons_of_neighbours_are_known() {
    let before = parse(
        r#"graph "packed"
dim b
dim s
source s0 data "x" "input"
%0: i64[b, s] = input "x" @s0
%1: i64[b, s] = iota axis=1 @s0
%2: i64[b, 1] = slice %1 starts=[0, 0] sizes=[b, 1] steps=[1, 1] @s0
%3: i64[] = constant {1} @s0
%4: i64[b, 1] = sub %2, %3 @s0
%5: i64[b, s + 1] = concat %4, %1 axis=1 @s0
%6: i64[b, s] = slice %5 starts=[0, 1] sizes=[b, s] steps=[1, 1] @s0
%7: i64[b, s] = slice %5 starts=[0, 0] sizes=[b, s] steps=[1, 1] @s0
%8: i64[b, s] = sub %6, %7 @s0
%9: bool[b, s] = ne %8, %3 @s0
%10: i64[b, s] = convert %9 @s0
%11: i64[b, s] = cumsum %10 axis=1 @s0
%12: i64[b, s] = add %11, %0 @s0
output "y" %12
"#,
    )
    .unwrap();
    assert_eq!(names(&after(&before)), ["input", "constant", "broadcast", "add"]);
}

/// A mask that is looked up by every place is the mask.
#[test]
fn a_lookup_by_all_places_is_the_table() {
    let before = parse(
        r#"graph "mask"
dim b
dim s
source s0 data "x" "input"
%0: bool[b, s] = input "x" @s0
%1: i64[b, s, s, 1] = iota axis=0 @s0
%2: i64[b, s, s, 1] = iota axis=2 @s0
%3: i64[b, s, s, 2] = concat %1, %2 axis=3 @s0
%4: bool[b, s, s] = gather_nd %0, %3 @s0
output "y" %4
"#,
    )
    .unwrap();
    assert_eq!(names(&after(&before)), ["input", "reshape", "broadcast"]);
    // Places in another order are looked up.
    let turned = before.to_string().replace("concat %1, %2", "concat %2, %1");
    let before = parse(&turned).unwrap();
    assert!(names(&after(&before)).contains(&"gather_nd"));
}

/// Numbers that are not written exactly where they would be computed ahead stay as they are.
#[test]
fn numbers_beyond_what_is_exact_are_not_computed_ahead() {
    let graph = |more: &str| {
        let text = format!(
            r#"graph "far"
dim s
source s0 data "x" "input"
%0: i64[s] = input "x" @s0
%1: i64[s] = iota axis=0 @s0
%2: i64[] = constant {{9007199254740992}} @s0
%3: i64[] = constant {{{more}}} @s0
%4: i64[s] = add %1, %2 @s0
%5: i64[s] = add %4, %3 @s0
%6: i64[3] = constant {{0, 2, 4}} @s0
%7: i64[3] = gather %5, %6 axis=0 @s0
output "y" %7
"#
        );
        parse(&text).unwrap()
    };
    assert!(names(&after(&graph("1"))).contains(&"gather"));
    assert!(!names(&after(&graph("-1"))).contains(&"gather"));
}
