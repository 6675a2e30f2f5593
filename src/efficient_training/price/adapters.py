"""Linear layers with an adapter, or in NF4, in symbols: peft 0.21's and bitsandbytes 0.50's calls in their order."""

from collections.abc import Callable, Mapping
from typing import Any

from .algebra import Size
from .autograd import Gradients, Graph, Parameter, Tensor
from .matmul import linear
from .operators import FLOAT, HALF, add, clone, graph_of, made_by, record, scale, to
from .sizes import FFN, HIDDEN, KV, RANK, TOKENS, Q, several
from .words import Words

Base = Callable[[Tensor], Tensor]
KINDS = {"q": "q", "k": "kv", "v": "kv", "o": "q", "gate": "ffn", "up": "ffn", "down": "ffn"}
"""Layers of Llama's block by the width besides the hidden one: those of one kind have as many weights."""
WIDTHS = {"q": Q, "kv": KV, "ffn": FFN}
GPT2_LAYERS = {"qkv": (HIDDEN, 3 * HIDDEN), "o": (HIDDEN, HIDDEN), "up": (HIDDEN, FFN), "down": (FFN, HIDDEN)}
LAYERS = {
    "q": (HIDDEN, Q), "k": (HIDDEN, KV), "v": (HIDDEN, KV), "o": (Q, HIDDEN),
    "gate": (HIDDEN, FFN), "up": (HIDDEN, FFN), "down": (FFN, HIDDEN),
}  # fmt: skip
"""Inputs and outputs of a block's linear layers, in the order of the model."""


class Quantized(Parameter):
    """A frozen weight in NF4, of a `kind` of `KINDS`; `itemsize` is that of the copy that is made of it."""

    __slots__ = ("double", "kind")

    def __init__(self, tape: Graph, kind: str, itemsize: int, double: bool) -> None:
        super().__init__(tape, HIDDEN * WIDTHS[kind], itemsize, frozen=True)
        self.kind, self.double = kind, double


def layers(words: Words) -> list[str]:
    """The layers of a block that an adapter is on."""
    if words.adapter == "none":
        return []
    return ["q", "v"] if words.adapter_targets == "q-v" else list(GPT2_LAYERS if words.family == "gpt2" else LAYERS)


def adapter_table(words: Words) -> list[tuple[str, Size]]:
    """The trained parameters of a block: of a layer with i inputs and o outputs, A (rank, i) and B (o, rank)."""
    sizes = GPT2_LAYERS if words.family == "gpt2" else LAYERS
    both = [(name, zip("AB", sizes[name], strict=True)) for name in layers(words)]
    return [(f"{name}.{part}", RANK * width) for name, parts in both for part, width in parts]


def adapted(x: Tensor, name: str, weights: Mapping[str, Parameter], width: Size, base: Base, words: Words) -> Tensor:
    """`base(x)`, or NF4's product instead where the weight is in it, with what an adapter on the layer adds.

    x (T, n) gives (T, `width`).
    """
    weight, first = weights[f"{name}.weight"], weights.get(f"{name}.A")
    if not isinstance(weight, Quantized):
        return base(x) if first is None else _beside(x, base, first, weights[f"{name}.B"], width)
    if first is None:
        return _quantized_linear(x, weight, width)
    return _beside_quantized(x, weight, first, weights[f"{name}.B"], width, words.autocast)


def _beside(x: Tensor, base: Base, first: Parameter, second: Parameter, width: Size) -> Tensor:
    """`lora.layer.Linear.forward`: x in the adapter's dtype, `out + B(A(x)) * scaling`, back in the dtype of `out`."""
    out = base(x)
    before = out.itemsize
    x = to(x, FLOAT)
    out = add(out, _product(x, first, second, width))
    return to(out, before)


def _beside_quantized(
    x: Tensor, weight: Quantized, first: Parameter, second: Parameter, width: Size, autocast: bool
) -> Tensor:
    """`lora.bnb.Linear4bit.forward`: the base's result is cloned; casts only without autocast."""
    out = _quantized_linear(x, weight, width)
    out = clone(out)
    if not autocast:
        x = to(x, FLOAT)
    added = _product(x, first, second, width)
    if not autocast:
        added = to(added, out.itemsize)
    out = add(out, added)
    return out


def _product(x: Tensor, first: Parameter, second: Parameter, width: Size) -> Tensor:
    inner = linear(x, first, None, TOKENS, RANK)
    wide = linear(inner, second, None, TOKENS, width)
    del inner
    return scale(wide)


def _quantized_linear(x: Tensor, weight: Quantized, width: Size) -> Tensor:
    """`bnb.nn.Linear4bit.forward`: x in the compute dtype, `MatMul4Bit`, and back.

    Nothing is saved. Backward makes the fp32 scales under double quantization, the weight in the compute dtype, and the
    gradient of x by it. On CUDA forward's operator, for many tokens, copies the weight likewise
    (`_dequant_linear_fallback`) and frees it before it returns: neither a trace nor a price sees that.
    """
    before = x.itemsize
    x = to(x, weight.itemsize)
    x_numel, numel, kind, double = x.numel, weight.numel, weight.kind, weight.double

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        graph = graph_of(g)
        scales = graph.new(Size.named(f"scales_{kind}"), FLOAT) if double else None
        copy = graph.new(numel, g.itemsize)
        del scales
        x_gradient = graph.new(x_numel, g.itemsize)
        del copy
        return [x_gradient]

    graph = graph_of(x)
    node = record([x], run)
    (out,) = graph.keep(lambda: [graph.new(TOKENS * width, x.itemsize)], linear=True)
    return to(made_by(node, out), before)


def compute_itemsize(words: Words) -> int:
    """Bytes of an element in which quantized layers compute, and keep their biases."""
    return FLOAT if words.precision == "fp32" else HALF


def adapted_sizes(sizes: Mapping[str, Any], rank: Any) -> dict[str, Any]:
    """`sizes` with what an adapter of `rank`, and NF4 weights, depend on besides: ints, arrays or expressions."""
    widths = {
        "q": sizes["heads"] * sizes["head_dim"],
        "kv": sizes["kv_heads"] * sizes["head_dim"],
        "ffn": sizes["ffn"],
    }
    named: dict[str, Any] = {}
    for kind, width in widths.items():
        weights = sizes["hidden"] * width
        scales = (weights + 63) // 64
        named |= {f"codes_{kind}": (weights + 1) // 2, f"scales_{kind}": scales, f"outer_{kind}": (scales + 255) // 256}
    return {**sizes, **several(sizes), **named, "rank": rank}
