"""What is refused of a launch before anything starts, each in one line."""

import math
import re
import socket
import warnings
from collections.abc import Mapping
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any

from ..errors import UserError
from .job import BACKENDS, LAUNCHERS, Job

KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("ranks", "nodes", "restarts", "cpus_per_rank"), ((Integral,), "a whole number")),
    **dict.fromkeys(("port", "gpus_per_node"), ((Integral, type(None)), "a whole number")),
    "timeout_s": ((Real, type(None)), "a number of seconds"),
    **dict.fromkeys(("launcher", "partition", "account"), ((str,), "text")),
    **dict.fromkeys(("backend", "endpoint"), ((str, type(None)), "text")),
    **dict.fromkeys(("requeue", "progress"), ((bool,), "True or False")),
    "script": ((str, PathLike), "a path"),
    **dict.fromkeys(("config", "folder"), ((str, PathLike, type(None)), "a path")),
}
"""What `launch` takes, by the name of its argument."""


def check_kinds(script: Any, arguments: tuple[Any, ...], environment: Any, **values: Any) -> None:
    """Refuse arguments of `launch` that are of another kind than it takes (`UserError`)."""
    where = "launch " + str(script).replace("\0", "\\0")
    for name, value in {"script": script, **values}.items():
        kinds, what = KINDS[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise UserError(f"{where}: {name} must be {what}, got {value!r}")
        if "\0" in str(value):
            raise UserError(f"{where}: {name} holds a NUL character: {value!r}")
    for argument in arguments:
        if not isinstance(argument, str | Real | PathLike):
            raise UserError(
                f"{where}: an argument of the script must be text, a number or a path, got {argument!r}; "
                "give several one by one: launch(script, *arguments)"
            )
    if environment is not None and not isinstance(environment, Mapping):
        raise UserError(f"{where}: environment must be a mapping of names to text, got {environment!r}")
    for name, value in (environment or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise UserError(f"{where}: environment must be a mapping of names to text, got {name!r}: {value!r}")


def check(job: Job) -> None:
    """Refuse a job that no machine could run as it stands, in one line (`UserError`)."""
    where = f"launch {job.script}"
    _check_script(job.script, where)
    _check_texts(job, where)
    if job.launcher not in LAUNCHERS:
        raise UserError(f"{where}: no launcher {job.launcher!r}; known: {', '.join(LAUNCHERS)}")
    if job.backend is not None and job.backend not in BACKENDS:
        raise UserError(f"{where}: no backend {job.backend!r}; known: {', '.join(BACKENDS)}")
    if job.ranks < 1 or job.nodes < 1 or job.ranks % job.nodes:
        raise UserError(
            f"{where}: {job.ranks} ranks on {job.nodes} nodes; take a number of ranks that is a multiple of the nodes'"
        )
    if job.restarts < 0 or (job.timeout_s is not None and not 0 < job.timeout_s < math.inf):
        raise UserError(f"{where}: restarts must be 0 or more, and the timeout above zero and finite")
    if job.config is not None and job.launcher != "accelerate":
        raise UserError(f"{where}: only the launcher accelerate takes a config file")
    if job.config is not None and not job.config.is_file():
        raise UserError(f"{where}: no such config file: {job.config}")
    if job.launcher in ("deepspeed", "accelerate") and (job.nodes > 1 or job.restarts):
        raise UserError(
            f"{where}: the launcher {job.launcher} is used on one node and without restarts; take torchrun or slurm"
        )
    _check_rendezvous(job, where)
    _check_slurm(job, where)


def _check_script(script: Path, where: str) -> None:
    if not script.is_file():
        raise UserError(f"{where}: no such script in {Path.cwd()}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks warn
            compile(script.read_bytes(), str(script), "exec")
    except SyntaxError as error:
        raise UserError(f"{where}: not a Python script that can run: {type(error).__name__}: {error}") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{where}: not a Python script that can be read: {error}") from None


def _check_texts(job: Job, where: str) -> None:
    """What neither a process nor a shell can be given."""
    for name, value in job.environment.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise UserError(f"{where}: environment: {name!r} cannot name a variable; take letters, digits and _")
        if "\0" in value:
            raise UserError(f"{where}: environment: {name} holds a NUL character, got {value!r}")
    for argument in job.arguments:
        if "\0" in argument:
            raise UserError(f"{where}: an argument of the script holds a NUL character: {argument!r}")


def _check_rendezvous(job: Job, where: str) -> None:
    if job.launcher == "torchrun" and job.nodes > 1 and job.endpoint is None:
        raise UserError(
            f"{where}: on {job.nodes} nodes torchrun needs an endpoint, HOST:PORT of one of them, the same on each"
        )
    if job.endpoint is not None:
        if job.launcher != "torchrun":
            raise UserError(f"{where}: endpoint is of the launcher torchrun; leave it out, or take launcher torchrun")
        host, _, port = job.endpoint.rpartition(":")
        if not host or not re.fullmatch(r"\S+", host) or not re.fullmatch(r"[0-9]{1,5}", port) or not _is_port(port):
            raise UserError(f"{where}: endpoint must be HOST:PORT, as node1:29500, got {job.endpoint!r}")
        if job.port is not None:
            raise UserError(f"{where}: the endpoint {job.endpoint} names a port; leave out the other, {job.port}")
    if job.port is not None and job.launcher == "slurm":
        raise UserError(f"{where}: the launcher slurm takes no port: its job finds a free one; leave it out")


def _is_port(port: str | int) -> bool:
    return 0 < int(port) < 65536


def _check_slurm(job: Job, where: str) -> None:
    own = {
        **{"partition": job.partition, "account": job.account, "requeue": job.requeue},
        **{"gpus_per_node": job.gpus_per_node is not None, "cpus_per_rank": job.cpus_per_rank != 1},
    }
    given = [name for name, value in own.items() if value and job.launcher != "slurm"]
    if given:
        raise UserError(f"{where}: {', '.join(given)} is of the launcher slurm; leave it out, or take launcher slurm")
    if job.cpus_per_rank < 1 or (job.gpus_per_node is not None and job.gpus_per_node < 0):
        raise UserError(f"{where}: cpus_per_rank must be 1 or more, and gpus_per_node 0 or more")


def check_here(job: Job) -> list[str]:
    """Refuse what this machine cannot run, in one line (`UserError`); returns a line for each thing to be warned of."""
    if job.port is not None:
        _check_port(job.port)
    return [] if job.launcher == "slurm" else _check_size(job)


def _check_port(port: int) -> None:
    """torchrun would take whatever listens there for its own rendezvous, and wait for it."""
    if not _is_port(port):
        raise UserError(f"port {port}: must be from 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise UserError(
                f"port {port}: cannot be used ({(error.strerror or str(error)).lower()}); "
                "choose another, or leave it out: a free one is found"
            ) from None


def _check_size(job: Job) -> list[str]:
    from ..machine import detect

    machine, wanted = detect(), job.ranks_per_node
    if job.backend == "nccl" or (job.backend is None and machine.gpus):
        if len(machine.gpus) < wanted:
            raise UserError(
                f"launch {job.script}: nccl needs a GPU for each rank: needs {wanted}, found {len(machine.gpus)}; "
                "take fewer ranks, or the backend gloo, which runs on the CPU"
            )
        return []
    if wanted > machine.cores:
        cores = f"{machine.cores} core" + ("s" if machine.cores > 1 else "")
        return [f"{wanted} ranks share {cores}: what they compute holds, their times mean little"]
    return []
