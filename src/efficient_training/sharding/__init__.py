"""Sharding: what each rank holds of a model's states, and what the ranks must send each other for it.

- `strategies`: a plain model under DDP, ZeroRedundancyOptimizer, FSDP2 or FSDP1; `engine`: under DeepSpeed.
- `held`: the bytes that this rank holds, by component, read from the live tensors.
- `theory`: the same bytes by formula, padding included; `traffic`: the bytes to send, and the time of it on a link.
- `synchronization`: micro-batches without communication, for whatever wraps the model.
"""
