"""A workload: what is to be trained, apart from how."""

from dataclasses import dataclass

from .errors import UserError
from .fields import check_positive, check_types
from .models import ModelShape


@dataclass(frozen=True)
class Workload:
    """A model shape, the sequence length in tokens, and the tokens of one optimizer step over all ranks.

    Raises `UserError` where a field does not fit, or the step is no whole number of sequences.
    """

    model: ModelShape
    sequence_length: int
    tokens_per_step: int

    def __post_init__(self) -> None:
        check_types(self)
        check_positive(self, "sequence_length", "tokens_per_step")
        if self.model.family == "gpt2" and self.sequence_length > self.model.positions:
            raise UserError(
                f"workload: sequence_length {self.sequence_length} is more than the {self.model.positions} positions "
                f"that {self.model.name} has embeddings for"
            )
        if self.tokens_per_step % self.sequence_length:
            raise UserError(
                f"workload: tokens_per_step ({self.tokens_per_step}) must be a multiple of sequence_length "
                f"({self.sequence_length})"
            )

    @property
    def sequences_per_step(self) -> int:
        """Sequences of one optimizer step, over all ranks."""
        return self.tokens_per_step // self.sequence_length
