"""Linear layers with an adapter, or in NF4, in symbols: peft 0.21's and bitsandbytes 0.50's calls in their order."""

from collections.abc import Callable, Mapping
from typing import Any

from .algebra import Size
from .autograd import Gradients, Graph, Parameter, Tensor
from .dora import Sides, with_dora
from .matmul import linear
from .operators import FLOAT, HALF, add, alias, clone, graph_of, made_by, mul, record, scale, to
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
IA3_LAYERS = ["k", "v", "down"]
"""Those that IA3 scales: the last one's inputs, the others' outputs."""


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
    if words.adapter == "ia3":
        return IA3_LAYERS
    return ["q", "v"] if words.adapter_targets == "q-v" else list(GPT2_LAYERS if words.family == "gpt2" else LAYERS)


def adapter_table(words: Words) -> list[tuple[str, Size]]:
    """The trained parameters of a block: of a layer with i inputs and o outputs, A (rank, i) and B (o, rank); with DoRA
    also a magnitude (o); with IA3 a vector (1, i) or (o, 1)."""
    table: list[tuple[str, Size]] = []
    for name in layers(words):
        inputs, outputs = sides_of(name, words.family)
        if words.adapter == "ia3":
            table.append((f"{name}.ia3", inputs if name == "down" else outputs))
            continue
        table += [(f"{name}.A", RANK * inputs), (f"{name}.B", RANK * outputs)]
        if words.adapter == "dora":
            table.append((f"{name}.magnitude", outputs))
    return table


def sides_of(name: str, family: str) -> Sides:
    """Inputs and outputs of a layer."""
    return (GPT2_LAYERS if family == "gpt2" else LAYERS)[name]


def adapted(x: Tensor, name: str, weights: Mapping[str, Parameter], width: Size, base: Base, words: Words) -> Tensor:
    """`base(x)`, or NF4's product instead where the weight is in it, with what an adapter on the layer adds.

    x (T, n) gives (T, `width`).
    """
    weight = weights[f"{name}.weight"]
    run = _in_nf4(weight, width) if isinstance(weight, Quantized) else base
    if name not in layers(words):
        return run(x)
    if words.adapter == "ia3":
        return _scaled(x, name, weights, run)
    if isinstance(weight, Quantized):
        return _beside_quantized(x, name, weights, run, words)
    return _beside(x, name, weights, run, words)


def _beside(x: Tensor, name: str, weights: Mapping[str, Parameter], base: Base, words: Words) -> Tensor:
    """`lora.layer.Linear.forward`: x in the adapter's dtype, what is added, and the sum in the dtype of the base's."""
    out = base(x)
    before = out.itemsize
    x = to(x, FLOAT)
    sides = sides_of(name, words.family)
    if words.adapter == "dora":
        out = with_dora(x, out, name, weights, lambda: weights[f"{name}.weight"], sides)
    else:
        out = add(out, _product(x, name, weights, sides[1]))
    return to(out, before)


def _beside_quantized(x: Tensor, name: str, weights: Mapping[str, Parameter], base: Base, words: Words) -> Tensor:
    """`lora.bnb.Linear4bit.forward`: the base's result is cloned; casts only without autocast."""
    out = base(x)
    out = clone(out)
    before, sides = out.itemsize, sides_of(name, words.family)
    if not words.autocast:
        x = to(x, FLOAT)
    if words.adapter == "dora":
        out = with_dora(x, out, name, weights, lambda: _dequantized(weights[f"{name}.weight"]), sides)
        return out if words.autocast else to(out, before)
    added = _product(x, name, weights, sides[1])
    if not words.autocast:
        added = to(added, before)
    out = add(out, added)
    return out


def _product(x: Tensor, name: str, weights: Mapping[str, Parameter], width: Size) -> Tensor:
    """`B(A(x)) * scaling`."""
    inner = linear(x, weights[f"{name}.A"], None, TOKENS, RANK)
    wide = linear(inner, weights[f"{name}.B"], None, TOKENS, width)
    del inner
    return scale(wide)


def _scaled(x: Tensor, name: str, weights: Mapping[str, Parameter], base: Base) -> Tensor:
    """`ia3.layer.Linear.forward`: inputs or outputs times the vector, in fp32, and back. `ia3.bnb.Linear4bit.forward`:
    without casts, in the precisions that there are, and the result is cloned."""
    quantized = isinstance(weights[f"{name}.weight"], Quantized)
    factor = scale(alias(weights[f"{name}.ia3"]))
    if name == "down" and quantized:
        return clone(base(mul(x, factor)))
    if name == "down":
        before = x.itemsize
        x = to(x, FLOAT)
        scaled = to(mul(x, factor), before)
        return base(scaled)
    out = base(x)
    before = out.itemsize
    out = mul(out, factor)
    return clone(out) if quantized else to(out, before)


def _in_nf4(weight: Quantized, width: Size) -> Base:
    return lambda x: _quantized_linear(x, weight, width)


def _dequantized(weight: Parameter) -> Tensor:
    """`bnb.functional.dequantize_4bit`: the weight in the dtype from which it was quantized, by its fp32 scales."""
    assert isinstance(weight, Quantized)
    graph = graph_of(weight)
    scales = graph.new(Size.named(f"scales_{weight.kind}"), FLOAT) if weight.double else None
    copy = graph.new(weight.numel, weight.itemsize)
    del scales
    return copy


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
