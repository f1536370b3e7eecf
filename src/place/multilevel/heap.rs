//! Priority queues of numbered items whose keys may change: binary heaps that know where each item
//! is. An item is in one of them at most.

use crate::place::problem::NONE;

/// Items with keys in several queues, the largest key of each first.
#[derive(Debug)]
pub(super) struct Heaps {
    queues: Vec<Vec<(i64, u32)>>,
    /// Queue and place of each item; [`NONE`] where it is in none.
    at: Vec<(u32, u32)>,
}

impl Heaps {
    /// Empty queues for items `0..count`.
    pub(super) fn new(queues: usize, count: usize) -> Self {
        Self { queues: vec![Vec::new(); queues], at: vec![(NONE, NONE); count] }
    }

    /// True where the item is in a queue.
    #[inline]
    pub(super) fn contains(&self, item: u32) -> bool {
        self.at[item as usize].0 != NONE
    }

    /// The item with the largest key of a queue, and its key.
    #[inline]
    pub(super) fn peek(&self, queue: usize) -> Option<(i64, u32)> {
        self.queues[queue].first().copied()
    }

    /// Adds an item to a queue, or changes its key in the queue where it is. O(log items).
    pub(super) fn set(&mut self, queue: usize, item: u32, key: i64) {
        let (queue, place) = match self.at[item as usize] {
            (NONE, _) => {
                self.queues[queue].push((key, item));
                (queue, self.queues[queue].len() - 1)
            }
            (queue, place) => (queue as usize, place as usize),
        };
        let before = std::mem::replace(&mut self.queues[queue][place].0, key);
        if key >= before {
            self.rise(queue, place);
        } else {
            self.sink(queue, place);
        }
    }

    /// Removes an item where it is in a queue. O(log items).
    pub(super) fn remove(&mut self, item: u32) {
        let (queue, place) = self.at[item as usize];
        if queue == NONE {
            return;
        }
        self.at[item as usize] = (NONE, NONE);
        let (queue, place) = (queue as usize, place as usize);
        let Some(last) = self.queues[queue].pop() else { return };
        if last.1 != item {
            self.queues[queue][place] = last;
            let place = self.rise(queue, place);
            self.sink(queue, place);
        }
    }

    /// Removes all items.
    pub(super) fn clear(&mut self) {
        for (_, item) in self.queues.iter_mut().flat_map(|queue| queue.drain(..)) {
            self.at[item as usize] = (NONE, NONE);
        }
    }

    /// Moves an item towards the front; its new place.
    fn rise(&mut self, queue: usize, mut place: usize) -> usize {
        let items = &mut self.queues[queue];
        let moving = items[place];
        while place > 0 {
            let above = (place - 1) / 2;
            if items[above].0 >= moving.0 {
                break;
            }
            items[place] = items[above];
            self.at[items[place].1 as usize].1 = place as u32;
            place = above;
        }
        items[place] = moving;
        self.at[moving.1 as usize] = (queue as u32, place as u32);
        place
    }

    fn sink(&mut self, queue: usize, mut place: usize) {
        let items = &mut self.queues[queue];
        let moving = items[place];
        loop {
            let mut below = 2 * place + 1;
            if below >= items.len() {
                break;
            }
            if below + 1 < items.len() && items[below + 1].0 > items[below].0 {
                below += 1;
            }
            if items[below].0 <= moving.0 {
                break;
            }
            items[place] = items[below];
            self.at[items[place].1 as usize].1 = place as u32;
            place = below;
        }
        items[place] = moving;
        self.at[moving.1 as usize] = (queue as u32, place as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::Heaps;
    use crate::random::Rng;

    /// Against a plain list of keys.
    #[test]
    fn the_largest_key_comes_first_whatever_changed() {
        let mut rng = Rng::new(3);
        let mut heaps = Heaps::new(2, 50);
        let mut keys = [None::<i64>; 50];
        for _ in 0..5000 {
            let item = rng.below(50);
            if rng.below(3) == 0 {
                heaps.remove(item as u32);
                keys[item] = None;
            } else {
                let key = rng.below(40) as i64 - 20;
                heaps.set(item % 2, item as u32, key);
                keys[item] = Some(key);
            }
            for queue in 0..2 {
                let largest = keys.iter().skip(queue).step_by(2).flatten().max().copied();
                assert_eq!(heaps.peek(queue).map(|(key, _)| key), largest);
            }
            assert_eq!(heaps.contains(item as u32), keys[item].is_some());
        }
        heaps.clear();
        assert!(heaps.peek(0).is_none() && heaps.peek(1).is_none() && !heaps.contains(7));
    }
}
