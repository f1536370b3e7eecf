//! Machine code as `cuobjdump -sass -res-usage` lists it: instructions, their operands, and the control bits by which
//! they are issued.

use std::path::Path;
use std::process::Command;

/// A kernel's machine code.
pub(crate) struct Code {
    pub(crate) registers: u32,
    /// Bytes of a thread's stack: spilled registers and arrays that are indexed at run time.
    pub(crate) stack: u32,
    /// Static shared memory of a block, in bytes, without what the driver takes.
    pub(crate) shared: u32,
    pub(crate) instructions: Vec<Instruction>,
}

pub(crate) struct Instruction {
    pub(crate) address: u32,
    pub(crate) guard: Option<Predicate>,
    /// With its modifiers: `LDG.E.128`.
    pub(crate) name: String,
    pub(crate) operands: Vec<Operand>,
    pub(crate) control: Control,
}

impl Instruction {
    /// The name without modifiers.
    pub(crate) fn stem(&self) -> &str {
        self.name.split('.').next().unwrap_or("")
    }

    pub(crate) fn has(&self, modifier: &str) -> bool {
        self.name.split('.').skip(1).any(|one| one == modifier)
    }

    /// Bytes that each thread moves.
    pub(crate) fn width(&self) -> u32 {
        let sizes = [("128", 16), ("64", 8), ("U16", 2), ("S16", 2), ("U8", 1), ("S8", 1)];
        sizes.into_iter().find(|(modifier, _)| self.has(modifier)).map_or(4, |(_, bytes)| bytes)
    }
}

/// Bits 105 to 121 of an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    /// Cycles until the next instruction of the warp may be issued.
    pub(crate) stall: u32,
    /// The barrier that is released when the result is there.
    pub(crate) result: Option<usize>,
    /// The barrier that is released when the operands were read.
    pub(crate) operands: Option<usize>,
    /// The barriers that are waited for, one bit each.
    pub(crate) wait: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Predicate {
    pub(crate) uniform: bool,
    /// 7 is always true.
    pub(crate) index: usize,
    pub(crate) negated: bool,
}

/// What comes before a register: `-`, `~`, or bars.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sign {
    pub(crate) minus: bool,
    pub(crate) inverted: bool,
    pub(crate) absolute: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Operand {
    /// 255 is zero. `half`: a part of it is meant (`.H0_H0`).
    Register {
        index: usize,
        sign: Sign,
        half: bool,
    },
    /// 63 is zero; 255 on later architectures.
    Uniform {
        index: usize,
        sign: Sign,
    },
    Predicate(Predicate),
    Whole(i64),
    /// A number in decimals, infinity or not-a-number.
    Real(f64),
    Constant {
        offset: u32,
        minus: bool,
    },
    Memory {
        register: Option<(usize, bool)>,
        uniform: Option<usize>,
        offset: i64,
    },
    /// `SR_TID.X`; `gsb0`, which ends a batch of products or waits for it.
    Special(String),
    /// Where lanes that part meet again.
    Meeting(usize),
    Other,
}

impl Code {
    /// The first access of memory that may come before the kernel before this one has ended, or before the wait for it
    /// is there at all: of code that may be begun early.
    pub(crate) fn too_early(&self) -> Option<&Instruction> {
        let memory = ["LD", "ST", "LDG", "STG", "LDGSTS", "ATOM", "ATOMG", "RED", "REDG", "UBLKCP"];
        let mut before = self.instructions.iter().take_while(|one| one.stem() != "ACQBULK");
        before.find(|one| memory.contains(&one.stem()))
    }
}

/// Lists the only kernel of a file.
///
/// Error: the disassembler is not there or refuses the file, in words.
pub(crate) fn listed(disassembler: &Path, file: &Path) -> Result<Code, String> {
    let done = Command::new(disassembler).args(["-sass", "-res-usage"]).arg(file).output();
    let done = done.map_err(|error| format!("{}: {error}", disassembler.display()))?;
    if !done.status.success() {
        return Err(String::from_utf8_lossy(&done.stderr).into_owned());
    }
    parsed(&String::from_utf8_lossy(&done.stdout))
        .ok_or_else(|| format!("{}: not understood", file.display()))
}

fn parsed(text: &str) -> Option<Code> {
    let usage = text.lines().find(|line| line.contains("REG:"))?;
    let number = |key: &str| -> Option<u32> {
        usage.split_whitespace().find_map(|word| word.strip_prefix(key))?.parse().ok()
    };
    let lines: Vec<&str> = text.lines().collect();
    let mut instructions = Vec::new();
    for pair in lines.windows(2) {
        if let Some(instruction) = instruction(pair[0], pair[1]) {
            instructions.push(instruction);
        }
    }
    // The driver keeps the first KiB of a block's shared memory since sm_80, which the listing includes since sm_90.
    let shared = number("SHARED:")?;
    let shared = if shared >= 1024 && text.contains("sm_90") { shared - 1024 } else { shared };
    Some(Code { registers: number("REG:")?, stack: number("STACK:")?, shared, instructions })
}

/// An instruction, whose upper 64 bits stand in the next line.
fn instruction(line: &str, next: &str) -> Option<Instruction> {
    let (address, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    let address = u32::from_str_radix(address, 16).ok()?;
    let (text, _) = rest.split_once(';')?;
    let upper = next.trim().strip_prefix("/* 0x")?.strip_suffix(" */")?;
    let upper = u64::from_str_radix(upper, 16).ok()?;
    let mut text = text.trim();
    let mut guard = None;
    if let Some(rest) = text.strip_prefix('@') {
        let (name, rest) = rest.split_once(' ')?;
        guard = predicate(name);
        text = rest.trim_start();
    }
    let (name, operands) = text.split_once(' ').unwrap_or((text, ""));
    let operands = operands.split(", ").map(str::trim).filter(|one| !one.is_empty()).map(operand).collect();
    Some(Instruction { address, guard, name: name.to_owned(), operands, control: control(upper) })
}

fn control(upper: u64) -> Control {
    let bits = |from: u32, count: u32| (upper >> (from - 64) & ((1 << count) - 1)) as u32;
    let barrier = |from: u32| Some(bits(from, 3) as usize).filter(|&number| number < 6);
    Control { stall: bits(105, 4), result: barrier(110), operands: barrier(113), wait: bits(116, 6) }
}

fn predicate(text: &str) -> Option<Predicate> {
    let (negated, text) = text.strip_prefix('!').map_or((false, text), |rest| (true, rest));
    let (uniform, text) = text.strip_prefix('U').map_or((false, text), |rest| (true, rest));
    let number = text.strip_prefix('P')?;
    let index = if number == "T" { 7 } else { number.parse().ok().filter(|&index: &usize| index < 7)? };
    Some(Predicate { uniform, index, negated })
}

fn operand(text: &str) -> Operand {
    if let Some(predicate) = predicate(text) {
        return Operand::Predicate(predicate);
    }
    if let Some(number) = text.strip_prefix('B').and_then(|number| number.parse().ok()) {
        return Operand::Meeting(number);
    }
    if text.starts_with("SR_") || text == "gsb0" {
        return Operand::Special(text.to_owned());
    }
    if let Some(number) = hexadecimal(text) {
        return Operand::Whole(number);
    }
    if let Some(number) = real(text) {
        return Operand::Real(number);
    }
    let text =
        text.strip_prefix("desc").map_or(text, |rest| rest.split_once(']').map_or(rest, |parts| parts.1));
    if let Some(inner) = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        return memory(inner);
    }
    signed(text).unwrap_or(Operand::Other)
}

fn hexadecimal(text: &str) -> Option<i64> {
    let (minus, digits) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
    let number = u64::from_str_radix(digits.strip_prefix("0x")?, 16).ok()? as i64;
    Some(if minus { -number } else { number })
}

fn real(text: &str) -> Option<f64> {
    match text {
        "+INF" | "INF" => Some(f64::INFINITY),
        "-INF" => Some(f64::NEG_INFINITY),
        "+QNAN" | "-QNAN" | "QNAN" => Some(f64::NAN),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-' || c == '.') => text.parse().ok(),
        _ => None,
    }
}

fn memory(inner: &str) -> Operand {
    let (mut register, mut uniform, mut offset) = (None, None, 0);
    for term in inner.replace("+-", "+ -").split('+').map(str::trim) {
        if let Some(number) = hexadecimal(term) {
            offset += number;
        } else if let Some(index) = register_index(term, "UR") {
            uniform = Some(index);
        } else if let Some(index) = register_index(term, "R") {
            register = Some((index, term.contains(".64")));
        }
    }
    Operand::Memory { register, uniform, offset }
}

/// The number of `R7.reuse` or `UR4`; that of zero is 255.
fn register_index(text: &str, prefix: &str) -> Option<usize> {
    let number = text.strip_prefix(prefix)?.split('.').next()?;
    if number == "Z" { Some(255) } else { number.parse().ok() }
}

fn signed(text: &str) -> Option<Operand> {
    let mut sign = Sign::default();
    let mut rest = text;
    loop {
        if let Some(next) = rest.strip_prefix('-') {
            (sign.minus, rest) = (true, next);
        } else if let Some(next) = rest.strip_prefix('~') {
            (sign.inverted, rest) = (true, next);
        } else if let Some(next) = rest.strip_prefix('|') {
            (sign.absolute, rest) = (true, next);
        } else {
            break;
        }
    }
    if let Some(inner) = rest.strip_prefix("c[0x0][") {
        let offset = u32::from_str_radix(inner.split(']').next()?.strip_prefix("0x")?, 16).ok()?;
        return Some(Operand::Constant { offset, minus: sign.minus });
    }
    if let Some(index) = register_index(rest, "UR") {
        return Some(Operand::Uniform { index, sign });
    }
    let index = register_index(rest, "R")?;
    Some(Operand::Register { index, sign, half: rest.contains(".H") || rest.contains(".B") })
}
