//! Memory that was used up, for what comes next: fresh pages from the system cost more time than what is written to them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that are set aside for a field at once, at most: a batch may be asked for that no memory holds.
const MOST_SET_ASIDE: usize = 64 << 20;

/// Buffers of one kind, shared by those who fill them and those who are done with them. There are never more than were in
/// use at the same time.
#[derive(Clone, Debug, Default)]
pub(super) struct Spares(Arc<Mutex<Vec<Vec<u8>>>>);

impl Spares {
    /// An empty buffer with room for so many bytes, as far as they are set aside at once.
    pub(super) fn take(&self, bytes: usize) -> Vec<u8> {
        let wanted = bytes.min(MOST_SET_ASIDE);
        let mut list = self.list();
        let fitting = (0..list.len()).filter(|&at| list[at].capacity() >= wanted);
        let found = fitting.min_by_key(|&at| list[at].capacity());
        // Else the largest grows.
        let found = found.or_else(|| (0..list.len()).max_by_key(|&at| list[at].capacity()));
        let mut buffer = found.map(|at| list.swap_remove(at)).unwrap_or_default();
        drop(list);
        // Without it the buffer grows as it is filled.
        let _ = buffer.try_reserve(wanted);
        buffer
    }

    /// Keeps a buffer that nobody reads any more.
    pub(super) fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        if buffer.capacity() > 0 {
            self.list().push(buffer);
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_buffer_with_room_is_used_again() {
        let spares = Spares::default();
        for room in [4096, 64, 512] {
            spares.give(Vec::with_capacity(room));
        }
        spares.give(Vec::new());
        let mut taken = spares.take(100);
        assert_eq!((taken.len(), taken.capacity()), (0, 512));
        taken.extend([7; 100]);
        let place = taken.as_ptr();
        spares.give(taken);
        let again = spares.take(512);
        assert_eq!((again.len(), again.as_ptr()), (0, place));
        assert!(spares.take(1 << 20).capacity() >= 1 << 20);
        assert_eq!(spares.list().len(), 1);
    }
}
