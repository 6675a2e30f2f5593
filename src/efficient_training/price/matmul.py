"""Linear layers in symbols: matrix products, which save their factors, and what autocast casts for them."""

from .algebra import Size
from .autograd import Gradients, Parameter, Tensor
from .operators import alias, autocast_input, autocast_weight, graph_of, made_by, record


def linear(x: Tensor, weight: Parameter, bias: Parameter | None, rows: Size, width: Size, wide: bool = False) -> Tensor:
    """`F.linear`: x (rows, n) and weight (width, n) give (rows, width).

    Under autocast, bias, weight and x are cast in this order (C++ evaluates arguments from the last). Without bias
    `mm(x, weight.t())` runs, with one `addmm`. `mm`'s backward makes the weight's gradient
    first, `addmm`'s that of x, and the bias' is summed last.
    """
    cast_bias = autocast_weight(bias) if bias is not None else None
    cast_weight = autocast_weight(weight)
    x = autocast_input(x)
    if cast_bias is not None:
        x = alias(x)
        return alias(product(x, alias(cast_weight), cast_bias, rows * width, wide))
    turned = alias(cast_weight)
    return alias(product(alias(x), turned, None, rows * width, wide))


def conv1d(x: Tensor, weight: Parameter, bias: Parameter, rows: Size, width: Size) -> Tensor:
    """GPT-2's `Conv1D`: `addmm(bias, x, weight)`, the weight not transposed. Autocast casts x last but one here."""
    x = alias(x)
    cast_weight = autocast_weight(weight)
    x = autocast_input(x)
    cast_bias = autocast_weight(bias)
    return alias(product(x, cast_weight, cast_bias, rows * width))


def product(x: Tensor, weight: Tensor, bias: Tensor | None, numel: Size, wide: bool = False) -> Tensor:
    """`mm` or `addmm`, one result that selective checkpointing keeps.

    Each factor is saved for the gradient of the other, and no gradient is made that nobody needs.
    """
    x_numel, weight_numel = x.numel, weight.numel
    x_needs, weight_needs = x.node is not None, weight.node is not None
    saved = ([x] if weight_needs else []) + ([weight] if x_needs else [])

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        graph, size = graph_of(g), g.itemsize
        if bias_there:
            x_gradient = graph.new(x_numel, size) if x_needs else None
            return [x_gradient, graph.new(weight_numel, size) if weight_needs else None, g]
        weight_gradient = graph.new(weight_numel, size) if weight_needs else None
        return [graph.new(x_numel, size) if x_needs else None, weight_gradient]

    bias_there = bias is not None
    inputs = [x, weight, bias] if bias_there else [x, weight]
    node = record(inputs, run, saved)
    graph = graph_of(x)
    (out,) = graph.keep(lambda: [graph.new(numel, x.itemsize, wide)], linear=True)
    return made_by(node, out)
