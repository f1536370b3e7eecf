"""What scripts/gpu_check finds on a machine: the GPU, NVIDIA's libraries and tools where they lie, clocks while jobs run.

Libraries of NVIDIA's Python packages and tools of its toolkit are on no path by themselves: `found_around` adds their folders
behind those that are named already, so that what was chosen stays chosen.
"""
import ctypes
import glob
import json
import os
import re
import site
import subprocess
import sys
import threading

# Most seconds that the driver has for its first answer.
DRIVER_SECONDS = 60
# Of the driver, of the compiler, of products.
LIBRARIES = ("libcuda.so.1", "libnvrtc.so.*", "libcublasLt.so.*")
TOOLS = ("nvidia-smi", "compute-sanitizer", "ncu")
# Where they are looked for, beside Python's packages.
PLACES = ("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib",
          "/usr/lib/x86_64-linux-gnu", "/usr/lib64")
TOOL_PLACES = ("/usr/local/nvidia/bin", "/usr/local/cuda*/bin", "/usr/local/cuda*/compute-sanitizer", "/opt/nvidia/nsight-compute/*")


def package_folders():
    """Where Python's packages are, this interpreter's first."""
    paths = list(sys.path) + (site.getsitepackages() if hasattr(site, "getsitepackages") else [])
    return [folder for path in paths if path for folder in sorted(glob.glob(os.path.join(glob.escape(path), "nvidia/*/lib")))]


def folders_with(names, places):
    """Folders among `places` that have one of the names, each name once: of several folders the first."""
    found = []
    for name in names:
        holds = [place for place in places if glob.glob(os.path.join(place, name))]
        if holds and holds[0] not in found:
            found.append(holds[0])
    return found


def extended(variable, folders):
    known = [one for one in os.environ.get(variable, "").split(os.pathsep) if one]
    return os.pathsep.join(known + [folder for folder in folders if folder not in known])


def found_around():
    """Adds what is found to the paths of this process's children; the environment of before, which peers have."""
    before = dict(os.environ)
    spread = lambda places: [one for place in places for one in sorted(glob.glob(place), reverse=True)]
    os.environ["PATH"] = extended("PATH", folders_with(TOOLS, spread(TOOL_PLACES)))
    libraries = folders_with(LIBRARIES, package_folders() + spread(PLACES))
    if libraries:
        os.environ["LD_LIBRARY_PATH"] = extended("LD_LIBRARY_PATH", libraries)
    return before


def gpu():
    """Name, driver and memory of the GPUs, as nvidia-smi has them; none with the reason."""
    try:
        asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
        lines = done.stdout.strip().splitlines()
        if done.returncode == 0 and lines and re.search(r"\d+ MiB", lines[0]):
            return lines, ""
        why = (done.stdout + done.stderr).strip().splitlines()[0] if done.stdout + done.stderr else "nvidia-smi names none"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = "nvidia-smi is not there" if isinstance(error, OSError) else "nvidia-smi does not end"
    line, reason = asked_apart()
    return ([line], "") if line else (None, f"{why}; {reason}")


def asked_apart():
    """As `asked_driver`, in a process of its own: a driver that does not answer takes no caller with it."""
    asked = [sys.executable, "-B", os.path.abspath(__file__)]
    try:
        child = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError as error:
        return None, str(error)
    try:
        line, reason = json.loads(child.communicate(timeout=DRIVER_SECONDS)[0])
        return line, reason
    except subprocess.TimeoutExpired:
        # It is not waited for: in the driver it cannot be ended.
        child.kill()
        return None, "the driver does not answer"
    except ValueError:
        return None, "the driver ends the process that asks it"


def asked_driver():
    """The same of the first GPU by the driver itself, for machines without nvidia-smi."""
    cuda = None
    named = [os.path.join(folder, "libcuda.so.1") for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder]
    for path in ["libcuda.so.1"] + named:
        try:
            cuda = ctypes.CDLL(path)
            break
        except OSError:
            continue
    if cuda is None:
        return None, "libcuda.so.1 is not there"
    name, device, version, memory = ctypes.create_string_buffer(128), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    calls = [("cuInit", 0), ("cuDriverGetVersion", ctypes.byref(version)), ("cuDeviceGet", ctypes.byref(device), 0),
             ("cuDeviceGetName", name, 128, device), ("cuDeviceTotalMem_v2", ctypes.byref(memory), device)]
    for call, *args in calls:
        code = getattr(cuda, call)(*args)
        if code:
            return None, f"{call} gives {code}"
    return f"{name.value.decode()}, CUDA {version.value // 1000}.{version.value % 1000 // 10}, {memory.value >> 20} MiB", ""


class Watch:
    """Clocks, temperature and power, told twice a second by one process of nvidia-smi: one for each job would take longer than many
    jobs do. While it runs the driver also stays awake, so that processes do not each wait for it to start."""

    ASKED = "clocks.sm,clocks.mem,temperature.gpu,power.draw"

    def __init__(self):
        self.last, self.child = None, None
        command = ["nvidia-smi", f"--query-gpu={self.ASKED}", "--format=csv,noheader,nounits", "--id=0", "--loop-ms=500"]
        try:
            self.child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            return
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        for line in self.child.stdout:
            self.last = line.strip()

    def end(self):
        if self.child:
            self.child.kill()
            self.child.wait()


if __name__ == "__main__":
    print(json.dumps(asked_driver()))
