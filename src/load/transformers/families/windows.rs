//! Which keys the rows of each layer meet: windows in all layers, or in those that a list names.

use serde_json::Value;

use super::super::attention::Sight;
use super::super::config::Config;
use crate::error::Result;

/// The width of windows, where there are any; left out, the default.
pub(super) fn width(config: &Config, default: Option<u64>) -> Result<Option<u64>> {
    // Configurations of the library write no window as 0, too.
    if config.get("sliding_window").is_some_and(|value| value.as_u64() == Some(0)) {
        return Ok(None);
    }
    match config.optional_size("sliding_window")? {
        None if !config.has("sliding_window") => Ok(default),
        width => Ok(width),
    }
}

/// Every layer has a window where there is a width.
pub(super) fn everywhere(width: Option<u64>) -> Sight {
    width.map_or(Sight::Before, Sight::Window)
}

/// As `layer_types` lists them, or where there is no list as `near` says of each layer's number.
pub(super) fn by_layer(
    config: &Config,
    layers: u64,
    width: Option<u64>,
    near: impl Fn(u64) -> bool,
) -> Result<Vec<Sight>> {
    let kinds = kinds(config, layers, near)?;
    if width.is_none() && config.get("layer_types").is_some() && kinds.contains(&true) {
        return Err(config.refused("layer_types", "a layer has a window, which sliding_window does not give"));
    }
    Ok(kinds.into_iter().map(|near| if near { everywhere(width) } else { Sight::Before }).collect())
}

/// Which layers have windows: as `layer_types` lists them, or where there is no list as `near` says.
pub(super) fn kinds(config: &Config, layers: u64, near: impl Fn(u64) -> bool) -> Result<Vec<bool>> {
    let Some(types) = config.get("layer_types") else { return Ok((0..layers).map(near).collect()) };
    let types = types.as_array().filter(|types| types.len() as u64 == layers);
    let types = types.ok_or_else(|| config.refused("layer_types", "expected one for each layer"))?;
    let kind = |name: &Value| match name.as_str() {
        Some("full_attention") => Ok(false),
        Some("sliding_attention") => Ok(true),
        _ => Err(config.refused("layer_types", &format!("{name} is not supported"))),
    };
    types.iter().map(kind).collect()
}
