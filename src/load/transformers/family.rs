//! What a family of architectures is, as data: what its classes are called, how its configuration is read,
//! and what published files call its arrays. The families themselves are in [`families`](super::families).

use super::config::Config;
use super::heads::Head;
use super::net::Net;
use super::settings::Settings;
use crate::error::Result;

/// One `model_type`.
#[derive(Debug)]
pub(super) struct Family {
    /// The field `model_type`.
    pub(super) name: &'static str,
    /// What its classes begin with.
    pub(super) class: &'static str,
    /// What follows that, and the head that it means.
    pub(super) heads: &'static [(&'static str, Head)],
    /// The head of a configuration without a class.
    pub(super) usual: Head,
    pub(super) network: Network,
    /// Stands before the blocks' parameters where there is a head.
    pub(super) prefix: &'static str,
    /// The same without a head.
    pub(super) bare_prefix: &'static str,
    /// The same in one class of older files: its ending, and the prefix.
    pub(super) other_prefix: Option<(&'static str, &'static str)>,
    /// Arrays that hold the table of embeddings, or the bias of the vocabulary, a second time where
    /// layers are tied: the array, and the parameter behind the prefix where it begins with a dot.
    pub(super) copies: &'static [(&'static str, &'static str)],
    /// Arrays that a model whose layers are not tied holds and does not read.
    pub(super) idle: &'static [&'static str],
    /// Arrays that the class without a head holds, and that nothing reads.
    pub(super) bare: &'static [&'static str],
    /// Pieces of parameters' names, and what files of other versions of the library have in their place.
    pub(super) renamed: &'static [(&'static str, &'static str)],
}

impl Family {
    /// A family whose blocks' parameters have no prefix, without heads: they are added to it.
    pub(super) const fn new(name: &'static str, class: &'static str, network: Network) -> Self {
        Self {
            name,
            class,
            heads: &[],
            usual: Head::Language,
            network,
            prefix: "",
            bare_prefix: "",
            other_prefix: None,
            copies: &[],
            idle: &[],
            bare: &[],
            renamed: &[],
        }
    }
}

/// Of what a family's networks are made. Errors of both: fields that are missing, contradict one another, or ask
/// for what is not supported.
#[derive(Clone, Copy, Debug)]
pub(super) enum Network {
    /// One stack that reads tokens, and a head.
    Text(fn(&Config) -> Result<Settings>),
    /// Stacks that read other things, or one another.
    Joined(fn(&mut Writing<'_>) -> Result<()>),
}

/// A network that is being written.
pub(super) struct Writing<'a> {
    pub(super) config: &'a Config,
    pub(super) net: &'a mut Net,
    pub(super) head: Head,
    /// Stands before the stacks' parameters.
    pub(super) prefix: &'a str,
}
