//! The executor's core under a model checker: `src/run/executor/lanes.rs` and its rows, on the primitives
//! of `loom`, through every interleaving of small plans with up to two preemptions, and with what
//! weak memory may show of each.
//!
//! A package of its own, because the model checker needs other primitives than the rest of
//! the crate, and needs none of it. `.ci/run` runs it.

#![cfg(test)]

#[allow(dead_code, reason = "what the planner alone calls")]
#[path = "../../../src/csr.rs"]
mod csr;
#[allow(dead_code, reason = "what the executor alone calls")]
#[path = "../../../src/run/executor/lanes.rs"]
mod lanes;

use std::sync::Arc;

use loom::cell::UnsafeCell;

use lanes::{Lanes, Slot};

/// (device, lane, after, bytes that it reads, byte that it writes)
type Step = (usize, usize, &'static [u32], &'static [usize], usize);

/// Runs a plan under every interleaving: loom fails on a deadlock, and on a byte that is
/// written while another worker uses it. Every byte ends with the one value that the list
/// order gives.
fn explore(devices: usize, bytes: usize, steps: &'static [Step], runs: usize) {
    let mut expected = vec![1u64; bytes];
    for _ in 0..runs {
        steps.iter().for_each(|&(_, _, _, reads, write)| {
            expected[write] = value(reads.iter().map(|&byte| expected[byte]))
        });
    }
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let slots = steps.iter().map(|&(device, lane, after, _, _)| Slot { device, lane, after });
        let lanes = Arc::new(Lanes::new(devices, slots));
        let arena: Arc<Vec<UnsafeCell<u64>>> = Arc::new((0..bytes).map(|_| UnsafeCell::new(1)).collect());
        for _ in 0..runs {
            lanes.reset();
            let worker = |device: usize| {
                let (lanes, arena) = (Arc::clone(&lanes), Arc::clone(&arena));
                move || {
                    let run = |step: usize| {
                        let (_, _, _, reads, write) = steps[step];
                        // SAFETY: loom tells where two workers use a byte and one writes it.
                        let read = |&byte: &usize| arena[byte].with(|byte| unsafe { *byte });
                        let new = value(reads.iter().map(read));
                        // SAFETY: as above.
                        arena[write].with_mut(|byte| unsafe { *byte = new });
                        Ok::<(), ()>(())
                    };
                    lanes.work(device, run).unwrap();
                }
            };
            let others: Vec<_> = (1..devices).map(|device| loom::thread::spawn(worker(device))).collect();
            worker(0)();
            others.into_iter().for_each(|other| other.join().unwrap());
        }
        for (byte, &expected) in arena.iter().zip(&expected) {
            // SAFETY: as above.
            assert_eq!(byte.with(|byte| unsafe { *byte }), expected);
        }
    });
}

fn value(read: impl Iterator<Item = u64>) -> u64 {
    read.fold(7, |sum, value| sum.wrapping_mul(31).wrapping_add(value))
}

/// There, across and back, with a copy on each way.
#[test]
fn there_and_back() {
    explore(
        2,
        4,
        &[
            (0, 0, &[], &[0], 0),
            (1, 1, &[0], &[0], 1),
            (1, 0, &[1], &[1], 2),
            (0, 1, &[2], &[2], 3),
            (0, 0, &[3], &[3], 0),
        ],
        1,
    );
}

/// Both devices wait for one another's copies; bytes are used again.
#[test]
fn both_ways_at_once() {
    explore(
        2,
        4,
        &[
            (0, 0, &[], &[0], 0),
            (1, 0, &[], &[1], 1),
            (1, 1, &[0], &[0], 2),
            (0, 1, &[1], &[1], 3),
            (0, 0, &[2, 3], &[3], 0),
            (1, 0, &[2, 3], &[2], 1),
        ],
        1,
    );
}

/// A diamond over three devices: two workers count one step down.
#[test]
fn a_diamond_over_three() {
    explore(
        3,
        5,
        &[(0, 0, &[], &[0], 0), (1, 1, &[0], &[0], 1), (2, 1, &[0], &[0], 2), (0, 0, &[1, 2], &[1, 2], 3)],
        1,
    );
}

/// The next run begins with what the last one left.
#[test]
fn two_runs() {
    explore(2, 3, &[(0, 0, &[], &[2], 0), (1, 1, &[0], &[0], 1), (1, 0, &[1], &[1, 2], 2)], 2);
}
