//! The field `quantization_config`: in which few bits a checkpoint has its weights, and which layers have them so.
//!
//! What a tool says of how it found the numbers changes nothing here. What is said of the numbers themselves is read, or
//! refused by name.

use serde_json::Value;
use wildmatch::WildMatch;

use super::config::Config;
use crate::error::Result;
use crate::ir::{BlockFormat, Coding};

const FIELD: &str = "quantization_config";

/// How a checkpoint is quantised.
#[derive(Debug)]
pub(super) struct Quantised {
    /// How its arrays hold matrices; none where each is an array with a scale beside.
    pub(super) coding: Option<Coding>,
    /// The groups of a row that are held packed; none where nothing is.
    groups: Option<GroupsOf>,
    layers: Layers,
    /// What layers read is rounded to 8 bits, row by row.
    pub(super) rounds: bool,
    /// A line about how the weights are computed with.
    pub(super) note: Option<String>,
}

/// How numbers share scales.
#[derive(Clone, Copy, Debug)]
struct GroupsOf {
    bits: u8,
    /// Numbers of a group; none where a row is one.
    size: Option<u32>,
}

/// Which layers are quantised.
#[derive(Debug, Default)]
struct Layers {
    /// All but these: patterns of names, and pieces of names.
    not: Vec<WildMatch>,
    not_with: Vec<String>,
    /// Those within blocks alone, whose names have a number, and none that choose experts.
    within_blocks: bool,
    /// Only layers whose names end so; all where there are none.
    only: Vec<String>,
}

impl Layers {
    fn has(&self, name: &str) -> bool {
        let is_router = ROUTERS.iter().any(|router| name.ends_with(router));
        let is_within = !is_router && name.split('.').any(|piece| piece.parse::<u32>().is_ok());
        let is_listed = self.only.is_empty() || self.only.iter().any(|end| name.ends_with(end.as_str()));
        let is_left = self.not.iter().any(|pattern| pattern.matches(name))
            || self.not_with.iter().any(|piece| name.contains(piece.as_str()));
        (is_within || !self.within_blocks) && is_listed && !is_left
    }
}

/// Layers that choose experts: tools leave them as they are.
const ROUTERS: [&str; 4] = ["block_sparse_moe.gate", "mlp.gate", "mlp.router", "mlp.shared_expert_gate"];

impl Quantised {
    /// The blocks that a layer's weight is held in, of so many numbers a row; none where it is held as numbers.
    pub(super) fn blocks(&self, layer: &str, columns: u64) -> Option<BlockFormat> {
        if self.coding == Some(Coding::Mxfp4Rows) {
            let format = BlockFormat::Mxfp4;
            let is_whole = columns.is_multiple_of(format.elements());
            return (is_whole && self.layers.has(layer)).then_some(format);
        }
        let groups = self.groups.filter(|_| self.layers.has(layer))?;
        let size = groups.size.or(u32::try_from(columns).ok())?;
        let format = BlockFormat::Groups { bits: groups.bits, size };
        (format.is_known() && columns.is_multiple_of(u64::from(size))).then_some(format)
    }

    /// Whether what a layer reads is rounded.
    pub(super) fn rounds_for(&self, layer: &str) -> bool {
        self.rounds && self.layers.has(layer)
    }

    /// What the configuration says; none where weights are numbers. Errors: a method or a field that is not read.
    pub(super) fn read(config: &Config) -> Result<Option<Self>> {
        let is_empty = |value: &Value| value.as_object().is_some_and(|fields| fields.is_empty());
        if config.get(FIELD).is_some_and(is_empty) {
            return Ok(None);
        }
        let Some(quantization) = config.object(FIELD)? else { return Ok(None) };
        let method = quantization.text("quant_method", "")?;
        let read = match method {
            "fp8" | "fbgemm_fp8" => floats(&quantization)?,
            "modelopt" if quantization.text("quant_algo", "")?.starts_with("FP8") => floats(&quantization)?,
            "modelopt" if quantization.text("quant_algo", "")? == "NVFP4" => {
                let what =
                    "floats of 4 bits (what layers read stays in f32, where the library rounds it too)";
                Self::unpacked(Coding::Nvfp4 { is_divided: false }, what)
            }
            "compressed-tensors" => compressed(&quantization)?,
            "gptq" => gptq(&quantization)?,
            "awq" => awq(&quantization)?,
            "bitsandbytes" => bitsandbytes(&quantization)?,
            "mxfp4" => mxfp4(&quantization)?,
            "" => return Err(config.refused(FIELD, "names no quant_method")),
            _ => {
                let message = format!(
                    "{method} is not supported; compressed-tensors, gptq, awq, bitsandbytes, mxfp4 and fp8 are"
                );
                return Err(quantization.refused("quant_method", &message));
            }
        };
        Ok(Some(read))
    }

    /// Weights that are numbers once they are read, with a line that says so.
    fn unpacked(coding: Coding, what: &str) -> Self {
        let note = format!(
            "{FIELD}: {what} are unpacked to f32 when they are read; --weights-as q8_0 or q4_0 packs them anew"
        );
        Self {
            coding: Some(coding),
            groups: None,
            layers: Layers::default(),
            rounds: false,
            note: Some(note),
        }
    }
}

/// Floats of 8 bits with their scales beside them: what they are is told by their arrays.
fn floats(config: &Config) -> Result<Quantised> {
    // How large blocks are follows from how many scales there are, if they are of a power of two.
    let blocks = config.wholes("weight_block_size")?;
    if blocks.iter().any(|block| !block.is_power_of_two()) {
        let message = format!("blocks of {blocks:?}: only those of powers of two are supported");
        return Err(config.refused("weight_block_size", &message));
    }
    // What layers read is rounded too, by these fields or by the method.
    let is_rounded =
        ["activation_scheme", "input_activations"].iter().any(|field| config.get(field).is_some())
            || ["fbgemm_fp8", "modelopt"].contains(&config.text("quant_method", "")?);
    let note = is_rounded.then(|| format!("{FIELD}: {UNROUNDED}"));
    Ok(Quantised { coding: None, groups: None, layers: Layers::default(), rounds: false, note })
}

/// What is told where layers read rounded numbers.
const UNROUNDED: &str = "what layers read stays in f32, where the library rounds it too";

/// Fields that say how numbers were found, or by which program they are multiplied.
const OF_GPTQ: &[&str] = &[
    "act_group_aware",
    "backend",
    "batch_size",
    "block_name_to_quantize",
    "cache_block_outputs",
    "cache_examples_on_gpu",
    "damp_auto_increment",
    "damp_percent",
    "dataset",
    "disable_exllama",
    "exllama_config",
    "hyb_act",
    "max_input_length",
    "meta",
    "model_file_base_name",
    "model_name_or_path",
    "model_seqlen",
    "module_name_preceding_first_block",
    "mse",
    "pad_token_id",
    "quantizer",
    "static_groups",
    "sym",
    "tokenizer",
    "true_sequential",
    "use_cuda_fp16",
    "use_exllama",
];

/// Bits and numbers of a group; `group` is -1 where a row is one. Error: bits that are not among those.
fn groups_of(config: &Config, [bits, group]: [&'static str; 2], known: &[u64]) -> Result<GroupsOf> {
    let count = config.whole(bits, 4)?;
    let bits = u8::try_from(count)
        .ok()
        .filter(|_| known.contains(&count))
        .ok_or_else(|| config.refused(bits, &format!("{count} bits are not supported, only {known:?}")))?;
    let size = match config.get(group).map(|size| (size.as_i64(), size)) {
        None => Some(128),
        Some((Some(-1), _)) => None,
        Some((Some(size), value)) => {
            let size = u32::try_from(size).ok().filter(|&size| size > 0);
            Some(size.ok_or_else(|| config.fault(group, format!("{value} is no size")))?)
        }
        Some((None, value)) => return Err(config.fault(group, format!("{value} is no size"))),
    };
    Ok(GroupsOf { bits, size })
}

fn gptq(config: &Config) -> Result<Quantised> {
    for &name in OF_GPTQ {
        config.pass_over(name);
    }
    let groups = groups_of(config, ["bits", "group_size"], &[2, 4, 8])?;
    config.only("is_marlin_format", false)?;
    config.only("pack_dtype", "int32")?;
    config.unset("dynamic", "layers that are quantised one by one are not supported")?;
    let zeros_less_one = has_zeros_less_one(config)?;
    let only = texts(config, "modules_in_block_to_quantize")?;
    let layers = Layers { within_blocks: !config.flag("lm_head", false)?, only, ..Layers::default() };
    // Their columns are in the order of what they do, not of where they are.
    let is_ordered = config.flag("desc_act", false)? && groups.size.is_some();
    config.all_read()?;
    let coding = Coding::Gptq { bits: groups.bits, zeros_less_one };
    if is_ordered {
        return Ok(Quantised::unpacked(coding, "weights whose groups are not neighbours (desc_act)"));
    }
    Ok(Quantised { coding: Some(coding), groups: Some(groups), layers, rounds: false, note: None })
}

/// Whether zero points are stored less 1, as the first version of the format has them. Error: it is of another one.
fn has_zeros_less_one(config: &Config) -> Result<bool> {
    let mut is_first = true;
    // Tools call the version by one of two names.
    for field in ["checkpoint_format", "format"] {
        match config.text(field, "gptq")? {
            "gptq" => {}
            "gptq_v2" => is_first = false,
            other => return Err(config.refused(field, &format!("{other} is not supported"))),
        }
    }
    Ok(is_first)
}

/// The texts of a list, or of lists in it.
fn nested_texts(value: &Value) -> Option<Vec<String>> {
    let mut texts = Vec::new();
    for item in value.as_array()? {
        match item {
            Value::String(text) => texts.push(text.clone()),
            Value::Array(items) => {
                for item in items {
                    texts.push(item.as_str()?.to_owned());
                }
            }
            _ => return None,
        }
    }
    Some(texts)
}

/// The texts that a field lists; empty where it is null or absent.
fn texts(config: &Config, name: &'static str) -> Result<Vec<String>> {
    match config.get(name) {
        None => Ok(Vec::new()),
        Some(value) => nested_texts(value).ok_or_else(|| config.fault(name, "is no list of names")),
    }
}

fn awq(config: &Config) -> Result<Quantised> {
    for name in ["backend", "exllama_config", "fuse_max_seq_len", "modules_to_fuse"] {
        config.pass_over(name);
    }
    let names = match config.get("w_bit").is_some() {
        true => ["w_bit", "q_group_size"],
        false => ["bits", "group_size"],
    };
    let groups = groups_of(config, names, &[4])?;
    config.only("do_fuse", false)?;
    config.only("zero_point", true)?;
    if !config.text("version", "gemm")?.eq_ignore_ascii_case("gemm") {
        return Err(config.refused("version", "only gemm is supported"));
    }
    let not_with = texts(config, "modules_to_not_convert")?;
    config.all_read()?;
    let layers = Layers { within_blocks: true, not_with, ..Layers::default() };
    Ok(Quantised { coding: Some(Coding::Awq), groups: Some(groups), layers, rounds: false, note: None })
}

fn bitsandbytes(config: &Config) -> Result<Quantised> {
    let set = |names: [&'static str; 2]| -> Result<bool> {
        Ok(config.flag(names[0], false)? | config.flag(names[1], false)?)
    };
    let is_eight = set(["load_in_8bit", "_load_in_8bit"])?;
    let is_four = set(["load_in_4bit", "_load_in_4bit"])?;
    config.only("bnb_4bit_quant_storage", "uint8")?;
    config.only("llm_int8_has_fp16_weight", false)?;
    for name in [
        "bnb_4bit_compute_dtype",
        "bnb_4bit_quant_type",
        "bnb_4bit_use_double_quant",
        "llm_int8_enable_fp32_cpu_offload",
        "llm_int8_threshold",
    ] {
        config.pass_over(name);
    }
    let mut not_with = texts(config, "llm_int8_skip_modules")?;
    not_with.push("lm_head".to_owned());
    config.all_read()?;
    match (is_eight, is_four) {
        (false, true) => Ok(Quantised::unpacked(Coding::BitsAndBytes, "weights of bitsandbytes' 4 bits")),
        (true, false) => Ok(Quantised {
            coding: Some(Coding::BitsAndBytes),
            groups: Some(GroupsOf { bits: 8, size: None }),
            layers: Layers { not_with, ..Layers::default() },
            rounds: false,
            note: Some(format!(
                "{FIELD}: weights are those of bitsandbytes' 8 bits; what they multiply stays in f32, where the library rounds it"
            )),
        }),
        _ => Err(config.refused("load_in_4bit", "one of load_in_4bit and load_in_8bit is supported")),
    }
}

fn mxfp4(config: &Config) -> Result<Quantised> {
    for name in ["dequantize", "modules_to_not_convert"] {
        config.pass_over(name);
    }
    config.all_read()?;
    let coding = Some(Coding::Mxfp4);
    Ok(Quantised { coding, groups: None, layers: Layers::default(), rounds: false, note: None })
}

/// Fields of compressed-tensors that say nothing of the numbers.
const OF_COMPRESSED: &[&str] =
    &["global_compression_ratio", "kv_cache_scheme", "quantization_status", "version"];

fn compressed(config: &Config) -> Result<Quantised> {
    for &name in OF_COMPRESSED {
        config.pass_over(name);
    }
    let format = config.text("format", "")?;
    if format == "float-quantized" {
        let groups = config.object("config_groups")?;
        let first = groups.map(|groups| groups.object("group_0")).transpose()?.flatten();
        return floats(first.as_ref().unwrap_or(config));
    }
    config.unset("transform_config", "transforms are not supported")?;
    if let Some(sparsity) = config.object("sparsity_config")? {
        sparsity.only("format", "dense")?;
    }
    let ignored = texts(config, "ignore")?;
    let not = ignored.iter().map(|name| pattern(config, "ignore", name)).collect::<Result<Vec<_>>>()?;
    let groups = config.object("config_groups")?;
    let groups = groups.ok_or_else(|| config.fault("config_groups", "is missing"))?;
    let Some(scheme) = groups.object("group_0")? else {
        return Err(config.fault("config_groups", "has no group_0"));
    };
    groups.all_read()?;
    config.all_read()?;
    let targets = texts(&scheme, "targets")?;
    if targets != ["Linear"] {
        return Err(scheme.refused("targets", &format!("{targets:?}: only [\"Linear\"] is supported")));
    }
    scheme.unset("output_activations", "results that are rounded are not supported")?;
    let format = match scheme.get("format") {
        Some(_) => scheme.text("format", "")?,
        None => format,
    };
    let weights = scheme.object("weights")?.ok_or_else(|| scheme.fault("weights", "is missing"))?;
    let is_float = weights.text("type", "int")? == "float";
    if format == "naive-quantized" && is_float || format == "float-quantized" {
        return floats(&scheme);
    }
    if is_float {
        return floats_of_four_bits(&scheme, format, Layers { not, ..Layers::default() });
    }
    let inputs = scheme.object("input_activations")?;
    let rounds = inputs.is_some();
    inputs.map_or(Ok(()), |inputs| check_rounding(&inputs))?;
    scheme.all_read()?;
    let layers = Layers { not, ..Layers::default() };
    integers(config, &weights, format, layers, rounds)
}

/// Floats of 4 bits of compressed-tensors. Error: another format.
fn floats_of_four_bits(scheme: &Config, format: &str, layers: Layers) -> Result<Quantised> {
    let is_rounded = scheme.get("input_activations").is_some();
    match format {
        "nvfp4-pack-quantized" => {
            let what = if is_rounded {
                format!("floats of 4 bits ({UNROUNDED})")
            } else {
                "floats of 4 bits".into()
            };
            Ok(Quantised::unpacked(Coding::Nvfp4 { is_divided: true }, &what))
        }
        "mxfp4-pack-quantized" => Ok(Quantised {
            coding: Some(Coding::Mxfp4Rows),
            groups: None,
            layers,
            rounds: false,
            note: is_rounded.then(|| format!("{FIELD}: {UNROUNDED}")),
        }),
        other => Err(scheme.refused("format", &format!("{other} is not supported"))),
    }
}

/// Integers of compressed-tensors.
fn integers(
    config: &Config,
    weights: &Config,
    format: &str,
    layers: Layers,
    rounds: bool,
) -> Result<Quantised> {
    for name in ["observer", "observer_kwargs", "scale_dtype", "zp_dtype"] {
        weights.pass_over(name);
    }
    weights.only("type", "int")?;
    weights.only("dynamic", false)?;
    weights.unset("block_structure", "scales of blocks are not supported")?;
    let has_zeros = !weights.flag("symmetric", true)?;
    let size = match weights
        .text("strategy", if weights.get("group_size").is_some() { "group" } else { "tensor" })?
    {
        "group" => Some(weights.size("group_size")? as u32),
        "channel" | "tensor" => {
            weights.unset("group_size", "of a scale for each row is not supported")?;
            None
        }
        other => return Err(weights.refused("strategy", &format!("{other} is not supported"))),
    };
    let bits = weights.whole("num_bits", 8)?;
    let (coding, known): (_, &[u64]) = match format {
        "pack-quantized" => (Coding::Words { bits: bits as u8, has_zeros }, &[2, 4, 8]),
        "int-quantized" | "naive-quantized" => (Coding::Bytes { has_zeros }, &[8]),
        other => return Err(config.refused("format", &format!("{other} is not supported"))),
    };
    if !known.contains(&bits) {
        return Err(weights
            .refused("num_bits", &format!("{bits} bits are not supported in {format}, only {known:?}")));
    }
    let is_ordered = match weights.get("actorder") {
        None | Some(Value::Bool(false)) => false,
        Some(Value::Bool(true)) => true,
        Some(_) => match weights.text("actorder", "")? {
            "weight" | "static" => false,
            "group" | "dynamic" => true,
            other => return Err(weights.refused("actorder", &format!("{other} is not supported"))),
        },
    };
    weights.all_read()?;
    let groups = GroupsOf { bits: bits as u8, size };
    let read = match is_ordered && size.is_some() {
        true => Quantised::unpacked(coding, "weights whose groups are not neighbours (actorder)"),
        false => Quantised {
            coding: Some(coding),
            groups: Some(groups),
            layers: Layers::default(),
            rounds,
            note: None,
        },
    };
    Ok(Quantised { layers, rounds, ..read })
}

/// Error: what layers read is not rounded row by row to 8 bits, by the largest of each row.
fn check_rounding(inputs: &Config) -> Result<()> {
    for name in ["observer", "observer_kwargs", "scale_dtype", "zp_dtype"] {
        inputs.pass_over(name);
    }
    inputs.only("num_bits", 8)?;
    inputs.only("type", "int")?;
    inputs.only("symmetric", true)?;
    inputs.only("dynamic", true)?;
    inputs.only("strategy", "token")?;
    inputs.unset("group_size", "groups of what layers read are not supported")?;
    inputs.unset("block_structure", "blocks of what layers read are not supported")?;
    inputs.unset("actorder", "an order of what layers read is not supported")?;
    inputs.all_read()
}

/// A name, or a regular expression behind `re:` that says no more than a pattern can. Error: it does.
fn pattern(config: &Config, field: &'static str, name: &str) -> Result<WildMatch> {
    let Some(expression) = name.strip_prefix("re:") else { return Ok(WildMatch::new(name)) };
    // It begins where a name does, and goes on unless it says otherwise.
    let (body, end) = match expression.strip_suffix('$') {
        Some(body) => (body, ""),
        None => (expression, "*"),
    };
    let letters = body.trim_start_matches('^').replace("\\.", ".");
    let plain = letters.replace(".*", "*");
    let has_more = letters.replace(".*", "").contains('*');
    if has_more || plain.contains(['[', ']', '(', ')', '|', '+', '?', '\\', '{', '}', '^', '$']) {
        return Err(config.refused(field, &format!("the expression {expression} is not supported")));
    }
    Ok(WildMatch::new(&format!("{plain}{end}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(value: Value) -> Config {
        let Value::Object(fields) = value else { panic!("an object") };
        Config::new(fields)
    }

    #[test]
    fn patterns_are_those_of_expressions() {
        let of = |name: &str| pattern(&config(serde_json::json!({})), "ignore", name);
        assert!(of("lm_head").unwrap().matches("lm_head") && !of("lm_head").unwrap().matches("lm_head.x"));
        assert!(of("re:.*lm_head").unwrap().matches("model.lm_head"));
        assert!(of("re:.*mlp\\.gate$").unwrap().matches("model.layers.3.mlp.gate"));
        assert!(!of("re:.*mlp\\.gate$").unwrap().matches("model.layers.3.mlp.gate_proj"));
        assert!(of("re:.*(gate|up)_proj").is_err());
    }

    #[test]
    fn layers_are_those_that_a_method_takes() {
        let layers = Layers { within_blocks: true, not_with: vec!["visual".into()], ..Layers::default() };
        assert!(layers.has("model.layers.0.self_attn.q_proj") && layers.has("model.layers.0.mlp.gate_proj"));
        for name in ["lm_head", "model.layers.0.mlp.gate", "visual.layers.0.q_proj"] {
            assert!(!layers.has(name), "{name}");
        }
    }
}
