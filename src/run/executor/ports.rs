//! Where a program's inputs, outputs, parameters and constants lie, whatever memory that is.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use super::super::counted::cut;
use super::super::interpret::{
    Weights, as_held, as_taken, check_type, input, known_inputs, rounded, supplied, tensor,
};
use super::plan::{Batch, Checker, ExecPlan, Located};
use crate::error::{Error, Report, Result};
use crate::ir::{BoxOf, Counted, Graph, Op, ParamId, Tensor, Type, ValueId};

/// Inputs and outputs of a program.
pub(in crate::run) struct Ports {
    graph_inputs: Vec<Port>,
    graph_outputs: Vec<Port>,
    batch: Batch,
    /// By input, and then by microbatch.
    inputs: Vec<Vec<Located>>,
    /// By output, and then by microbatch.
    outputs: Vec<Located>,
    /// By output: whether it takes a parameter's place.
    replaces: Vec<bool>,
    /// Outputs of which callers see only a part.
    counted: BTreeMap<String, Counted>,
}

/// An input or an output, for the whole batch.
struct Port {
    name: String,
    /// As it is in memory.
    held: Type,
    /// As callers see it.
    seen: Type,
    /// The box of a caller's input that it is.
    part: Option<BoxOf>,
}

impl Port {
    /// The name that callers know.
    fn callers_name(&self) -> &str {
        self.part.as_ref().map_or(&self.name, |part| &part.name)
    }
}

impl Ports {
    /// Error: the plan lacks an output, or names what the model has not.
    pub(in crate::run) fn new(
        graph: &Graph,
        plan: &ExecPlan,
        checker: &Checker<'_>,
        buffers: &[Located],
    ) -> Result<Self> {
        let batch = plan.batch.clone().unwrap_or_else(|| Batch::whole_of(graph));
        let named = |list: &[(String, ValueId)], axes: &[Option<usize>], seen: &dyn Fn(usize) -> Type| {
            let port =
                |(number, ((name, value), axis)): (usize, (&(String, ValueId), &Option<usize>))| Port {
                    name: name.clone(),
                    held: batch.whole(graph.ty(*value), *axis),
                    seen: batch.whole(&seen(number), *axis),
                    part: graph.input_box(name).cloned(),
                };
            list.iter().zip(axes).enumerate().map(port).collect::<Vec<Port>>()
        };
        Ok(Self {
            graph_inputs: named(graph.inputs(), &batch.inputs, &|number| graph.input_type(number)),
            graph_outputs: named(graph.outputs(), &batch.outputs, &|number| graph.output_type(number)),
            inputs: checker.inputs(buffers)?,
            outputs: checker.outputs(buffers)?,
            replaces: graph.updates().iter().map(Option::is_some).collect(),
            counted: graph.counted().clone(),
            batch,
        })
    }

    /// Hands each place its part of the inputs.
    ///
    /// Errors: an input that is missing, unknown or of another type; those of `write`.
    pub(in crate::run) fn feed(
        &self,
        inputs: &[(String, Tensor)],
        write: &mut dyn FnMut(Located, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let inputs = known_inputs(self.graph_inputs.iter().map(Port::callers_name), inputs)?;
        let parts = self.inputs.chunks(self.batch.count.max(1) as usize);
        for ((port, parts), axis) in self.graph_inputs.iter().zip(parts).zip(&self.batch.inputs) {
            let within = |error: Error| error.within(&format!("input {}", port.callers_name()));
            let own = input(&inputs, port.callers_name())?;
            let own = supplied(own, port.part.as_ref(), &port.seen).map_err(within)?;
            let whole = as_held(&own, &port.seen, &port.held).map_err(within)?;
            for (number, places) in parts.iter().enumerate() {
                let bytes = self.batch.part(&whole, *axis, number);
                places.iter().try_for_each(|&place| write(place, &bytes))?;
            }
        }
        Ok(())
    }

    /// How many bytes [`Ports::feed`] writes.
    #[cfg(feature = "cuda")]
    pub(in crate::run) fn fed(&self) -> u64 {
        self.inputs.iter().flatten().map(|place| place.range.length as u64).sum()
    }

    /// The outputs, but for those that take a parameter's place.
    ///
    /// Errors: those of `read`.
    pub(in crate::run) fn outputs<'b>(
        &self,
        read: &mut dyn FnMut(Located) -> Result<Cow<'b, [u8]>>,
    ) -> Result<Vec<(String, Tensor)>> {
        let parts = self.outputs.chunks(self.batch.count.max(1) as usize);
        let mut all = Vec::new();
        for (position, (Port { name, held, seen, .. }, parts)) in
            self.graph_outputs.iter().zip(parts).enumerate()
        {
            if self.replaces[position] {
                continue;
            }
            let parts = parts.iter().map(|&place| read(place)).collect::<Result<Vec<_>>>()?;
            let parts: Vec<&[u8]> = parts.iter().map(|part| &**part).collect();
            let whole = self.batch.join(held, self.batch.outputs[position], &parts);
            all.push((name.clone(), as_taken(tensor(held, &whole)?, seen.dtype)?));
        }
        cut(&self.counted, all)
    }
}

/// Puts parameters and constants into every place that holds them.
///
/// Errors: parameters without data, all of them in the details; those of reading data and of `put`.
pub(in crate::run) fn load(
    graph: &Graph,
    data: &[(ValueId, Vec<Located>)],
    weights: Weights<'_>,
    put: &mut dyn FnMut(ValueId, &Tensor, Located) -> Result<()>,
) -> Result<()> {
    let mut missing: Vec<(ParamId, Error)> = Vec::new();
    for (value, places) in data {
        let tensor = match graph.maker(*value).op {
            Op::Constant(constant) => graph.constant(constant).clone(),
            Op::Param(param) => match weights(param) {
                Ok(tensor) => tensor,
                // All of them are gathered, so that one error names every file or option that is missing.
                Err(error @ Error::Run(_)) => {
                    missing.push((param, error));
                    continue;
                }
                // Data that is there and does not fit.
                Err(error) => return Err(error),
            },
            _ => return Err(Error::Internal(format!("{value} is no parameter or constant"))),
        };
        let source = &graph.source(graph.maker(*value).source).name;
        let tensor = rounded(graph, *value, tensor)?;
        check_type(&tensor, graph.ty(*value)).map_err(|error| error.within(source))?;
        places.iter().try_for_each(|&place| put(*value, &tensor, place))?;
    }
    match missing.len() {
        0 => Ok(()),
        _ => {
            let of =
                |(param, error): &(ParamId, Error)| format!("{}: {error}", graph.param(*param).whole_name());
            let mut details: Vec<String> = missing.iter().map(of).collect();
            // Slices of one parameter miss the same data.
            let mut told = BTreeSet::new();
            details.retain(|line| told.insert(line.clone()));
            let report = Report::new("", format!("{} parameters have no data", details.len()))
                .help("--weights F, or --init seed=N to make them up")
                .first_details(details, "parameters");
            Err(Error::Run(report))
        }
    }
}
