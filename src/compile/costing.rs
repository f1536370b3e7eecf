//! What a model costs on devices that it is not planned for yet, and what no plan on them can be better than.

use std::borrow::Cow;
use std::sync::Arc;

use super::problem::may_split;
use super::{Network, Options, kept_whole, prepare};
use crate::control::Control;
use crate::cost::{self, Profile};
use crate::costgraph::CostGraph;
use crate::error::Result;
use crate::load::Model;
use crate::place::{self, Certificate};
use crate::topology::Topology;
use crate::units::Flops;

/// A model that is bound and grouped, to be laid over any devices.
#[derive(Debug)]
pub struct Costing {
    of: Of,
    place: place::Options,
    profile: Option<Arc<Profile>>,
}

/// What a network comes to whose operations may be split.
#[derive(Clone, Copy, Debug)]
pub struct Splittable {
    /// Operations in f32 and in halves.
    pub operations: [Flops; 2],
}

#[derive(Debug)]
enum Of {
    Network(Box<Network>),
    Graph(Box<CostGraph>),
}

impl Costing {
    /// Binds, simplifies and groups a model as a plan with these options would.
    ///
    /// Errors: those of [`prepare`].
    pub fn new(model: &Model, options: &Options) -> Result<Self> {
        let profile = options.profile.clone();
        match model {
            Model::CostGraph { graph, .. } => {
                Ok(Self { of: Of::Graph(Box::new(graph.clone())), place: options.place.clone(), profile })
            }
            Model::Graph(graph) => {
                let options = kept_whole(graph, options)?;
                let network = prepare(graph.clone(), &options)?;
                let place = options.place.without_patterns();
                Ok(Self { of: Of::Network(Box::new(network)), place, profile })
            }
        }
    }

    /// The cost graph for these devices. O(nodes + edges).
    ///
    /// Errors: a size that is not bound or overflows.
    pub fn on(&self, topology: &Topology) -> Result<Cow<'_, CostGraph>> {
        match &self.of {
            Of::Graph(graph) => Ok(Cow::Borrowed(graph)),
            Of::Network(network) => {
                let Network { graph, grouping, .. } = network.as_ref();
                let lowered = cost::lower(graph, grouping, topology, self.profile.as_deref())?;
                Ok(Cow::Owned(lowered.graph))
            }
        }
    }

    /// The operations of the network in f32 and in halves, where a plan with these options may split them; parts do as
    /// many together, or more. None where operations stay whole; no operations where a profile says other times than their
    /// number.
    pub fn splittable(&self, options: &Options) -> Option<Splittable> {
        match &self.of {
            Of::Network(network) if may_split(network, options) => Some(match self.profile {
                None => Splittable { operations: cost::operations(&network.graph) },
                Some(_) => Splittable { operations: [Flops(0); 2] },
            }),
            _ => None,
        }
    }

    /// A proof that no plan of whole operations on these devices has an objective below `limit`, where one is found.
    /// The work is counted by the effort.
    ///
    /// Errors: those of lowering.
    pub fn none_below(
        &self,
        topology: &Topology,
        limit: u64,
        control: &Control<'_>,
    ) -> Result<Option<Certificate>> {
        let graph = self.on(topology)?;
        // What keeps a plan from being made at all is for planning to say.
        Ok(place::none_below(&graph, topology, &self.place, control, limit).unwrap_or(None))
    }
}
