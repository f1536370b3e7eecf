//! Rotary position embedding (Su and others 2021): frequencies as configurations scale them, tables
//! of cosines and sines, and the rotation itself.
//!
//! Frequencies are computed in f32 in the library's order of operations, so that they are those that
//! a checkpoint was trained with.

use std::f64::consts::PI;

use serde_json::{Value, json};

use super::config::Config;
use super::net::Net;
use crate::error::{Error, Result};

/// What the frequencies are, before any is computed.
#[derive(Clone, Debug)]
pub(super) struct Rotary {
    theta: f64,
    /// Numbers of a head that are turned, the first ones.
    width: u64,
    /// Pairs are neighbours, as GPT-J has them, and not the two halves.
    neighbours: bool,
    scaling: Scaling,
    /// Factor of cosines and sines.
    magnitude: f64,
    /// Positions that the model has at most.
    pub(super) longest: Option<u64>,
    /// What longer sequences have in place of these frequencies.
    extended: Option<Extended>,
    /// Stands in the names of nodes, where a network has several.
    label: &'static str,
    /// A parameter by which frequencies are divided.
    divisors: Option<&'static str>,
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
    /// Ding and others 2024: each frequency is divided by a factor of its own.
    Long {
        divisors: Vec<f64>,
    },
}

/// The frequencies of every position of sequences that are longer than those that a model was trained with.
#[derive(Clone, Debug)]
struct Extended {
    /// The longest sequences that it was trained with.
    beyond: u64,
    frequencies: Longer,
}

#[derive(Clone, Debug)]
enum Longer {
    /// Divided by these.
    Factors(Vec<f64>),
    /// Divided by those of a parameter.
    Divisors(&'static str),
    /// Of a base that grows with the sequence (dynamic NTK).
    Stretched { factor: f64 },
}

/// What holds where a configuration says nothing, and what it calls the fields.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usual {
    pub(super) theta: f64,
    /// Share of a head's numbers that is turned; none where a family turns all, whatever is written.
    pub(super) part: Option<f64>,
    pub(super) theta_field: &'static str,
    pub(super) part_field: &'static str,
}

impl Usual {
    /// What most families have.
    pub(super) const WHOLE: Self =
        Self { theta: 10_000.0, part: None, theta_field: "rope_theta", part_field: "partial_rotary_factor" };
}

/// What stands in a configuration beside an object of scaling.
struct Outer {
    theta: f64,
    part: Option<f64>,
    longest: u64,
    /// Positions before the context was extended; 0 where only the object says.
    context: u64,
    /// Numbers of a head.
    width: u64,
}

impl Rotary {
    /// What a configuration says, for heads of this many numbers. Errors: frequencies scaled in a way that
    /// is not known, numbers that are none.
    pub(super) fn read(config: &Config, usual: Usual, width: u64) -> Result<Self> {
        let older = config.object("rope_scaling")?;
        let newer = config.object("rope_parameters")?;
        let outer = Outer::read(config, usual, width)?;
        Self::scaled(older.or(newer), &outer)
    }

    /// Two, for layers that see everything and for those with windows: both are in `rope_parameters` by the
    /// layers' type, or, in older files, beside one another, where only the first are scaled.
    pub(super) fn by_sight(config: &Config, usual: Usual, local: f64, width: u64) -> Result<[Self; 2]> {
        let outer = Outer::read(config, usual, width)?;
        let older = config.object("rope_scaling")?;
        let newer = config.object("rope_parameters")?;
        let part = |name: &'static str| newer.as_ref().map_or(Ok(None), |newer| newer.object(name));
        let everything = match older {
            Some(older) => Some(older),
            None => part("full_attention")?,
        };
        let near = part("sliding_attention")?;
        if let Some(newer) = &newer {
            newer.all_read()?;
        }
        let local = match config.get("rope_local_base_freq") {
            Some(_) => config.positive("rope_local_base_freq")?,
            None => local,
        };
        let everything = Self::scaled(everything, &outer)?;
        let near = Self::scaled(near, &Outer { theta: local, ..outer })?;
        Ok([everything, Self { label: "near.", ..near }])
    }

    /// Turns pairs of neighbours among the first numbers of a head, by frequencies as they are, up to this many
    /// positions.
    pub(super) fn of_neighbours(theta: f64, width: u64, longest: Option<u64>) -> Self {
        Self { neighbours: true, longest, ..Self::plain(theta, width) }
    }

    /// What gpt-oss has where its configuration says nothing.
    pub(super) fn of_gpt_oss(config: &Config, usual: Usual, width: u64) -> Result<Self> {
        let outer = Outer::read(config, usual, width)?;
        let mut rotary = Self::plain(outer.theta, width);
        rotary.scaling = Scaling::Yarn { factor: 32.0, fast: 32.0, slow: 1.0, context: 4096.0, whole: false };
        rotary.magnitude = 0.1 * 32f64.ln() + 1.0;
        Ok(rotary)
    }

    fn scaled(own: Option<Config>, outer: &Outer) -> Result<Self> {
        let whole = outer.part.unwrap_or(1.0);
        let Some(own) = own else { return Ok(Self::plain(outer.theta, outer.turned(whole))) };
        let theta = if own.get("rope_theta").is_some() { own.positive("rope_theta")? } else { outer.theta };
        if outer.part.is_none() {
            own.only("partial_rotary_factor", 1.0)?;
        }
        let part = own.real("partial_rotary_factor", whole)?;
        let older = own.text("type", "default")?;
        let kind = if own.get("rope_type").is_some() { own.text("rope_type", "default")? } else { older };
        let inner = own.whole("original_max_position_embeddings", outer.longest)?;
        let longest = outer.longest;
        let context = if outer.context > 0 { outer.context } else { inner };
        let mut rotary = Self::plain(theta, outer.turned(part));
        match kind {
            "default" => {}
            "linear" => rotary.scaling = Scaling::Linear { factor: own.positive("factor")? },
            "dynamic" => {
                let frequencies = Longer::Stretched { factor: own.positive("factor")? };
                rotary.extended = Some(Extended { beyond: longest, frequencies });
            }
            "llama3" => {
                let (factor, low) = (own.positive("factor")?, own.positive("low_freq_factor")?);
                let high = own.positive("high_freq_factor")?;
                rotary.scaling = Scaling::Llama3 { factor, low, high, context: context as f64 };
            }
            "yarn" => rotary.yarn(&own, longest as f64, context as f64)?,
            "longrope" | "su" => rotary.long(&own, longest as f64, context)?,
            other => {
                let message = format!("frequencies scaled as {other} are not supported");
                return Err(own
                    .refused("rope_type", &message)
                    .with_help("default, linear, dynamic, llama3, yarn and longrope are"));
            }
        }
        own.all_read()?;
        Ok(rotary)
    }

    /// Sets whether neighbours are turned.
    pub(super) fn turns_neighbours(&mut self, neighbours: bool) {
        self.neighbours = neighbours;
    }

    /// Divides each frequency by a number of a parameter.
    pub(super) fn divided_by(&mut self, divisors: &'static str) {
        self.divisors = Some(divisors);
    }

    /// Divides frequencies by other parameters where sequences are longer than these, and scales cosines and sines.
    pub(super) fn extended_by(&mut self, divisors: &'static str, beyond: Option<u64>, magnitude: f64) {
        let frequencies = Longer::Divisors(divisors);
        self.extended = beyond.map(|beyond| Extended { beyond, frequencies });
        self.magnitude = magnitude;
    }

    fn plain(theta: f64, width: u64) -> Self {
        Self {
            theta,
            width,
            neighbours: false,
            scaling: Scaling::None,
            magnitude: 1.0,
            longest: None,
            extended: None,
            label: "",
            divisors: None,
        }
    }

    /// Short factors up to the context before it was extended, long ones beyond.
    fn long(&mut self, own: &Config, longest: f64, context: u64) -> Result<()> {
        let factors = |field: &'static str| -> Result<Vec<f64>> {
            let (pairs, factors) = (self.width / 2, own.reals(field)?);
            if factors.len() as u64 != pairs || factors.contains(&0.0) {
                return Err(own.refused(field, &format!("expected {pairs} numbers other than 0")));
            }
            Ok(factors)
        };
        let (short, long) = (factors("short_factor")?, factors("long_factor")?);
        let before = context as f64;
        let factor = own.real("factor", longest / before)?;
        // Scores of longer sequences are spread over more keys; this keeps their entropy (Ding et al., LongRoPE, 2024).
        let inferred = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / before.ln()).sqrt() };
        self.magnitude = own.real("attention_factor", inferred)?;
        self.scaling = Scaling::Long { divisors: short };
        self.extended = Some(Extended { beyond: context, frequencies: Longer::Factors(long) });
        Ok(())
    }

    fn yarn(&mut self, own: &Config, longest: f64, context: f64) -> Result<()> {
        // Only a stated null is taken from the lengths.
        let factor = if own.is_null("factor") { longest / context } else { own.positive("factor")? };
        // The temperature of the scores (Peng et al., YaRN, 2023, section 3.4), as a factor of cosines and sines.
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
    fn frequencies(&self, scaling: &Scaling) -> Vec<f32> {
        let width = self.width;
        let turn = |pair: u64| {
            let exponent = (2 * pair) as f32 / width as f32;
            self.theta.powf(f64::from(exponent)) as f32
        };
        let pairs = 0..width / 2;
        match scaling {
            Scaling::None => pairs.map(|pair| 1.0 / turn(pair)).collect(),
            Scaling::Linear { factor } => pairs.map(|pair| 1.0 / turn(pair) / *factor as f32).collect(),
            Scaling::Long { divisors } => {
                pairs.zip(divisors).map(|(pair, by)| 1.0 / (*by as f32 * turn(pair))).collect()
            }
            Scaling::Llama3 { factor, low, high, context } => pairs
                .map(|pair| {
                    let frequency = 1.0 / turn(pair);
                    let length = (2.0 * PI) as f32 / frequency;
                    if length > (context / low) as f32 {
                        return frequency / *factor as f32;
                    }
                    if length < (context / high) as f32 {
                        return frequency;
                    }
                    let smooth = (*context as f32 / length - *low as f32) / (high - low) as f32;
                    (1.0 - smooth) * frequency / *factor as f32 + smooth * frequency
                })
                .collect(),
            Scaling::Yarn { factor, .. } => pairs
                .map(|pair| {
                    let kept = 1.0 - self.ramp(width, pair);
                    let slowed = 1.0 / (*factor as f32 * turn(pair));
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

    /// Tables of cosines and sines: `[length, width]`, or with positions of the caller's
    /// (`[batch, length]`) `[batch, 1, 1, length, width]`. Error: an odd width.
    pub(super) fn tables(&self, net: &mut Net, length: &Value, positions: Option<&str>) -> Result<Tables> {
        let width = self.width;
        if width % 2 == 1 || width == 0 {
            let message = format!("{width} numbers do not make pairs, which a rotation turns");
            return Err(Error::model("head_dim", message));
        }
        let name = |end: &str| format!("rotary.{}{end}", self.label);
        let position = match positions {
            None => {
                let length = length.as_str().map_or_else(|| length.to_string(), str::to_owned);
                let attributes = json!({"type": format!("f32[{length}, 1]"), "axis": 0});
                net.node(&name("position"), "iota", &[], attributes)
            }
            Some(ids) => {
                let real = net.node(&name("real"), "convert", &[ids], json!({"to": "f32"}));
                let shape = json!({"shape": ["batch", 1, 1, length, 1]});
                net.node(&name("position"), "reshape", &[&real], shape)
            }
        };
        let frequency = self.frequency(net, &position)?;
        let angle = net.node(&name("angle"), "mul", &[&position, &frequency], json!({}));
        let both = net.node(&name("angles"), "concat", &[&angle, &angle], json!({"axis": -1}));
        let [cosines, sines] = ["cos", "sin"].map(|op| {
            let table = net.node(&name(op), op, &[&both], json!({}));
            net.scaled(&name(&format!("{op}.scaled")), &table, self.magnitude)
        });
        Ok(Tables { cosines, sines, width, neighbours: self.neighbours })
    }
}

/// The frequencies in a network that is being written.
impl Rotary {
    fn name(&self, end: &str) -> String {
        format!("rotary.{}{end}", self.label)
    }

    /// Those of sequences up to the context, where that is planned; else those that the largest position asks for.
    fn frequency(&self, net: &mut Net, position: &str) -> Result<String> {
        let Some(Extended { beyond, frequencies }) = &self.extended else { return Ok(self.short(net)) };
        match (net.context(), frequencies) {
            (Some(context), _) if context <= *beyond => Ok(self.short(net)),
            (Some(_), Longer::Stretched { .. }) => {
                let message = format!("beyond {beyond} tokens dynamic frequencies change with every token");
                Err(Error::model("rope_scaling", message).with_help(format!("--context {beyond} at most")))
            }
            (Some(_), _) => {
                net.is_another_up_to(*beyond);
                self.long_frequency(net, frequencies, position)
            }
            (None, _) => {
                let short = self.short(net);
                let last = net.node(&self.name("last"), "reduce", &[position], json!({"kind": "max"}));
                let long = self.long_frequency(net, frequencies, &last)?;
                let least = net.scalar(&self.name("extended_from"), *beyond as f64);
                let is_long = net.node(&self.name("is_extended"), "ge", &[&last, &least], json!({}));
                Ok(net.node(&self.name("selected"), "select", &[&is_long, &long, &short], json!({})))
            }
        }
    }

    fn constant(&self, net: &mut Net, end: &str, scaling: &Scaling) -> String {
        let ty = format!("f32[{}]", self.width / 2);
        net.constant(&self.name(end), &ty, json!(self.frequencies(scaling)))
    }

    fn short(&self, net: &mut Net) -> String {
        let frequency = self.constant(net, "frequency", &self.scaling);
        match self.divisors {
            Some(divisors) => self.divided(net, "divided", &frequency, divisors),
            None => frequency,
        }
    }

    fn divided(&self, net: &mut Net, end: &str, frequency: &str, divisors: &str) -> String {
        let divisors = net.shared_param(divisors, &[self.width / 2], "ones");
        net.node(&self.name(end), "div", &[frequency, &divisors], json!({}))
    }

    /// `last`: the largest position.
    fn long_frequency(&self, net: &mut Net, frequencies: &Longer, last: &str) -> Result<String> {
        match frequencies {
            Longer::Factors(factors) => {
                Ok(self.constant(net, "long", &Scaling::Long { divisors: factors.clone() }))
            }
            Longer::Divisors(divisors) => {
                let frequency = self.constant(net, "undivided", &self.scaling);
                Ok(self.divided(net, "long", &frequency, divisors))
            }
            Longer::Stretched { factor } => self.stretched(net, *factor, last),
        }
    }

    /// `1 / base^(2 pair / width)` with a base of `theta ((factor length / longest) - (factor - 1))^(width / (width - 2))`.
    fn stretched(&self, net: &mut Net, factor: f64, last: &str) -> Result<String> {
        let (width, longest) = (self.width as f64, self.extended.as_ref().map_or(0, |long| long.beyond));
        if self.width == 2 {
            return Err(Error::model("rope_scaling", "dynamic frequencies take heads of more than one pair"));
        }
        let mut with = |end: &str, op: &str, x: &str, by: f64| {
            let by = net.scalar(&self.name(&format!("stretched.{end}.by")), by);
            net.node(&self.name(&format!("stretched.{end}")), op, &[x, &by], json!({}))
        };
        let length = with("length", "add", last, 1.0);
        let length = with("scaled", "mul", &length, factor);
        let share = with("share", "div", &length, longest as f64);
        let ratio = with("ratio", "sub", &share, factor - 1.0);
        // Short sequences have the other frequencies, and no roots of negative numbers here.
        let ratio = with("least", "max", &ratio, 1.0);
        let power = with("power", "pow", &ratio, width / (width - 2.0));
        let base = with("base", "mul", &power, self.theta);
        let exponents: Vec<f32> =
            (0..self.width / 2).map(|pair| -((2 * pair) as f32 / width as f32)).collect();
        let ty = format!("f32[{}]", self.width / 2);
        let exponents = net.constant(&self.name("stretched.exponents"), &ty, json!(exponents));
        Ok(net.node(&self.name("stretched"), "pow", &[&base, &exponents], json!({})))
    }
}

impl Outer {
    fn read(config: &Config, usual: Usual, width: u64) -> Result<Self> {
        let Usual { theta_field, part_field, .. } = usual;
        config.only("rope_interleaved", false)?;
        Ok(Self {
            theta: match config.get(theta_field) {
                Some(_) => config.positive(theta_field)?,
                None => usual.theta,
            },
            part: match usual.part {
                Some(part) => Some(config.real(part_field, part)?),
                None => {
                    config.only("partial_rotary_factor", 1.0)?;
                    None
                }
            },
            longest: config.whole("max_position_embeddings", 2048)?,
            context: config.whole("original_max_position_embeddings", 0)?,
            width,
        })
    }

    /// How many numbers of a head a share of them is.
    fn turned(&self, part: f64) -> u64 {
        (self.width as f64 * part.clamp(0.0, 1.0)) as u64
    }
}

/// Names of the tables, and which numbers of a head they turn.
pub(super) struct Tables {
    cosines: String,
    sines: String,
    width: u64,
    neighbours: bool,
}

impl Tables {
    /// Turns the first numbers of `x`, of these sizes.
    pub(super) fn rotate(&self, net: &mut Net, name: &str, x: &str, sizes: &[Value; 5]) -> String {
        let whole = sizes[4].as_u64().unwrap_or(self.width);
        if self.width >= whole {
            return self.turn(net, name, x, sizes);
        }
        let mut part = |which: &str, start: u64, width: u64| {
            let attributes = json!({"starts": [0, 0, 0, 0, start], "sizes": with_width(sizes, width)});
            net.node(&format!("{name}.{which}"), "slice", &[x], attributes)
        };
        let first = part("first", 0, self.width);
        let rest = part("rest", self.width, whole - self.width);
        let turned = self.turn(net, &format!("{name}.part"), &first, &with_width(sizes, self.width));
        net.node(name, "concat", &[&turned, &rest], json!({"axis": -1}))
    }

    /// Turns `x`, whose pairs are its halves, or neighbours that become halves: queries and keys lie alike,
    /// so their products are the same.
    fn turn(&self, net: &mut Net, name: &str, x: &str, sizes: &[Value; 5]) -> String {
        let half = self.width / 2;
        let x = if self.neighbours {
            let [batch, shared, per, length, _] = sizes;
            let pairs = json!({"shape": [batch, shared, per, length, half, 2]});
            let pairs = net.node(&format!("{name}.pairs"), "reshape", &[x], pairs);
            let perm = json!({"perm": [0, 1, 2, 3, 5, 4]});
            let halves = net.node(&format!("{name}.halves"), "transpose", &[&pairs], perm);
            &net.node(&format!("{name}.joined"), "reshape", &[&halves], json!({"shape": sizes}))
        } else {
            x
        };
        let mut part = |which: &str, start: u64| {
            let attributes = json!({"starts": [0, 0, 0, 0, start], "sizes": with_width(sizes, half)});
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

fn with_width(sizes: &[Value; 5], width: u64) -> [Value; 5] {
    let mut sizes = sizes.clone();
    sizes[4] = json!(width);
    sizes
}
