"""Tiers: classes of hardware (`environments/<tier>/tier.yml`), which of them this machine meets, and why not others."""

import importlib.metadata
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from . import notebook as nb
from .errors import UserError
from .machine import GIB, Machine
from .project import notebooks
from .validation import validate
from .yaml_text import load_yaml

DETECTED = ("hopper", "gpu", "cpu")
"""The tiers that are found by looking at the machine, best first. `cluster` is asked for, never detected."""

CLUSTER = "cluster"

Defaults = Mapping[str, Mapping[str, Any]]
"""Of each notebook, by name: the names in its `parameters` cell, with their defaults (`...` where not a literal)."""


@dataclass(frozen=True)
class Tier:
    """One tier. `parameters` has those of `common` under that key, and each notebook's own under its name."""

    name: str
    title: str
    path: Path
    device: str
    memory_gib: float | None = None
    capability: str | None = None
    rocm: bool = False
    ranks: int = 1
    packages: tuple[str, ...] = ()
    network: bool = False
    cluster: Mapping[str, Any] | None = None
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def parameters_of(self, notebook: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """What `notebook` is given: of `cluster` and `common` what its `parameters` cell has, then its own.

        A cluster's `ranks` are those of all its nodes.
        """
        cluster = dict(self.cluster or {})
        if "ranks_per_node" in cluster:
            cluster["ranks"] = cluster["ranks_per_node"] * cluster.get("nodes", 1)
        shared = {**cluster, **self.parameters.get("common", {})}
        given = {name: value for name, value in shared.items() if name in defaults}
        return {**given, **self.parameters.get(notebook, {})}

    def missing(self, machine: Machine) -> list[str]:
        """Why this tier cannot run here, a phrase for each need of the machine and of packages; empty where it can."""
        return self.missing_hardware(machine) + [text for need in self.packages if (text := _missing_package(need))]

    def missing_hardware(self, machine: Machine) -> list[str]:
        """Why `machine` does not meet this tier, whatever is installed on it; empty where it does."""
        cluster = self.cluster or {}
        if cluster.get("launcher") == "slurm":
            return [] if shutil.which("sbatch") else ["needs sbatch on the PATH, found none"]
        if self.device == "cuda" and cluster.get("backend") != "gloo":
            return self._missing_gpus(machine, max(self.ranks, cluster.get("ranks_per_node", 1)))
        return _missing_memory("memory", self.memory_gib, machine.memory_bytes)

    def _missing_gpus(self, machine: Machine, ranks: int) -> list[str]:
        """The first `ranks` GPUs are those that a run uses, so it is they that count."""
        if not machine.gpus:
            return [f"needs a CUDA{' or ROCm' if self.rocm else ''} GPU, found none"]
        if machine.rocm and not self.rocm:
            return [f"needs an NVIDIA GPU, found {machine.gpus[0].name}"]
        needs = [] if len(machine.gpus) >= ranks else [f"needs {ranks} GPUs, found {len(machine.gpus)}"]
        for gpu in machine.gpus[:ranks]:
            if self.capability and not machine.rocm and _version(gpu.capability) < _version(self.capability):
                needs.append(f"needs compute capability {self.capability}, found {gpu.capability} ({gpu.name})")
            needs += _missing_memory(f"memory on {gpu.name}", self.memory_gib, gpu.memory_bytes)
        return list(dict.fromkeys(needs))


def load_tiers(root: Path) -> dict[str, Tier]:
    """All tiers of the project by name, validated against its notebooks; raises `UserError` on the first fault."""
    defaults = {name: _defaults(path) for name, path in notebooks(root).items()}
    found = {path.parent.name: load_tier(path, defaults) for path in sorted(root.glob("environments/*/tier.yml"))}
    if not found:
        raise UserError(f"{root / 'environments'}: holds no <tier>/tier.yml; take the folder from git")
    order = [*reversed(DETECTED), CLUSTER]
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0]) if item[0] in order else 99, item[0])))


def _defaults(path: Path) -> dict[str, Any]:
    try:
        return nb.parameters(nb.read(path))
    except UserError as error:
        message = str(error)
        raise UserError(message if str(path) in message else f"notebooks/{path.name}: {message}") from None


def load_tier(path: Path, defaults: Defaults) -> Tier:
    """The tier that `path` states; raises `UserError` naming the file, the place in it, and what to do."""
    where = f"environments/{path.parent.name}/{path.name}"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: cannot be read ({error})") from None
    data: Any = load_yaml(text, where)
    validate(data, "tier", where)
    if data["name"] != path.parent.name:
        raise UserError(f"{where}: name is {data['name']!r}, but the folder is {path.parent.name!r}; make them equal")
    if (data["name"] == CLUSTER) != ("cluster" in data):
        wanted = "needs" if data["name"] == CLUSTER else "cannot have"
        raise UserError(f"{where}: the tier {data['name']!r} {wanted} the key 'cluster' (launcher, capability)")
    cluster = data.get("cluster", {})
    if cluster.get("nodes", 1) > 1 and cluster["launcher"] != "slurm":
        raise UserError(f"{where}: cluster/nodes: on several nodes the launcher is slurm; change it, or take one node")
    _check_requires(data["requires"], where)
    parameters = data.get("parameters", {})
    _check_parameters(parameters, defaults, where, restating=data["name"] != "cpu")
    requires = {**data["requires"], "packages": tuple(data["requires"].get("packages", ()))}
    rest = {key: data[key] for key in ("network", "cluster") if key in data}
    return Tier(data["name"], data["title"], path, **requires, **rest, parameters=parameters)


def choose(tiers: Mapping[str, Tier], machine: Machine, asked: str | None) -> Tier:
    """The tier asked for, or the best one that `machine` meets; raises `UserError` saying why it does not."""
    if asked is not None:
        if asked not in tiers:
            raise UserError(f"--tier {asked}: no such tier; known: {', '.join(tiers)}")
        missing = tiers[asked].missing(machine)
        if missing:
            raise UserError(f"--tier {asked}: {'; '.join(missing)}; see `efficient-training tiers`")
        return tiers[asked]
    candidates = [tiers[name] for name in DETECTED if name in tiers]
    for tier in candidates:
        if not tier.missing(machine):
            return tier
    why = "; ".join(f"{tier.name} {', '.join(tier.missing(machine))}" for tier in candidates)
    raise UserError(f"this machine meets no tier: {why}")


def _check_requires(requires: Mapping[str, Any], where: str) -> None:
    if requires["device"] == "cpu" and {"capability", "ranks", "rocm"} & requires.keys():
        raise UserError(
            f"{where}: requires: capability, ranks and rocm are of device cuda; take them out or change device"
        )
    for text in requires.get("packages", ()):
        try:
            Requirement(text)
        except InvalidRequirement:
            raise UserError(
                f"{where}: requires/packages: {text!r} is no requirement; write it like torch>=2.11"
            ) from None


def _check_parameters(
    parameters: Mapping[str, Mapping[str, Any]], defaults: Defaults, where: str, *, restating: bool
) -> None:
    """Papermill would run on with a notebook or a parameter that is not there; so each must be there."""
    for notebook, values in parameters.items():
        if notebook != "common" and notebook not in defaults:
            known = ", ".join(defaults) or "none yet"
            raise UserError(f"{where}: parameters/{notebook}: no such notebook; known: {known}")
        for name, value in values.items():
            holders = {key: has[name] for key, has in defaults.items() if name in has and notebook in ("common", key)}
            place = f"{where}: parameters/{notebook}/{name}"
            if not holders:
                which = "no notebook's" if notebook == "common" else f"notebooks/{notebook}.ipynb's"
                has = "has it" if notebook == "common" else f"has no such name ({', '.join(defaults[notebook])})"
                raise UserError(f"{place}: {which} parameters cell {has}; mend the name or take it out")
            for holder, default in holders.items():
                if not _alike(value, default):
                    kinds = f"{type(value).__name__}, but the default in {holder} is {type(default).__name__}"
                    raise UserError(f"{place}: {value!r} is {kinds}; write a value of that type")
                if not restating and type(value) is type(default) and value == default:
                    raise UserError(f"{place}: restates the default of {holder}; take it out")


def _alike(value: Any, default: Any) -> bool:
    """Whether a value may stand for a default: of the same type, an int for a float, anything for None and `...`."""
    if default is None or default is ... or value is None:
        return True
    if isinstance(default, tuple | list):
        return isinstance(value, list)
    if isinstance(default, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return type(value) is type(default)


def _missing_memory(what: str, need_gib: float | None, found_bytes: int | None) -> list[str]:
    if need_gib is None or found_bytes is None or found_bytes >= need_gib * GIB:
        return []
    return [f"needs {need_gib:g} GiB of {what}, found {found_bytes / GIB:.1f} GiB"]


def _missing_package(text: str) -> str | None:
    requirement = Requirement(text)
    try:
        found = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"needs {text}, not installed here (`make run` installs it)"
    return None if requirement.specifier.contains(found, prereleases=True) else f"needs {text}, found {found}"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))
