//! Runs the machine code of one warp without its data: whole numbers that follow from the launch (threads, blocks,
//! counters, addresses) are computed, what is loaded is unknown. So branches are taken as often as on a GPU, and
//! addresses tell how wide and how well placed the accesses are.
//!
//! A branch on data is guessed: not taken, but for the ways out of a division's rare cases. Of lanes that part, the
//! larger number goes on; the others wait where they meet again.

use super::listing::{Code, Instruction, Operand, Predicate, Sign};
use super::value::{Bits, LANES, Value, zip};

/// How a kernel is launched, and which block is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) grid: u32,
    pub(crate) block: [u32; 2],
    pub(crate) number: u32,
    /// Which warp of it.
    pub(crate) warp: u32,
    /// Where arguments begin in the constant bank.
    pub(crate) arguments: u32,
}

/// Cycles from issue to result of what takes a varying time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Latencies {
    pub(crate) global: u64,
    pub(crate) shared: u64,
    pub(crate) tensor: u64,
    pub(crate) other: u64,
}

/// Accesses of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accesses {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    /// Bytes by the width of an access: of 4 or fewer, 8, 16.
    pub(crate) widths: [u64; 3],
    /// Of global memory: sectors of 32 bytes; of shared memory: passes over the banks.
    pub(crate) units: u64,
    /// As many as there must be.
    pub(crate) least: u64,
    /// Requests whose addresses follow from data.
    pub(crate) unknown: u64,
}

/// What one warp did.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    pub(crate) instructions: u64,
    /// Cycles until its end, where it runs alone.
    pub(crate) cycles: u64,
    /// Instructions by the unit that they take.
    pub(crate) units: [u64; UNITS],
    pub(crate) loads: Accesses,
    pub(crate) stores: Accesses,
    pub(crate) shared: Accesses,
    /// Multiplications and additions of tensor cores.
    pub(crate) tensor: u64,
    /// The same of products by groups of threads: a warp's part.
    pub(crate) groups: u64,
    /// Branches on data.
    pub(crate) guesses: u64,
    /// It was stopped before its end.
    pub(crate) cut: bool,
}

impl Accesses {
    fn add(&mut self, other: &Self, times: u64) {
        self.requests += other.requests * times;
        self.bytes += other.bytes * times;
        self.widths.iter_mut().zip(other.widths).for_each(|(sum, width)| *sum += width * times);
        self.units += other.units * times;
        self.least += other.least * times;
        self.unknown += other.unknown * times;
    }

    fn divided(&mut self, by: u64) {
        for count in
            [&mut self.requests, &mut self.bytes, &mut self.units, &mut self.least, &mut self.unknown]
        {
            *count /= by;
        }
        self.widths.iter_mut().for_each(|width| *width /= by);
    }
}

impl Run {
    /// What a warp does on average where some do one thing and some another: so many of each. They end with the last.
    pub(crate) fn average(parts: &[(Self, u64)]) -> Self {
        let warps = parts.iter().map(|(_, warps)| warps).sum::<u64>().max(1);
        let mut all = Self::default();
        for (run, warps) in parts {
            all.instructions += run.instructions * warps;
            all.units.iter_mut().zip(run.units).for_each(|(sum, unit)| *sum += unit * warps);
            all.loads.add(&run.loads, *warps);
            all.stores.add(&run.stores, *warps);
            all.shared.add(&run.shared, *warps);
            all.tensor += run.tensor * warps;
            all.groups += run.groups * warps;
            all.cycles = all.cycles.max(run.cycles);
            all.guesses += run.guesses;
            all.cut |= run.cut;
        }
        for count in [&mut all.instructions, &mut all.tensor, &mut all.groups] {
            *count /= warps;
        }
        all.units.iter_mut().for_each(|unit| *unit /= warps);
        [&mut all.loads, &mut all.stores, &mut all.shared].into_iter().for_each(|one| one.divided(warps));
        all
    }
}

/// Units of a quarter of a multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Float,
    Whole,
    Special,
    Convert,
    Double,
    Shuffle,
    Tensor,
    Memory,
    Control,
}

pub(crate) const UNITS: usize = 9;

pub(crate) fn unit(instruction: &Instruction) -> Unit {
    match instruction.stem() {
        "FADD" | "FMUL" | "FFMA" | "FADD32I" | "FMUL32I" | "FFMA32I" | "HADD2" | "HMUL2" | "HFMA2"
        | "HMNMX2" => Unit::Float,
        "MUFU" => Unit::Special,
        "F2F" | "F2I" | "I2F" | "F2FP" | "I2FP" | "FRND" | "I2I" => Unit::Convert,
        stem if stem.starts_with('D') && stem != "DEPBAR" => Unit::Double,
        "SHFL" | "REDUX" | "MATCH" | "S2R" => Unit::Shuffle,
        "HMMA" | "IMMA" | "DMMA" | "HGMMA" => Unit::Tensor,
        "LDG" | "STG" | "LDS" | "STS" | "LDSM" | "STSM" | "LDGSTS" | "LDL" | "STL" | "LD" | "ST" | "RED"
        | "ATOM" | "ATOMS" | "ATOMG" => Unit::Memory,
        "BRA" | "EXIT" | "BAR" | "BSSY" | "BSYNC" | "NOP" | "DEPBAR" | "LDGDEPBAR" | "WARPSYNC" | "CALL"
        | "RET" | "YIELD" | "BREAK" | "WARPGROUP" => Unit::Control,
        _ => Unit::Whole,
    }
}

/// Instructions of a branch that soon leaves.
const SHORT: usize = 6;

/// A warp is stopped after so many instructions.
const LONGEST: u64 = 1_200_000;

pub(crate) fn run(code: &Code, launch: Launch, latencies: Latencies) -> Run {
    let mut warp = Warp {
        registers: vec![Value::UNKNOWN; 256],
        uniforms: vec![Value::UNKNOWN; 256],
        predicates: [[Bits::UNKNOWN; 8]; 2],
        launch,
        active: u32::MAX,
        exited: 0,
        meetings: [0; 16],
        calls: Vec::new(),
        barriers: [0; 6],
        copies: vec![0],
        products: Vec::new(),
        multiplies_until: 0,
        latencies,
        run: Run::default(),
    };
    let threads = launch.block[0] * launch.block[1];
    if threads < 32 {
        warp.active = (1 << threads) - 1;
        warp.exited = !warp.active;
    }
    warp.registers[255] = Value::all(0);
    warp.uniforms[63] = Value::all(0);
    warp.uniforms[255] = Value::all(0);
    warp.predicates[0][7] = Bits::TRUE;
    warp.predicates[1][7] = Bits::TRUE;
    let mut at = 0;
    while let Some(instruction) = code.instructions.get(at) {
        if warp.run.instructions >= LONGEST {
            warp.run.cut = true;
            break;
        }
        match warp.step(code, instruction, at) {
            Next::Follows => at += 1,
            Next::Address(address) => {
                match code.instructions.binary_search_by_key(&address, |one| one.address) {
                    Ok(position) => at = position,
                    Err(_) => break,
                }
            }
            Next::End => break,
        }
    }
    warp.run
}

enum Next {
    Follows,
    Address(u32),
    End,
}

struct Warp {
    registers: Vec<Value>,
    uniforms: Vec<Value>,
    /// Of threads, and uniform ones.
    predicates: [[Bits; 8]; 2],
    launch: Launch,
    active: u32,
    exited: u32,
    meetings: [u32; 16],
    calls: Vec<u32>,
    /// When each is released.
    barriers: [u64; 6],
    /// When each group of copies to shared memory is there; the last one is still open.
    copies: Vec<u64>,
    /// When each batch of a group's products is there, and the tensor cores are done with what was asked for.
    products: Vec<u64>,
    multiplies_until: u64,
    latencies: Latencies,
    run: Run,
}

impl Warp {
    fn step(&mut self, code: &Code, instruction: &Instruction, at: usize) -> Next {
        self.issue(instruction);
        let guard = instruction.guard.map_or(Bits::TRUE, |guard| self.predicate(guard));
        let next = code.instructions.get(at + 1).map_or(0, |next| next.address);
        match instruction.stem() {
            "EXIT" => {
                let leaves = self.active & guard.known & guard.set;
                self.exited |= leaves;
                self.active &= !leaves;
                if self.active == 0 { Next::End } else { Next::Follows }
            }
            "BRA" => self.branch(code, instruction, guard, at),
            "BSSY" => {
                if let Some(slot) = meeting(instruction) {
                    self.meetings[slot] = self.active;
                }
                Next::Follows
            }
            "BSYNC" => {
                if let Some(slot) = meeting(instruction) {
                    self.active = (self.active | self.meetings[slot]) & !self.exited;
                }
                Next::Follows
            }
            "CALL" => {
                self.calls.push(next);
                target(instruction).map_or(Next::Follows, Next::Address)
            }
            "RET" => self.calls.pop().map_or(Next::End, Next::Address),
            _ => {
                self.compute(instruction, guard);
                Next::Follows
            }
        }
    }

    /// Time passes until an instruction can be issued, and until the next one can be.
    fn issue(&mut self, instruction: &Instruction) {
        let control = instruction.control;
        let mut now = self.run.cycles;
        for (number, &released) in self.barriers.iter().enumerate() {
            if control.wait >> number & 1 == 1 {
                now = now.max(released);
            }
        }
        let stem = instruction.stem();
        let unit = unit(instruction);
        let latency = match (unit, stem) {
            (_, "LDG" | "LD" | "ATOM" | "ATOMG" | "LDGSTS" | "LDL") => self.latencies.global,
            (Unit::Memory, _) => self.latencies.shared,
            (Unit::Tensor, _) => self.latencies.tensor,
            _ => self.latencies.other,
        };
        match stem {
            "LDGSTS" => {
                if let Some(open) = self.copies.last_mut() {
                    *open = now + latency;
                }
            }
            "LDGDEPBAR" => self.copies.push(0),
            "DEPBAR" => {
                // As many groups as are named may be on their way, beside the open one.
                let left = instruction.operands.iter().find_map(whole).unwrap_or(0) as usize + 1;
                let done = self.copies.len().saturating_sub(left);
                now = self.copies.drain(..done).fold(now, u64::max);
            }
            "HGMMA" => {
                let begins = self.multiplies_until.max(now);
                self.multiplies_until = begins + group_work(instruction) / GROUP_RATE;
                if instruction
                    .operands
                    .iter()
                    .any(|one| matches!(one, Operand::Special(name) if name == "gsb0"))
                {
                    self.products.push(self.multiplies_until + latency);
                }
            }
            "WARPGROUP" if instruction.has("DEPBAR") => {
                let left = instruction.operands.iter().find_map(whole).unwrap_or(0) as usize;
                let done = self.products.len().saturating_sub(left);
                now = self.products.drain(..done).fold(now, u64::max);
            }
            _ => {}
        }
        if let Some(barrier) = control.result {
            self.barriers[barrier] = self.barriers[barrier].max(now + latency);
        }
        if let Some(barrier) = control.operands {
            self.barriers[barrier] = self.barriers[barrier].max(now + self.latencies.other);
        }
        self.run.cycles = now + u64::from(control.stall.max(1));
        self.run.instructions += 1;
        self.run.units[unit as usize] += 1;
    }

    fn branch(&mut self, code: &Code, instruction: &Instruction, guard: Bits, at: usize) -> Next {
        let Some(target) = target(instruction) else { return Next::Follows };
        if instruction.has("DIV") {
            return Next::Follows;
        }
        let more = instruction.operands.iter().filter_map(|operand| match operand {
            Operand::Predicate(predicate) => Some(self.predicate(*predicate)),
            _ => None,
        });
        let guard = more.fold(guard, Bits::and);
        if guard.known & self.active != self.active {
            self.run.guesses += 1;
            let skipped = code.instructions[at + 1..].iter().take_while(|one| one.address < target);
            // A trap is for what does not happen.
            let there = code.instructions.iter().skip_while(|one| one.address < target);
            if there.take(SHORT).any(|one| one.stem() == "BPT") {
                return Next::Follows;
            }
            // What soon leaves again is taken for the exception, as the rare cases of a division are.
            let leaves = |one: &Instruction| one.stem() == "BRA" && one.guard.is_none();
            let short = code.instructions[at + 1..].iter().take(SHORT).any(leaves);
            let calls = skipped.into_iter().any(|one| one.stem() == "CALL");
            let rare = target > instruction.address && (short || calls);
            return if rare { Next::Address(target) } else { Next::Follows };
        }
        let taken = guard.set & self.active;
        let jumps = taken.count_ones() * 2 > self.active.count_ones();
        self.active = if jumps { taken } else { self.active & !taken };
        if target == instruction.address {
            return Next::End;
        }
        if jumps { Next::Address(target) } else { Next::Follows }
    }

    fn predicate(&self, predicate: Predicate) -> Bits {
        let bits = self.predicates[usize::from(predicate.uniform)][predicate.index];
        if predicate.negated { bits.not() } else { bits }
    }

    fn value(&self, operand: Option<&Operand>) -> Value {
        match operand {
            Some(Operand::Register { half: true, .. }) => Value::UNKNOWN,
            Some(&Operand::Register { index, sign, .. }) => signed(self.registers[index], sign),
            Some(&Operand::Uniform { index, sign }) => signed(self.uniforms[index], sign),
            Some(&Operand::Whole(number)) => Value::all(number as u32),
            Some(&Operand::Constant { offset, minus }) => {
                let value = self.constant(offset);
                if minus { value.map(u32::wrapping_neg) } else { value }
            }
            Some(&Operand::Real(number)) => Value::all((number as f32).to_bits()),
            _ => Value::UNKNOWN,
        }
    }

    /// The upper half of a pair of registers.
    fn upper(&self, operand: Option<&Operand>) -> Value {
        match operand {
            Some(&Operand::Register { index: 255, .. } | &Operand::Uniform { index: 63 | 255, .. }) => {
                Value::all(0)
            }
            Some(&Operand::Register { index, .. }) => self.registers[index + 1],
            Some(&Operand::Uniform { index, .. }) => self.uniforms[index + 1],
            Some(&Operand::Constant { offset, .. }) => self.constant(offset + 4),
            Some(&Operand::Whole(number)) => Value::all((number >> 32) as u32),
            _ => Value::UNKNOWN,
        }
    }

    fn constant(&self, offset: u32) -> Value {
        let Launch { grid, block, arguments, .. } = self.launch;
        match offset {
            0x0 => Value::all(block[0]),
            0x4 => Value::all(block[1]),
            0xc => Value::all(grid),
            0x8 | 0x10 | 0x14 => Value::all(1),
            _ if offset < arguments => Value::UNKNOWN,
            // Each argument is a pointer to memory of its own.
            _ if (offset - arguments).is_multiple_of(8) => Value::all(0),
            _ => Value::all(((offset - arguments) / 8 + 1) << 8),
        }
    }

    fn set(&mut self, to: Option<&Operand>, value: Value, guard: Bits) {
        let mask = self.active & (guard.set | !guard.known);
        let value = Value { known: value.known & guard.known, ..value };
        match to {
            Some(&Operand::Register { index, .. }) if index != 255 => {
                self.registers[index] = self.registers[index].replaced(value, mask);
            }
            Some(&Operand::Uniform { index, .. }) if index != 63 && index != 255 => {
                self.uniforms[index] = self.uniforms[index].replaced(value, u32::MAX);
            }
            _ => {}
        }
    }

    fn set_pair(&mut self, to: Option<&Operand>, [low, high]: [Value; 2], guard: Bits) {
        self.set(to, low, guard);
        let next = match to {
            Some(&Operand::Register { index, sign, half }) if index < 254 => {
                Operand::Register { index: index + 1, sign, half }
            }
            Some(&Operand::Uniform { index, sign }) if index < 62 => {
                Operand::Uniform { index: index + 1, sign }
            }
            _ => return,
        };
        self.set(Some(&next), high, guard);
    }

    fn set_predicate(&mut self, to: Predicate, bits: Bits, guard: Bits) {
        if to.index == 7 {
            return;
        }
        let mask = if to.uniform { u32::MAX } else { self.active & (guard.set | !guard.known) };
        let bits = Bits { known: bits.known & guard.known, ..bits };
        let own = &mut self.predicates[usize::from(to.uniform)][to.index];
        *own = own.replaced(bits, mask);
    }

    fn compute(&mut self, instruction: &Instruction, guard: Bits) {
        let all = &instruction.operands;
        // Predicates that are made stand behind the register that is.
        let made =
            usize::from(matches!(all.first(), Some(Operand::Register { .. } | Operand::Uniform { .. })));
        let predicates = all[made.min(all.len())..].iter().map_while(as_predicate).count();
        let (to, sources) = (all.first(), &all[(made + predicates).min(all.len())..]);
        let name = instruction.stem();
        let name = match name.strip_prefix('U') {
            Some(rest) if name != "UNDEF" => rest,
            _ => name,
        };
        let at = |this: &Self, number: usize| this.value(sources.get(number));
        match name {
            "MOV" | "R2UR" => {
                let value = self.value(sources.first());
                self.set(to, value, guard);
            }
            "LDC" => {
                let pair = [self.value(sources.first()), self.upper(sources.first())];
                match instruction.has("64") {
                    true => self.set_pair(to, pair, guard),
                    false => self.set(to, pair[0], guard),
                }
            }
            "S2R" | "S2UR" => {
                let value = self.special(sources.first());
                self.set(to, value, guard);
            }
            "CS2R" => match instruction.has("32") {
                true => self.set(to, Value::all(0), guard),
                false => self.set_pair(to, [Value::all(0); 2], guard),
            },
            "HFMA2" if sources.len() == 4 && is_zero(&sources[0]) && is_zero(&sources[1]) => {
                let value = halves(&sources[2], &sources[3]).map_or(Value::UNKNOWN, Value::all);
                self.set(to, value, guard);
            }
            "IADD3" | "IADD" | "VIADD" => self.add(instruction, guard, sources, made),
            "IMAD" => self.multiply(instruction, guard, sources),
            "LEA" => self.scaled(instruction, guard, sources, made),
            "SHF" | "SHL" | "SHR" => {
                let value = self.shifted(instruction, sources);
                self.set(to, value, guard);
            }
            "LOP3" => {
                // A predicate that is made stands before the register.
                let (to, sources) = match sources.split_first() {
                    Some((register, rest)) if made == 0 => (Some(register), rest),
                    _ => (to, sources),
                };
                let at = |this: &Self, number: usize| this.value(sources.get(number));
                let lut = whole_at(sources, 3) as u32;
                let value = zip(&[at(self, 0), at(self, 1), at(self, 2)], |x| lop3(x[0], x[1], x[2], lut));
                self.set(to, value, guard);
                if let Some(predicate) = all[made..].first().and_then(as_predicate) {
                    let bits = Bits { known: value.known, set: lanes_where(value, |x| x != 0) };
                    self.set_predicate(predicate, bits, guard);
                }
            }
            "ISETP" => self.compare(instruction, guard, sources),
            "SEL" => {
                let chosen =
                    sources.iter().find_map(as_predicate).map_or(Bits::UNKNOWN, |p| self.predicate(p));
                let (x, y) = (at(self, 0), at(self, 1));
                let value = Value { known: y.known & chosen.known, ..y };
                let value = value.replaced(Value { known: x.known & chosen.known, ..x }, chosen.set);
                self.set(to, value, guard);
            }
            "VIMNMX" | "IMNMX" => {
                let least = sources.iter().find_map(as_predicate).is_some_and(|one| !one.negated);
                let unsigned = instruction.has("U32");
                let value = zip(&[at(self, 0), at(self, 1)], |x| {
                    let below = if unsigned { x[0] < x[1] } else { (x[0] as i32) < x[1] as i32 };
                    if below == least { x[0] } else { x[1] }
                });
                self.set(to, value, guard);
            }
            "PRMT" => {
                let value = zip(&[at(self, 0), at(self, 1), at(self, 2)], |x| permuted(x[0], x[1], x[2]));
                self.set(to, value, guard);
            }
            "IABS" => {
                let value = at(self, 0).map(|x| (x as i32).unsigned_abs());
                self.set(to, value, guard);
            }
            "PLOP3" => self.logic(guard, all),
            "FCHK" => {
                // A division that is out of the ordinary.
                if let Some(predicate) = all.first().and_then(as_predicate) {
                    self.set_predicate(predicate, Bits::FALSE, guard);
                }
            }
            "LDG" | "STG" | "LDGSTS" | "LDS" | "STS" | "LDSM" | "STSM" | "LD" | "ST" | "RED" | "ATOMG" => {
                self.access(instruction, guard);
                self.forget(instruction, guard);
            }
            _ => {
                if unit(instruction) == Unit::Tensor {
                    self.run.tensor += tensor_work(instruction);
                    self.run.groups += group_work(instruction);
                }
                self.forget(instruction, guard);
            }
        }
    }

    /// What an instruction makes is not known.
    fn forget(&mut self, instruction: &Instruction, guard: Bits) {
        let registers = match unit(instruction) {
            Unit::Tensor if instruction.stem() == "HGMMA" => (group_work(instruction) / 1024) as usize,
            Unit::Tensor => 4,
            Unit::Memory if instruction.stem() == "LDSM" => 4,
            Unit::Memory => instruction.width().div_ceil(4) as usize,
            Unit::Double => 2,
            _ => 1 + usize::from(instruction.has("64") || instruction.has("F64")),
        };
        for operand in instruction.operands.iter().take(3) {
            match operand {
                Operand::Predicate(predicate) => self.set_predicate(*predicate, Bits::UNKNOWN, guard),
                _ => break,
            }
        }
        match instruction.operands.first() {
            Some(&Operand::Register { index, sign, half }) if index != 255 => {
                for index in index..(index + registers).min(255) {
                    self.set(Some(&Operand::Register { index, sign, half }), Value::UNKNOWN, guard);
                }
            }
            Some(uniform @ Operand::Uniform { .. }) => self.set(Some(uniform), Value::UNKNOWN, guard),
            _ => {}
        }
        if let Some(predicate) = instruction.operands.get(1).and_then(as_predicate)
            && matches!(instruction.stem(), "SHFL" | "VOTE" | "R2UR")
        {
            self.set_predicate(predicate, Bits::UNKNOWN, guard);
        }
    }

    fn special(&self, which: Option<&Operand>) -> Value {
        let Some(Operand::Special(name)) = which else { return Value::UNKNOWN };
        let x = self.launch.block[0];
        match name.as_str() {
            "SR_TID.X" => Value::by_lane(|lane| (self.launch.warp * 32 + lane as u32) % x),
            "SR_TID.Y" => Value::by_lane(|lane| (self.launch.warp * 32 + lane as u32) / x),
            "SR_LANEID" => Value::by_lane(|lane| lane as u32),
            "SR_CTAID.X" => Value::all(self.launch.number),
            "SR_TID.Z" | "SR_CTAID.Y" | "SR_CTAID.Z" | "SR_CgaCtaId" => Value::all(0),
            _ => Value::UNKNOWN,
        }
    }

    fn add(&mut self, instruction: &Instruction, guard: Bits, sources: &[Operand], made: usize) {
        let values: Vec<Value> = sources
            .iter()
            .filter(|one| as_predicate(one).is_none())
            .map(|one| self.value(Some(one)))
            .collect();
        let mut ins = sources.iter().filter_map(as_predicate).map(|one| self.predicate(one));
        let wide = instruction.has("X");
        let carries =
            [ins.next(), ins.next()].map(|bits| if wide { bits.unwrap_or(Bits::FALSE) } else { Bits::FALSE });
        // Minus x is not-x plus one, whose carry counts.
        let minus = sources.iter().filter(|one| is_minus(one)).count() as u64;
        let zero_minus = values
            .iter()
            .zip(sources)
            .filter(|(value, one)| is_minus(one) && value.lanes == [0; LANES])
            .count() as u64;
        let mut out = Value::UNKNOWN;
        let mut carry = Bits::UNKNOWN;
        for lane in 0..LANES {
            let mut known = values.iter().all(|value| value.at(lane).is_some());
            let mut sum: u64 = values.iter().map(|value| u64::from(value.lanes[lane])).sum();
            sum += if minus > 0 { zero_minus << 32 } else { 0 };
            for bits in carries {
                known &= bits.known >> lane & 1 == 1;
                sum += u64::from(bits.set >> lane & 1);
            }
            if known {
                out.known |= 1 << lane;
                out.lanes[lane] = sum as u32;
                carry.known |= 1 << lane;
                carry.set |= u32::from(sum >> 32 != 0) << lane;
            }
        }
        self.set(instruction.operands.first(), out, guard);
        if let Some(predicate) = instruction.operands[made..].first().and_then(as_predicate) {
            self.set_predicate(predicate, carry, guard);
        }
    }

    fn multiply(&mut self, instruction: &Instruction, guard: Bits, sources: &[Operand]) {
        let [a, b, c] = [0, 1, 2].map(|number| self.value(sources.get(number)));
        let unsigned = instruction.has("U32");
        let product = move |a: u32, b: u32| match unsigned {
            true => u64::from(a).wrapping_mul(u64::from(b)),
            false => i64::from(a as i32).wrapping_mul(i64::from(b as i32)) as u64,
        };
        let to = instruction.operands.first();
        if instruction.has("WIDE") {
            let high = self.upper(sources.get(2));
            let total =
                move |x: &[u32]| product(x[0], x[1]).wrapping_add(u64::from(x[3]) << 32 | u64::from(x[2]));
            let values = [a, b, c, high];
            let pair = [zip(&values, |x| total(x) as u32), zip(&values, |x| (total(x) >> 32) as u32)];
            return self.set_pair(to, pair, guard);
        }
        let value = if instruction.has("HI") {
            zip(&[a, b, c], |x| ((product(x[0], x[1]) >> 32) as u32).wrapping_add(x[2]))
        } else {
            let carry = match sources.iter().find_map(as_predicate) {
                Some(predicate) if instruction.has("X") => self.predicate(predicate),
                _ => Bits::FALSE,
            };
            let carry =
                Value { known: carry.known, lanes: std::array::from_fn(|lane| carry.set >> lane & 1) };
            zip(&[a, b, c, carry], |x| x[0].wrapping_mul(x[1]).wrapping_add(x[2]).wrapping_add(x[3]))
        };
        self.set(to, value, guard);
    }

    /// A scaled index with a base.
    fn scaled(&mut self, instruction: &Instruction, guard: Bits, sources: &[Operand], made: usize) {
        let plain: Vec<&Operand> = sources.iter().filter(|one| as_predicate(one).is_none()).collect();
        let shift = plain.last().and_then(|one| whole(one)).unwrap_or(0) as u32 & 31;
        let value = |number: usize| self.value(plain.get(number).copied());
        let carry = match sources.iter().find_map(as_predicate) {
            Some(predicate) if instruction.has("X") => self.predicate(predicate),
            _ => Bits::FALSE,
        };
        let carry = Value { known: carry.known, lanes: std::array::from_fn(|lane| carry.set >> lane & 1) };
        let (low, base) = (value(0), value(1));
        let high = match instruction.has("SX32") {
            true => low.map(|x| (x as i32 >> 31) as u32),
            false if instruction.has("HI") => value(2),
            false => Value::all(0),
        };
        let is_high = instruction.has("HI");
        let total = move |x: &[u32]| -> u64 {
            let shifted = (u64::from(x[2]) << 32 | u64::from(x[0])) << shift;
            let part = if is_high { shifted >> 32 } else { shifted & 0xffff_ffff };
            part + u64::from(x[1]) + u64::from(x[3])
        };
        let values = [low, base, high, carry];
        let out = zip(&values, |x| total(x) as u32);
        let over = zip(&values, |x| (total(x) >> 32) as u32);
        self.set(instruction.operands.first(), out, guard);
        if let Some(predicate) = instruction.operands[made..].first().and_then(as_predicate) {
            let bits = Bits { known: over.known, set: lanes_where(over, |x| x != 0) };
            self.set_predicate(predicate, bits, guard);
        }
    }

    fn shifted(&self, instruction: &Instruction, sources: &[Operand]) -> Value {
        let [a, by, high] = [0, 1, 2].map(|number| self.value(sources.get(number)));
        let (signed, wide, upper) = (instruction.has("S32"), instruction.has("U64"), instruction.has("HI"));
        match (instruction.stem(), instruction.has("L")) {
            ("SHL", _) => zip(&[a, by], |x| x[0].checked_shl(x[1]).unwrap_or(0)),
            ("SHR", _) => zip(&[a, by], |x| x[0].checked_shr(x[1]).unwrap_or(0)),
            (_, true) => zip(&[a, by, high], move |x| {
                let whole = (u64::from(x[2]) << 32 | u64::from(x[0])).checked_shl(x[1]).unwrap_or(0);
                if upper { (whole >> 32) as u32 } else { whole as u32 }
            }),
            (_, false) => zip(&[a, by, high], move |x| {
                let by = x[1].min(63);
                if upper {
                    let value = if signed {
                        (x[2] as i32 >> by.min(31)) as u32
                    } else {
                        x[2].checked_shr(by).unwrap_or(0)
                    };
                    return value;
                }
                let whole = u64::from(x[2]) << 32 | u64::from(x[0]);
                let shifted = if wide || !signed { whole >> by } else { (whole as i64 >> by) as u64 };
                shifted as u32
            }),
        }
    }

    fn compare(&mut self, instruction: &Instruction, guard: Bits, sources: &[Operand]) {
        let (a, b) = (self.value(sources.first()), self.value(sources.get(1)));
        let mut more = sources.iter().filter_map(as_predicate).map(|one| self.predicate(one));
        let joined = more.next().unwrap_or(Bits::TRUE);
        let low = more.next().filter(|_| instruction.has("EX"));
        let unsigned = instruction.has("U32");
        let which =
            ["LT", "EQ", "LE", "GT", "NE", "GE"].into_iter().find(|one| instruction.has(one)).unwrap_or("NE");
        let mut bits = Bits::UNKNOWN;
        for lane in 0..LANES {
            let (Some(x), Some(y)) = (a.at(lane), b.at(lane)) else { continue };
            let order = if unsigned { x.cmp(&y) } else { (x as i32).cmp(&(y as i32)) };
            let own = match which {
                "LT" => order.is_lt(),
                "EQ" => order.is_eq(),
                "LE" => order.is_le(),
                "GT" => order.is_gt(),
                "NE" => order.is_ne(),
                _ => order.is_ge(),
            };
            let own = match low {
                Some(low) if order.is_eq() => {
                    if low.known >> lane & 1 == 0 {
                        continue;
                    }
                    low.set >> lane & 1 == 1
                }
                _ => own,
            };
            bits.known |= 1 << lane;
            bits.set |= u32::from(own) << lane;
        }
        let bits = match (instruction.has("OR"), instruction.has("XOR")) {
            (true, _) => bits.or(joined),
            (_, true) => bits.xor(joined),
            _ => bits.and(joined),
        };
        if let Some(predicate) = instruction.operands.first().and_then(as_predicate) {
            self.set_predicate(predicate, bits, guard);
        }
    }

    /// A function of three predicates.
    fn logic(&mut self, guard: Bits, all: &[Operand]) {
        let predicates: Vec<Predicate> = all.iter().filter_map(as_predicate).collect();
        let &[to, _, x, y, z] = predicates.as_slice() else {
            if let Some(&to) = predicates.first() {
                self.set_predicate(to, Bits::UNKNOWN, guard);
            }
            return;
        };
        let lut = all.iter().find_map(whole).unwrap_or(0) as u32;
        let inputs = [x, y, z].map(|one| self.predicate(one));
        let known = inputs.iter().fold(u32::MAX, |known, bits| known & bits.known);
        let set = lop3(inputs[0].set, inputs[1].set, inputs[2].set, lut);
        self.set_predicate(to, Bits { known, set }, guard);
    }

    fn access(&mut self, instruction: &Instruction, guard: Bits) {
        let stem = instruction.stem();
        let memories: Vec<&Operand> =
            instruction.operands.iter().filter(|one| matches!(one, Operand::Memory { .. })).collect();
        let width = if stem == "LDSM" || stem == "STSM" { 16 } else { instruction.width() };
        let lanes = self.active & (guard.set | !guard.known);
        for (number, memory) in memories.iter().enumerate() {
            // A copy names shared memory first.
            let shared = stem.ends_with('S') && !stem.ends_with("GSTS")
                || stem.ends_with("SM")
                || (stem == "LDGSTS" && number == 0);
            let addresses = self.addresses(memory);
            let used: Vec<Option<u64>> =
                (0..LANES).filter(|lane| lanes >> lane & 1 == 1).map(|lane| addresses[lane]).collect();
            if used.is_empty() {
                continue;
            }
            let parts = match (stem, instruction.has("4"), instruction.has("2")) {
                ("LDSM" | "STSM", true, _) => 4,
                ("LDSM" | "STSM", _, true) => 2,
                ("LDSM" | "STSM", ..) => 1,
                _ => 0,
            };
            let of = match (shared, stem) {
                (true, _) => &mut self.run.shared,
                (false, "STG" | "ST" | "RED" | "ATOMG") => &mut self.run.stores,
                (false, _) => &mut self.run.loads,
            };
            let count = if parts > 0 { 8 * parts } else { used.len() };
            let bytes = u64::from(width) * count as u64;
            of.requests += 1;
            of.bytes += bytes;
            of.widths[match width {
                16 => 2,
                8 => 1,
                _ => 0,
            }] += bytes;
            let known: Option<Vec<u64>> = used.into_iter().collect();
            let Some(known) = known else {
                of.unknown += 1;
                let units = bytes.div_ceil(if shared { 128 } else { 32 });
                of.units += units;
                of.least += units;
                continue;
            };
            let (units, least) = match shared {
                true => passes(&known[..count.min(known.len())], u64::from(width)),
                false => sectors(&known, u64::from(width)),
            };
            of.units += units;
            of.least += least;
        }
    }

    fn addresses(&self, memory: &Operand) -> [Option<u64>; LANES] {
        let &Operand::Memory { register, uniform, offset } = memory else { return [None; LANES] };
        std::array::from_fn(|lane| {
            let mut address = offset as u64;
            if let Some((index, wide)) = register {
                let low = u64::from(self.registers[index].at(lane)?);
                let high =
                    if wide && index != 255 { u64::from(self.registers[index + 1].at(lane)?) } else { 0 };
                address = address.wrapping_add(high << 32 | low);
            }
            if let Some(index) = uniform {
                let low = u64::from(self.uniforms[index].at(lane)?);
                let high = match register {
                    Some((_, true)) | None if index < 62 => {
                        self.uniforms[index + 1].at(lane).map_or(0, u64::from)
                    }
                    _ => 0,
                };
                address = address.wrapping_add(high << 32 | low);
            }
            Some(address)
        })
    }
}

/// Sectors of 32 bytes that accesses touch; and as few as hold so many different bytes.
fn sectors(addresses: &[u64], width: u64) -> (u64, u64) {
    let mut sectors: Vec<u64> = addresses.iter().flat_map(|&at| at / 32..=(at + width - 1) / 32).collect();
    sectors.sort_unstable();
    sectors.dedup();
    let mut starts = addresses.to_vec();
    starts.sort_unstable();
    starts.dedup();
    (sectors.len() as u64, (starts.len() as u64 * width).div_ceil(32))
}

/// Passes over 32 banks of 4 bytes: as many as a bank has different words, of as many threads as fill 128 bytes.
fn passes(addresses: &[u64], width: u64) -> (u64, u64) {
    let together = (128 / width.max(4)) as usize;
    let (mut count, mut least) = (0, 0);
    for group in addresses.chunks(together) {
        let mut words: Vec<u64> =
            group.iter().flat_map(|&at| (0..width.div_ceil(4)).map(move |word| at / 4 + word)).collect();
        words.sort_unstable();
        words.dedup();
        let mut banks = [0u64; 32];
        words.iter().for_each(|word| banks[(word % 32) as usize] += 1);
        count += banks.into_iter().max().unwrap_or(1).max(1);
        least += 1;
    }
    (count, least)
}

/// Multiplications and additions of one instruction: twice rows x columns x depth.
fn tensor_work(instruction: &Instruction) -> u64 {
    let shape =
        instruction.name.split('.').find(|part| part.len() >= 4 && part.chars().all(|c| c.is_ascii_digit()));
    match shape {
        Some("16816") => 2 * 16 * 8 * 16,
        Some("1688") => 2 * 16 * 8 * 8,
        Some("1684") => 2 * 16 * 8 * 4,
        Some("884") => 2 * 8 * 8 * 4,
        _ => 0,
    }
}

/// What a quarter of a multiprocessor's tensor cores does in a cycle for a product by a group.
const GROUP_RATE: u64 = 1024;

/// A warp's part of a product by a group, 16 rows of 64: twice rows x columns x depth.
fn group_work(instruction: &Instruction) -> u64 {
    let shape = instruction.name.split('.').find_map(|part| part.strip_prefix("64x"));
    let sizes = shape.and_then(|shape| shape.split_once('x'));
    let work = sizes.and_then(|(columns, depth)| {
        Some(2 * 16 * columns.parse::<u64>().ok()? * depth.parse::<u64>().ok()?)
    });
    work.unwrap_or(0)
}

fn target(instruction: &Instruction) -> Option<u32> {
    instruction.operands.iter().rev().find_map(whole).map(|address| address as u32)
}

/// Which meeting point `BSSY` and `BSYNC` mean.
fn meeting(instruction: &Instruction) -> Option<usize> {
    instruction.operands.iter().find_map(|operand| match operand {
        Operand::Meeting(number) => Some(*number % 16),
        _ => None,
    })
}

fn whole(operand: &Operand) -> Option<i64> {
    match operand {
        Operand::Whole(number) => Some(*number),
        _ => None,
    }
}

fn whole_at(operands: &[Operand], number: usize) -> i64 {
    operands.get(number).and_then(whole).unwrap_or(0)
}

fn as_predicate(operand: &Operand) -> Option<Predicate> {
    match operand {
        Operand::Predicate(predicate) => Some(*predicate),
        _ => None,
    }
}

fn is_zero(operand: &Operand) -> bool {
    matches!(operand, Operand::Register { index: 255, .. })
}

fn is_minus(operand: &Operand) -> bool {
    match operand {
        Operand::Register { sign, .. } | Operand::Uniform { sign, .. } => sign.minus,
        Operand::Constant { minus, .. } => *minus,
        _ => false,
    }
}

fn signed(value: Value, sign: Sign) -> Value {
    let value = if sign.inverted { value.map(|x| !x) } else { value };
    let value = if sign.absolute { value.map(|x| (x as i32).unsigned_abs()) } else { value };
    if sign.minus { value.map(u32::wrapping_neg) } else { value }
}

fn lanes_where(value: Value, is: impl Fn(u32) -> bool) -> u32 {
    (0..LANES).filter(|&lane| is(value.lanes[lane])).fold(0, |mask, lane| mask | 1 << lane)
}

fn lop3(x: u32, y: u32, z: u32, lut: u32) -> u32 {
    (0..8).filter(|bit| lut >> bit & 1 == 1).fold(0, |out, bit| {
        let pick = |value: u32, place: u32| if bit >> place & 1 == 1 { value } else { !value };
        out | pick(x, 2) & pick(y, 1) & pick(z, 0)
    })
}

fn permuted(low: u32, selector: u32, high: u32) -> u32 {
    let bytes = (u64::from(high) << 32 | u64::from(low)).to_le_bytes();
    let byte = |place: u32| {
        let pick = selector >> (4 * place);
        let value = bytes[(pick & 7) as usize];
        u32::from(if pick & 8 == 8 { if value & 0x80 == 0 { 0 } else { 0xff } } else { value }) << (8 * place)
    };
    (0..4).fold(0, |out, place| out | byte(place))
}

/// The bits of two halves, the upper one first, that a multiplication by zero adds: how whole numbers are loaded.
fn halves(high: &Operand, low: &Operand) -> Option<u32> {
    let bits = |operand: &Operand| match operand {
        Operand::Real(number) => Some(u32::from(half(*number))),
        _ => None,
    };
    Some(bits(high)? << 16 | bits(low)?)
}

/// A number that a half can hold.
fn half(number: f64) -> u16 {
    let sign = if number.is_sign_negative() { 0x8000 } else { 0 };
    let size = number.abs();
    let magnitude = (0..0x7c00u16).find(|&bits| half_value(bits) >= size).unwrap_or(0x7c00);
    sign | magnitude
}

fn half_value(bits: u16) -> f64 {
    let (exponent, rest) = (i32::from(bits >> 10), f64::from(bits & 0x3ff));
    if exponent == 0 { rest * 2f64.powi(-24) } else { (1.0 + rest / 1024.0) * 2f64.powi(exponent - 15) }
}
