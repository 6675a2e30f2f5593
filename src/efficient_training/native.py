"""Build the native extensions of DeepSpeed that the book uses, once: `python -m efficient_training.native`.

DeepSpeed compiles them at their first use, which takes minutes and would count against a notebook. Here they are
compiled into the environment that runs this (`sys.prefix`), in a folder for each PyTorch and processor: the compiler
is told to use all that this processor has, and PyTorch's headers are no dependency that the build would notice. What is
there already is left alone; what was broken off goes on from its last file.
"""

import argparse
import ctypes
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EXTENSIONS = {
    "deepspeed_shm_comm": "ShareMemCommBuilder",
    "cpu_adam": "CPUAdamBuilder",
    "async_io": "AsyncIOBuilder",
}
"""DeepSpeed's name of each extension, and the class that builds it: without the first no engine starts on a CPU."""

PARTS = {"async_io": ("pin_memory", "async_io")}
"""The libraries of an extension that does not consist of the one of its name."""

JOB_BYTES = 2**31
"""Memory that one compiler process may take."""

LINE = "\r{}"


def folder() -> Path:
    """Where this environment keeps its extensions: `<sys.prefix>/torch-extensions/<PyTorch>-<processor>`."""
    found = importlib.metadata.version("torch")
    return Path(sys.prefix) / "torch-extensions" / f"{found}-{_processor()}"


def use() -> None:
    """Let this process, and those that it starts, find the extensions: before DeepSpeed is imported.

    Without a CUDA device DeepSpeed is told to take the CPU; it finds that out itself too, with a warning.
    """
    import torch

    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(folder()))
    # This environment's ninja before any other: one of another version takes what is built for stale.
    scripts, path = str(Path(sys.executable).parent), os.environ.get("PATH", "")
    if path.split(os.pathsep)[0] != scripts:
        os.environ["PATH"] = os.pathsep.join([scripts, path])
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def load() -> None:
    """Load what is built, so that DeepSpeed need not ask the compiler in each process; DeepSpeed has been imported."""
    import functools

    import cpuinfo
    from deepspeed.ops.op_builder.builder import OpBuilder
    from torch.utils.cpp_extension import _import_module_from_library

    # DeepSpeed asks for it many times, and each time it starts programs.
    cpuinfo.get_cpu_info = functools.cache(cpuinfo.get_cpu_info)
    for part in (part for name in EXTENSIONS if built(name) for part in _parts(name)):
        library = folder() / part / f"{part}.so"
        if part == "pin_memory":  # the next one looks for its symbols
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        OpBuilder._loaded_ops[part] = _import_module_from_library(part, str(library.parent), True)


def missing(name: str) -> str | None:
    """What the extension still needs, in a few words ("libaio", "a C++ compiler"), or `None` where it is built."""
    if importlib.util.find_spec("deepspeed") is None:
        return "DeepSpeed"
    if built(name):
        return None
    return _obstacle(name) or "its extension, built by `python -m efficient_training.native`"


def built(name: str) -> bool:
    """Whether all libraries of an extension are there, whole, for the DeepSpeed that is installed."""
    place = folder()
    return all((place / part / f"{part}.so").exists() for part in _parts(name)) and _stamp(place, name).exists()


def build(name: str) -> bool:
    """Build one extension, with a line of progress; returns whether it is there afterwards."""
    place = folder()
    if built(name):
        print(f"{name}: there already", flush=True)
        return True
    obstacle = "it needs DeepSpeed" if importlib.util.find_spec("deepspeed") is None else _obstacle(name)
    if obstacle:
        print(f"{name}: not built here: needs {obstacle}", flush=True)
        return False
    for part in _parts(name):  # of a build that was killed: later ones would wait for it for ever
        (place / part / "lock").unlink(missing_ok=True)
    begin = time.monotonic()
    print(f"{name}: building, once, which takes a minute or more", flush=True)
    with tempfile.TemporaryFile() as log:
        code = (
            "from efficient_training.native import use; use()\n"
            f"from deepspeed.ops.op_builder import {EXTENSIONS[name]} as builder; builder().load(verbose=True)"
        )
        jobs = {"MAX_JOBS": os.environ.get("MAX_JOBS", str(_jobs()))}
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **jobs},
            start_new_session=True,
        )
        try:
            _follow(process, name, place)
        finally:
            if process.poll() is None:  # interrupted: its compilers, too, are to end
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
        if process.returncode:
            log.seek(0)
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
            error = next((line for line in lines if " error: " in line), lines[-1] if lines else "no output")
            print(f"{name}: could not be built: {error.strip()[:300]}", flush=True)
            return False
    _stamp(place, name).touch()
    print(f"{name}: built in {time.monotonic() - begin:.0f} s", flush=True)
    return True


def _follow(process: "subprocess.Popen[bytes]", name: str, place: Path) -> None:
    """Say how many files are compiled, in place on a terminal, until the process ends."""
    shown = -1
    while process.poll() is None:
        done = sum(len(list((place / part).glob("*.o"))) for part in _parts(name))
        if sys.stdout.isatty():
            print(LINE.format(f"{name}: {done} files compiled"), end="", flush=True)
        elif done != shown and done % 5 == 0 and done:
            print(f"{name}: {done} files compiled", flush=True)
        shown = done
        time.sleep(0.5)
    if sys.stdout.isatty():
        print(LINE.format(""), end="")


def _parts(name: str) -> tuple[str, ...]:
    return PARTS.get(name, (name,))


def _stamp(place: Path, name: str) -> Path:
    return place / f"{name}-{importlib.metadata.version('deepspeed')}.built"


def _obstacle(name: str) -> str | None:
    if not any(shutil.which(compiler) for compiler in (os.environ.get("CXX", "c++"), "c++")):
        return "a C++ compiler"
    if not shutil.which("ninja") and not (Path(sys.executable).parent / "ninja").exists():
        return "ninja"
    if name == "async_io" and not _has_libaio():
        return "libaio (its headers: libaio-dev, libaio-devel)"
    if name == "async_io" and _lacks_toolkit():
        return "the CUDA toolkit (CUDA_HOME), as on this machine DeepSpeed compiles it for CUDA"
    return None


def _lacks_toolkit() -> bool:
    import torch
    from torch.utils.cpp_extension import CUDA_HOME

    return torch.cuda.is_available() and torch.version.hip is None and CUDA_HOME is None


def _has_libaio() -> bool:
    with tempfile.TemporaryDirectory() as place:
        source = Path(place, "probe.cpp")
        source.write_text("#include <libaio.h>\nint main() { io_context_t c = 0; return io_destroy(c); }\n")
        command = [os.environ.get("CXX", "c++"), str(source), "-laio", "-o", str(source.with_suffix(""))]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _jobs() -> int:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, memory // JOB_BYTES))


def _processor() -> str:
    """A short name of what the compiler may use of this processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
        marks = ("flags", "Features", "model name")
        features = "\n".join(sorted({line for line in lines if line.startswith(marks)}))
    except OSError:
        features = platform.processor()
    return hashlib.sha256(features.encode()).hexdigest()[:12]


def main() -> int:
    """Build what is asked for, or all; 0 also where something is missing, unless it was asked for by name."""
    parser = argparse.ArgumentParser(prog="python -m efficient_training.native", description=__doc__.splitlines()[0])
    parser.add_argument("extensions", nargs="*", choices=[[], *EXTENSIONS], help="; ".join(EXTENSIONS))
    asked = parser.parse_args().extensions
    place = folder()
    place.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # goes with this process, however it ends
        try:
            done = [build(name) for name in asked or EXTENSIONS]
        except KeyboardInterrupt:
            print("interrupted; the same command goes on from there", flush=True)
            return 130
    return 0 if all(done) or not asked else 1


if __name__ == "__main__":
    sys.exit(main())
