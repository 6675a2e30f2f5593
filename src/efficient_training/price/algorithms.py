"""The steps of optimizers other than AdamW in symbols: what each allocates for one parameter after another.

Each function follows that of a library, line by line, named in its text (torch 2.13, torchao 0.18). `held` are the
local variables of its loop over parameters, which outlive a parameter's turn until that of the next replaces them.
bitsandbytes' kernels work in place, and allocate nothing (`csrc/kernels.cu`, kOptimizerStatic8bit2StateBlockwise).
"""

from collections.abc import Callable

from .algebra import ONE, Size
from .autograd import Graph, Tensor
from .operators import FLOAT, HALF, LONG
from .state import blocks, muon_takes, plain, quantized, sides, smaller_side
from .tape import Region
from .words import Words

Held = dict[str, Tensor]
Step = Callable[[Graph, Words, str, Size, Held], None]


def lion(graph: Graph, words: Words, name: str, numel: Size, held: Held) -> None:
    """`optimizers.Lion.step`: `sign(momentum * beta1 + grad * (1 - beta1))`, three tensors at its height."""
    size = words.state_itemsize
    left, right = graph.new(numel, size), graph.new(numel, size)
    both = graph.new(numel, size)
    del left, right
    sign = graph.new(numel, size)
    del both, sign


def adafactor(graph: Graph, words: Words, name: str, numel: Size, held: Held) -> None:
    """`torch.optim._adafactor._single_tensor_adafactor`: an estimate as large as the parameter, which becomes the
    update; of a vector, the squares beside it."""
    size = words.state_itemsize
    norm = graph.new(ONE, size)
    del norm
    if pair := sides(name, words.family):
        held["row_mean"] = graph.new(pair[0], size)
        held["col_mean"] = graph.new(pair[1], size)
        held["var_estimate"] = graph.new(numel, size)
        mean = graph.new(ONE, size)
        del mean
    else:
        held["grad_squared"] = graph.new(numel, size)
        held["var_estimate"] = graph.new(numel, size)
    held["update"] = held["var_estimate"]
    norm = graph.new(ONE, size)
    del norm


def muon(graph: Graph, words: Words, name: str, numel: Size, held: Held) -> None:
    """`torch.optim._muon._single_tensor_muon`, and `_zeropower_via_newtonschulz`: five rounds in bf16 of two square
    matrices of the smaller side, and a matrix like the parameter. The update outlives the turn."""
    gram_numel = smaller_side(name) * smaller_side(name)
    held["update"] = update = graph.new(numel, words.state_itemsize)
    ortho = graph.new(numel, HALF) if words.state_itemsize == FLOAT else update
    norm = graph.new(ONE, HALF)
    clamped = graph.new(ONE, HALF)
    del norm, clamped
    for _ in range(2):  # the third round, and those after, are like the second
        gram = graph.new(gram_numel, HALF)
        gram_update = graph.new(gram_numel, HALF)
        ortho = graph.new(numel, HALF)
    del gram, gram_update, update
    held["update"] = ortho


def torchao(graph: Graph, words: Words, name: str, numel: Size, held: Held) -> None:
    """`torchao.optim.adam.single_param_adam`, run eagerly: each instant at which quantized or plain state is highest.

    Held by then: the parameter in fp32, decayed, its gradient in fp32 (of a bf16 parameter, a copy), both moments in
    fp32, and two bias corrections. To them come, where moments are codes of a map, those of `_search`. With fp8 and
    with plain state the height is at `lr * (exp_avg_f32 / bias_correction1)`: the denominator, and both products.
    """
    searches = words.algorithm != "torchao-adamwfp8"
    for there, coded in ((quantized(name), searches), (plain(name), False)):
        with graph.within(Region(ONE, there)):
            copies = [graph.new(numel, FLOAT) for _ in range(3 if words.state_itemsize == FLOAT else 4)]
            corrections = graph.new(Size.of(2), FLOAT)
            if coded:
                _search(graph, name, numel)
            else:
                terms = [graph.new(numel, FLOAT) for _ in range(3)]
                del terms
            del copies, corrections


def _search(graph: Graph, name: str, numel: Size) -> None:
    """`quantize_8bit_with_qmap`, `quantize_4bit_with_qmap` at their end: `torch.where(..., codes_up, codes)`.

    The scales of blocks, and the scaled numbers; codes, codes rounded up, and those chosen of them, all int64; values
    below and above, and the distance to the former; and whether it is half of a gap or more.
    """
    scales = graph.new(blocks(name), FLOAT)
    numbers = [graph.new(numel, FLOAT) for _ in range(4)]
    codes = [graph.new(numel, LONG) for _ in range(3)]
    rounds_up = graph.new(numel, 1)
    del scales, numbers, codes, rounds_up


def nothing(graph: Graph, words: Words, name: str, numel: Size, held: Held) -> None:
    """A step in place."""


def step_of(words: Words, name: str) -> Step | None:
    """How one parameter steps; none where AdamW steps it."""
    if words.algorithm.startswith("bnb"):
        return nothing
    if words.algorithm.startswith("torchao"):
        return torchao
    if words.algorithm == "muon":
        return muon if muon_takes(name, words.family) else None
    return {"lion": lion, "adafactor": adafactor}.get(words.algorithm)
