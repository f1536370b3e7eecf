//! A plan's steps as what streams do: which stream, what it waits for, what it does there.

use super::driver::{Algorithm, Function, Gemm, GemmArgs, HostPointer, HostWork, Launch, Pointer};

/// A step, ready to be put on its stream again and again.
pub(super) struct Order {
    /// Position of its stream.
    pub(super) lane: usize,
    /// Steps of other streams that it waits for; of each stream the last one.
    pub(super) after: Vec<usize>,
    /// Whether a step of another stream waits for it.
    pub(super) signals: bool,
    pub(super) work: Work,
    /// What it is called in messages.
    pub(super) place: String,
}

pub(super) enum Work {
    /// Kernels one after the other; none where a group makes nothing.
    Launches(Vec<Call>),
    /// A group on a device of the CPU.
    Host(HostWork),
    Copy(Transfer),
}

pub(super) enum Call {
    Kernel { function: Function, launch: Launch, args: Box<[Pointer]> },
    Product(Box<Product>),
}

/// A product of the library.
pub(super) struct Product {
    pub(super) gemm: Gemm,
    pub(super) algorithm: Algorithm,
    pub(super) args: GemmArgs,
}

/// A copy by where its two ends are.
pub(super) struct Transfer {
    pub(super) way: Way,
    pub(super) bytes: u64,
}

pub(super) enum Way {
    /// Within a GPU, or between peers.
    Device {
        to: Pointer,
        from: Pointer,
    },
    Up {
        to: Pointer,
        from: HostPointer,
    },
    /// `out`: the sender's stream for what leaves it.
    Down {
        out: usize,
        to: HostPointer,
        from: Pointer,
    },
    /// Within the host, by the host.
    Host(HostWork),
    /// Through page-locked memory, between GPUs that are no peers; `stage`: which memory.
    Staged {
        out: usize,
        stage: usize,
        to: Pointer,
        from: Pointer,
    },
}

/// Of the steps that one waits for: the last of each other stream. Those of its own stream are before
/// it anyway. O(after).
pub(super) fn awaited(after: &[u32], lane: usize, lane_of: &dyn Fn(u32) -> usize) -> Vec<usize> {
    let mut last: Vec<(usize, usize)> = Vec::new();
    for &step in after {
        let other = lane_of(step);
        if other == lane {
            continue;
        }
        match last.iter_mut().find(|(known, _)| *known == other) {
            Some((_, latest)) => *latest = (*latest).max(step as usize),
            None => last.push((other, step as usize)),
        }
    }
    last.into_iter().map(|(_, step)| step).collect()
}

#[cfg(test)]
mod tests {
    use super::awaited;

    #[test]
    fn of_each_other_stream_the_last_is_waited_for() {
        let lanes = [0, 1, 1, 2, 0];
        let lane_of = |step: u32| lanes[step as usize];
        assert_eq!(awaited(&[0, 2, 1, 3], 0, &lane_of), [2, 3]);
        assert_eq!(awaited(&[0, 4], 0, &lane_of), [0usize; 0]);
    }
}
