"""What rows of several documents need, in symbols: a mask of tokens x tokens, or a kernel that takes lengths.

The rows themselves are the caller's, as token ids are: ids, labels, positions, and the documents' boundaries.
"""

from .algebra import ONE, Size
from .autograd import Gradients, Graph, Tensor
from .operators import FLOAT, LONG, back_to, cut, graph_of, made_by, record
from .sizes import BATCH, HEADS, KV_HEADS, PADDED_HEAD_DIM, PADDED_ROW, RAGGED, SEQUENCE, TOKENS, Q

PAIRS = BATCH * SEQUENCE * SEQUENCE
"""Pairs of tokens of a row, in all rows: a mask's elements, which heads share."""
PADDED_PAIRS = BATCH * SEQUENCE * PADDED_ROW


def document_mask(graph: Graph) -> Tensor:
    """`packing.batch.block_mask`: a boolean a pair; on the way, where documents start, and each token's document."""
    starts = graph.new(TOKENS, 1)
    steps = graph.new(TOKENS - BATCH, LONG)
    begins = graph.new(TOKENS - BATCH, 1)
    del steps
    document = graph.new(TOKENS, LONG)
    del begins, starts
    mask = graph.new(PAIRS, 1)
    del document
    return mask


def numbers(graph: Graph, itemsize: int) -> Tensor:
    """A boolean mask as 0 and -inf, for math attention, by aten's `scaled_dot_product_attention`."""
    low, high = graph.new(ONE, itemsize), graph.new(ONE, itemsize)
    made = graph.new(PAIRS, itemsize)
    del low, high
    return made


def padded_numbers(graph: Graph, itemsize: int) -> list[Tensor]:
    """The same for efficient attention, which is handed rows of a multiple of 8 numbers: a copy of those that are not.

    Two tensors, of which one is empty.
    """
    low, high = graph.new(ONE, itemsize), graph.new(ONE, itemsize)
    ragged, whole = graph.new(RAGGED * PAIRS, itemsize), graph.new((ONE - RAGGED) * PAIRS, itemsize)
    del low, high
    padded = graph.new(RAGGED * PADDED_PAIRS, itemsize)
    del ragged
    return [whole, padded]


def varlen(query: Tensor, key: Tensor, value: Tensor, padded: bool) -> Tensor:
    """`varlen_attn` over all rows joined (`packing.attention`): inputs and results are saved once it has run.

    Results are the output, a logsumexp for each token and head, and 16 bytes of a generator. Its backward gets
    gradients of all three, of which torch makes the last two of zeros. `padded`: head_dim is no multiple of 8.
    """
    if padded:
        query, key, value = _pad(query, HEADS), _pad(key, KV_HEADS), _pad(value, KV_HEADS)
    inputs = (query, key, value)
    sizes = [tensor.numel for tensor in inputs]
    graph = graph_of(query)
    statistics = [HEADS * TOKENS * FLOAT, Size.of(2 * LONG)]

    def run(saved: list[Tensor], gradients: Gradients) -> Gradients:
        g = gradients[0]
        assert g is not None
        zeros = [graph.new(size, 1) for size in statistics]
        made: Gradients = [graph.new(size, g.itemsize) for size in sizes]
        del zeros
        return made

    out, *rest = graph.keep(
        lambda: [graph.new(query.numel, query.itemsize), *(graph.new(size, 1) for size in statistics)]
    )
    node = record(inputs, run, inputs)
    if node is not None:
        for tensor in (out, *rest):
            node.save(graph, tensor)
    made_by(node, out)
    return cut(out, TOKENS * Q) if padded else out


def _pad(tensor: Tensor, heads: Size) -> Tensor:
    """`pad` of each head to a multiple of 8; backward cuts, which copies."""
    node = record([tensor], back_to(tensor.numel, heads_first=False))
    return made_by(node, graph_of(tensor).new(TOKENS * heads * PADDED_HEAD_DIM, tensor.itemsize))
