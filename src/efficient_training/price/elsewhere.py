"""What a recipe keeps off the device, and what is to be said of how it was priced."""

from functools import lru_cache

from ..ledger import PHASES
from . import deepspeed
from .algebra import Size
from .offload import fsdp_host
from .plan import plan
from .step import run_step
from .words import Words


@lru_cache(maxsize=1024)
def elsewhere(words: Words) -> dict[str, dict[str, dict[str, Size]]]:
    """Bytes by place (host, disk), phase and component, at the phase's peak in that place."""
    places: dict[str, dict[str, dict[str, Size]]] = {}
    if words.deepspeed:
        for place, components in deepspeed.elsewhere(words).items():
            places[place] = {phase: dict(components) for phase in PHASES}
    elif words.offload != "none":
        places["host"] = fsdp_host(words)
    if words.offload_activations:
        host = places.setdefault("host", {phase: {} for phase in PHASES})
        # All of them are there when forward ends and backward begins.
        saved = run_step(words, plan(words)).offloaded
        for phase in ("forward", "backward"):
            host[phase] = host[phase] | {"activations": saved}
    return places


def notes(words: Words) -> list[str]:
    """How far the price of these words can be trusted, where no trace proves it."""
    made = []
    if words.deepspeed:
        made.append(f"DeepSpeed: {deepspeed.TOLERANCE_NOTE}")
    elif words.offload != "none":
        made.append("FSDP2's CPU offload: from its source, and not traced, as a trace knows one kind of memory")
    if words.offload_activations:
        made.append("offloaded activations: as by save_on_cpu, but for weights; not traced, and nothing overlaps")
    return made
