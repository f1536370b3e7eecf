//! Numbers of the 32 lanes of a warp, each of which may be unknown: what is loaded is.

pub(crate) const LANES: usize = 32;

/// 32 bits in each lane; `known` has one bit for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value {
    pub(crate) known: u32,
    pub(crate) lanes: [u32; LANES],
}

impl Value {
    pub(crate) const UNKNOWN: Self = Self { known: 0, lanes: [0; LANES] };

    pub(crate) const fn all(number: u32) -> Self {
        Self { known: u32::MAX, lanes: [number; LANES] }
    }

    pub(crate) fn by_lane(of: impl Fn(usize) -> u32) -> Self {
        Self { known: u32::MAX, lanes: std::array::from_fn(of) }
    }

    pub(crate) fn map(self, of: impl Fn(u32) -> u32) -> Self {
        Self { known: self.known, lanes: self.lanes.map(of) }
    }

    pub(crate) fn at(self, lane: usize) -> Option<u32> {
        (self.known >> lane & 1 == 1).then_some(self.lanes[lane])
    }

    /// The other one in the lanes of a mask.
    pub(crate) fn replaced(self, other: Self, mask: u32) -> Self {
        let lanes =
            std::array::from_fn(
                |lane| if mask >> lane & 1 == 1 { other.lanes[lane] } else { self.lanes[lane] },
            );
        Self { known: self.known & !mask | other.known & mask, lanes }
    }
}

pub(crate) fn zip(values: &[Value], of: impl Fn(&[u32]) -> u32) -> Value {
    let known = values.iter().fold(u32::MAX, |known, value| known & value.known);
    let mut operands = [0; 4];
    let lanes = std::array::from_fn(|lane| {
        for (to, value) in operands.iter_mut().zip(values) {
            *to = value.lanes[lane];
        }
        of(&operands[..values.len()])
    });
    Value { known, lanes }
}

/// A bit in each lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bits {
    pub(crate) known: u32,
    pub(crate) set: u32,
}

impl Bits {
    pub(crate) const UNKNOWN: Self = Self { known: 0, set: 0 };
    pub(crate) const TRUE: Self = Self { known: u32::MAX, set: u32::MAX };
    pub(crate) const FALSE: Self = Self { known: u32::MAX, set: 0 };

    pub(crate) fn not(self) -> Self {
        Self { known: self.known, set: !self.set }
    }

    pub(crate) fn and(self, other: Self) -> Self {
        let no = self.known & !self.set | other.known & !other.set;
        Self { known: no | self.known & other.known, set: self.set & other.set & self.known & other.known }
    }

    pub(crate) fn or(self, other: Self) -> Self {
        self.not().and(other.not()).not()
    }

    pub(crate) fn xor(self, other: Self) -> Self {
        Self { known: self.known & other.known, set: self.set ^ other.set }
    }

    pub(crate) fn replaced(self, other: Self, mask: u32) -> Self {
        Self { known: self.known & !mask | other.known & mask, set: self.set & !mask | other.set & mask }
    }
}
