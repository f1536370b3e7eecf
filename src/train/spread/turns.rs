//! Turns of workers that do not wait for one another. What a turn computes follows from the parameters that
//! its worker took when its last turn was over, and the clock tells the order of the turns beforehand: so
//! turns of different workers are computed at the same time, each on a thread of its worker, and are over in
//! the clock's order. The bits are those of one turn after the other.

use std::collections::{BTreeSet, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::ir::{Graph, Tensor};
use crate::pass::gradient::build::constant;
use crate::run::Runner;
use crate::train::optimize::Scalar;
use crate::train::spread::asynchronous::{Async, Clock, Turn};
use crate::train::step::GRADIENT;
use crate::train::step::accumulate::sum_name;

/// Arrays by name.
pub(crate) type Arrays = Vec<(String, Tensor)>;

/// What the array of a worker's parameter is called in a checkpoint.
fn stale_name(worker: usize, name: &str) -> String {
    format!("worker{worker}/{name}")
}

/// What a worker's turn gave.
pub(crate) struct Gradients {
    /// By microbatch.
    pub(crate) outputs: Vec<Arrays>,
    pub(crate) gradients: Arrays,
    pub(crate) wall: Duration,
}

/// Workers, their turns under way, and those that wait.
pub(crate) struct Workers {
    workers: Vec<Worker>,
    options: Async,
    seed: u64,
    clock: Clock,
    /// Turns that are not over, in their order.
    turns: VecDeque<Pending>,
    /// Names of the network's own parameters, as far as workers hold them.
    names: Vec<String>,
}

/// A turn that is not over.
struct Pending {
    turn: Turn,
    /// What it computes with; none once it is under way.
    microbatches: Option<Vec<Arrays>>,
}

impl Workers {
    /// One for each program of the network's gradients.
    ///
    /// Errors: the system gives no thread.
    pub(crate) fn new(programs: Vec<Runner>, network: &Graph, options: Async, seed: u64) -> Result<Self> {
        let params: BTreeSet<&str> = programs.first().into_iter().flat_map(Runner::params).collect();
        let params = network.params().iter().filter(|param| params.contains(param.name.as_str()));
        let names = params.map(|param| param.name.clone()).collect();
        let moved = network.params().iter().filter(|param| param.statistic.is_some());
        let moved: Vec<String> = moved.map(|param| param.name.clone()).collect();
        let start = |(number, program)| Worker::start(number, program, moved.clone());
        let workers = programs.into_iter().enumerate().map(start).collect::<Result<_>>()?;
        let (clock, turns) = (Clock::new(options, seed), VecDeque::new());
        Ok(Self { workers, options, seed, clock, turns, names })
    }

    /// Among how many turns that follow one another every worker has one: none takes half a unit more than
    /// three times while another takes one.
    pub(crate) fn ahead(&self) -> usize {
        3 * self.workers.len().saturating_sub(1) + 1
    }

    /// Turns that are not over.
    pub(crate) fn pending(&self) -> usize {
        self.turns.len()
    }

    /// Hands over the microbatches of the turn after those that are pending.
    ///
    /// Errors: a worker whose thread is gone.
    pub(crate) fn begin(&mut self, microbatches: Vec<Arrays>) -> Result<()> {
        let turn = self.clock.next();
        self.turns.push_back(Pending { turn, microbatches: Some(microbatches) });
        self.compute()
    }

    /// Lets every worker compute that has a turn and the parameters for it: no turn before it gives it others.
    fn compute(&mut self) -> Result<()> {
        let mut waits = vec![false; self.workers.len()];
        for Pending { turn, microbatches } in &mut self.turns {
            if !std::mem::replace(&mut waits[turn.worker], true)
                && let Some(microbatches) = microbatches.take()
            {
                self.workers[turn.worker].compute(microbatches)?;
            }
            if turn.starts_all {
                break;
            }
        }
        Ok(())
    }

    /// The next turn, and what it gave. The worker's next turn begins once it [took](Self::take) parameters.
    ///
    /// Errors: those of computing it; no turn was handed over.
    pub(crate) fn finish(&mut self) -> Result<(Turn, Gradients)> {
        let missing = || Error::Internal("a turn that was not handed over".into());
        let Pending { turn, .. } = self.turns.pop_front().ok_or_else(missing)?;
        Ok((turn, self.workers[turn.worker].computed()?))
    }

    /// Lets the worker of a turn, or all of them, take parameters, and go on.
    pub(crate) fn take(&mut self, turn: &Turn, params: Arrays) -> Result<()> {
        let params = Arc::new(params);
        for (number, worker) in self.workers.iter_mut().enumerate() {
            if turn.starts_all || number == turn.worker {
                worker.received = Arc::clone(&params);
            }
        }
        self.compute()
    }

    /// A parameter as the first worker has it: those that are not trained, and statistics.
    pub(crate) fn param(&self, name: &str) -> Result<Option<Tensor>> {
        self.workers.first().map_or(Ok(None), |worker| worker.param(name))
    }

    /// Names of the network's parameters.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// What each worker has for the turns that are not over, for a checkpoint.
    pub(crate) fn arrays(&self) -> Result<Arrays> {
        let mut arrays = Vec::new();
        for (number, worker) in self.workers.iter().enumerate() {
            for name in &self.names {
                arrays.extend(worker.param(name)?.map(|tensor| (stale_name(number, name), tensor)));
            }
        }
        Ok(arrays)
    }

    /// Gives up the turns that are not over: it goes on after so many.
    pub(crate) fn give_up(&mut self, turns: u64) -> Result<()> {
        if self.turns.is_empty() {
            return Ok(());
        }
        for Pending { turn, microbatches } in self.turns.drain(..) {
            if microbatches.is_none() {
                self.workers[turn.worker].undo()?;
            }
        }
        self.clock = Clock::after(self.options, self.seed, turns);
        Ok(())
    }

    /// Goes on after so many turns; `array` gives what a checkpoint holds by name.
    pub(crate) fn restore<'t>(
        &mut self,
        turns: u64,
        array: impl Fn(&str) -> Option<&'t Tensor>,
    ) -> Result<()> {
        self.give_up(turns)?;
        self.clock = Clock::after(self.options, self.seed, turns);
        for (number, worker) in self.workers.iter_mut().enumerate() {
            worker.received = Arc::default();
            for name in &self.names {
                if let Some(tensor) = array(&stale_name(number, name)).or_else(|| array(name)) {
                    locked(&worker.program)?.set_param(name, tensor)?;
                }
            }
        }
        Ok(())
    }
}

/// A worker: its program, and the thread that computes with it.
struct Worker {
    program: Arc<Mutex<Runner>>,
    /// Turns to compute; the thread ends when this goes.
    turns: Option<Sender<Job>>,
    computed: Receiver<Result<Gradients>>,
    thread: Option<JoinHandle<()>>,
    /// Names of what a turn itself changes.
    moved: Vec<String>,
    /// That, as it was before the turn under way.
    before: Arrays,
    /// Parameters that it was given and takes before its next turn.
    received: Arc<Arrays>,
}

/// What a thread is to compute: parameters to take, and the batch.
type Job = (Arc<Arrays>, Vec<Arrays>);

impl Worker {
    /// Error: the system gives no thread.
    fn start(number: usize, program: Runner, moved: Vec<String>) -> Result<Self> {
        let program = Arc::new(Mutex::new(program));
        let (turns, asked) = channel::<Job>();
        let (tell, computed) = channel();
        let own = Arc::clone(&program);
        let run = move || {
            for (received, microbatches) in asked {
                let found = locked(&own).and_then(|mut program| {
                    taken(&mut program, &received)?;
                    gradients(&mut program, &microbatches)
                });
                if tell.send(found).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("worker {number}")).spawn(run);
        let thread =
            thread.map_err(|error| Error::run(format!("worker {number}"), format!("no thread: {error}")))?;
        Ok(Self {
            program,
            turns: Some(turns),
            computed,
            thread: Some(thread),
            moved,
            before: Vec::new(),
            received: Arc::default(),
        })
    }

    /// Begins a turn.
    fn compute(&mut self, microbatches: Vec<Arrays>) -> Result<()> {
        self.before.clear();
        let program = locked(&self.program)?;
        for name in &self.moved {
            self.before.extend(program.param(name)?.map(|tensor| (name.clone(), tensor)));
        }
        drop(program);
        let sent =
            self.turns.as_ref().map(|turns| turns.send((Arc::clone(&self.received), microbatches)).is_ok());
        if sent == Some(true) { Ok(()) } else { Err(gone()) }
    }

    /// Waits for the turn under way.
    fn computed(&mut self) -> Result<Gradients> {
        let found = self.computed.recv().map_err(|_| gone())?;
        self.before.clear();
        self.received = Arc::default();
        found
    }

    /// Waits for the turn under way, and forgets it.
    fn undo(&mut self) -> Result<()> {
        let before = std::mem::take(&mut self.before);
        // What it could not compute is wanted no more.
        drop(self.computed.recv().map_err(|_| gone())?);
        self.received = Arc::default();
        let mut program = locked(&self.program)?;
        taken(&mut program, &before)
    }

    /// A parameter as it is between turns.
    fn param(&self, name: &str) -> Result<Option<Tensor>> {
        match self.before.iter().chain(&*self.received).find(|(own, _)| own == name) {
            Some((_, tensor)) => Ok(Some(tensor.clone())),
            None => locked(&self.program)?.param(name),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.turns = None;
        if let Some(thread) = self.thread.take() {
            // What it computes is wanted no more.
            let _ = thread.join();
        }
    }
}

fn gone() -> Error {
    Error::Internal("a worker's thread panicked".into())
}

fn locked(program: &Mutex<Runner>) -> Result<MutexGuard<'_, Runner>> {
    program.lock().map_err(|_| gone())
}

fn taken(program: &mut Runner, params: &[(String, Tensor)]) -> Result<()> {
    params.iter().try_for_each(|(name, tensor)| program.set_param(name, tensor))
}

/// The gradient for a batch in microbatches, by the parameters that the program holds.
fn gradients(program: &mut Runner, microbatches: &[Arrays]) -> Result<Gradients> {
    let (mut outputs, mut wall) = (Vec::with_capacity(microbatches.len()), Duration::ZERO);
    let mut found = Vec::new();
    for (number, arrays) in microbatches.iter().enumerate() {
        if let Some(current) = program.param(Scalar::Begins.name())? {
            let begins = f64::from(u8::from(number == 0));
            program.set_param(Scalar::Begins.name(), &constant(current.dtype(), &[], &[begins])?)?;
        }
        program.feed(arrays)?;
        wall += program.step()?;
        let (gradients, own) =
            program.outputs()?.into_iter().partition(|(name, _)| name.starts_with(GRADIENT));
        found = gradients;
        outputs.push(own);
    }
    if microbatches.len() > 1 {
        let names: Vec<String> = program.params().map(str::to_owned).collect();
        for name in &names {
            found.extend(program.param(&sum_name(name))?.map(|sum| (format!("{GRADIENT}{name}"), sum)));
        }
    }
    Ok(Gradients { outputs, gradients: found, wall })
}
