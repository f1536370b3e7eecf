//! Which engine runs what is placed on a device: the one place that knows it by the names of kinds.

use std::fmt;
use std::str::FromStr;

use super::Target;
use super::preset::Preset;

/// What runs kernels on a kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Engine {
    /// This program's kernels on a processor.
    Cpu,
    /// CUDA, on the GPU that `cuda` or a preset names.
    Cuda,
    /// None of them: a kind of the caller's own, which is only planned for.
    Other,
}

impl Engine {
    /// The engine of a kind.
    pub fn of_kind(kind: &str) -> Self {
        if kind == Self::CPU {
            Self::Cpu
        } else if Preset::find(kind).is_some() {
            Self::Cuda
        } else {
            Self::Other
        }
    }

    /// The kind of processors.
    pub const CPU: &'static str = "cpu";
    /// The kind of GPUs of which only the memory is known.
    pub const CUDA: &'static str = "cuda";
}

/// Reads what [`Target`] prints.
impl FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(text: &str) -> Result<Self, UnknownTarget> {
        let (engine, rest) = text.split_once(':').ok_or(UnknownTarget)?;
        let number = || rest.parse().map_err(|_| UnknownTarget);
        match engine {
            Engine::CPU => Ok(Self::Cpu(number()?)),
            Engine::CUDA => Ok(Self::Cuda(number()?)),
            "model" => Ok(Self::Model(rest.to_owned())),
            _ => Err(UnknownTarget),
        }
    }
}

/// What is none of `cpu:N`, `cuda:N` and `model:NAME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownTarget;

impl fmt::Display for UnknownTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("expected cpu:N, cuda:N or model:NAME")
    }
}

impl std::error::Error for UnknownTarget {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_run_on_cuda_and_kinds_of_ones_own_nowhere() {
        for (kind, engine) in
            [("cpu", Engine::Cpu), ("cuda", Engine::Cuda), ("a100-80g", Engine::Cuda), ("acc", Engine::Other)]
        {
            assert_eq!(Engine::of_kind(kind), engine, "{kind}");
        }
    }

    #[test]
    fn targets_are_read_as_they_are_printed() {
        for target in [Target::Cpu(0), Target::Cuda(7), Target::Model("a100-80g".into())] {
            assert_eq!(target.to_string().parse(), Ok(target));
        }
        for bad in ["", "cpu", "cpu:", "cuda:x", "gpu:0"] {
            assert_eq!(bad.parse::<Target>(), Err(UnknownTarget), "{bad}");
        }
    }
}
