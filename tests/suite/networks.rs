//! The networks of the corpus, ready to be planned and run: inputs, weights and expected outputs
//! as stored, or made by the corpus' rules where they are not.
//!
//! Shared by the test suite and by the example that prints the table of the corpus.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use partition::unstable::compile::{Compiled, Options, SplitOptions, compile};
use partition::unstable::error::{Error, Result};
use partition::unstable::ir::{Data, Graph, ParamId, Tensor, Type};
use partition::unstable::load::weights::{Arrays, ParamReader, match_params};
use partition::unstable::load::{LoadOptions, Model, fill, load};
use partition::unstable::place::{self, DeviceUse};
use partition::unstable::run::feed::{self, Role};
use partition::unstable::run::{ExecOptions, Program, exec_plan};
use partition::unstable::topology::Topology;

use crate::rule;

/// Outputs by name.
pub(crate) type Outputs = Vec<(String, Tensor)>;

/// Tolerance of an output: relative and absolute.
pub(crate) const TOLERANCE: (f64, f64) = (1e-4, 1e-5);

/// An output as another runtime computed it.
struct Expected {
    output: usize,
    /// The array holds every `stride`-th value.
    stride: usize,
    values: Tensor,
}

/// A network with everything that a run needs.
pub(crate) struct Network {
    pub(crate) graph: Graph,
    /// Values of the open dimensions.
    pub(crate) dims: BTreeMap<String, i64>,
    pub(crate) inputs: Outputs,
    expected: Vec<Expected>,
    /// Parameters of ONNX files without data are made by the corpus' rule, those of Keras by
    /// their initialisers.
    ruled: bool,
    data: RefCell<BTreeMap<u32, Tensor>>,
}

/// How far outputs are from the expected ones.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Distance {
    /// Values compared.
    pub(crate) values: usize,
    /// Largest absolute difference.
    pub(crate) absolute: f64,
    /// Largest difference in units of the tolerance.
    pub(crate) relative: f64,
    /// Largest stored value.
    pub(crate) largest: f64,
}

impl Network {
    /// Reads a model file with what is stored beside it.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| Error::format("", error.to_string()))?;
        let Model::Graph(graph) = load(&bytes, Some(path), &LoadOptions::default())? else {
            return Err(Error::format("", "it is a cost graph"));
        };
        let ruled = path.extension().is_some_and(|extension| extension == "onnx");
        let (dims, inputs, expected, data) = <_>::default();
        let mut network = Self { graph, dims, inputs, expected, ruled, data };
        let light = path.with_file_name(format!("{}_output_0.pb", stem(path)));
        let stored = path.with_file_name(format!("{}.io.npz", stem(path)));
        if stored.exists() {
            network.stored(&Arrays::open(&stored)?)?;
        } else if light.exists() {
            let bytes = std::fs::read(&light).map_err(|error| Error::format("", error.to_string()))?;
            let dims = network.outputs()[0].shape.dims().unwrap_or_default();
            let values = Tensor::from_f32(dims.iter().map(|&dim| dim as u64).collect(), &raw_data(&bytes))?;
            network.expected.push(Expected { output: 0, stride: 1, values });
        }
        network.fill_inputs(&stored, light.exists())?;
        Ok(network)
    }

    fn outputs(&self) -> Vec<&Type> {
        self.graph.outputs().iter().map(|(_, value)| self.graph.ty(*value)).collect()
    }

    /// Takes the arrays of an `.io.npz`.
    fn stored(&mut self, arrays: &Arrays) -> Result<()> {
        let roles = feed::roles(&self.graph, arrays.names());
        let mut given: Vec<(usize, Tensor)> = Vec::new();
        for (name, role) in arrays.names().iter().zip(roles) {
            match (role, arrays.get(name)) {
                (Role::Input(input), tensor) => given.extend(tensor?.map(|tensor| (input, tensor))),
                (Role::Output { output, stride }, tensor) => {
                    self.expected.extend(tensor?.map(|values| Expected { output, stride, values }));
                }
                (Role::Unknown, _) => {}
            }
        }
        if arrays.names().iter().any(|name| name.starts_with("w0")) {
            match_params(&mut self.graph, arrays)?;
        }
        let header = |(input, tensor): &(usize, Tensor)| feed::Header {
            input: *input,
            dtype: tensor.dtype(),
            dims: tensor.dims().to_vec(),
        };
        let headers: Vec<feed::Header> = given.iter().map(header).collect();
        self.dims = feed::infer_dims(&self.graph, &headers, &BTreeMap::new())?;
        for expected in self.expected.iter().filter(|expected| expected.stride == 1) {
            let sizes = self.outputs()[expected.output].shape.sizes().to_vec();
            for (size, &found) in sizes.iter().zip(expected.values.dims()) {
                if let ([(dim, 1)], 0) = (size.terms(), size.constant()) {
                    let name = self.graph.dim_name(*dim).to_owned();
                    self.dims.entry(name).or_insert(found as i64);
                }
            }
        }
        let name = |input: usize| self.graph.inputs()[input].0.clone();
        self.inputs = given.into_iter().map(|(input, tensor)| (name(input), tensor)).collect();
        Ok(())
    }

    /// With inputs made up anew for a batch of this size.
    pub(crate) fn with_batch(mut self, size: i64) -> Result<Self> {
        self.dims.insert("batch".to_owned(), size);
        self.inputs.clear();
        self.fill_inputs(Path::new(""), false)?;
        Ok(self)
    }

    /// Makes up the inputs that are not stored; dimensions that nothing tells become 2 in Keras
    /// models and 1 in others.
    fn fill_inputs(&mut self, stored: &Path, light: bool) -> Result<()> {
        let mut bound = self.graph.clone();
        let open = bound.unbound_dims();
        let size = if self.ruled { 1 } else { 2 };
        for dim in open {
            self.dims.entry(dim).or_insert(size);
        }
        bound.bind(&self.dims)?;
        for (name, value) in bound.inputs() {
            if self.inputs.iter().any(|(given, _)| given == name) {
                continue;
            }
            let ty = bound.ty(*value);
            let dims: Vec<u64> = ty.shape.dims().unwrap_or_default().iter().map(|&dim| dim as u64).collect();
            let count = dims.iter().product::<u64>();
            let tensor = if light {
                let values: Vec<f32> = (0..count).map(|i| (i as f64 / count as f64) as f32).collect();
                Tensor::from_f32(dims, &values)?
            } else if stored.exists() {
                Tensor::from_f32(dims, &rule::unit(&format!("input:{name}:0"), count as usize))?
            } else {
                feed::made_up(ty, 0, name)?
            };
            self.inputs.push((name.clone(), tensor));
        }
        Ok(())
    }

    /// A parameter's data, made once.
    pub(crate) fn weight(&self, id: ParamId) -> Result<Tensor> {
        if let Some(tensor) = self.data.borrow().get(&(id.index() as u32)) {
            return Ok(tensor.clone());
        }
        let tensor = self.make(id)?;
        self.data.borrow_mut().insert(id.index() as u32, tensor.clone());
        Ok(tensor)
    }

    fn make(&self, id: ParamId) -> Result<Tensor> {
        let param = self.graph.param(id);
        let absent = matches!(&param.data, Some(Data::File { path, .. }) if !path.exists());
        if !absent && let Some(tensor) = ParamReader::new().read(&self.graph, id)? {
            return Ok(tensor);
        }
        let ty = self.graph.ty(self.graph.node(param.node).first_result);
        let dims: Vec<u64> = ty.shape.dims().unwrap_or_default().iter().map(|&dim| dim as u64).collect();
        match self.ruled {
            true => Tensor::new(ty.dtype, dims.clone(), rule::weight(&param.name, &dims)),
            false => fill(&param.init, &dims, ty.dtype, 1, &param.name),
        }
    }

    /// Plans for a spec of devices.
    pub(crate) fn plan(&self, spec: &str, devices: DeviceUse) -> Result<Compiled> {
        self.plan_with(spec, place::Options { devices, ..place::Options::default() })
    }

    /// Plans for a spec of devices, with these options. Operations are whole.
    pub(crate) fn plan_with(&self, spec: &str, place: place::Options) -> Result<Compiled> {
        let split = SplitOptions { auto: false, ..SplitOptions::default() };
        let options = Options { bind: self.dims.clone(), place, split, ..Options::default() };
        compile(Model::Graph(self.graph.clone()), &Topology::parse(spec)?, &options)
    }

    /// Plans for `devices` CPUs of one size, under the tightest of some caps that has a plan, and
    /// gives the cap. All devices are used where such a plan is found.
    pub(crate) fn split(&self, arena: u64, devices: u64) -> Result<(u64, Compiled)> {
        let mut fewer: Option<(u64, Compiled)> = None;
        let mut last = Error::Internal("no cap was tried".into());
        for cap in caps(arena, devices) {
            let spec = format!("cpu[{devices}x{cap}B]");
            let found = self.plan(&spec, DeviceUse::Auto).map(|plan| (used(&plan) as u64, plan));
            match found {
                Ok((count, plan)) if count == devices => return Ok((cap, plan)),
                Ok((count, plan)) => {
                    if count >= 2 && fewer.is_none() {
                        fewer = Some((cap, plan));
                    }
                    if let Ok(plan) = self.plan(&spec, DeviceUse::Count(devices as u32)) {
                        return Ok((cap, plan));
                    }
                }
                Err(error @ Error::Infeasible(_)) => last = error,
                Err(error) => return Err(error),
            }
        }
        fewer.ok_or(last)
    }

    /// Plans for two CPUs with memory to spare, each of which is to take at most three quarters of
    /// the compute time: a cut for networks that make their weights in the step, so that one node
    /// takes nearly all the memory and no cap forces a cut.
    pub(crate) fn balanced(&self, arena: u64) -> Result<Compiled> {
        let place = place::Options { devices: DeviceUse::Count(2), balance: Some(0.5), ..<_>::default() };
        self.plan_with(&format!("cpu[2x{}B]", arena * 2), place)
    }

    /// Runs a plan once.
    pub(crate) fn run(&self, compiled: &Compiled) -> Result<Outputs> {
        let mut program = self.ready(compiled, ExecOptions::default())?;
        program.run(&self.inputs).map(|(outputs, _)| outputs)
    }

    /// A plan ready to run.
    pub(crate) fn ready(&self, compiled: &Compiled, options: ExecOptions) -> Result<Program> {
        let lowered =
            compiled.network.as_ref().ok_or_else(|| Error::Internal("a plan without network".into()))?;
        let exec = exec_plan(&compiled.plan, &lowered.graph, &lowered.grouping)?;
        let groups = lowered.grouping.all_fused();
        let weights = |id: ParamId| self.weight_of(&lowered.graph, id);
        Program::new(&lowered.graph, &groups, &exec, &weights, options)
    }

    /// Planned for a spec of devices and ready to run.
    pub(crate) fn program(&self, spec: &str, devices: DeviceUse, options: ExecOptions) -> Result<Program> {
        self.ready(&self.plan(spec, devices)?, options)
    }

    /// The data of a parameter of a graph that was lowered from this one.
    pub(crate) fn weight_of(&self, lowered: &Graph, id: ParamId) -> Result<Tensor> {
        lowered.param(id).own_part(lowered, self.weight(self.same(lowered, id))?)
    }

    /// The parameter of this graph that one of the lowered graph is.
    pub(crate) fn same(&self, lowered: &Graph, id: ParamId) -> ParamId {
        let name = lowered.param(id).whole_name();
        if self.graph.params().get(id.index()).is_some_and(|param| param.name == name) {
            return id;
        }
        let position = self.graph.params().iter().position(|param| param.name == name);
        ParamId(position.expect("lowering makes no parameters") as u32)
    }

    /// How far outputs are from what is stored; none where nothing is. `noise` times the largest
    /// stored value is added to the absolute tolerance.
    pub(crate) fn distance(&self, outputs: &Outputs, noise: f64) -> Option<Distance> {
        let mut distance = Distance::default();
        for expected in &self.expected {
            let (found, stored) = (outputs[expected.output].1.to_f64(), expected.values.to_f64());
            let largest = stored.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
            let atol = TOLERANCE.1 + noise * largest;
            distance.largest = distance.largest.max(largest);
            assert_eq!(found.len().div_ceil(expected.stride), stored.len(), "another number of values");
            for (&found, &stored) in found.iter().step_by(expected.stride).zip(&stored) {
                distance.add(found, stored, atol);
            }
        }
        (distance.values > 0).then_some(distance)
    }
}

impl Distance {
    fn add(&mut self, found: f64, stored: f64, atol: f64) {
        self.values += 1;
        if found == stored || (found.is_nan() && stored.is_nan()) {
            return;
        }
        let error = (found - stored).abs();
        let error = if error.is_nan() { f64::INFINITY } else { error };
        self.absolute = self.absolute.max(error);
        self.relative = self.relative.max(error / (atol + TOLERANCE.0 * stored.abs()));
    }
}

/// Caps to try, ascending: from a little more than an even share of the one-device arena up to
/// just below all of it.
fn caps(arena: u64, devices: u64) -> impl Iterator<Item = u64> {
    let share = [108, 125, 150, 200, 300].map(|percent| arena / 100 * percent / devices);
    let most = arena / 100 * 95;
    share.into_iter().filter(move |&cap| cap < most).chain([most])
}

/// How many devices compute something.
pub(crate) fn used(compiled: &Compiled) -> usize {
    let mut used: Vec<u32> =
        compiled.plan.steps.iter().filter_map(|step| launched(&compiled.plan, step)).collect();
    used.sort_unstable();
    used.dedup();
    used.len()
}

/// The number of the device on which a step computes.
fn launched(plan: &partition::unstable::plan::Plan, step: &partition::unstable::plan::Step) -> Option<u32> {
    let partition::unstable::plan::Action::Launch(_) = step.action else { return None };
    plan.devices.iter().position(|device| *device.name == *step.device).map(|position| position as u32)
}

fn stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The `raw_data` (field 9) of an ONNX `TensorProto` of floats.
fn raw_data(bytes: &[u8]) -> Vec<f32> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let tag = varint(&mut rest);
        let length = varint(&mut rest) as usize;
        match tag {
            0x4a => {
                return rest[..length]
                    .chunks(4)
                    .map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]]))
                    .collect();
            }
            // Length-delimited fields are skipped; of others the value was the "length".
            tag if tag & 7 == 2 => rest = &rest[length..],
            _ => {}
        }
    }
    panic!("the tensor has no raw data")
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    while let Some((&byte, rest)) = bytes.split_first() {
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            break;
        }
    }
    value
}
