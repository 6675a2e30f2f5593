"""Which notebooks of an edition are fresh, stale or missing."""

from pathlib import Path

from . import notebook as nb
from . import project
from .display import METADATA_KEY
from .errors import UserError
from .project import REFERENCE
from .provenance import Freshness, freshness
from .tiers import load_tiers


def status(root: Path, edition: str) -> dict[str, Freshness]:
    """The freshness of each notebook of the book in `edition`; raises `UserError` where there is no such edition."""
    folder = project.edition_folder(root, edition)
    if not folder.is_dir():
        raise UserError(f"--edition {edition}: no such edition; see `efficient-training editions`")
    tiers = load_tiers(root)
    found = {}
    for name, path in project.notebooks(root).items():
        source = nb.read(path)
        target = folder / path.name
        executed = source if edition == REFERENCE else nb.read(target) if target.is_file() else None
        made = executed.metadata.get(METADATA_KEY, {}) if executed else {}
        tier = tiers.get(made.get("tier", ""))
        given = tier.parameters_of(name, nb.parameters(source)) if tier and edition != REFERENCE else {}
        found[name] = freshness(source, executed, given)
    return found
