"""One transformer block in symbols, of each family: the same calls in the same order as transformers' model code.

So locals keep alive here what they keep alive there. `T` are the tokens of a micro-batch, `h` the hidden width.
"""

from typing import NamedTuple

from .adapters import adapted
from .algebra import Size
from .attention import attention
from .autograd import Gradients, Parameter, Tensor
from .fp8 import float8_linear
from .matmul import conv1d, linear
from .norms import layer_norm, rms_norm
from .operators import (
    FLOAT,
    add,
    alias,
    concatenate,
    cut,
    graph_of,
    made_by,
    mul,
    neg,
    power,
    record,
    scale,
    shift,
    silu,
    split_heads,
    tanh,
    to,
    view,
)
from .sizes import FFN, HALF_HEAD, HEAD_DIM, HEADS, HIDDEN, KV, KV_HEADS, TOKENS, Q
from .words import Words

Weights = dict[str, Parameter]
SIDES = {"q": (Q, HEADS), "k": (KV, KV_HEADS), "v": (KV, KV_HEADS)}
INPUTS = {"o": Q, "down": FFN}
"""The inputs of a projection, where they are not the hidden width."""


class Inputs(NamedTuple):
    """What every block gets beside the hidden states: tables of cosine and sine (none in GPT-2), positions, a mask.

    With packing, positions are the caller's.
    """

    tables: tuple[Tensor, Tensor] | None
    positions: Tensor | None
    mask: Tensor | None = None


def block_parameters(words: Words) -> list[tuple[str, Size]]:
    """The block's parameters by name, with their elements, in the order of `model.parameters()`."""
    if words.family == "gpt2":
        return [
            ("norm1.weight", HIDDEN), ("norm1.bias", HIDDEN), ("qkv.weight", 3 * HIDDEN * HIDDEN),
            ("qkv.bias", 3 * HIDDEN), ("o.weight", HIDDEN * HIDDEN), ("o.bias", HIDDEN), ("norm2.weight", HIDDEN),
            ("norm2.bias", HIDDEN), ("up.weight", HIDDEN * FFN), ("up.bias", FFN), ("down.weight", FFN * HIDDEN),
            ("down.bias", HIDDEN),
        ]  # fmt: skip
    table: list[tuple[str, Size]] = []
    for side, (width, _) in SIDES.items():
        table.append((f"{side}.weight", HIDDEN * width))
        if words.attention_bias:
            table.append((f"{side}.bias", width))
    table.append(("o.weight", Q * HIDDEN))
    if words.output_bias:
        table.append(("o.bias", HIDDEN))
    if words.family == "qwen3":
        table += [("q_norm.weight", HEAD_DIM), ("k_norm.weight", HEAD_DIM)]
    for name, outputs in (("gate", FFN), ("up", FFN), ("down", HIDDEN)):
        table.append((f"{name}.weight", HIDDEN * FFN))
        if words.mlp_bias:
            table.append((f"{name}.bias", outputs))
    return [*table, ("norm1.weight", HIDDEN), ("norm2.weight", HIDDEN)]


def block(hidden: Tensor, weights: Weights, inputs: Inputs, words: Words) -> Tensor:
    """Attention and MLP, each on normalized input and added to the residual stream."""
    return (_gpt2_block if words.family == "gpt2" else _llama_block)(hidden, weights, inputs, words)


def _llama_block(hidden: Tensor, weights: Weights, inputs: Inputs, words: Words) -> Tensor:
    residual = hidden
    hidden = rms_norm(hidden, weights["norm1.weight"], TOKENS)
    hidden = _self_attention(hidden, weights, inputs, words)
    hidden = add(residual, hidden)
    residual = hidden
    hidden = rms_norm(hidden, weights["norm2.weight"], TOKENS)
    hidden = _gated_mlp(hidden, weights, words)
    return add(residual, hidden)


def _self_attention(hidden: Tensor, weights: Weights, inputs: Inputs, words: Words) -> Tensor:
    """Projections to T x q, T x kv, T x kv (Qwen3: normalized by head), rotated; attention; projection to T x h."""
    query, key, value = (_projected(hidden, side, weights, words) for side in SIDES)
    assert inputs.tables is not None
    query, key = _rotate(query, key, *inputs.tables)
    out = attention(query, key, value, words.kernel, inputs.mask is not None)
    out = _linear(out, "o", weights, HIDDEN, words)
    return out


def _projected(hidden: Tensor, side: str, weights: Weights, words: Words) -> Tensor:
    width, heads = SIDES[side]
    # The module's call holds its argument until it returns, so that the projection outlives its copy in fp32.
    alone = words.kernel.alone if side == "q" else words.kernel.kv_alone
    projected = split_heads(_linear(hidden, side, weights, width, words), alone)
    if words.family != "qwen3" or side == "v":
        return projected
    return alias(rms_norm(projected, weights[f"{side}_norm.weight"], TOKENS * heads))


def _linear(x: Tensor, name: str, weights: Weights, width: Size, words: Words) -> Tensor:
    weight, bias = weights[f"{name}.weight"], weights.get(f"{name}.bias")

    def base(x: Tensor) -> Tensor:
        if words.fp8 == "none":
            return linear(x, weight, bias, TOKENS, width)
        return float8_linear(x, weight, bias, TOKENS, INPUTS.get(name, HIDDEN), width, words.fp8)

    return adapted(x, name, weights, width, base, words)


def _rotate(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotary embedding, `x * cos + rotate_half(x) * sin`: keeps the tables alone; at its height five tensors like x."""
    rotated = add(mul(query, cos), mul(_rotate_half(query, HEADS), sin))
    return rotated, add(mul(key, cos), mul(_rotate_half(key, KV_HEADS), sin))


def _rotate_half(x: Tensor, heads: Size) -> Tensor:
    half = TOKENS * heads * HALF_HEAD
    first = cut(x, half)
    second = cut(x, half)
    return concatenate(neg(second), first, x.numel)


def _gated_mlp(x: Tensor, weights: Weights, words: Words) -> Tensor:
    """`down(silu(gate(x)) * up(x))`: gate, silu, up and their product are kept, T x f each."""
    product = mul(silu(_linear(x, "gate", weights, FFN, words)), _linear(x, "up", weights, FFN, words))
    return _linear(product, "down", weights, HIDDEN, words)


def _gpt2_block(hidden: Tensor, weights: Weights, inputs: Inputs, words: Words) -> Tensor:
    residual = hidden
    hidden = layer_norm(hidden, weights["norm1.weight"], weights["norm1.bias"], TOKENS)
    attended = _gpt2_attention(hidden, weights, words, inputs.mask is not None)
    hidden = add(attended, residual)
    residual = hidden
    hidden = layer_norm(hidden, weights["norm2.weight"], weights["norm2.bias"], TOKENS)
    fed = _gpt2_mlp(hidden, weights, words)
    return add(residual, fed)


def _gpt2_attention(hidden: Tensor, weights: Weights, words: Words, masked: bool) -> Tensor:
    """One projection to T x 3h, split; attention; projection to T x h."""
    query, key, value = _split_three(_conv(hidden, "qkv", weights, 3 * HIDDEN, words))
    alone = words.kernel.alone
    key = split_heads(key, alone)
    value = split_heads(value, alone)
    query = split_heads(query, alone)
    out = attention(query, key, value, words.kernel, masked)
    out = _conv(out, "o", weights, HIDDEN, words)
    return out


def _conv(x: Tensor, name: str, weights: Weights, width: Size, words: Words) -> Tensor:
    def base(x: Tensor) -> Tensor:
        return conv1d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], TOKENS, width)

    return adapted(x, name, weights, width, base, words)


def _split_three(x: Tensor) -> list[Tensor]:
    """`split` into three views; backward copies the three gradients together (`cat`)."""
    third = TOKENS * HIDDEN

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [graph_of(g).new(3 * third, g.itemsize)]

    node = record([x], run)
    return [made_by(node, view(x, third), output) for output in range(3)]


def _gpt2_mlp(x: Tensor, weights: Weights, words: Words) -> Tensor:
    x = _conv(x, "up", weights, FFN, words)
    x = _gelu(x, words)
    x = _conv(x, "down", weights, HIDDEN, words)
    return x


def _gelu(x: Tensor, words: Words) -> Tensor:
    """transformers' `gelu_new`, `0.5 x (1 + tanh(c (x + 0.044715 x ** 3)))`, an operator at a time.

    Kept: x, 0.5 x, tanh and 1 + tanh. On CUDA, autocast runs the power in fp32, and with it all that follows.
    """
    return mul(scale(x), shift(tanh(scale(add(x, scale(power(to(x, FLOAT) if words.autocast else x)))))))
