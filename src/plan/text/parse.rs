//! Parses the text form, line by line.

use std::borrow::Cow;
use std::collections::HashSet;
use std::str::FromStr;

use serde::de::DeserializeOwned;

use super::super::{
    Action, Buffer, BufferKind, CopyAction, Cost, Kernel, Lane, Launch, Plan, PlanDevice, PlanModel, Step,
    VERSION,
};
use super::is_bare;
use crate::cost::Profile;
use crate::error::{Error, Result};
use crate::topology::Topology;
use crate::units::{Bytes, Nanos};

/// What is wrong with a line.
type Fault = String;

/// What was read so far.
#[derive(Default)]
struct ParsedParts {
    version: Option<u32>,
    model: Option<PlanModel>,
    options: Option<super::super::PlanOptions>,
    topology: Option<Topology>,
    cost: Option<Cost>,
    bound: Option<super::super::Bound>,
    replan: Option<super::super::Replan>,
    profile: Option<Profile>,
    devices: Vec<PlanDevice>,
    placement: Vec<(String, String)>,
    unlaunched: Vec<String>,
    buffers: Vec<Buffer>,
    kernels: Vec<Kernel>,
    steps: Vec<Step>,
    notes: Vec<String>,
    placed: HashSet<String>,
}

pub(super) fn parse(text: &str, place: &str) -> Result<Plan> {
    let mut parts = ParsedParts::default();
    for (i, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        parts.line(line).map_err(|fault| Error::format(format!("{place}:{}", i + 1), fault))?;
    }
    parts.finish(place)
}

impl ParsedParts {
    fn line(&mut self, line: &str) -> Result<(), Fault> {
        let mut words = Words { rest: line };
        let keyword = words.word("a keyword")?;
        match &*keyword {
            "plan" => {
                let version = words.number("the version")?;
                if version != VERSION {
                    return Err(format!("is a plan of version {version}, and only {VERSION} is known"));
                }
                once("plan", &mut self.version, version)?;
            }
            "model" => once("model", &mut self.model, model(&mut words)?)?,
            "options" => once("options", &mut self.options, words.json()?)?,
            "topology" => once("topology", &mut self.topology, words.json()?)?,
            "bound" => once("bound", &mut self.bound, words.json()?)?,
            "replan" => once("replan", &mut self.replan, words.json()?)?,
            "profile" => once("profile", &mut self.profile, words.json()?)?,
            "cost" => once("cost", &mut self.cost, cost(&mut words)?)?,
            "device" => self.devices.push(device(&mut words)?),
            "node" => {
                let node = words.name("a node")?;
                words.keyword("on")?;
                if !self.placed.insert(node.clone()) {
                    return Err(format!("node {node} is placed twice"));
                }
                self.placement.push((node, words.name("a device")?));
            }
            "unlaunched" => self.unlaunched.push(words.name("a node")?),
            "buffer" => self.buffers.push(buffer(&mut words)?),
            "kernel" => self.kernels.push(kernel(&mut words)?),
            "step" => self.steps.push(step(&mut words)?),
            "note" => self.notes.push(words.name("a remark")?),
            other => return Err(format!("unknown keyword {other:?}")),
        }
        words.end()
    }

    fn finish(self, place: &str) -> Result<Plan> {
        let missing = |what: &str| Error::format(place, format!("has no line `{what}`"));
        let mut plan = Plan {
            version: self.version.ok_or_else(|| missing("plan"))?,
            model: self.model.ok_or_else(|| missing("model"))?,
            options: self.options.ok_or_else(|| missing("options"))?,
            devices: self.devices,
            placement: self.placement,
            unlaunched: self.unlaunched,
            buffers: self.buffers,
            kernels: self.kernels,
            topology: self.topology.ok_or_else(|| missing("topology"))?,
            steps: self.steps,
            cost: self.cost.ok_or_else(|| missing("cost"))?,
            bound: self.bound,
            replan: self.replan,
            profile: self.profile,
            notes: self.notes,
        };
        plan.number_parts();
        Ok(plan)
    }
}

fn once<T>(what: &str, slot: &mut Option<T>, value: T) -> Result<(), Fault> {
    match slot.replace(value) {
        Some(_) => Err(format!("a second line `{what}`")),
        None => Ok(()),
    }
}

fn model(words: &mut Words<'_>) -> Result<PlanModel, Fault> {
    Ok(PlanModel {
        name: words.name("a name")?,
        hash: words.after("hash")?,
        nodes: words.number_after("nodes")?,
        path: words.option("path")?,
    })
}

fn device(words: &mut Words<'_>) -> Result<PlanDevice, Fault> {
    Ok(PlanDevice {
        name: words.name("a device")?,
        target: words.after("target")?,
        memory: Bytes(words.number_after("memory")?),
        arena: Bytes(words.number_after("arena")?),
        peak: Bytes(words.number_after("peak")?),
        reserve: Bytes(if words.skip("reserve") { words.number("a size")? } else { 0 }),
        arena_bound: if words.skip("bound") { Some(Bytes(words.number("a size")?)) } else { None },
    })
}

fn buffer(words: &mut Words<'_>) -> Result<Buffer, Fault> {
    Ok(Buffer {
        id: words.name("an id")?,
        ty: words.name("a type")?,
        device: words.after("on")?,
        offset: Bytes(words.number_after("at")?),
        bytes: Bytes(words.number_after("bytes")?),
        kind: {
            let kind = words.after("kind")?;
            let found = BufferKind::ALL.into_iter().find(|known| known.name() == kind);
            found.ok_or_else(|| format!("unknown kind {kind:?}"))?
        },
        alias: words.option("alias")?,
        value: words.option("value")?.unwrap_or_default(),
        microbatch: words.option_number("microbatch")?,
        of: words.option("of")?,
        bounds: if words.skip("box") { words.json_word()? } else { Vec::new() },
        partial: if words.skip("partial") { Some(words.json_word()?) } else { None },
        feeds: words.option("feeds")?,
        axis: words.option_number("axis")?,
    })
}

fn kernel(words: &mut Words<'_>) -> Result<Kernel, Fault> {
    Ok(Kernel {
        id: words.name("an id")?,
        hero: words.after("hero")?,
        hash: words.after("hash")?,
        nodes: {
            words.keyword("nodes")?;
            words.list()?
        },
    })
}

fn cost(words: &mut Words<'_>) -> Result<Cost, Fault> {
    Ok(Cost {
        transfer_bytes: Bytes(words.number_after("transfer")?),
        step_bytes: Bytes(words.number_after("step")?),
        load_bytes: Bytes(words.number_after("load")?),
        latency_ns: Nanos(words.number_after("latency")?),
        max_load_ns: Nanos(words.number_after("max-load")?),
    })
}

fn step(words: &mut Words<'_>) -> Result<Step, Fault> {
    let id = words.number("a step's number")?;
    let device = words.name("a device")?.into();
    let lane = match &*words.word("a lane")? {
        "compute" => Lane::Compute,
        "copy" => Lane::Copy,
        other => return Err(format!("unknown lane {other:?}")),
    };
    words.keyword("after")?;
    let after = words.list()?;
    let after = after.iter().map(|step| number(step, "a step's number")).collect::<Result<_, _>>()?;
    let action = match &*words.word("`launch` or `copy`")? {
        "launch" => Action::Launch(launch(words)?),
        "copy" => Action::Copy(Box::new(copy(words)?)),
        other => return Err(format!("expected `launch` or `copy`, found {other:?}")),
    };
    Ok(Step { id, device, lane, after, action, why: words.option("why")? })
}

fn launch(words: &mut Words<'_>) -> Result<Launch, Fault> {
    Ok(Launch {
        part: None,
        kernel: if words.is_list() { None } else { Some(words.name("a kernel")?) },
        nodes: words.list()?,
        reads: if words.skip("reads") { words.list()? } else { Vec::new() },
        writes: if words.skip("writes") { words.list()? } else { Vec::new() },
        group: words.option_number("group")?,
        microbatch: words.option_number("microbatch")?,
        again: words.skip("again"),
    })
}

fn copy(words: &mut Words<'_>) -> Result<CopyAction, Fault> {
    Ok(CopyAction {
        from: words.name("a source")?,
        to: words.after("->")?,
        bytes: Bytes(words.number_after("bytes")?),
        node: words.option("of")?,
        output: words.option_number("output")?,
        microbatch: words.option_number("microbatch")?,
        again: words.skip("again"),
        part: match words.skip("part") {
            true => Some((Bytes(words.number("an offset")?), Bytes(words.number("a size")?))),
            false => None,
        },
        readers: if words.skip("readers") { words.list()? } else { Vec::new() },
    })
}

fn number<T: FromStr>(word: &str, what: &str) -> Result<T, Fault> {
    word.parse().map_err(|_| format!("expected {what}, found {word:?}"))
}

/// What is left of a line.
struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    /// The next word, or the content of the next quoted name.
    fn word(&mut self, what: &str) -> Result<Cow<'a, str>, Fault> {
        self.rest = self.rest.trim_start();
        if self.rest.starts_with('"') {
            let mut values = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
            return match values.next() {
                Some(Ok(name)) => {
                    let end = values.byte_offset();
                    self.rest = self.rest.get(end..).unwrap_or_default();
                    Ok(Cow::Owned(name))
                }
                Some(Err(_)) | None => Err(format!("expected {what}, found an unfinished quotation")),
            };
        }
        let end = self.rest.find(|c| !is_bare(c)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        if word.is_empty() {
            let found = self.rest.chars().next().map_or("the end of the line".into(), |c| format!("{c:?}"));
            return Err(format!("expected {what}, found {found}"));
        }
        self.rest = rest;
        Ok(Cow::Borrowed(word))
    }

    fn name(&mut self, what: &str) -> Result<String, Fault> {
        self.word(what).map(Cow::into_owned)
    }

    fn number<T: FromStr>(&mut self, what: &str) -> Result<T, Fault> {
        number(&self.word(what)?, what)
    }

    /// True where `keyword` comes next; it is then left behind.
    fn skip(&mut self, keyword: &str) -> bool {
        let rest = self.rest.trim_start();
        match rest.strip_prefix(keyword) {
            Some(after) if !after.starts_with(is_bare) => {
                self.rest = after;
                true
            }
            Some(_) | None => false,
        }
    }

    fn keyword(&mut self, keyword: &str) -> Result<(), Fault> {
        if self.skip(keyword) { Ok(()) } else { Err(format!("expected `{keyword}` before {:?}", self.rest)) }
    }

    fn after(&mut self, keyword: &str) -> Result<String, Fault> {
        self.keyword(keyword)?;
        self.name(&format!("something after `{keyword}`"))
    }

    fn number_after<T: FromStr>(&mut self, keyword: &str) -> Result<T, Fault> {
        self.keyword(keyword)?;
        self.number(&format!("a number after `{keyword}`"))
    }

    fn option(&mut self, keyword: &str) -> Result<Option<String>, Fault> {
        if self.skip(keyword) {
            self.name(&format!("something after `{keyword}`")).map(Some)
        } else {
            Ok(None)
        }
    }

    fn option_number<T: FromStr>(&mut self, keyword: &str) -> Result<Option<T>, Fault> {
        if self.skip(keyword) {
            self.number(&format!("a number after `{keyword}`")).map(Some)
        } else {
            Ok(None)
        }
    }

    /// The next JSON value, others may follow.
    fn json_word<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, Fault> {
        let rest = self.rest.trim_start();
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<T>();
        match values.next() {
            Some(Ok(value)) => {
                self.rest = rest.get(values.byte_offset()..).unwrap_or_default();
                Ok(value)
            }
            Some(Err(_)) | None => Err(format!("expected JSON before {rest:?}")),
        }
    }

    fn is_list(&self) -> bool {
        self.rest.trim_start().starts_with('(')
    }

    fn list(&mut self) -> Result<Vec<String>, Fault> {
        let rest = self.rest.trim_start();
        self.rest = rest.strip_prefix('(').ok_or_else(|| format!("expected `(` before {rest:?}"))?;
        let mut names = Vec::new();
        loop {
            let rest = self.rest.trim_start();
            if let Some(after) = rest.strip_prefix(')') {
                self.rest = after;
                return Ok(names);
            }
            names.push(self.name("a name or `)`")?);
        }
    }

    /// The rest of the line as JSON.
    fn json<T: DeserializeOwned>(&mut self) -> Result<T, Fault> {
        let value = serde_json::from_str(self.rest).map_err(|error| error.to_string())?;
        self.rest = "";
        Ok(value)
    }

    fn end(&self) -> Result<(), Fault> {
        let rest = self.rest.trim();
        if rest.is_empty() { Ok(()) } else { Err(format!("expected the end of the line, found {rest:?}")) }
    }
}
