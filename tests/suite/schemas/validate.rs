//! A validator of JSON Schema (draft 2020-12) for the keywords that the schemas of `docs` use. A keyword or
//! pattern that it does not know is an error: nothing in a schema is passed over.

use serde_json::{Map, Value};

/// Keywords that assert nothing.
const ANNOTATIONS: [&str; 4] = ["$schema", "title", "description", "$defs"];

/// A schema, and the document that its `$ref`s point into.
#[derive(Clone, Copy)]
pub(crate) struct Schema<'s> {
    root: &'s Value,
    at: &'s Value,
}

impl<'s> Schema<'s> {
    pub(crate) fn new(root: &'s Value) -> Self {
        Self { root, at: root }
    }

    /// The schema under `$defs/NAME`.
    pub(crate) fn definition(self, name: &str) -> Self {
        let found = self.root["$defs"].get(name).unwrap_or_else(|| panic!("no $defs/{name}"));
        self.with(found)
    }

    fn with(self, at: &'s Value) -> Self {
        Self { at, ..self }
    }

    /// Validates `value`. Error: the place in the document (a JSON pointer) and what is wrong there.
    pub(crate) fn validate(self, value: &Value) -> Result<(), String> {
        let keywords = match self.at {
            Value::Bool(true) => return Ok(()),
            Value::Bool(false) => return Err(": nothing is allowed here".into()),
            Value::Object(keywords) => keywords,
            other => panic!("not a schema: {other}"),
        };
        keywords.iter().try_for_each(|(keyword, argument)| self.keyword(keywords, keyword, argument, value))
    }

    fn keyword(
        self,
        siblings: &'s Map<String, Value>,
        keyword: &str,
        argument: &'s Value,
        value: &Value,
    ) -> Result<(), String> {
        match keyword {
            "$ref" => self.referred(argument).validate(value),
            "anyOf" | "oneOf" => self.alternatives(keyword, argument, value),
            "type" => has_type(argument, value),
            "enum" => {
                let listed = list(argument).contains(value);
                expect(listed, || format!("{value} is none of {argument}"))
            }
            "const" => expect(argument == value, || format!("{value} is not {argument}")),
            "properties" | "required" | "additionalProperties" => match value {
                Value::Object(fields) => self.object(siblings, keyword, argument, fields),
                _ => Ok(()),
            },
            "items" | "prefixItems" | "minItems" | "maxItems" | "uniqueItems" => match value {
                Value::Array(items) => self.array(siblings, keyword, argument, items),
                _ => Ok(()),
            },
            "minLength" | "pattern" => match value {
                Value::String(text) => string(keyword, argument, text),
                _ => Ok(()),
            },
            "minimum" | "maximum" => match value {
                Value::Number(number) => limit(keyword, argument, number),
                _ => Ok(()),
            },
            other if ANNOTATIONS.contains(&other) => Ok(()),
            other => panic!("the validator does not know the keyword {other}"),
        }
    }

    fn referred(self, reference: &Value) -> Self {
        let pointer = reference.as_str().and_then(|text| text.strip_prefix('#'));
        let found = pointer.and_then(|pointer| self.root.pointer(pointer));
        self.with(found.unwrap_or_else(|| panic!("$ref {reference} points nowhere")))
    }

    fn alternatives(self, keyword: &str, schemas: &'s Value, value: &Value) -> Result<(), String> {
        let outcomes: Vec<_> = list(schemas).iter().map(|schema| self.with(schema).validate(value)).collect();
        match (keyword, outcomes.iter().filter(|outcome| outcome.is_ok()).count()) {
            (_, 1) | ("anyOf", 1..) => Ok(()),
            (_, 0) => {
                let faults: Vec<String> = outcomes.into_iter().filter_map(Result::err).collect();
                Err(format!(": no alternative fits ({})", faults.join("; ")))
            }
            (_, fitting) => Err(format!(": {fitting} alternatives fit, expected one")),
        }
    }

    fn object(
        self,
        siblings: &'s Map<String, Value>,
        keyword: &str,
        argument: &'s Value,
        fields: &Map<String, Value>,
    ) -> Result<(), String> {
        let declared = || siblings.get("properties").and_then(Value::as_object);
        match keyword {
            "required" => list(argument).iter().try_for_each(|name| {
                let name = name.as_str().expect("names in `required`");
                expect(fields.contains_key(name), || format!("`{name}` is missing"))
            }),
            "properties" => fields.iter().try_for_each(|(name, value)| match argument.get(name) {
                Some(schema) => self.with(schema).validate(value).map_err(|fault| format!("/{name}{fault}")),
                None => Ok(()),
            }),
            _ => fields.iter().try_for_each(|(name, value)| {
                if declared().is_some_and(|declared| declared.contains_key(name)) {
                    return Ok(());
                }
                self.with(argument).validate(value).map_err(|fault| format!("/{name}{fault}"))
            }),
        }
    }

    fn array(
        self,
        siblings: &'s Map<String, Value>,
        keyword: &str,
        argument: &'s Value,
        items: &[Value],
    ) -> Result<(), String> {
        let count = items.len() as u64;
        match keyword {
            "prefixItems" => {
                list(argument).iter().zip(items).enumerate().try_for_each(|(i, (schema, item))| {
                    self.with(schema).validate(item).map_err(|fault| format!("/{i}{fault}"))
                })
            }
            "items" => {
                let prefix = siblings.get("prefixItems").map_or(0, |prefix| list(prefix).len());
                items.iter().enumerate().skip(prefix).try_for_each(|(i, item)| {
                    self.with(argument).validate(item).map_err(|fault| format!("/{i}{fault}"))
                })
            }
            "minItems" => {
                expect(Some(count) >= argument.as_u64(), || format!("fewer than {argument} elements"))
            }
            "maxItems" => {
                expect(Some(count) <= argument.as_u64(), || format!("more than {argument} elements"))
            }
            _ => {
                let repeated = items.iter().enumerate().any(|(i, item)| items[..i].contains(item));
                expect(!repeated || argument == &Value::Bool(false), || "an element is repeated".into())
            }
        }
    }
}

/// Panics where a schema, in any of its parts, has a keyword, type or pattern that is not known. What `validate`
/// never reaches in a test is looked at, too.
pub(crate) fn check_keywords(schema: &Value) {
    let Value::Object(keywords) = schema else {
        return assert!(schema.is_boolean(), "not a schema: {schema}");
    };
    let children = |value: &Value| value.as_object().unwrap().values().for_each(check_keywords);
    for (keyword, argument) in keywords {
        match keyword.as_str() {
            "properties" | "$defs" => children(argument),
            "items" | "additionalProperties" => check_keywords(argument),
            "anyOf" | "oneOf" | "prefixItems" => list(argument).iter().for_each(check_keywords),
            "pattern" => {
                let _known = matcher(argument.as_str().unwrap());
            }
            "type" => types(argument).for_each(|name| {
                let _known = is_of_type(name, &Value::Null);
            }),
            "$ref" | "enum" | "const" | "required" | "minItems" | "maxItems" | "uniqueItems"
            | "minLength" | "minimum" | "maximum" => {}
            other if ANNOTATIONS.contains(&other) => {}
            other => panic!("the validator does not know the keyword {other}"),
        }
    }
}

fn expect(holds: bool, fault: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!(": {}", fault())) }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("expected a list in the schema, found {value}"))
}

fn types(argument: &Value) -> impl Iterator<Item = &str> {
    let names = argument.as_array().map_or(std::slice::from_ref(argument), Vec::as_slice);
    names.iter().map(|name| name.as_str().expect("a type is a string"))
}

fn has_type(argument: &Value, value: &Value) -> Result<(), String> {
    expect(types(argument).any(|name| is_of_type(name, value)), || {
        format!("expected {argument}, found {value}")
    })
}

fn is_of_type(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "number" => value.is_number(),
        "integer" => {
            value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|number| number.fract() == 0.0)
        }
        other => panic!("the validator does not know the type {other}"),
    }
}

fn limit(keyword: &str, argument: &Value, number: &serde_json::Number) -> Result<(), String> {
    let (number, limit) = (number.as_f64().unwrap(), argument.as_f64().unwrap());
    let holds = if keyword == "minimum" { number >= limit } else { number <= limit };
    expect(holds, || format!("{number} is beyond the {keyword}, {limit}"))
}

fn string(keyword: &str, argument: &Value, text: &str) -> Result<(), String> {
    match keyword {
        "minLength" => {
            let length = text.chars().count() as u64;
            expect(Some(length) >= argument.as_u64(), || format!("shorter than {argument} characters"))
        }
        _ => {
            let pattern = argument.as_str().unwrap();
            expect(matcher(pattern)(text), || format!("`{text}` does not match {pattern}"))
        }
    }
}

/// The few patterns that the schemas use, as functions: the project has no engine for regular expressions.
fn matcher(pattern: &str) -> fn(&str) -> bool {
    match pattern {
        "^[0-9A-Fa-f]{16}$" => |text| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "^[A-Za-z_][A-Za-z0-9_]*$" => |text| {
            let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
            text.bytes().all(is_word) && text.bytes().next().is_some_and(|first| !first.is_ascii_digit())
        },
        r"^\s*(f32|f64|f16|bf16|i8|i16|i32|i64|u8|u16|u32|u64|bool)\s*(\[.*\])?\s*$" => |text| {
            let element = text.split('[').next().unwrap_or_default().trim();
            let sizes = &text.trim()[element.len()..];
            const ELEMENTS: [&str; 13] =
                ["f32", "f64", "f16", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool"];
            let known = ELEMENTS.contains(&element);
            known && (sizes.is_empty() || sizes.ends_with(']'))
        },
        other => panic!("the validator does not know the pattern {other}"),
    }
}
