"""Runs of notebooks into an edition: what is fresh is skipped, what is finished is kept, one run at a time."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout
from nbformat import NotebookNode
from rich.console import Console

from . import kernel, machine, project, provenance
from . import notebook as nb
from .claims import Claim
from .display import METADATA_KEY
from .editions import read_notebook, read_results
from .errors import UserError
from .outputs import check_notebook
from .progress import Report
from .project import REFERENCE
from .tiers import Tier

REFERENCE_TIER = "cpu"


@dataclass
class Outcome:
    """What became of each notebook of a run, by name."""

    done: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    interrupted: str | None = None
    """The notebook that was running at Ctrl-C, which ended the run."""


@dataclass(frozen=True)
class Job:
    """One notebook to be executed."""

    name: str
    source: NotebookNode
    target: Path
    parameters: Mapping[str, Any]


def execute(
    root: Path,
    *,
    edition: str,
    tier: Tier | None,
    wanted: Sequence[str] = (),
    force: bool = False,
    console: Console,
) -> Outcome:
    """Execute the `wanted` notebooks (all where none is named) into `edition`, one after the other.

    With `tier` None the reference edition is made: in place, with the notebooks' own defaults. A failing notebook
    leaves what was there before, and the others go on. Raises `UserError` on bad input, and where another run is
    writing the same edition.
    """
    names = project.select(project.notebooks(root), wanted)
    if not names:
        raise UserError(f"{root / 'notebooks'}: holds no notebook NN-slug.ipynb; nothing to execute")
    state, target = project.state_folder(root, edition), project.edition_folder(root, edition)
    with _alone(state, edition), _log(state) as log, Report(console) as report:
        nb.remove_leftovers(target)
        run = Run(root, edition, tier, log, report)
        jobs = [run.job(name, target) for name in names]
        run.check_same_machine(target)
        return run.all(jobs, force=force)


class Run:
    """One run into one edition: the commit and the machine are looked up once."""

    def __init__(self, root: Path, edition: str, tier: Tier | None, log: IO[str], report: Report) -> None:
        self.root, self.edition, self.tier, self.log, self.report = root, edition, tier, log, report
        self.tier_name = tier.name if tier else REFERENCE_TIER
        self.machine = machine.detect()
        self.commit = provenance.commit(root)

    def job(self, name: str, target: Path) -> Job:
        """The job for the notebook `name`: its source as it is now, and what its tier gives it."""
        source = nb.read(self.root / "notebooks" / f"{name}.ipynb")
        given = self.tier.parameters_of(name, nb.parameters(source)) if self.tier else {}
        return Job(name, source, target / f"{name}.ipynb", given)

    def check_same_machine(self, target: Path) -> None:
        """Refuse to mix tiers or machines in one edition; the reference may come from several, as it is checked."""
        if self.edition == REFERENCE:
            return
        mine = self.machine.to_json()
        for path in sorted(target.glob("*.ipynb")):
            made = _provenance(path)
            if made is None:
                continue
            there = made["machine"]
            what = [("tier", made["tier"], self.tier_name)]
            what += [(key, there[key], mine[key]) for key in ("system", "cpu")]
            what += [("GPU", _gpu_names(there), _gpu_names(mine))]
            for key, old, new in what:
                if old != new:
                    raise UserError(
                        f"edition {self.edition!r} was made on another machine or tier (its {key} is {old}, "
                        f"here {new}); choose another --edition, or delete results/{self.edition}"
                    )

    def all(self, jobs: Sequence[Job], *, force: bool) -> Outcome:
        """Execute the jobs in order; whatever happens to one, the next is tried. Ctrl-C ends the run."""
        outcome = Outcome()
        self.note(f"run into {self.edition}, tier {self.tier_name}, commit {self.commit[0]}")
        for number, job in enumerate(jobs, 1):
            executed = _executed(job)
            if not force and self._fresh(job, executed):
                outcome.skipped.append(job.name)
                self.say(f"[{number}/{len(jobs)}] {job.name}: fresh, skipped")
                continue
            self.report.start(job.name, len(job.source.cells), f"{number}/{len(jobs)}")
            self.note(f"{job.name}: started, parameters {dict(job.parameters)}")
            try:
                self.one(job)
                outcome.done.append(job.name)
            except (kernel.NotebookFailed, UserError, OSError) as error:
                outcome.failed[job.name] = str(error)
                self.note(f"{job.name}: failed: {error}\n{getattr(error, 'full', '')}")
                self.report.end(f"{job.name}: failed after {{seconds}}: {_indented(str(error))}", "red")
            except KeyboardInterrupt:
                outcome.interrupted = job.name
                self.note(f"{job.name}: interrupted")
                break
        return outcome

    def _fresh(self, job: Job, executed: NotebookNode | None) -> bool:
        scripts = project.scripts(self.root, job.name)
        return provenance.freshness(job.source, executed, job.parameters, scripts).state == "fresh"

    def one(self, job: Job) -> None:
        """Execute one notebook and put it into the edition; raises `NotebookFailed`, or `UserError` on its records."""
        started = time.monotonic()
        executed = kernel.run(
            job.source,
            job.parameters,
            folder=self.root / "notebooks",
            log=self.log,
            network=bool(self.tier and self.tier.network),
            on_cell=self._on_cell,
        )
        nb.clean(executed)
        seconds = time.monotonic() - started
        executed.metadata[METADATA_KEY] = provenance.provenance(
            job.source,
            edition=self.edition,
            tier=self.tier_name,
            parameters=job.parameters,
            machine=self.machine,
            seconds=seconds,
            commit=self.commit,
            scripts=project.scripts(self.root, job.name),
        )
        check_notebook(executed, job.name)
        result = read_results(Path(job.name), executed)
        self._refuse_private(executed, job.name)
        nb.write(executed, job.target)
        held = _verdicts(result.claims)
        self.note(f"{job.name}: done in {seconds:.1f} s; {len(result.records)} records; {held}")
        self.report.end(f"{job.name}: done in {{seconds}}; {len(result.records)} records; {held}", "green")
        for claim in result.claims.values():
            if claim.held is False and claim.scope == "everywhere":
                self.say(f"  claim {claim.name} must hold everywhere, but does not: {claim.evidence}", "red")
        for label, line in nb.warnings(executed):
            self.say(f"  cell {label} wrote to stderr: {line}", "yellow")

    def note(self, text: str) -> None:
        """Write to the log, with the time."""
        self.log.write(f"{datetime.now().astimezone().isoformat(timespec='seconds')} {text}\n")
        self.log.flush()

    def say(self, text: str, style: str = "") -> None:
        """Write to the log and to the terminal."""
        self.note(text)
        self.report.line(text, style)

    def _on_cell(self, index: int, cell: NotebookNode) -> None:
        if cell.cell_type == "code":
            self.note(f"  cell {index + 1}: {nb.label(cell)}")
        self.report.cell(index, nb.label(cell) if cell.cell_type == "code" else "")

    def _refuse_private(self, executed: NotebookNode, name: str) -> None:
        """Outputs are published: a folder of this machine does not belong in them."""
        folders = self.root, Path.home(), Path(sys.prefix, "lib")
        private = [str(path) for path in folders if path != Path(path.anchor)]
        for cell in executed.cells:
            for output in cell.get("outputs", ()):
                text = nb.output_text(output)
                found = next((path for path in private if path in text), None)
                if found:
                    where = f"{name}, cell {nb.label(cell)}"
                    raise UserError(f"{where}: prints the path {found!r}; keep it out of the output")


def _provenance(path: Path) -> Mapping[str, Any] | None:
    """Of a notebook in the edition; `None` where that is not valid, since it will be executed again."""
    try:
        return read_notebook(path).provenance
    except UserError:
        return None


def _executed(job: Job) -> NotebookNode | None:
    """The valid notebook that stands at the target, which for the reference edition is the source's own file."""
    try:
        read_notebook(job.target)
        return nb.read(job.target)
    except UserError:
        return None


@contextmanager
def _alone(state: Path, edition: str) -> Iterator[None]:
    """Hold the edition's lock, which the system drops with this process however that ends."""
    if state.is_symlink():
        raise UserError(f"results/{edition}: a link, which no edition may be; remove it, or choose another --edition")
    state.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(state / ".lock", timeout=0):
            yield
    except Timeout:
        raise UserError(
            f"edition {edition!r} is being written by another run (results/{edition}/.lock); "
            "wait for it, or choose another --edition"
        ) from None


@contextmanager
def _log(state: Path) -> Iterator[IO[str]]:
    with (state / "run.log").open("a", encoding="utf-8") as log:
        kernel.quiet_papermill(log)
        yield log


def _verdicts(claims: Mapping[str, Claim]) -> str:
    verdicts = [claim.held for claim in claims.values()]
    text = f"{verdicts.count(True)} claims held"
    for held, word in ((False, "not held"), (None, "not run")):
        text += f", {verdicts.count(held)} {word}" if held in verdicts else ""
    return text


def _gpu_names(described: Mapping[str, Any]) -> str:
    """Names alone: the memory that a driver offers differs from one version of it to another."""
    return ", ".join(gpu["name"] for gpu in described["gpus"]) or "none"


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
