"""Normalization in symbols: the RMS norm of Llama and its kin, and GPT-2's layer norm."""

from .algebra import Size
from .autograd import Gradients, Parameter, Tensor
from .operators import FLOAT, graph_of, made_by, mean, mul, power, record, rsqrt, shift, to


def rms_norm(hidden: Tensor, weight: Parameter, rows: Size) -> Tensor:
    """`weight * (x * rsqrt(mean(x ** 2) + eps)).to(dtype)` over `rows` vectors, with x in fp32, as transformers has it.

    Kept for backward: x in fp32 (a copy of 16-bit input; fp32 input itself), `rsqrt`'s result, and the normalized x
    that the weight multiplies. Alive besides while it runs: the square, the variance and, of 16-bit input, the
    normalized x in fp32.
    """
    before = hidden.itemsize
    hidden = to(hidden, FLOAT)
    variance = mean(power(hidden), rows)
    hidden = mul(hidden, rsqrt(shift(variance)))
    return mul(weight, to(hidden, before))


def layer_norm(hidden: Tensor, weight: Parameter, bias: Parameter, rows: Size) -> Tensor:
    """`native_layer_norm`, which saves its input, and mean and reciprocal deviation of each row in its dtype.

    Its backward makes the gradients of input, weight and bias in one, as far as they are needed.
    """
    sizes = [tensor.numel if tensor.node is not None else None for tensor in (hidden, weight, bias)]

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [graph_of(g).new(size, g.itemsize) if size is not None else None for size in sizes]

    graph = graph_of(hidden)
    node = record([hidden, weight, bias], run, [hidden])
    out, mu, rstd = (graph.new(size, hidden.itemsize) for size in (hidden.numel, rows, rows))
    if node is not None:
        node.save(graph, mu)
        node.save(graph, rstd)
    return made_by(node, out)
