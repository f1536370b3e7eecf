//! Sizes that are known before a program is read: its symbols as numbers.
//!
//! A program that was exported with open sizes says of each tensor how its sizes follow from symbols
//! (`Symbol('s77')`, `Add(Symbol('s77'), Integer(1))`: expressions of SymPy as they print themselves). Where the caller says
//! what the symbols are, those sizes become numbers, and the program is read as one of fixed sizes. What follows from a
//! symbol that stays open stays as it is.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::schema::{Argument, Graph, TensorMeta};

/// Expressions that are deeper stay open.
const DEEPEST: usize = 64;

/// Largest number that is exact as a float.
const LARGEST: f64 = 9_007_199_254_740_992.0;

/// Writes numbers in place of what follows from these symbols alone. O(text of the sizes).
pub(super) fn bind(graph: &mut Graph, symbols: &BTreeMap<String, i64>) {
    if symbols.is_empty() {
        return;
    }
    for meta in graph.tensor_values.values_mut() {
        let TensorMeta { sizes, strides, storage_offset, .. } = meta;
        for size in sizes.iter_mut().chain(strides).chain(storage_offset) {
            if let Some(number) = expression(size).and_then(|text| evaluate(text, symbols)) {
                *size = integer(number);
            }
        }
    }
    let numbers: BTreeMap<&str, i64> = graph
        .sym_int_values
        .iter()
        .filter_map(|(name, of)| Some((name.as_str(), evaluate(expression(of)?, symbols)?)))
        .collect();
    let is_known = |output: &Argument| {
        output.parts().0 == "as_sym_int" && output.name().is_some_and(|name| numbers.contains_key(name))
    };
    graph.nodes.retain(|node| node.outputs.is_empty() || !node.outputs.iter().all(is_known));
    for input in graph.nodes.iter_mut().flat_map(|node| &mut node.inputs) {
        if let Some(known) = numbered(&input.arg, &numbers) {
            input.arg = known;
        }
    }
}

fn integer(number: i64) -> Argument {
    Argument([("as_int".to_owned(), json!(number))].into())
}

/// The text of an expression that a size is.
fn expression(size: &Argument) -> Option<&str> {
    size.parts().1.get("expr_str")?.as_str()
}

/// An argument with numbers for the names that are known; none where it is of no sizes.
fn numbered(argument: &Argument, numbers: &BTreeMap<&str, i64>) -> Option<Argument> {
    let number = |value: &Value| match value.get("as_int") {
        Some(number) => number.as_i64(),
        None => numbers.get(value.get("as_name")?.as_str()?).copied(),
    };
    match argument.parts() {
        ("as_sym_int", value) => number(value).map(integer),
        ("as_sym_ints", Value::Array(all)) => {
            if let Some(all) = all.iter().map(number).collect::<Option<Vec<i64>>>() {
                return Some(Argument([("as_ints".to_owned(), json!(all))].into()));
            }
            let either = |value: &Value| {
                number(value).map_or_else(|| value.clone(), |number| json!({"as_int": number}))
            };
            let some: Vec<Value> = all.iter().map(either).collect();
            Some(Argument([("as_sym_ints".to_owned(), json!(some))].into()))
        }
        _ => None,
    }
}

/// The whole number that an expression is; none where it is another, or has an operation that is not known here.
fn evaluate(text: &str, symbols: &BTreeMap<String, i64>) -> Option<i64> {
    let mut reader = Reader { rest: text.trim(), symbols };
    let number = reader.number(DEEPEST)?;
    let whole = reader.rest.is_empty() && number.fract() == 0.0 && number.abs() < LARGEST;
    whole.then_some(number as i64)
}

/// What is left of an expression.
struct Reader<'a> {
    rest: &'a str,
    symbols: &'a BTreeMap<String, i64>,
}

impl<'a> Reader<'a> {
    fn take(&mut self, start: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(start)?.trim_start();
        Some(())
    }

    fn until(&mut self, is_end: impl Fn(char) -> bool) -> Option<&'a str> {
        let (text, rest) = self.rest.split_at(self.rest.find(is_end)?);
        self.rest = rest;
        Some(text)
    }

    /// `Name(...)`, of at most so many levels.
    fn number(&mut self, deepest: usize) -> Option<f64> {
        let deeper = deepest.checked_sub(1)?;
        let name = self.until(|c| c == '(')?;
        self.take("(")?;
        let number = match name {
            "Symbol" => {
                self.take("'")?;
                let symbol = self.until(|c| c == '\'')?;
                *self.symbols.get(symbol)? as f64
            }
            "Integer" | "Float" => {
                let quoted = self.take("'").is_some();
                let digits = self.until(|c| matches!(c, '\'' | ',' | ')'))?;
                if quoted {
                    self.take("'")?;
                }
                digits.trim().parse().ok()?
            }
            _ => {
                let mut operands = vec![self.number(deeper)?];
                while self.take(",").is_some() {
                    operands.push(self.number(deeper)?);
                }
                self.take(")")?;
                return apply(name, &operands);
            }
        };
        // What is said of it beside: `positive=True`, `precision=53`.
        self.until(|c| c == ')')?;
        self.take(")")?;
        Some(number)
    }
}

/// A function of SymPy or of PyTorch's own (`torch/utils/_sympy/functions.py`).
fn apply(name: &str, operands: &[f64]) -> Option<f64> {
    let nonzero = |number: f64| (number != 0.0).then_some(number);
    let all_exact = operands.iter().all(|number| number.abs() < LARGEST);
    let number = match (name, operands) {
        ("Add", all) => all.iter().sum(),
        ("Mul", all) => all.iter().product(),
        ("Max", all) => all.iter().copied().reduce(f64::max)?,
        ("Min", all) => all.iter().copied().reduce(f64::min)?,
        ("Pow" | "PowByNatural", &[x, y]) if y >= 0.0 && y.fract() == 0.0 && y < 64.0 => x.powi(y as i32),
        ("FloorDiv" | "CleanDiv", &[x, y]) => (x / nonzero(y)?).floor(),
        ("CeilDiv", &[x, y]) => (x / nonzero(y)?).ceil(),
        ("IntTrueDiv" | "FloatTrueDiv", &[x, y]) => x / nonzero(y)?,
        ("Mod" | "PythonMod", &[x, y]) => x - y * (x / nonzero(y)?).floor(),
        ("ToFloat" | "Identity", &[x]) => x,
        ("FloorToInt" | "floor", &[x]) => x.floor(),
        ("CeilToInt" | "ceiling", &[x]) => x.ceil(),
        ("TruncToInt", &[x]) => x.trunc(),
        _ => return None,
    };
    (all_exact && number.is_finite()).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Option<i64> {
        evaluate(text, &BTreeMap::from([("s77".to_owned(), 9), ("s1".to_owned(), 4)]))
    }

    #[test]
    fn expressions_are_what_sympy_says() {
        let s = "Symbol('s77', positive=True, integer=True)";
        let (t, two) = ("Symbol('s1', integer=True)", "Integer(2)");
        for (text, expected) in [
            (s.to_owned(), Some(9)),
            ("Integer(-3)".to_owned(), Some(-3)),
            (format!("Add(Mul({two}, {s}), {t}, Integer(-1))"), Some(21)),
            (format!("FloorDiv({s}, {two})"), Some(4)),
            (format!("FloorDiv(Mul(Integer(-1), {s}), {two})"), Some(-5)),
            (format!("PythonMod(Mul(Integer(-1), {s}), {t})"), Some(3)),
            (format!("Max({two}, Min({s}, {t}))"), Some(4)),
            (format!("Pow({t}, {two})"), Some(16)),
            (format!("TruncToInt(Mul(Float('0.69999999999999996', precision=53), ToFloat({s})))"), Some(6)),
            // A fraction, a symbol that is open, an operation that is not known, no expression.
            (format!("IntTrueDiv({s}, {two})"), None),
            ("Add(Symbol('u0'), Integer(1))".to_owned(), None),
            (format!("FloorDiv({s}, Integer(0))"), None),
            (format!("LShift({s}, {two})"), None),
            (format!("Add({s}, {two}"), None),
            (format!("{s})"), None),
            (String::new(), None),
            ("Abs(".repeat(100_000), None),
        ] {
            assert_eq!(of(&text), expected, "{text:.90}");
        }
    }
}
