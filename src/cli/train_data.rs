//! The records of `partition train`, opened before anything is planned: what they lack is reported at once, and
//! their sizes are those of the network's open dimensions.

use std::collections::BTreeMap;

use super::terminal::Console;
use super::train_args::TrainArgs;
use crate::data::{Field, Role, Source};
use crate::error::Result;
use crate::ir::{Graph, ValueId};
use crate::train::{self, Fit, check_data, fields_of, infer_dims};

/// Where records come from.
pub(super) struct Records {
    pub(super) source: Source,
    pub(super) validation: Option<Source>,
}

impl Records {
    /// Both, as far as there are any; a record of each is read.
    pub(super) fn all(&self) -> Vec<&Source> {
        std::iter::once(&self.source).chain(&self.validation).collect()
    }
}

/// What arrays for inputs are called in the data, without the prefix of files that hold outputs too; none where the
/// files do not name them.
///
/// Errors: a file cannot be read.
pub(super) fn input_names(args: &TrainArgs) -> Result<Vec<String>> {
    let names = args.data.data.as_deref().map(Source::array_names).transpose()?.unwrap_or_default();
    Ok(names.into_iter().map(|name| name.strip_prefix("in_").map(str::to_owned).unwrap_or(name)).collect())
}

/// Opens the records for a network that is trained so; none where no data is named. One record is read.
///
/// Errors: those of opening and reading them; fewer than a batch.
pub(super) fn records(
    args: &TrainArgs,
    graph: &Graph,
    options: &train::Options,
    fitting: &Fit<'_>,
) -> Result<Option<Records>> {
    let Some(data) = &args.data.data else { return Ok(None) };
    let fields = fields_of(graph, options)?;
    let source = Source::open(data, &fields)?;
    check_data(graph, options, &source, fitting)?;
    let validation = args.data.validation_data.as_deref();
    let validation = validation
        .map(|spec| Source::open(spec, &fields).map_err(|error| error.within("--validation-data")))
        .transpose()?;
    Ok(Some(Records { source, validation }))
}

/// Values of the dimensions that a network's inputs leave open beside their batch, as records have them.
///
/// Errors: those of opening the records; sizes that no value gives.
pub(super) fn sizes_of_inputs(args: &TrainArgs, graph: &Graph) -> Result<BTreeMap<String, i64>> {
    let Some(data) = &args.data.data else { return Ok(BTreeMap::new()) };
    let field = |(name, value): &(String, ValueId)| {
        Field::new(name.as_str(), Role::Input, graph.ty(*value).dtype, &[])
    };
    let fields: Vec<Field> = graph.inputs().iter().map(field).collect();
    infer_dims(graph, &Source::sizes(data, &fields)?)
}

/// Says which sizes records give.
pub(super) fn note_sizes(found: &BTreeMap<String, i64>, console: &Console) {
    if !found.is_empty() {
        let sizes: Vec<String> = found.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        console.note(&format!("{} as the data has it; --dim NAME=N sets another size", sizes.join(", ")));
    }
}

/// Gives dimensions that a network leaves open beside its batch the sizes that records have, and says so.
///
/// Errors: those of opening the records; sizes that no value gives.
pub(super) fn open_dims(
    args: &TrainArgs,
    graph: &Graph,
    options: &mut train::Options,
    console: &Console,
) -> Result<()> {
    let open: Vec<String> = train::open_dims(graph);
    if open.is_empty() {
        return Ok(());
    }
    if let Some(data) = &args.data.data {
        // Names and roles of the fields; their sizes are what is asked for.
        let fields = fields_of(graph, options)?;
        let found = infer_dims(graph, &Source::sizes(data, &fields)?)?;
        note_sizes(&found, console);
        options.compile.bind.extend(found);
    }
    let assumed: Vec<&str> =
        open.iter().map(String::as_str).filter(|name| !options.compile.bind.contains_key(*name)).collect();
    if !assumed.is_empty() {
        let names = assumed.join(", ");
        console
            .note(&format!("planned with {names} = 1, which nothing says; --dim NAME=N sets another size"));
    }
    Ok(())
}
