//! The executor against the interpreter: random networks, cut at random over devices, with workers
//! that dawdle at random, give the same bits. Broken plans are refused.

use std::time::Duration;

use partition::unstable::ir::{Graph, NodeId, Op, ParamId, Tensor, Type, ValueId};
use partition::unstable::kernel::{Fused, group_workspace, group_workspace_on_gpu};
use partition::unstable::run::{
    ExecAction, ExecBuffer, ExecDevice, ExecOptions, ExecPlan, ExecStep, Program, interpret,
};
use partition::unstable::schedule::Lane;
use partition::unstable::units::Bytes;

use crate::random_graph::{Random, random_graph};

/// Groups of a graph: one node each, or runs of elementwise nodes that follow one another.
pub(crate) struct Groups {
    nodes: Vec<Vec<NodeId>>,
    reads: Vec<Vec<ValueId>>,
    writes: Vec<Vec<ValueId>>,
    base: Vec<ValueId>,
}

impl Groups {
    /// As the planner groups.
    pub(crate) fn planned(graph: &Graph) -> Self {
        let grouping = partition::unstable::pass::group(graph, &Default::default());
        let mut all = Self { nodes: vec![], reads: vec![], writes: vec![], base: grouping.base };
        for group in grouping.groups {
            all.nodes.push(group.nodes);
            all.reads.push(group.reads);
            all.writes.push(group.writes);
        }
        all
    }

    pub(crate) fn new(graph: &Graph, random: &mut Random, fuse: bool) -> Self {
        let mut base: Vec<ValueId> = (0..graph.value_count() as u32).map(ValueId).collect();
        let mut nodes: Vec<Vec<NodeId>> = Vec::new();
        for id in graph.node_ids() {
            let node = graph.node(id);
            if let Op::Reshape { .. } = node.op {
                base[node.first_result.index()] = base[node.operands[0].index()];
                continue;
            }
            if node.op.is_leaf() {
                continue;
            }
            // Any nodes may stand in one group here, so that every way of laying out values is met.
            match nodes.last_mut() {
                Some(last) if fuse && !random.one_in(3) => last.push(id),
                _ => nodes.push(vec![id]),
            }
        }
        let mut groups = Self { nodes, reads: Vec::new(), writes: Vec::new(), base };
        let mut group_of = vec![None; graph.node_count()];
        for (group, nodes) in groups.nodes.iter().enumerate() {
            nodes.iter().for_each(|node| group_of[node.index()] = Some(group));
        }
        groups.reads = vec![Vec::new(); groups.nodes.len()];
        let mut written = vec![false; graph.value_count()];
        for (_, value) in graph.outputs() {
            written[groups.base[value.index()].index()] = true;
        }
        for (group, nodes) in groups.nodes.iter().enumerate() {
            for operand in nodes.iter().flat_map(|&node| graph.node(node).operands.iter()) {
                let value = groups.base[operand.index()];
                if group_of[graph.value(value).node.index()] != Some(group) {
                    written[value.index()] = true;
                    if !groups.reads[group].contains(&value) {
                        groups.reads[group].push(value);
                    }
                }
            }
        }
        groups.writes = groups
            .nodes
            .iter()
            .map(|nodes| {
                let results = nodes.iter().flat_map(|&node| graph.results(node));
                results.filter(|value| written[value.index()]).collect()
            })
            .collect();
        groups
    }

    /// The value whose bytes one shares.
    pub(crate) fn base(&self, value: ValueId) -> ValueId {
        self.base[value.index()]
    }

    pub(crate) fn fused(&self) -> Vec<Fused<'_>> {
        (0..self.nodes.len())
            .map(|group| Fused {
                nodes: &self.nodes[group],
                reads: &self.reads[group],
                writes: &self.writes[group],
                base: &self.base,
            })
            .collect()
    }
}

/// A buffer and the step that fills it.
type Held = (u32, Option<u32>);

struct Planner<'a> {
    graph: &'a Graph,
    plan: ExecPlan,
    /// By value and device: its buffer and the step that fills it.
    held: Vec<Vec<Option<Held>>>,
}

impl Planner<'_> {
    fn buffer(&mut self, device: usize, bytes: u64) -> u32 {
        let arena = &mut self.plan.devices[device].arena;
        let offset = *arena;
        *arena = Bytes(offset.get() + bytes.next_multiple_of(64));
        self.plan.buffers.push(ExecBuffer { device: device as u32, offset, bytes: Bytes(bytes) });
        self.plan.buffers.len() as u32 - 1
    }

    fn value(&mut self, value: ValueId, device: usize) -> u32 {
        let bytes = self.graph.ty(value).bytes().unwrap().get();
        self.buffer(device, bytes)
    }

    /// The buffer of a value on a device, copied there where it is not, and the step that fills it.
    fn hold(&mut self, value: ValueId, device: usize) -> Held {
        if let Some(held) = self.held[value.index()][device] {
            return held;
        }
        if let Op::Param(_) | Op::Constant(_) = self.graph.maker(value).op {
            let buffer = self.value(value, device);
            match self.plan.data.iter_mut().find(|(other, _)| *other == value) {
                Some((_, list)) => list.push(buffer),
                None => self.plan.data.push((value, vec![buffer])),
            }
            self.held[value.index()][device] = Some((buffer, None));
            return (buffer, None);
        }
        let (from, filled) = self.held[value.index()].iter().flatten().copied().next().unwrap();
        let to = self.value(value, device);
        let step = ExecStep {
            device: device as u32,
            lane: Lane::Copy,
            after: filled.into_iter().collect(),
            action: ExecAction::Copy { from, to, part: None },
        };
        self.plan.steps.push(step);
        let held = (to, Some(self.plan.steps.len() as u32 - 1));
        self.held[value.index()][device] = Some(held);
        held
    }
}

/// A plan that puts each group on a random device and shares no memory.
pub(crate) fn random_plan(graph: &Graph, groups: &Groups, devices: usize, random: &mut Random) -> ExecPlan {
    random_plan_on("cpu", group_workspace, graph, groups, devices, random)
}

/// The same for GPUs, with the workspace that their kernels need.
pub(crate) fn random_gpu_plan(
    graph: &Graph,
    groups: &Groups,
    devices: usize,
    random: &mut Random,
) -> ExecPlan {
    random_plan_on("cuda", group_workspace_on_gpu, graph, groups, devices, random)
}

fn random_plan_on(
    kind: &str,
    workspace: fn(&Graph, &Fused<'_>) -> Bytes,
    graph: &Graph,
    groups: &Groups,
    devices: usize,
    random: &mut Random,
) -> ExecPlan {
    let device = |d: usize| ExecDevice {
        name: format!("{kind}0.{d}"),
        arena: Bytes(0),
        engine: d as u32 % 2,
        cores: 2,
    };
    let plan = ExecPlan { devices: (0..devices).map(device).collect(), ..ExecPlan::default() };
    let mut planner = Planner { graph, plan, held: vec![vec![None; devices]; graph.value_count()] };
    for (name, value) in graph.inputs() {
        let device = random.below(devices);
        let buffer = planner.value(*value, device);
        planner.held[value.index()][device] = Some((buffer, None));
        planner.plan.inputs.push((name.clone(), vec![buffer]));
    }
    for (group, fused) in groups.fused().iter().enumerate() {
        let device = random.below(devices);
        let (mut reads, mut after) = (Vec::new(), Vec::new());
        for &value in fused.reads {
            let (buffer, filled) = planner.hold(value, device);
            reads.push(buffer);
            after.extend(filled);
        }
        after.sort_unstable();
        after.dedup();
        let step = planner.plan.steps.len() as u32;
        let mut writes = Vec::new();
        for &value in fused.writes {
            let buffer = planner.value(value, device);
            planner.held[value.index()][device] = Some((buffer, Some(step)));
            writes.push(buffer);
        }
        let needed = workspace(graph, fused).get();
        let workspace = (needed > 0).then(|| planner.buffer(device, needed));
        let action = ExecAction::Launch { group: group as u32, reads, writes, workspace };
        planner.plan.steps.push(ExecStep { device: device as u32, lane: Lane::Compute, after, action });
    }
    for (name, value) in graph.outputs() {
        let (buffer, _) = planner.hold(groups.base[value.index()], random.below(devices));
        planner.plan.outputs.push((name.clone(), buffer));
    }
    planner.plan
}

pub(crate) fn tensor(ty: &Type, random: &mut Random) -> Tensor {
    let dims: Vec<u64> = ty.shape.dims().unwrap().iter().map(|&dim| dim as u64).collect();
    let count = dims.iter().product::<u64>();
    match ty.dtype {
        partition::unstable::ir::DType::F32 => {
            let values: Vec<f32> = (0..count).map(|_| random.float()).collect();
            Tensor::from_f32(dims, &values).unwrap()
        }
        // Indices: 0 is within every axis.
        other => Tensor::new(other, dims, vec![0; (count * other.size()) as usize]).unwrap(),
    }
}

struct Setup {
    graph: Graph,
    groups: Groups,
    plan: ExecPlan,
    inputs: Vec<(String, Tensor)>,
    params: Vec<Tensor>,
}

impl Setup {
    fn new(seed: u64, nodes: usize, devices: usize) -> Self {
        let graph = random_graph(seed, nodes);
        let mut random = Random::new(seed ^ 0xabcd);
        // As the planner groups, one node each, or any nodes that follow one another.
        let groups = match seed % 3 {
            0 => Groups::planned(&graph),
            _ => Groups::new(&graph, &mut random, seed % 3 == 1),
        };
        let plan = random_plan(&graph, &groups, devices, &mut random);
        let inputs = graph
            .inputs()
            .iter()
            .map(|(name, value)| (name.clone(), tensor(graph.ty(*value), &mut random)))
            .collect();
        let params = graph
            .params()
            .iter()
            .map(|param| tensor(graph.ty(graph.node(param.node).first_result), &mut random))
            .collect();
        Self { graph, groups, plan, inputs, params }
    }

    fn weights(&self) -> impl Fn(ParamId) -> partition::Result<Tensor> + '_ {
        |param| Ok(self.params[param.index()].clone())
    }

    fn program(&self, plan: &ExecPlan, options: ExecOptions) -> partition::Result<Program> {
        Program::new(&self.graph, &self.groups.fused(), plan, &self.weights(), options)
    }
}

#[test]
fn any_cut_and_any_timing_give_the_same_bits() {
    for seed in 0..60 {
        let devices = 1 + seed as usize % 5;
        let setup = Setup::new(seed, 30, devices);
        let expected = interpret(&setup.graph, &setup.inputs, &setup.weights()).unwrap();
        let dawdle: Option<partition::unstable::run::Hook> = (seed % 3 == 0).then(|| {
            let hook: partition::unstable::run::Hook = Box::new(move |step: usize| {
                let mut random = Random::new(seed * 1000 + step as u64);
                if random.one_in(4) {
                    std::thread::sleep(Duration::from_micros(random.below(300) as u64));
                }
            });
            hook
        });
        let mut program = setup
            .program(&setup.plan, ExecOptions { before_step: dawdle, ..ExecOptions::default() })
            .unwrap();
        for round in 0..3 {
            let (found, report) = program.run(&setup.inputs).unwrap();
            assert_eq!(found.len(), expected.len());
            for ((name, found), (_, expected)) in found.iter().zip(&expected) {
                assert_eq!(found, expected, "seed {seed}, round {round}: {name}");
            }
            let steps: usize = report.devices.iter().map(|device| device.steps).sum();
            assert_eq!(steps, setup.plan.steps.len());
            assert!((0..devices).all(|device| (0.0..=1.0).contains(&report.utilisation(device))));
        }
    }
}

/// Changes a launch's group, reads and writes.
type Edit = dyn Fn(&mut u32, &mut Vec<u32>, &mut Vec<u32>);

#[test]
fn a_broken_plan_is_refused() {
    let setup = Setup::new(3, 20, 2);
    let launch = setup
        .plan
        .steps
        .iter()
        .position(|step| match &step.action {
            ExecAction::Launch { writes, .. } => !writes.is_empty() && step.lane == Lane::Compute,
            ExecAction::Copy { .. } => false,
        })
        .unwrap();
    let refuse = |change: &dyn Fn(&mut ExecPlan), message: &str| {
        let mut plan = setup.plan.clone();
        change(&mut plan);
        let error = setup.program(&plan, ExecOptions::default()).err().expect(message).to_string();
        assert!(error.contains(message), "{error}");
    };
    refuse(&|plan| plan.buffers[0].offset = Bytes(1 << 40), "it leaves its device's arena");
    refuse(&|plan| plan.buffers[0].bytes = Bytes(u64::MAX), "it leaves its device's arena");
    refuse(&|plan| plan.buffers[0].offset = Bytes(8), "it does not begin at a multiple of 64");
    refuse(&|plan| plan.buffers[0].device = 9, "its device does not exist");
    refuse(&|plan| plan.steps[launch].device = 9, "its device does not exist");
    refuse(&|plan| plan.steps[launch].after = vec![launch as u32], "which does not come before it");
    refuse(
        &|plan| plan.inputs.push(("nothing".into(), vec![])),
        "input nothing: the model has no such input",
    );
    refuse(&|plan| plan.outputs.clear(), "the plan does not make it");
    refuse(&|plan| plan.devices[0].arena = Bytes(1 << 62), "cannot allocate an arena");
    let edit = |f: &Edit, message: &str| {
        refuse(
            &|plan| match &mut plan.steps[launch].action {
                ExecAction::Launch { group, reads, writes, .. } => f(group, reads, writes),
                ExecAction::Copy { .. } => unreachable!(),
            },
            message,
        );
    };
    edit(&|group, _, _| *group = 1 << 20, "group 1048576 does not exist");
    edit(&|_, _, writes| writes[0] = 1 << 20, "buffer 1048576 does not exist");
    edit(&|_, _, writes| writes.push(0), "it writes");
    edit(&|_, reads, _| reads.push(0), "it reads");
}

#[test]
fn missing_weights_are_named_together() {
    let setup = Setup::new(3, 20, 2);
    let none = |_| Err(partition::Error::Run(partition::Report::new("", "no data")));
    if setup.plan.data.iter().all(|(value, _)| !matches!(setup.graph.maker(*value).op, Op::Param(_))) {
        panic!("the network has parameters");
    }
    let program =
        Program::new(&setup.graph, &setup.groups.fused(), &setup.plan, &none, ExecOptions::default());
    let error = program.err().unwrap();
    assert!(error.to_string().contains("--init seed=N"), "{error}");
    assert!(!error.details().is_empty());
}

#[test]
fn a_run_that_takes_too_long_says_where_it_is() {
    let setup = Setup::new(3, 20, 2);
    let options = ExecOptions {
        timeout: Some(Duration::from_millis(300)),
        before_step: Some(Box::new(|step| {
            if step == 4 {
                std::thread::sleep(Duration::from_millis(2000));
            }
        })),
        ..ExecOptions::default()
    };
    let mut program = setup.program(&setup.plan, options).unwrap();
    let error = program.run(&setup.inputs).unwrap_err();
    assert!(error.to_string().contains("the run took longer than 300ms"), "{error}");
    assert!(error.details().iter().any(|line| line.starts_with("step 4 on ")), "{:?}", error.details());
    assert!(program.run(&setup.inputs).is_err());
}

#[test]
fn a_panic_ends_the_run_of_all_workers() {
    let setup = Setup::new(3, 20, 3);
    let options = ExecOptions {
        before_step: Some(Box::new(|step| assert!(step != 5, "on purpose"))),
        ..ExecOptions::default()
    };
    let mut program = setup.program(&setup.plan, options).unwrap();
    let error = program.run(&setup.inputs).unwrap_err().to_string();
    assert!(error.starts_with("step 5 on cpu0."), "{error}");
    assert!(error.contains("on purpose"), "{error}");
}

#[test]
fn wrong_inputs_are_refused() {
    let setup = Setup::new(3, 20, 2);
    let mut program = setup.program(&setup.plan, ExecOptions::default()).unwrap();
    assert!(program.run(&[]).unwrap_err().to_string().contains("no data is given"));
    let mut inputs = setup.inputs.clone();
    inputs.push(("nothing".into(), inputs[0].1.clone()));
    assert!(program.run(&inputs).unwrap_err().to_string().contains("no such input"));
    let mut inputs = setup.inputs.clone();
    inputs[0].1 = Tensor::from_f32(vec![1, 1, 1, 1, 1, 1, 1], &[0.0]).unwrap();
    assert!(program.run(&inputs).unwrap_err().to_string().contains("expected"));
    program.run(&setup.inputs).unwrap();
}

/// With nothing computed, and of every group once.
#[test]
fn what_a_cpu_runs_is_told_of_every_operation_and_of_random_networks() {
    let told = |graph: &Graph, what: &str| {
        let grouping = partition::unstable::pass::group(graph, &Default::default());
        let plan = random_plan(graph, &Groups::planned(graph), 1, &mut Random::new(1));
        let text = partition::unstable::run::listing(graph, &grouping, &plan, &|_| true);
        let text = text.unwrap_or_else(|error| panic!("{what}: {error}"));
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("// g")).collect();
        assert_eq!(lines.len(), grouping.groups.len(), "{what}: {text}");
        assert!(lines.iter().all(|line| line.contains(" on cpu0.0: node ")), "{what}: {text}");
        assert!(partition::unstable::run::listing(graph, &grouping, &plan, &|_| false).unwrap().is_empty());
    };
    let mut count = 0;
    for &generator in crate::run_ops::GENERATORS {
        for case in crate::kernels::cases(generator) {
            told(&case.graph(), &format!("{:?}", case.op));
            count += 1;
        }
    }
    assert!(count > 300, "{count}");
    for seed in 0..20 {
        told(&random_graph(seed, 30), &format!("seed {seed}"));
    }
}
