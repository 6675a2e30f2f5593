"""A step of FSDP2 with the weights gathered in fp32, in bf16 or in fp8: what is sent, and the losses.

By hand: torchrun --standalone --nproc-per-node 2 gather.py
"""

import argparse

from efficient_training.launch.worker import worker
from efficient_training.measure.communication import Communication

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torchao.float8 import (
    Float8LinearConfig,
    convert_to_float8_training,
    precompute_float8_dynamic_scale_for_fsdp,
)

STEPS = 4


def build(width):
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(2))
    )


def wrap(model, way, emulate):
    if way == "fp8":
        config = Float8LinearConfig(enable_fsdp_float8_all_gather=True, emulate=emulate)
        model = convert_to_float8_training(model, config=config)
    policy = MixedPrecisionPolicy(param_dtype=None if way == "fp32" else torch.bfloat16)
    for block in model:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def multiplies_fp8(device):
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def run(w, width):
    for way in ("fp32", "bf16", "fp8"):
        model = wrap(build(width).to(w.device), way, emulate=not multiplies_fp8(w.device))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        x = torch.randn(64, width, generator=torch.Generator().manual_seed(w.rank)).to(w.device)
        losses = []
        for _ in range(STEPS):
            with Communication(floor=1024) as communication:
                loss = F.mse_loss(model(x).float(), x.sin())
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if way == "fp8":
                precompute_float8_dynamic_scale_for_fsdp(model)  # all weights' amaxes in one all-reduce
            losses.append(loss.item())
        dtypes = sorted({str(call.dtype) for call in communication.counted if call.collective == "all-gather"})
        w.report(way=way, losses=losses, bytes=communication.bytes, calls=communication.calls, dtypes=dtypes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    with worker() as w:
        run(w, options.width)
