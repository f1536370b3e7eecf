//! What a program holds of a driver, given back in reverse order when it ends; and faults as errors.

use std::sync::Arc;

use super::driver::{
    Driver, Event, Fault, FaultKind, Function, Graph, HostPointer, Launch, Module, Outcome, Pointer, Stream,
};
use crate::error::{Error, Report, Result};
use crate::units::Bytes;

enum Resource {
    Gpu(u32),
    Memory(u32, Pointer),
    Host(HostPointer),
    Stream(Stream),
    Event(Event),
    Module(Module),
    Graph(Graph),
}

/// See the module's documentation.
pub(super) struct Resources {
    pub(super) driver: Arc<dyn Driver>,
    list: Vec<Resource>,
    /// Work is left that does not end: giving back would wait for it.
    pub(super) abandoned: bool,
}

impl Resources {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Self {
        Self { driver, list: Vec::new(), abandoned: false }
    }

    pub(super) fn open(&mut self, gpu: u32) -> Outcome<super::GpuInfo> {
        let info = self.driver.open(gpu)?;
        self.list.push(Resource::Gpu(gpu));
        Ok(info)
    }

    /// Memory of a GPU for a device's arena. Error: the driver has no such memory.
    pub(super) fn arena(&mut self, gpu: u32, device: &str, bytes: Bytes) -> Result<Pointer> {
        if bytes.get() == 0 {
            return Ok(Pointer(0));
        }
        match self.driver.allocate(gpu, bytes.get()) {
            Ok(memory) => {
                self.list.push(Resource::Memory(gpu, memory));
                Ok(memory)
            }
            Err(fault) if fault.kind == FaultKind::OutOfMemory => {
                let there = match self.driver.memory(gpu) {
                    Ok((free, all)) => format!("{} of {} are free", Bytes(free), Bytes(all)),
                    Err(_) => "how many are free is not known".to_owned(),
                };
                let message = format!(
                    "GPU {gpu} has no {bytes} for the arena, which is within the plan's cap: {there} ({})",
                    fault.message
                );
                let help = "end what else runs on the GPU, or plan with a smaller memory= or a --reserve";
                Err(Error::Device {
                    kind: fault.kind,
                    report: Report::new(format!("device {device}"), message).help(help),
                })
            }
            Err(fault) => Err(fault.at(&format!("device {device}"))),
        }
    }

    /// So many words of a GPU's memory.
    pub(super) fn words(&mut self, gpu: u32, count: u64) -> Outcome<Pointer> {
        let memory = self.driver.allocate(gpu, 4 * count.max(1))?;
        self.list.push(Resource::Memory(gpu, memory));
        Ok(memory)
    }

    pub(super) fn host(&mut self, bytes: u64) -> Outcome<HostPointer> {
        let memory = self.driver.allocate_host(bytes.max(1))?;
        self.list.push(Resource::Host(memory));
        Ok(memory)
    }

    pub(super) fn stream(&mut self, gpu: u32) -> Outcome<Stream> {
        let stream = self.driver.stream(gpu)?;
        self.list.push(Resource::Stream(stream));
        Ok(stream)
    }

    pub(super) fn event(&mut self, gpu: u32) -> Outcome<Event> {
        let event = self.driver.event(gpu)?;
        self.list.push(Resource::Event(event));
        Ok(event)
    }

    pub(super) fn module(&mut self, gpu: u32, image: &[u8]) -> Outcome<Module> {
        let module = self.driver.load(gpu, image)?;
        self.list.push(Resource::Module(module));
        Ok(module)
    }

    pub(super) fn function(&self, module: Module, name: &str, launch: Launch) -> Outcome<Function> {
        self.driver.function(module, name, launch)
    }

    pub(super) fn end_capture(&mut self, stream: Stream) -> Outcome<Graph> {
        let graph = self.driver.end_capture(stream)?;
        self.list.push(Resource::Graph(graph));
        Ok(graph)
    }
}

impl Drop for Resources {
    fn drop(&mut self) {
        if self.abandoned {
            // A GPU cannot be made to stop: what it may still use stays as it is until the process ends.
            return;
        }
        for resource in &self.list {
            if let Resource::Stream(stream) = resource {
                // What failed was reported when it did.
                let _ = self.driver.finish(*stream);
            }
        }
        for resource in self.list.drain(..).rev() {
            match resource {
                Resource::Gpu(gpu) => self.driver.close(gpu),
                Resource::Memory(gpu, memory) => self.driver.free(gpu, memory),
                Resource::Host(memory) => self.driver.free_host(memory),
                Resource::Stream(stream) => self.driver.end_stream(stream),
                Resource::Event(event) => self.driver.end_event(event),
                Resource::Module(module) => self.driver.unload(module),
                Resource::Graph(graph) => self.driver.end_graph(graph),
            }
        }
    }
}

impl Fault {
    /// A fault of that kind.
    pub fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// As the library's error, at that step or device.
    pub fn at(self, place: &str) -> Error {
        let (message, help) = match self.kind {
            FaultKind::NoDriver => {
                ("there is no NVIDIA driver", "run where one is, or map devices with --map cuda0=cpu:0")
            }
            FaultKind::NoDevice => (
                "there is no such GPU",
                "partition devices --probe lists those of this machine; --map PLANNED=cuda:N chooses one",
            ),
            FaultKind::OutOfMemory => (
                "the GPU has no memory left, whatever the plan's caps are",
                "end what else runs on it, or plan with a --reserve",
            ),
            FaultKind::OutOfHostMemory => (
                "the host has no page-locked memory left",
                "end other programs, or raise the limit of locked memory (ulimit -l)",
            ),
            FaultKind::Launch => ("the launch was refused", "please report it, with --emit kernels"),
            FaultKind::Kernel => (
                "the kernel failed while it ran",
                "please report it, with --emit kernels; compute-sanitizer says where",
            ),
            FaultKind::Image => (
                "the compiled code is not for this GPU, or is damaged",
                "remove the kernel cache (PARTITION_CACHE), or update the driver",
            ),
            FaultKind::Hung => ("it did not end in time", "--timeout gives it longer"),
            FaultKind::Unsupported => ("the GPU or its driver does not support this", "update the driver"),
            FaultKind::Lost => (
                "the GPU is of no use to this process any more",
                "run again; nvidia-smi shows whether it is healthy",
            ),
            _ => ("the driver refuses", "nvidia-smi shows whether the GPU is healthy"),
        };
        let message = format!("{message} ({})", self.message);
        Error::Device { kind: self.kind, report: Report::new(place, message).help(help) }
    }
}
