"""The loss over the head in symbols, in the three forms of `efficient_training.losses`.

`T` are the tokens of a micro-batch, `V` the vocabulary, `h` the hidden width.
"""

from .algebra import ONE, Size
from .autograd import Gradients, Parameter, Tensor
from .matmul import linear
from .operators import FLOAT, LONG, autocast_input, graph_of, like, made_by, record, scale, to, view
from .sizes import CHUNK, HIDDEN, LAST_CHUNK, TOKENS, TWO_CHUNKS, VOCABULARY
from .tape import Region
from .words import Words


def summed_loss(hidden: Tensor, head: Parameter, words: Words) -> Tensor:
    """The summed loss, in the words' form."""
    if words.loss == "chunked":
        return _chunked(autocast_input(hidden), head)
    logits = linear(hidden, head, None, TOKENS, VOCABULARY, wide=True)
    if words.loss == "upcast":
        logits = to(logits, FLOAT)
        return _cross_entropy(logits, ONE)
    return _summed(to(_cross_entropy(logits, TOKENS), FLOAT))


def _summed(losses: Tensor) -> Tensor:
    """`sum`; its gradient is spread without a copy, and a cast back makes one element a token."""
    numel = losses.numel

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [view(g, numel)]

    return made_by(record([losses], run), graph_of(losses).new(ONE, losses.itemsize))


def _cross_entropy(logits: Tensor, results: Size) -> Tensor:
    """`log_softmax`, T x V, which is kept, while the logits are not; and `nll_loss`: `results`
    losses, one or one a token, and the sum of weights.

    Backward: `nll_loss_backward` and `_log_softmax_backward_data` make T x V each, while log_softmax is alive.
    """

    def run_softmax(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        return [like(g)]

    def run_loss(saved: list[Tensor], gradients: Gradients) -> Gradients:
        return [like(saved[0])]

    graph = graph_of(logits)
    node = record([logits], run_softmax)
    log_probabilities = made_by(node, like(logits))
    if node is not None:
        node.save(graph, log_probabilities)
    node = record([log_probabilities], run_loss, [log_probabilities, graph.outside(TOKENS, LONG)])
    loss = graph.new(results, logits.itemsize)
    weight = graph.new(ONE, logits.itemsize)
    if node is not None:
        node.save(graph, weight)
    return made_by(node, loss)


def _chunked(hidden: Tensor, head: Parameter) -> Tensor:
    """`ChunkedCrossEntropy`: keeps the gradients of hidden, T x h, and of a trained head, V x h, from forward on.

    A chunk of r tokens holds up to two r x V tensors beside them: logits and their fp32 copy, that copy and its
    log_softmax, or the gradient and its 16-bit copy, the last with a V x h product. All chunks but the last are as
    large as the first, so that the first and the last are enough.
    """

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        return list(saved) if trained else [*saved, None]

    graph, trained = graph_of(hidden), head.node is not None
    node = record([hidden, head], run)
    weight = graph.new(head.numel, hidden.itemsize) if head.itemsize != hidden.itemsize else None
    loss = graph.new(ONE, FLOAT)
    hidden_gradient = graph.new(hidden.numel, hidden.itemsize)
    head_gradient = graph.new(head.numel, head.itemsize) if trained else None
    kept = _chunk(hidden, CHUNK, trained)
    with graph.within(Region(ONE, TWO_CHUNKS)):
        kept = _chunk(hidden, LAST_CHUNK, trained, kept)
    del kept, weight
    if node is not None:
        node.save(graph, hidden_gradient)
        if head_gradient is not None:
            node.save(graph, head_gradient)
    return made_by(node, loss)


def _chunk(
    hidden: Tensor, rows: Size, trained: bool, before: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """One chunk; returns what lives on until the next chunk has its own: which tokens count, and their targets."""
    graph, itemsize = graph_of(hidden), hidden.itemsize
    index_before = before[1] if before else None
    valid = graph.new(rows, 1)
    del before
    zero = graph.new(ONE, LONG)
    index = graph.new(rows, LONG)
    del zero, index_before
    logits = graph.new(rows * VOCABULARY, itemsize, wide=True)
    if itemsize != FLOAT:
        logits = graph.new(rows * VOCABULARY, FLOAT, wide=True)
    gradient = graph.new(rows * VOCABULARY, FLOAT, wide=True)
    del logits
    gathered = graph.new(rows, FLOAT)
    zero = graph.new(ONE, FLOAT)
    losses = graph.new(rows, FLOAT)
    del gathered, zero
    summed = graph.new(ONE, FLOAT)
    del losses, summed
    ones = graph.new(rows, FLOAT)
    del ones
    narrow = graph.new(rows * VOCABULARY, itemsize, wide=True) if itemsize != FLOAT else None
    product = graph.new(VOCABULARY * HIDDEN, itemsize) if trained else None
    del product, gradient, narrow
    return valid, index


def divided(loss: Tensor) -> Tensor:
    """The loss over the tokens of the window."""
    return scale(loss)
