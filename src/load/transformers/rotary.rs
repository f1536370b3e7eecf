//! Rotary position embedding (Su and others 2021): frequencies as configurations scale them, tables
//! of cosines and sines, and the rotation itself.
//!
//! Frequencies are computed in f32 in the library's order of operations, so that they are those that
//! a checkpoint was trained with.

use std::f64::consts::PI;

use serde_json::json;

use super::config::Config;
use super::net::Net;
use crate::error::{Error, Result};

/// What the frequencies are, before any is computed.
#[derive(Clone, Debug)]
pub(super) struct Rotary {
    theta: f64,
    scaling: Scaling,
    /// Factor of cosines and sines.
    magnitude: f64,
    /// Positions beyond which frequencies follow the length of the sequence.
    pub(super) fixed_to: Option<u64>,
}

#[derive(Clone, Debug)]
enum Scaling {
    None,
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        context: f64,
    },
    /// Peng and others 2023; between the indices `low` and `high` a ramp leads from the frequencies
    /// to those divided by `factor`.
    Yarn {
        factor: f64,
        fast: f64,
        slow: f64,
        context: f64,
        whole: bool,
    },
}

impl Rotary {
    /// What a configuration says. Errors: frequencies scaled in a way that is not known, numbers that
    /// are none.
    pub(super) fn read(config: &Config) -> Result<Self> {
        let older = config.object("rope_scaling")?;
        let newer = config.object("rope_parameters")?;
        let outer =
            if config.get("rope_theta").is_some() { config.positive("rope_theta")? } else { 10_000.0 };
        config.only("partial_rotary_factor", 1.0)?;
        config.only("rope_interleaved", false)?;
        let longest = config.whole("max_position_embeddings", 2048)?;
        let context = config.whole("original_max_position_embeddings", 0)?;
        let Some(own) = older.or(newer) else { return Ok(Self::plain(outer)) };
        let theta = if own.get("rope_theta").is_some() { own.positive("rope_theta")? } else { outer };
        own.only("partial_rotary_factor", 1.0)?;
        let older = own.text("type", "default")?;
        let kind = if own.get("rope_type").is_some() { own.text("rope_type", "default")? } else { older };
        let inner = own.whole("original_max_position_embeddings", longest)?;
        let context = if context > 0 { context } else { inner } as f64;
        let mut rotary = Self::plain(theta);
        match kind {
            "default" => {}
            "linear" => rotary.scaling = Scaling::Linear { factor: own.positive("factor")? },
            "dynamic" => {
                own.positive("factor")?;
                rotary.fixed_to = Some(longest);
            }
            "llama3" => {
                let (factor, low) = (own.positive("factor")?, own.positive("low_freq_factor")?);
                let high = own.positive("high_freq_factor")?;
                rotary.scaling = Scaling::Llama3 { factor, low, high, context };
            }
            "yarn" => rotary.yarn(&own, longest as f64, context)?,
            other => {
                let message = format!("frequencies scaled as {other} are not supported");
                return Err(own
                    .refused("rope_type", &message)
                    .with_help("default, linear, dynamic, llama3 and yarn are"));
            }
        }
        own.all_read()?;
        Ok(rotary)
    }

    fn plain(theta: f64) -> Self {
        Self { theta, scaling: Scaling::None, magnitude: 1.0, fixed_to: None }
    }

    fn yarn(&mut self, own: &Config, longest: f64, context: f64) -> Result<()> {
        let factor = match own.get("factor") {
            Some(_) => own.positive("factor")?,
            None => longest / context,
        };
        let scale = |by: f64| if factor <= 1.0 { 1.0 } else { 0.1 * by * factor.ln() + 1.0 };
        let (one, all) = (own.real("mscale", 0.0)?, own.real("mscale_all_dim", 0.0)?);
        let inferred = if one != 0.0 && all != 0.0 { scale(one) / scale(all) } else { scale(1.0) };
        self.magnitude = own.real("attention_factor", inferred)?;
        let or = |value: f64, default: f64| if value == 0.0 { default } else { value };
        let fast = or(own.real("beta_fast", 0.0)?, 32.0);
        let slow = or(own.real("beta_slow", 0.0)?, 1.0);
        let whole = own.flag("truncate", true)?;
        self.scaling = Scaling::Yarn { factor, fast, slow, context, whole };
        Ok(())
    }

    /// The angle from one position to the next, for each pair of a head's numbers.
    fn frequencies(&self, width: u64) -> Vec<f32> {
        let turn = |pair: u64| {
            let exponent = (2 * pair) as f32 / width as f32;
            self.theta.powf(f64::from(exponent)) as f32
        };
        let pairs = 0..width / 2;
        match self.scaling {
            Scaling::None => pairs.map(|pair| 1.0 / turn(pair)).collect(),
            Scaling::Linear { factor } => pairs.map(|pair| 1.0 / turn(pair) / factor as f32).collect(),
            Scaling::Llama3 { factor, low, high, context } => pairs
                .map(|pair| {
                    let frequency = 1.0 / turn(pair);
                    let length = (2.0 * PI) as f32 / frequency;
                    if length > (context / low) as f32 {
                        return frequency / factor as f32;
                    }
                    if length < (context / high) as f32 {
                        return frequency;
                    }
                    let smooth = (context as f32 / length - low as f32) / (high - low) as f32;
                    (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
                })
                .collect(),
            Scaling::Yarn { factor, .. } => pairs
                .map(|pair| {
                    let kept = 1.0 - self.ramp(width, pair);
                    let slowed = 1.0 / (factor as f32 * turn(pair));
                    slowed * (1.0 - kept) + 1.0 / turn(pair) * kept
                })
                .collect(),
        }
    }

    /// How far a pair's frequency is on its way to the slowed one: 0 to 1.
    fn ramp(&self, width: u64, pair: u64) -> f32 {
        let Scaling::Yarn { fast, slow, context, whole, .. } = self.scaling else { return 0.0 };
        let size = width as f64;
        let at = |turns: f64| size * (context / (turns * 2.0 * PI)).ln() / (2.0 * self.theta.ln());
        let (low, high) = (at(fast), at(slow));
        let (low, high) = if whole { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(size - 1.0));
        let high = if low == high { high + 0.001 } else { high };
        ((pair as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0)
    }

    /// Tables of cosines and sines: `[sequence, width]`, or with positions of the caller's
    /// (`[batch, sequence]`) `[batch, 1, 1, sequence, width]`. Error: an odd width.
    pub(super) fn tables(&self, net: &mut Net, width: u64, positions: Option<&str>) -> Result<Tables> {
        if width % 2 == 1 {
            let message = format!("{width} numbers do not make pairs, which a rotation turns");
            return Err(Error::model("head_dim", message));
        }
        let values = json!(self.frequencies(width));
        let frequency = net.constant("rotary.frequency", &format!("f32[{}]", width / 2), values);
        let position = match positions {
            None => net.node("rotary.position", "iota", &[], json!({"type": "f32[sequence, 1]", "axis": 0})),
            Some(ids) => {
                let real = net.node("rotary.real", "convert", &[ids], json!({"to": "f32"}));
                let shape = json!({"shape": ["batch", 1, 1, "sequence", 1]});
                net.node("rotary.position", "reshape", &[&real], shape)
            }
        };
        let angle = net.node("rotary.angle", "mul", &[&position, &frequency], json!({}));
        let both = net.node("rotary.angles", "concat", &[&angle, &angle], json!({"axis": -1}));
        let [cosines, sines] = ["cos", "sin"].map(|op| {
            let table = net.node(&format!("rotary.{op}"), op, &[&both], json!({}));
            if self.magnitude == 1.0 {
                return table;
            }
            let factor = net.scalar(&format!("rotary.{op}.magnitude"), self.magnitude);
            net.node(&format!("rotary.{op}.scaled"), "mul", &[&table, &factor], json!({}))
        });
        Ok(Tables { cosines, sines })
    }
}

/// Names of the tables.
pub(super) struct Tables {
    cosines: String,
    sines: String,
}

impl Tables {
    /// Turns the halves of `x`, of these sizes, as Llama does.
    pub(super) fn rotate(&self, net: &mut Net, name: &str, x: &str, sizes: [u64; 3]) -> String {
        let [shared, per, width] = sizes;
        let half = width / 2;
        let mut part = |which: &str, start: u64| {
            let attributes = json!({
                "starts": [0, 0, 0, 0, start],
                "sizes": ["batch", shared, per, "sequence", half],
            });
            net.node(&format!("{name}.{which}"), "slice", &[x], attributes)
        };
        let (low, high) = (part("low", 0), part("high", half));
        let high = net.node(&format!("{name}.turned"), "neg", &[&high], json!({}));
        let swapped = net.node(&format!("{name}.swapped"), "concat", &[&high, &low], json!({"axis": -1}));
        let one = net.node(&format!("{name}.cos"), "mul", &[x, &self.cosines], json!({}));
        let other = net.node(&format!("{name}.sin"), "mul", &[&swapped, &self.sines], json!({}));
        net.sum(name, &one, &other)
    }
}
