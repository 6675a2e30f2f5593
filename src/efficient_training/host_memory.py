"""The memory that this process may still take: what the machine has free, within the limits of its control groups."""

from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
V1_FREE = 2**60
"""From here on a limit of cgroup v1 is none: it says "no limit" as a number close to 2^63."""


def available_bytes() -> int | None:
    """Bytes that can be taken without swapping; caches that the kernel would give back count. `None` where unknown."""
    try:
        import psutil
    except ModuleNotFoundError:
        found = _of_meminfo()
    else:
        found = int(psutil.virtual_memory().available)
    free = [limit - used for limit, used in _cgroups()]
    return min([*free, *([] if found is None else [found])], default=None)


def _of_meminfo() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cgroups() -> Iterator[tuple[int, int]]:
    """The limit of each control group that holds this process, and what of it is used and could not be given back."""
    for folder, limit, usage, cached in _places():
        try:
            most, used = (int((folder / name).read_text(encoding="ascii")) for name in (limit, usage))
            rows = (line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
            cache = sum(int(row[1]) for row in rows if row[0] in cached)
        except (OSError, ValueError, IndexError):
            continue  # no such group here, or one without a limit ("max")
        if most < V1_FREE:
            yield most, used - cache


def _places() -> Iterator[tuple[Path, str, str, frozenset[str]]]:
    """Folders of the groups from this process's own up to the root, with the names of their files, of v2 and of v1."""
    try:
        lines = OWN.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        controllers, _, path = line.partition(":")[2].partition(":")
        v2 = not controllers
        if not v2 and "memory" not in controllers.split(","):
            continue
        top = ROOT if v2 else ROOT / "memory"
        names = ("memory.max", "memory.current") if v2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        prefix = "" if v2 else "total_"
        own = top / path.lstrip("/")
        # Within a container the path may be that of the host, which is not seen there: the root is then the own group.
        for folder in dict.fromkeys([own, *own.parents, top]):
            if folder.is_relative_to(top):
                yield folder, *names, frozenset({f"{prefix}inactive_file", f"{prefix}active_file"})
