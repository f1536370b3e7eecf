//! Functions of TensorFlow in models of Keras 2 (`TFOpLambda`, `SlicingOpLambda`): each as the function of `keras.ops` that
//! computes the same. Unlike there, attributes and operands stand in the call.

use serde_json::{Map, Value, json};

/// A function of `keras.ops`, what its attributes are called, and which arguments of the call are operands.
pub(in super::super) struct Translated {
    pub(in super::super) class: &'static str,
    pub(in super::super) config: Map<String, Value>,
    /// Arguments that follow the first one, in their order.
    pub(in super::super) operands: &'static [&'static str],
}

/// Name in TensorFlow, class, operands behind the first, and attributes by both names.
type Row = (&'static str, &'static str, &'static [&'static str], &'static [(&'static str, &'static str)]);

const NONE: &[&str] = &[];
const Y: &[&str] = &["y"];
const PLAIN: &[(&str, &str)] = &[];
const REDUCE: &[(&str, &str)] = &[("axis", "axis"), ("keepdims", "keepdims")];
const AXIS: &[(&str, &str)] = &[("axis", "axis")];

#[rustfmt::skip]
const TABLE: &[Row] = &[
    ("__operators__.add", "Add", Y, PLAIN), ("math.add", "Add", Y, PLAIN),
    ("__operators__.eq", "Equal", &["other"], PLAIN), ("__operators__.ne", "NotEqual", &["other"], PLAIN),
    ("cast", "Cast", NONE, &[("dtype", "dtype")]),
    ("clip_by_value", "Clip", NONE, &[("clip_value_min", "x_min"), ("clip_value_max", "x_max")]),
    ("floor_div", "FloorDivide", Y, PLAIN), ("math.floordiv", "FloorDivide", Y, PLAIN),
    ("gather", "Take", &["indices"], AXIS),
    ("pad", "Pad", NONE, &[("paddings", "pad_width"), ("mode", "mode"), ("constant_values", "constant_values")]),
    ("squeeze", "Squeeze", NONE, AXIS),
    ("transpose", "Transpose", NONE, &[("perm", "axes")]),
    ("concat", "Concatenate", NONE, AXIS),
    ("expand_dims", "ExpandDims", NONE, AXIS),
    ("identity", "Identity", NONE, PLAIN), ("stop_gradient", "StopGradient", NONE, PLAIN),
    ("linalg.matmul", "Product", &["b"], &[("transpose_a", "transpose_a"), ("transpose_b", "transpose_b")]),
    ("linalg.norm", "Norm", NONE, &[("axis", "axis"), ("keepdims", "keepdims"), ("ord", "ord")]),
    ("norm", "Norm", NONE, &[("axis", "axis"), ("keepdims", "keepdims"), ("ord", "ord")]),
    ("math.abs", "Absolute", NONE, PLAIN), ("abs", "Absolute", NONE, PLAIN),
    ("math.add_n", "AddN", NONE, PLAIN),
    ("math.argmax", "Argmax", NONE, AXIS), ("math.argmin", "Argmin", NONE, AXIS),
    ("math.atan", "Arctan", NONE, PLAIN), ("math.ceil", "Ceil", NONE, PLAIN), ("math.cos", "Cos", NONE, PLAIN),
    ("math.cosh", "Cosh", NONE, PLAIN), ("math.cumsum", "Cumsum", NONE, AXIS),
    ("math.divide", "TrueDivide", Y, PLAIN), ("math.truediv", "TrueDivide", Y, PLAIN), ("realdiv", "TrueDivide", Y, PLAIN),
    ("math.equal", "Equal", Y, PLAIN), ("math.erf", "Erf", NONE, PLAIN), ("math.exp", "Exp", NONE, PLAIN),
    ("math.expm1", "Expm1", NONE, PLAIN), ("math.floor", "Floor", NONE, PLAIN), ("math.floormod", "Mod", Y, PLAIN),
    ("math.greater", "Greater", Y, PLAIN), ("math.greater_equal", "GreaterEqual", Y, PLAIN),
    ("math.l2_normalize", "L2Normalize", NONE, AXIS), ("math.less", "Less", Y, PLAIN),
    ("math.less_equal", "LessEqual", Y, PLAIN), ("math.log", "Log", NONE, PLAIN), ("math.log1p", "Log1p", NONE, PLAIN),
    ("math.logical_and", "LogicalAnd", Y, PLAIN), ("math.logical_not", "LogicalNot", NONE, PLAIN),
    ("math.logical_or", "LogicalOr", Y, PLAIN), ("math.maximum", "Maximum", Y, PLAIN), ("math.minimum", "Minimum", Y, PLAIN),
    ("math.multiply", "Multiply", Y, PLAIN), ("math.negative", "Negative", NONE, PLAIN),
    ("math.not_equal", "NotEqual", Y, PLAIN), ("math.pow", "Power", Y, PLAIN), ("math.reciprocal", "Reciprocal", NONE, PLAIN),
    ("math.reduce_all", "All", NONE, REDUCE), ("math.reduce_any", "Any", NONE, REDUCE),
    ("math.reduce_logsumexp", "Logsumexp", NONE, REDUCE), ("math.reduce_max", "Max", NONE, REDUCE),
    ("math.reduce_mean", "Mean", NONE, REDUCE), ("math.reduce_min", "Min", NONE, REDUCE),
    ("math.reduce_prod", "Prod", NONE, REDUCE), ("math.reduce_std", "Std", NONE, REDUCE),
    ("math.reduce_sum", "Sum", NONE, REDUCE), ("math.reduce_variance", "Var", NONE, REDUCE),
    ("math.round", "Round", NONE, PLAIN), ("math.rsqrt", "Rsqrt", NONE, PLAIN), ("math.sigmoid", "Sigmoid", NONE, PLAIN),
    ("math.sign", "Sign", NONE, PLAIN), ("math.sin", "Sin", NONE, PLAIN), ("math.sinh", "Sinh", NONE, PLAIN),
    ("math.softplus", "Softplus", NONE, PLAIN), ("math.sqrt", "Sqrt", NONE, PLAIN), ("math.square", "Square", NONE, PLAIN),
    ("math.squared_difference", "SquaredDifference", Y, PLAIN), ("math.subtract", "Subtract", Y, PLAIN),
    ("math.tan", "Tan", NONE, PLAIN), ("math.tanh", "Tanh", NONE, PLAIN),
    ("nn.bias_add", "BiasAdd", &["bias"], PLAIN),
    ("nn.elu", "Elu", NONE, PLAIN), ("nn.gelu", "Gelu", NONE, &[("approximate", "approximate")]),
    ("nn.leaky_relu", "LeakyRelu", NONE, &[("alpha", "negative_slope")]), ("nn.log_softmax", "LogSoftmax", NONE, AXIS),
    ("nn.relu", "Relu", NONE, PLAIN), ("nn.relu6", "Relu6", NONE, PLAIN), ("nn.selu", "Selu", NONE, PLAIN),
    ("nn.sigmoid", "Sigmoid", NONE, PLAIN), ("nn.silu", "Silu", NONE, PLAIN), ("nn.softmax", "Softmax", NONE, AXIS),
    ("nn.softplus", "Softplus", NONE, PLAIN), ("nn.softsign", "Softsign", NONE, PLAIN),
    ("one_hot", "OneHot", NONE, &[("depth", "num_classes"), ("axis", "axis")]),
    ("ones_like", "OnesLike", NONE, PLAIN), ("zeros_like", "ZerosLike", NONE, PLAIN),
    ("repeat", "Repeat", NONE, &[("repeats", "repeats"), ("axis", "axis")]),
    ("reshape", "Reshape", NONE, &[("shape", "newshape")]), ("reverse", "Flip", NONE, AXIS),
    ("roll", "Roll", NONE, &[("shift", "shift"), ("axis", "axis")]),
    ("split", "Split", NONE, &[("num_or_size_splits", "indices_or_sections"), ("axis", "axis")]),
    ("stack", "Stack", NONE, AXIS), ("tile", "Tile", NONE, &[("multiples", "repeats")]),
    ("unstack", "Unstack", NONE, AXIS), ("where", "Where", &["x", "y"], PLAIN),
];

/// Arguments that change no number: of integers how wide they are, too.
const IDLE: [&str; 5] = ["name", "conjugate", "validate_indices", "message", "output_type"];

/// Whether an argument says what is computed here anyway.
fn is_usual(name: &str, value: &Value) -> bool {
    match name {
        "epsilon" => value.as_f64() == Some(1e-12),
        "data_format" => value.as_str().is_some_and(|format| format.ends_with('C')),
        _ => IDLE.contains(&name),
    }
}

/// What a function is with these arguments. Error: why it is none.
pub(in super::super) fn translated(
    function: &str,
    arguments: &Map<String, Value>,
) -> Result<Translated, String> {
    if function == "__operators__.getitem" {
        return Ok(Translated { class: "GetItem", config: Map::new(), operands: &["slice_spec"] });
    }
    let own = function.strip_prefix("compat.v1.").unwrap_or(function);
    let Some((_, class, operands, attributes)) = TABLE.iter().find(|(name, ..)| *name == own) else {
        return Err(format!("function tf.{function}"));
    };
    let mut config = Map::new();
    for (name, value) in arguments {
        let is_set = !value.is_null() && *value != false && *value != 0;
        match attributes.iter().find(|(from, _)| from == name) {
            Some((_, to)) => drop(config.insert((*to).to_owned(), value.clone())),
            None if operands.contains(&name.as_str()) || !is_set => {}
            None if is_usual(name, value) => {}
            None => return Err(format!("function tf.{function} with {name}")),
        }
    }
    let mut default = |key: &str, value: Value| {
        config.entry(key).or_insert(value);
    };
    match *class {
        // TensorFlow counts along the first axis where Keras takes all elements, or the last.
        "Argmax" | "Argmin" | "Cumsum" | "Take" => default("axis", json!(0)),
        "Gelu" => default("approximate", json!(false)),
        "LeakyRelu" => default("negative_slope", json!(0.2)),
        "Split" => default("sizes", json!(true)),
        _ => {}
    }
    Ok(Translated { class, config, operands })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_read(function: &str, arguments: Value) -> bool {
        translated(function, arguments.as_object().unwrap()).is_ok()
    }

    #[test]
    fn what_would_change_a_number_is_not_passed_over() {
        for (function, usual, other) in [
            (
                "math.l2_normalize",
                json!({"axis": -1, "epsilon": 1e-12}),
                json!({"axis": -1, "epsilon": 1e-3}),
            ),
            ("nn.bias_add", json!({"data_format": "NHWC"}), json!({"data_format": "NCHW"})),
            ("math.cumsum", json!({"axis": 1, "reverse": false}), json!({"axis": 1, "reverse": true})),
            ("compat.v1.gather", json!({"axis": 1, "batch_dims": 0}), json!({"axis": 1, "batch_dims": 1})),
        ] {
            assert!(is_read(function, usual) && !is_read(function, other), "{function}");
        }
    }
}
