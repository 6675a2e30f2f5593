"""The cluster tier through SLURM: a notebook whose cell submits a job, and an edition made from it."""

import sys
from pathlib import Path
from typing import Any

from private_slurm import PrivateSlurm

from efficient_training.editions import read_notebook

TIER = """\
name: cluster
title: Two virtual nodes
requires: {device: cuda}
cluster:
  {launcher: slurm, nodes: 2, ranks_per_node: 1, partition: main, account: "", backend: gloo, capability: "8.0"}
"""
PARAMETERS = """\
ranks = 1  # ranks in all
launcher = "torchrun"  # or slurm
nodes = 1  # machines
partition = ""  # of SLURM
account = ""  # of SLURM
backend = "gloo"  # or nccl"""
CELL = """\
from efficient_training.launch import launch
from efficient_training.records import record

result = launch(
    "06-sharding/sum.py", ranks=ranks, launcher=launcher, nodes=nodes, partition=partition, account=account,
    backend=backend,
)
record("sharding.sum", result.report["total"], "count", kind="measured")
nodes_used = {made["node"] for rank in result.reports.values() for made in rank}
record("sharding.nodes", len(nodes_used), "count", kind="measured")"""
WORKER = """\
import os
import torch
import torch.distributed as dist
from efficient_training.launch.worker import worker

with worker() as w:
    total = torch.tensor(w.rank + 1)
    dist.all_reduce(total)
    w.report(total=total.item(), node=os.environ.get("SLURMD_NODENAME", "here"))
"""


def test_a_notebooks_cell_submits_and_waits(project: Any, slurm: PrivateSlurm) -> None:
    project.notebook("06-sharding", [CELL], PARAMETERS)
    worker: Path = project.root / "notebooks" / "06-sharding" / "sum.py"
    worker.parent.mkdir()
    worker.write_text(WORKER, encoding="utf-8")
    project.tier("cluster", TIER)
    run = project.start("execute", "--tier", "cluster", "--edition", "lab")
    output, errors = run.communicate(timeout=120)
    assert run.returncode == 0, output + errors
    records = read_notebook(project.root / "results" / "lab" / "06-sharding.ipynb").records
    assert {name: made.value for name, made in records.items()} == {"sharding.sum": 3, "sharding.nodes": 2}
    assert "wrote to stderr" not in output
    assert "sum.py on 2 ranks by slurm: job" in (project.root / "results" / "lab" / "run.log").read_text()
    assert [path.name for path in worker.parent.parent.iterdir() if path.name.startswith(".efficient")] == []
    assert sys.executable not in output
