//! Disjoint sets of numbers: union by size with path halving (Tarjan and van Leeuwen 1984).

/// Sets over `0..n`, at first each number alone.
#[derive(Clone, Debug)]
pub(super) struct DisjointSets {
    parent: Vec<u32>,
    size: Vec<u32>,
    trivial: bool,
}

impl DisjointSets {
    /// Each of `0..count` alone.
    pub(super) fn new(count: usize) -> Self {
        Self { parent: (0..count as u32).collect(), size: vec![1; count], trivial: true }
    }

    /// True while no two numbers were joined.
    pub(super) fn is_trivial(&self) -> bool {
        self.trivial
    }

    /// The representative of a number's set. Nearly O(1).
    pub(super) fn find(&mut self, mut item: u32) -> u32 {
        while self.parent[item as usize] != item {
            let above = self.parent[self.parent[item as usize] as usize];
            self.parent[item as usize] = above;
            item = above;
        }
        item
    }

    /// Joins the sets of two numbers.
    pub(super) fn union(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        if self.size[a as usize] < self.size[b as usize] {
            self.attach(a, b);
        } else {
            self.attach(b, a);
        }
    }

    /// Joins two sets by their representatives; `below` loses that role.
    pub(super) fn attach(&mut self, below: u32, above: u32) {
        if below != above {
            self.parent[below as usize] = above;
            self.size[above as usize] += self.size[below as usize];
            self.trivial = false;
        }
    }
}
