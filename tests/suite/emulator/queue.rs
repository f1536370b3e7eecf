//! Streams as queues, events, captures: what the emulated driver has been asked and has not done yet.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use partition::unstable::run::cuda::{Fault, FaultKind, Gemm, GemmArgs, HostWork, Launch, Outcome};

use super::Faults;
use super::code::{Code, Libraries, Limits};
use crate::random_graph::Random;

/// Which of the streams that could go on does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Choice {
    /// The one that was made first.
    First,
    /// The one that was made last.
    Last,
    /// Any.
    Random(u64),
}

/// Whose memory an address is to be of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Memory {
    Host,
    Gpu(u32),
    /// Of this GPU, or one whose memory it may read.
    Peer(u32),
}

/// What a stream does.
#[derive(Clone)]
pub(super) enum Op {
    Kernel {
        code: Arc<Code>,
        name: String,
        launch: Launch,
        args: Vec<u64>,
        /// It need not wait for the end of the one before it.
        early: bool,
    },
    Product {
        gemm: Gemm,
        way: u8,
        args: GemmArgs,
    },
    Copy {
        to: u64,
        from: u64,
        bytes: u64,
    },
    Host(HostWork),
    Graph(u64),
    Record(u64, u64),
    Wait(u64, u64),
    /// What is left of something that never ends.
    Endless,
}

/// A stream.
#[derive(Default)]
pub(super) struct Queue {
    ops: VecDeque<Op>,
    /// The capture that it is part of, and what the next thing in it follows.
    capture: Option<(u64, Vec<usize>)>,
}

impl Queue {
    pub(super) fn is_idle(&self) -> bool {
        self.ops.is_empty() && self.capture.is_none()
    }
}

/// An event.
#[derive(Default)]
pub(super) struct Point {
    asked: u64,
    reached: u64,
    /// The capture in which it was recorded, and what it stands for there.
    captured: Option<(u64, Vec<usize>)>,
    pub(super) time: Option<u64>,
}

/// Captured work: each with what it follows.
#[derive(Clone, Default)]
pub(super) struct Captured {
    /// A call that is not to be made while a stream captures was made.
    lost: bool,
    nodes: Vec<(Op, Vec<usize>)>,
}

struct Block {
    gpu: Option<u32>,
    bytes: u64,
    _words: Vec<u128>,
}

/// Held memory; dropped when it is given back.
pub(super) struct Held(Block);

/// A kernel that was found in a module.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) module: u64,
    pub(super) name: String,
    pub(super) limits: Limits,
    /// Dynamic shared memory that a launch may have.
    pub(super) shared: u32,
}

pub(super) struct State {
    ids: u64,
    clock: u64,
    choice: Choice,
    random: Random,
    pub(super) open: BTreeMap<u32, u32>,
    pub(super) peers: BTreeSet<(u32, u32)>,
    pub(super) memory: BTreeMap<u64, Held>,
    pub(super) streams: BTreeMap<u64, Queue>,
    pub(super) events: BTreeMap<u64, Point>,
    pub(super) libraries: Libraries,
    pub(super) modules: BTreeMap<u64, Arc<Code>>,
    pub(super) functions: BTreeMap<u64, Known>,
    captures: BTreeMap<u64, Captured>,
    pub(super) graphs: BTreeMap<u64, Captured>,
    failed: Option<Fault>,
    faults: Faults,
    /// How often somebody waits for what never ends.
    pub(super) waits: u64,
    pub(super) launches: u64,
    pub(super) early: u64,
    pub(super) graphs_launched: u64,
    pub(super) kernels_run: u64,
    pub(super) copies_run: u64,
    records_run: u64,
    pub(super) products_run: u64,
    pub(super) allocated: Vec<(u32, u64)>,
    /// What streams came to, in order: graphs (G) and events (R).
    pub(super) order: String,
    /// Most bytes for partial sums that a product had.
    pub(super) room: u64,
}

fn refused<T>(message: &str) -> Outcome<T> {
    Err(Fault::new(FaultKind::Other, message))
}

impl State {
    pub(super) fn new(choice: Choice, faults: Faults) -> Self {
        let seed = if let Choice::Random(seed) = choice { seed } else { 0 };
        Self {
            ids: 0,
            clock: 0,
            choice,
            random: Random::new(seed),
            open: <_>::default(),
            peers: <_>::default(),
            memory: <_>::default(),
            streams: <_>::default(),
            events: <_>::default(),
            libraries: <_>::default(),
            modules: <_>::default(),
            functions: <_>::default(),
            captures: <_>::default(),
            graphs: <_>::default(),
            failed: None,
            faults,
            waits: 0,
            launches: 0,
            early: 0,
            graphs_launched: 0,
            kernels_run: 0,
            copies_run: 0,
            records_run: 0,
            products_run: 0,
            allocated: vec![],
            order: String::new(),
            room: 0,
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// What failed while it ran fails every call that follows, whoever makes it.
    pub(super) fn usable(&self) -> Outcome<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// A call that a stream that captures does not bear: it is refused, and the capture is lost.
    fn outside_captures(&mut self, stream: u64, message: &str) -> Outcome<()> {
        let Some((capture, _)) = &self.streams[&stream].capture else { return Ok(()) };
        if let Some(captured) = self.captures.get_mut(capture) {
            captured.lost = true;
        }
        refused(message)
    }

    /// Waits for a stream.
    pub(super) fn finish(&mut self, stream: u64) -> Outcome<()> {
        if self.advance(stream, usize::MAX)? {
            return Ok(());
        }
        self.waits += 1;
        refused("a stream that never ends is waited for")
    }

    /// A copy from or to memory of the host: where that is not page-locked, the caller waits for it.
    pub(super) fn copy_of_host(&mut self, stream: u64, host: u64, op: Op) -> Outcome<()> {
        let block = self.memory.range(..=host).next_back();
        let is_locked =
            block.is_some_and(|(start, held)| held.0.gpu.is_none() && host < start + held.0.bytes.max(1));
        if is_locked {
            let Op::Copy { bytes, .. } = op else { return refused("no copy") };
            self.within(Memory::Host, host, bytes);
            return self.put(stream, op);
        }
        self.outside_captures(stream, "a copy that blocks is put on a stream that captures")?;
        self.put(stream, op)?;
        self.finish(stream)
    }

    pub(super) fn launch_graph(&mut self, stream: u64, graph: u64) -> Outcome<()> {
        self.outside_captures(stream, "a graph is launched on a stream that captures")?;
        self.put(stream, Op::Graph(graph))
    }

    /// When an event was reached.
    pub(super) fn time(&self, event: u64) -> Outcome<u64> {
        self.usable()?;
        let point = &self.events[&event];
        match (point.asked, &point.captured) {
            (_, Some(_)) => refused("the time of an event of a capture is read"),
            (0, None) => refused("the time of an event that was never recorded is read"),
            (asked, None) if point.reached < asked => {
                refused("the time of an event that is not reached is read")
            }
            _ => point.time.ok_or_else(|| Fault::new(FaultKind::Other, "an event without a time")),
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.ids += 1;
        self.ids
    }

    pub(super) fn held(&self) -> Vec<String> {
        let counts = [
            ("gpus", self.open.len()),
            ("blocks of memory", self.memory.len()),
            ("streams", self.streams.len()),
            ("events", self.events.len()),
            ("modules", self.modules.len()),
            ("graphs", self.graphs.len()),
            ("captures", self.captures.len()),
        ];
        counts.iter().filter(|(_, count)| *count > 0).map(|(kind, count)| format!("{count} {kind}")).collect()
    }

    pub(super) fn used(&self, gpu: Option<u32>) -> u64 {
        self.memory.values().filter(|held| held.0.gpu == gpu).map(|held| held.0.bytes).sum()
    }

    /// Memory at a multiple of 256; that of a GPU is filled with not-a-numbers.
    pub(super) fn allocate(&mut self, gpu: Option<u32>, bytes: u64) -> u64 {
        let fill = if gpu.is_some() { u128::MAX } else { 0 };
        let words = vec![fill; bytes as usize / 16 + 17];
        let address = (words.as_ptr() as u64).next_multiple_of(256);
        self.memory.insert(address, Held(Block { gpu, bytes, _words: words }));
        address
    }

    /// Panics where a range is not of such memory.
    pub(super) fn within(&self, memory: Memory, address: u64, bytes: u64) {
        if address == 0 && bytes == 0 {
            return;
        }
        let (start, held) = self.memory.range(..=address).next_back().expect("no such memory");
        assert!(address + bytes <= start + held.0.bytes, "outside its block");
        let fits = match (memory, held.0.gpu) {
            (Memory::Host, None) => true,
            (Memory::Gpu(gpu), Some(own)) => gpu == own,
            (Memory::Peer(gpu), Some(own)) => gpu == own || self.peers.contains(&(gpu, own)),
            _ => false,
        };
        assert!(fits, "{memory:?} is memory of {:?}", held.0.gpu);
    }

    pub(super) fn put(&mut self, stream: u64, op: Op) -> Outcome<()> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let queue = self.streams.get_mut(&stream).unwrap();
        match &mut queue.capture {
            None => queue.ops.push_back(op),
            Some((capture, tail)) => {
                let graph = self.captures.get_mut(capture).unwrap();
                graph.nodes.push((op, std::mem::take(tail)));
                tail.push(graph.nodes.len() - 1);
            }
        }
        Ok(())
    }

    /// Whether the next that a stream is given has a kernel straight before it.
    pub(super) fn is_behind_kernel(&self, stream: u64) -> bool {
        let is_kernel = |op: &Op| matches!(op, Op::Kernel { .. });
        let queue = &self.streams[&stream];
        match &queue.capture {
            None => queue.ops.back().is_some_and(is_kernel),
            Some((capture, tail)) => match tail[..] {
                [node] => is_kernel(&self.captures[capture].nodes[node].0),
                _ => false,
            },
        }
    }

    pub(super) fn record(&mut self, stream: u64, event: u64) -> Outcome<()> {
        self.usable()?;
        let point = self.events.get_mut(&event).unwrap();
        if let Some(capture) = &self.streams[&stream].capture {
            point.captured = Some(capture.clone());
            return Ok(());
        }
        point.captured = None;
        point.asked += 1;
        let asked = point.asked;
        self.put(stream, Op::Record(event, asked))
    }

    pub(super) fn wait(&mut self, stream: u64, event: u64) -> Outcome<()> {
        self.usable()?;
        let point = &self.events[&event];
        let queue = self.streams.get_mut(&stream).unwrap();
        match (&point.captured, &mut queue.capture) {
            (None, None) if point.asked == 0 => refused("an event that was never recorded is waited for"),
            (None, None) => {
                let asked = point.asked;
                self.put(stream, Op::Wait(event, asked))
            }
            (None, Some((capture, _))) => {
                if let Some(captured) = self.captures.get_mut(capture) {
                    captured.lost = true;
                }
                refused("a capture waits for what is outside it")
            }
            (Some((capture, _)), _) if !self.captures.contains_key(capture) => {
                refused("an event of a capture that has ended")
            }
            (Some((capture, nodes)), None) => {
                if !queue.ops.is_empty() {
                    return refused("a stream with work joins a capture");
                }
                queue.capture = Some((*capture, nodes.clone()));
                Ok(())
            }
            (Some((capture, nodes)), Some((own, tail))) => {
                if capture != own {
                    return refused("two captures meet");
                }
                tail.extend(nodes);
                tail.sort_unstable();
                tail.dedup();
                Ok(())
            }
        }
    }

    pub(super) fn begin_capture(&mut self, stream: u64) -> Outcome<()> {
        self.usable()?;
        self.outside_captures(stream, "a stream that captures begins to capture")?;
        let id = self.next();
        self.captures.insert(id, Captured::default());
        self.streams.get_mut(&stream).unwrap().capture = Some((id, vec![]));
        Ok(())
    }

    pub(super) fn end_capture(&mut self, stream: u64) -> Outcome<u64> {
        let Some((capture, tail)) = self.streams.get_mut(&stream).unwrap().capture.take() else {
            return refused("nothing is captured");
        };
        let graph = self.captures.remove(&capture).unwrap();
        let early = graph.nodes.iter().any(|(op, _)| matches!(op, Op::Kernel { early: true, .. }));
        if early && self.faults.no_early_graphs {
            self.leave(capture);
            return refused("no graph of kernels that are begun early");
        }
        if graph.lost {
            self.leave(capture);
            return refused("a capture that was lost is ended");
        }
        let mut reached = vec![false; graph.nodes.len()];
        tail.iter().for_each(|&node| reached[node] = true);
        for node in (0..graph.nodes.len()).rev() {
            if reached[node] {
                graph.nodes[node].1.iter().for_each(|&before| reached[before] = true);
            }
        }
        for queue in self.streams.values_mut() {
            if let Some((own, tail)) = &queue.capture
                && *own == capture
            {
                if tail.iter().any(|&node| !reached[node]) {
                    return refused("a stream that joined a capture is not waited for");
                }
                queue.capture = None;
            }
        }
        let id = self.next();
        self.graphs.insert(id, graph);
        Ok(id)
    }

    /// Ends a capture of which nothing is kept.
    pub(super) fn drop_capture(&mut self, stream: u64) {
        let Some((capture, _)) = self.streams.get_mut(&stream).unwrap().capture.take() else { return };
        self.captures.remove(&capture);
        self.leave(capture);
    }

    /// No stream is part of a capture any more.
    fn leave(&mut self, capture: u64) {
        for queue in self.streams.values_mut() {
            if queue.capture.as_ref().is_some_and(|(own, _)| *own == capture) {
                queue.capture = None;
            }
        }
    }

    /// Does up to `most` things, on any streams, until this one has nothing left; whether it has.
    pub(super) fn advance(&mut self, stream: u64, most: usize) -> Outcome<bool> {
        self.usable()?;
        self.outside_captures(stream, "a stream that captures is waited for")?;
        for _ in 0..most {
            if let Some(failed) = &self.failed {
                return Err(failed.clone());
            }
            if self.streams[&stream].ops.is_empty() {
                return Ok(true);
            }
            let ready: Vec<u64> =
                self.streams.iter().filter(|(_, queue)| self.is_ready(queue)).map(|(&id, _)| id).collect();
            let Some(chosen) = self.choose(&ready) else { return Ok(false) };
            let op = self.streams.get_mut(&chosen).unwrap().ops.pop_front().unwrap();
            if !self.perform(op)? {
                self.streams.get_mut(&chosen).unwrap().ops.push_front(Op::Endless);
            }
        }
        Ok(self.streams[&stream].ops.is_empty())
    }

    fn is_ready(&self, queue: &Queue) -> bool {
        match queue.ops.front() {
            None | Some(Op::Endless) => false,
            Some(Op::Wait(event, asked)) => self.events[event].reached >= *asked,
            Some(_) => true,
        }
    }

    fn choose<T: Copy>(&mut self, ready: &[T]) -> Option<T> {
        match self.choice {
            Choice::First => ready.first().copied(),
            Choice::Last => ready.last().copied(),
            Choice::Random(_) => (!ready.is_empty()).then(|| ready[self.random.below(ready.len())]),
        }
    }

    /// Counts one more; whether that is the one of which a fault speaks.
    fn is_next(count: &mut u64, fault: u64) -> bool {
        *count += 1;
        *count == fault
    }

    /// False where it never ends.
    fn perform(&mut self, op: Op) -> Outcome<bool> {
        self.clock += 1;
        match op {
            Op::Endless => unreachable!("is never ready"),
            Op::Record(event, asked) => {
                if Self::is_next(&mut self.records_run, self.faults.hang_record) {
                    return Ok(false);
                }
                self.order.push('R');
                let point = self.events.get_mut(&event).unwrap();
                point.reached = point.reached.max(asked);
                point.time = Some(self.clock);
            }
            Op::Wait(..) => {}
            Op::Host(work) => work(),
            Op::Copy { to, from, bytes } => {
                if Self::is_next(&mut self.copies_run, self.faults.hang_copy) {
                    return Ok(false);
                }
                self.clock += bytes / 1000;
                // SAFETY: both were found within blocks, which live until they are given back.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes as usize) };
            }
            Op::Product { gemm, way, args } => {
                self.products_run += 1;
                self.room = self.room.max(args.partial.bytes);
                // SAFETY: the runtime promises so many bytes.
                unsafe { super::product(&gemm, way, &args) };
            }
            Op::Kernel { code, name, launch, args, early } => {
                self.kernels_run += 1;
                if self.kernels_run == self.faults.hang {
                    return Ok(false);
                }
                if self.kernels_run == self.faults.fail {
                    let failed = Fault::new(FaultKind::Kernel, "an illegal address");
                    self.failed = Some(failed.clone());
                    return Err(failed);
                }
                let reversed = self.random.one_in(2);
                // SAFETY: the runtime promises such memory.
                if let Err(message) = unsafe { code.run(&name, launch, &args, reversed, early) } {
                    let failed = Fault::new(FaultKind::Kernel, message);
                    self.failed = Some(failed.clone());
                    return Err(failed);
                }
            }
            Op::Graph(graph) => {
                self.graphs_launched += 1;
                self.order.push('G');
                let graph = self.graphs[&graph].clone();
                let (mut begun, mut done) = (vec![false; graph.nodes.len()], vec![false; graph.nodes.len()]);
                loop {
                    let ready: Vec<usize> = (0..done.len())
                        .filter(|&node| {
                            !begun[node] && graph.nodes[node].1.iter().all(|&before| done[before])
                        })
                        .collect();
                    let Some(node) = self.choose(&ready) else { break };
                    begun[node] = true;
                    done[node] = self.perform(graph.nodes[node].0.clone())?;
                }
                return Ok(done.iter().all(|&done| done));
            }
        }
        Ok(true)
    }
}
