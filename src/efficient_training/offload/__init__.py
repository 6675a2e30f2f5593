"""Offloading: state that lives in the host's memory or on a disk, and what it costs to move it.

- `traffic`: bytes over each link for each parameter, by way of offloading and by engine; `model`: seconds from them.
- `swap`: what DeepSpeed writes to a disk, checked before and while it does; `held`: where its state is.
"""
