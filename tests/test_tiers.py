from pathlib import Path
from typing import Any

import pytest

from efficient_training import project as places
from efficient_training.errors import UserError
from efficient_training.machine import GIB, Gpu, Machine
from efficient_training.tiers import Tier, choose, load_tiers

ROOT = Path(__file__).parent.parent
T4 = Gpu("T4", 15 * GIB, "7.5")
H100 = Gpu("H100", 80 * GIB, "9.0")


def machine(*gpus: Gpu, memory: int | None = 32 * GIB) -> Machine:
    return Machine("Linux x86_64", "A CPU", 8, memory, gpus)


GPU = "name: gpu\ntitle: One GPU\nrequires: {device: cuda, memory_gib: 8, capability: '7.0'}\n"
HOPPER = "name: hopper\ntitle: Hopper\nrequires: {device: cuda, memory_gib: 60, capability: '9.0'}\n"
CLUSTER = """name: cluster
title: Many
requires: {device: cuda, ranks: 2}
cluster: {launcher: torchrun, capability: "8.0"}
"""


@pytest.fixture
def tiers(project: Any) -> dict[str, Tier]:
    for name, text in (("gpu", GPU), ("hopper", HOPPER), ("cluster", CLUSTER)):
        project.tier(name, text)
    return load_tiers(project.root)


def test_the_projects_own_tiers_are_valid_and_in_order() -> None:
    tiers = load_tiers(ROOT)
    assert list(tiers) == ["cpu", "gpu", "hopper", "cluster"]
    assert "common" not in tiers["cpu"].parameters
    known = set(places.notebooks(ROOT)) | {"common"}
    assert all(set(tier.parameters) <= known for tier in tiers.values())


def test_the_best_tier_is_chosen_and_a_cluster_never(tiers: dict[str, Tier]) -> None:
    assert choose(tiers, machine(), None).name == "cpu"
    assert choose(tiers, machine(T4), None).name == "gpu"
    assert choose(tiers, machine(H100), None).name == "hopper"
    assert choose(tiers, machine(H100, H100), None).name == "hopper"
    assert choose(tiers, machine(H100, H100), "cluster").name == "cluster"


@pytest.mark.parametrize(
    ("asked", "gpus", "message"),
    [
        (
            "hopper",
            (T4,),
            r"--tier hopper: needs compute capability 9\.0, found 7\.5 \(T4\); needs 60 GiB of memory on T4",
        ),
        ("gpu", (), "--tier gpu: needs a CUDA GPU, found none; see `efficient-training tiers`"),
        ("cluster", (H100,), "--tier cluster: needs 2 GPUs, found 1"),
        ("tpu", (), "--tier tpu: no such tier; known: cpu, gpu, hopper, cluster"),
    ],
)
def test_a_tier_that_is_not_met_says_why(
    tiers: dict[str, Tier], asked: str, gpus: tuple[Gpu, ...], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        choose(tiers, machine(*gpus), asked)


def test_memory_and_packages_are_compared(project: Any) -> None:
    project.tier(
        "cpu",
        "name: cpu\ntitle: CPU\nrequires: {device: cpu, memory_gib: 4, packages: [pytest, rich>=999, no-such-thing]}",
    )
    tier = load_tiers(project.root)["cpu"]
    memory, rich, absent = tier.missing(machine(memory=2 * GIB))
    assert memory == "needs 4 GiB of memory, found 2.0 GiB"
    assert rich.startswith("needs rich>=999, found ")
    assert absent == "needs no-such-thing, not installed here (`make run` installs it)"
    assert len(tier.missing(machine(memory=None))) == 2
    with pytest.raises(UserError, match="this machine meets no tier: cpu needs rich>=999"):
        choose({"cpu": tier}, machine(), None)


def test_capabilities_are_compared_as_numbers(tiers: dict[str, Tier]) -> None:
    assert tiers["hopper"].missing(machine(Gpu("B200", 180 * GIB, "10.0"))) == []


def test_on_rocm_the_capability_is_no_measure_and_a_tier_says_whether_it_will_do(project: Any) -> None:
    project.tier("gpu", GPU.replace("'7.0'", "'9.5', rocm: true"))
    project.tier("hopper", HOPPER)
    tiers = load_tiers(project.root)
    amd = Machine("Linux", "A CPU", 8, None, (Gpu("MI300X", 192 * GIB, "9.4"),), rocm=True)
    assert tiers["gpu"].missing(amd) == []
    assert tiers["hopper"].missing(amd) == ["needs an NVIDIA GPU, found MI300X"]
    assert tiers["gpu"].missing(machine()) == ["needs a CUDA or ROCm GPU, found none"]
    assert "rocm" not in amd.to_json()


def test_under_slurm_a_cluster_needs_sbatch_and_no_gpu_here(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.tier("cluster", CLUSTER.replace("torchrun", "slurm"))
    tier = load_tiers(project.root)["cluster"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert tier.missing(machine()) == ["needs sbatch on the PATH, found none"]
    (tmp_path / "sbatch").write_text("#!/bin/sh\n")
    (tmp_path / "sbatch").chmod(0o755)
    assert tier.missing(machine()) == []


def test_a_cluster_gives_all_its_ranks_and_needs_a_gpu_for_each_that_runs_here(project: Any) -> None:
    more = CLUSTER.replace("requires: {device: cuda, ranks: 2}", "requires: {device: cuda}").replace(
        "torchrun,", "torchrun, nodes: 1, ranks_per_node: 4, partition: '', account: '', backend: nccl,"
    )
    project.tier("cluster", more)
    tier = load_tiers(project.root)["cluster"]
    assert tier.parameters_of("01-memory", {"ranks": 2, "backend": "", "nodes": 1}) == {
        "ranks": 4,
        "backend": "nccl",
        "nodes": 1,
    }
    assert tier.missing(machine(T4, T4)) == ["needs 4 GPUs, found 2"]
    project.tier("cluster", more.replace("nccl", "gloo"))
    assert load_tiers(project.root)["cluster"].missing(machine()) == []
    project.tier("cluster", more.replace("torchrun", "slurm").replace("nodes: 1", "nodes: 3"))
    assert load_tiers(project.root)["cluster"].parameters_of("01-memory", {"ranks": 2}) == {"ranks": 12}
    project.tier("cluster", more.replace("nodes: 1", "nodes: 3"))
    with pytest.raises(UserError, match="cluster/nodes: on several nodes the launcher is slurm"):
        load_tiers(project.root)


def test_parameters_are_shared_then_of_the_cluster_then_the_notebooks_own(project: Any) -> None:
    project.notebook("01-memory", [], "steps = 3\nlauncher = 'none'")
    project.notebook("02-precision", [], "steps = 3\nwidth: int = 8")
    project.tier("cluster", CLUSTER + "parameters: {common: {steps: 5}, 02-precision: {width: 64, steps: 7}}")
    tier = load_tiers(project.root)["cluster"]
    assert tier.parameters_of("01-memory", {"steps": 3, "launcher": "none"}) == {"steps": 5, "launcher": "torchrun"}
    assert tier.parameters_of("02-precision", {"steps": 3, "width": 8}) == {"steps": 7, "width": 64}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gpu", "title: A GPU\nrequires: {device: cuda}", "invalid tier at the object: 'name' is a required property"),
        ("gpu", GPU + "params: {}", r"invalid tier at the object: .*'params' was unexpected"),
        ("gpu", GPU.replace("capability", "sm"), r"at requires: .*'sm' was unexpected"),
        ("gpu", GPU.replace("'7.0'", "7.0"), "at requires/capability: 7.0 is not of type 'string'"),
        ("gpu", GPU.replace("8,", "-8,"), "at requires/memory_gib: -8 is less than or equal to the minimum of 0"),
        ("gpu", GPU.replace("cuda", "tpu"), r"at requires/device: 'tpu' is not one of \['cpu', 'cuda'\]"),
        ("gpu", GPU + "network: maybe", "at network: 'maybe' is not of type 'boolean'"),
        ("gpu", GPU + "title: Again", "line 4: not valid YAML: 'title' is written twice"),
        ("gpu", GPU + "parameters: {common: [1, 2", "line 4: not valid YAML: "),
        ("gpu", "", "invalid tier at the object: None is not of type 'object'"),
        ("hopper", GPU, "name is 'gpu', but the folder is 'hopper'; make them equal"),
        ("gpu", GPU + "cluster: {launcher: slurm, capability: '8.0'}", "the tier 'gpu' cannot have the key 'cluster'"),
        ("cluster", CLUSTER.replace("cluster: {", "#"), "the tier 'cluster' needs the key 'cluster'"),
        ("cluster", CLUSTER.replace("torchrun", "mpi"), r"at cluster/launcher: 'mpi' is not one of"),
        (
            "cpu",
            "name: cpu\ntitle: CPU\nrequires: {device: cpu, ranks: 2}",
            "capability, ranks and rocm are of device cuda",
        ),
        ("gpu", GPU.replace("8,", "8, packages: ['torch 2'],"), "requires/packages: 'torch 2' is no requirement"),
        ("gpu", GPU + "parameters: {memory: {}}", "at parameters: 'memory' does not match"),
        ("gpu", GPU + "parameters: {05-offload: {}}", "parameters/05-offload: no such notebook; known: 01-memory"),
        (
            "gpu",
            GPU + "parameters: {01-memory: {stesp: 5}}",
            r"01-memory/stesp: notebooks/01-memory\.ipynb's parameters cell has no such name \(steps, rate\)",
        ),
        (
            "gpu",
            GPU + "parameters: {common: {stesp: 5}}",
            "parameters/common/stesp: no notebook's parameters cell has it",
        ),
        ("gpu", GPU + "parameters: {01-memory: {steps: '5'}}", "'5' is str, but the default in 01-memory is int"),
        ("gpu", GPU + "parameters: {common: {steps: true}}", "True is bool, but the default in 01-memory is int"),
        ("gpu", GPU + "parameters: {01-memory: {steps: {a: 1}}}", "at parameters/01-memory/steps: "),
        (
            "cpu",
            "name: cpu\ntitle: CPU\nrequires: {device: cpu}\nparameters: {common: {steps: 3}}",
            "parameters/common/steps: restates the default of 01-memory; take it out",
        ),
    ],
)
def test_every_fault_names_the_file_and_the_place(project: Any, name: str, text: str, message: str) -> None:
    project.notebook("01-memory", [], "steps = 3  # count\nrate = 0.1  # 1/step")
    project.tier(name, text)
    with pytest.raises(UserError, match=message) as caught:
        load_tiers(project.root)
    assert str(caught.value).startswith(f"environments/{name}/tier.yml: ")
    assert "\n" not in str(caught.value)


def test_values_that_fit_are_accepted(project: Any) -> None:
    cell = "steps = 3\nrate = 0.1\nshape = [1, 2]\nlimit = None\ncomputed = 2 ** 3"
    project.notebook("01-memory", [], cell)
    project.tier("gpu", GPU + "parameters: {common: {steps: 3, rate: 1, shape: [4], limit: 5, computed: 16}}")
    assert load_tiers(project.root)["gpu"].parameters["common"]["rate"] == 1


def test_a_broken_parameters_cell_is_named(project: Any) -> None:
    project.notebook("01-memory", [], "steps = = 3")
    with pytest.raises(UserError, match=r"notebooks/01-memory\.ipynb: the parameters cell is not valid Python, line 1"):
        load_tiers(project.root)


def test_a_project_without_tiers_is_refused(project: Any) -> None:
    (project.root / "environments/cpu/tier.yml").unlink()
    with pytest.raises(UserError, match=r"environments: holds no <tier>/tier\.yml"):
        load_tiers(project.root)
