"""Which notebooks of an edition are fresh, stale or missing."""

from pathlib import Path

from . import notebook as nb
from . import project
from .editions import load_edition
from .project import REFERENCE
from .provenance import Freshness, freshness
from .tiers import load_tiers


def status(root: Path, edition: str) -> dict[str, Freshness]:
    """How fresh each notebook of the book is in `edition`; raises `UserError` where that fails validation."""
    loaded = load_edition(root, edition)
    tiers = load_tiers(root)
    found = {}
    for name, path in project.notebooks(root).items():
        source, scripts = nb.read(path), project.scripts(root, name)
        made = loaded.notebooks.get(name)
        if made is None or made.provenance is None:
            found[name] = freshness(source, None, {}, scripts)
        elif edition == REFERENCE:
            found[name] = freshness(source, source, {}, scripts)
        else:
            tier = tiers.get(made.provenance["tier"])
            given = tier.parameters_of(name, nb.parameters(source)) if tier else made.provenance["parameters"]
            found[name] = freshness(source, nb.read(made.path), given, scripts)
    return found
