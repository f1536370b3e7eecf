//! Images as rows: patches under a convolution, a row for the class before them, a row added for each place
//! (Dosovitskiy and others 2021).

use serde_json::{Value, json};

use super::config::Config;
use super::net::{Bias, Features, Net, Windows};
use crate::error::Result;
use crate::ir::InputRule;

/// How images are cut.
pub(super) struct Patches {
    pub(super) channels: u64,
    /// Height and width.
    image: [u64; 2],
    patch: [u64; 2],
}

/// What a family calls the parameters.
pub(super) struct PatchNames<'a> {
    pub(super) projection: &'a str,
    pub(super) bias: Bias,
    pub(super) class: &'a str,
    /// Sizes of the array of the class.
    pub(super) class_dims: &'a [u64],
    pub(super) places: &'a str,
    /// The places are `[1, rows, hidden]`, not `[rows, hidden]`.
    pub(super) batched: bool,
}

impl Patches {
    /// What a configuration says. Error: sizes that are none, or patches that are larger than the image.
    pub(super) fn read(config: &Config) -> Result<Self> {
        let image = pair(config, "image_size")?;
        let patch = pair(config, "patch_size")?;
        if patch[0] > image[0] || patch[1] > image[1] {
            return Err(config.refused("patch_size", "a patch is larger than the image"));
        }
        Ok(Self { channels: config.optional_size("num_channels")?.unwrap_or(3), image, patch })
    }

    /// Rows of one image, the class included.
    pub(super) fn rows(&self) -> u64 {
        let along = |axis: usize| self.image[axis] / self.patch[axis];
        along(0).saturating_mul(along(1)).saturating_add(1)
    }

    /// The input `pixel_values` as rows: `[batch, rows, hidden]`.
    pub(super) fn write(&self, net: &mut Net, batch: &str, hidden: u64, names: &PatchNames<'_>) -> String {
        let [height, width] = self.image;
        let ty = format!("f32[{batch}, {}, {height}, {width}]", self.channels);
        net.input("pixel_values", &ty, InputRule::default());
        let window = Windows {
            features: Features { from: self.channels, to: hidden },
            kernel: self.patch.to_vec(),
            strides: self.patch.to_vec(),
            padding: 0,
            bias: names.bias,
        };
        let cut = net.convolution(names.projection, "pixel_values", &window);
        let (rows, name) = (self.rows(), |end: &str| format!("{}.{end}", names.projection));
        let shape = json!({"shape": [batch, hidden, rows - 1]});
        let flat = net.node(&name("flat"), "reshape", &[&cut], shape);
        let patches = net.node(&name("rows"), "transpose", &[&flat], json!({"perm": [0, 2, 1]}));
        let class = net.param(names.class, names.class_dims, "normal");
        let shape = json!({"shape": [1, 1, hidden]});
        let class = net.node(&name("class"), "reshape", &[&class], shape);
        let shape = json!({"shape": [batch, 1, hidden]});
        let class = net.node(&name("class_by_image"), "broadcast", &[&class], shape);
        let all = net.node(&name("all"), "concat", &[&class, &patches], json!({"axis": 1}));
        let dims: &[u64] = if names.batched { &[1, rows, hidden] } else { &[rows, hidden] };
        let places = net.param(names.places, dims, "normal");
        net.sum(&name("placed"), &all, &places)
    }
}

/// A size of both axes, or one for each.
fn pair(config: &Config, field: &'static str) -> Result<[u64; 2]> {
    match config.get(field) {
        Some(Value::Array(_)) => {
            let sizes = config.wholes(field)?;
            let fits = sizes.iter().all(|size| (1..=1 << 20).contains(size));
            <[u64; 2]>::try_from(sizes)
                .ok()
                .filter(|_| fits)
                .ok_or_else(|| config.refused(field, "expected a height and a width"))
        }
        _ => config.size(field).map(|size| [size, size]),
    }
}
