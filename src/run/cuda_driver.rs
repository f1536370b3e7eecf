//! Asks the NVIDIA driver which GPUs there are. The driver's library is loaded at run time, and
//! its absence is no error.
//!
//! Contains `unsafe`: loading that library, and calls into it.

use cudarc::driver::result::{self, device};
use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute as Attribute};

use super::board::{Gpu, GpuRates, preset_of_board};
use crate::units::{Bytes, Flops, Rate};

/// The GPUs; what could not be found out goes into `notes`.
pub(super) fn gpus(notes: &mut Vec<String>) -> Vec<Gpu> {
    if !is_present() {
        notes.push("no GPUs: the NVIDIA driver's library (libcuda) was not found".to_owned());
        return Vec::new();
    }
    if let Err(error) = result::init() {
        notes.push(format!("no GPUs: the NVIDIA driver does not start ({:?})", error.0));
        return Vec::new();
    }
    let count = device::get_count().unwrap_or(0);
    if count == 0 {
        notes.push("no GPUs: the NVIDIA driver reports none".to_owned());
    }
    let mut gpus = Vec::new();
    for ordinal in 0..count {
        match gpu(ordinal) {
            Ok(gpu) => gpus.push(gpu),
            Err(error) => {
                // Those after it would get wrong ordinals.
                notes.push(format!("GPU {ordinal} and those after it are left out ({:?})", error.0));
                break;
            }
        }
    }
    gpus
}

/// True where the driver's library can be loaded; every other call panics where it cannot.
fn is_present() -> bool {
    // SAFETY: loads the driver's library, whose initialisers are trusted, and unloads it.
    unsafe { sys::is_culib_present() }
}

fn gpu(ordinal: i32) -> Result<Gpu, result::DriverError> {
    let handle = device::get(ordinal)?;
    let name = device::get_name(handle)?;
    // SAFETY: `handle` comes from `device::get`.
    let memory = unsafe { device::total_mem(handle)? };
    let rates = match preset_of_board(&name) {
        Some(preset) => GpuRates::Preset(preset),
        None => driver_rates(handle).unwrap_or(GpuRates::Unknown),
    };
    Ok(Gpu { name, memory: Bytes(memory as u64), rates })
}

/// An attribute above zero.
fn attribute(handle: CUdevice, attribute: Attribute) -> Option<u64> {
    // SAFETY: `handle` comes from `device::get`.
    let value = unsafe { device::get_attribute(handle, attribute) }.ok()?;
    u64::try_from(value).ok().filter(|&value| value > 0)
}

/// Peaks from clocks (in kHz) and widths: two operations per core and cycle, two transfers per
/// memory cycle.
fn driver_rates(handle: CUdevice) -> Option<GpuRates> {
    let get = |name| attribute(handle, name);
    let major = get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = get(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR).unwrap_or(0);
    let processors = get(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
    let clock = get(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?.checked_mul(1000)?;
    let memory_clock = get(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?.checked_mul(1000)?;
    let width = get(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)? / 8;
    let flops = processors.checked_mul(cores(major, minor))?.checked_mul(2)?.checked_mul(clock)?;
    let bandwidth = memory_clock.checked_mul(2)?.checked_mul(width).filter(|&rate| rate > 0)?;
    Some(GpuRates::Driver { flops: Flops(flops), bandwidth: Rate(bandwidth) })
}

/// f32 cores in one multiprocessor, by compute capability (CUDA C++ Programming Guide, "Arithmetic
/// Instructions").
fn cores(major: u64, minor: u64) -> u64 {
    match (major, minor) {
        (6, 0) | (7, _) | (8, 0) => 64,
        _ => 128,
    }
}
