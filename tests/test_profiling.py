"""`efficient-training profile`, through the command line, on small models and on a large one without its memory."""

import json
import re
from pathlib import Path

import pytest

from efficient_training.cli import run
from efficient_training.errors import UserError
from efficient_training.ledger import Ledger
from efficient_training.recipe import Recipe
from efficient_training.recipe_file import read_recipe

TINY = {
    "model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return str(tmp_path)


def ledger(path: Path) -> Ledger:
    return Ledger.from_json(json.loads(path.read_text())["ledger"])


def test_run_and_traced_ledgers_can_be_laid_side_by_side(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["profile", "--model", tiny, "--seq", "32", "--micro-batch", "2", "--set", "attention=math"]
    made = {}
    for view in ("run", "traced"):
        out = tmp_path / f"{view}.json"
        assert run([*common, "--view", view, "--json", str(out)]) == 0
        made[view] = ledger(out)
    assert made["run"].view == "run"
    assert made["traced"].peak() == pytest.approx(made["run"].peak(), rel=0.02), "same kernels, but for CUDA's rounding"
    text = capsys.readouterr().out
    assert "optimizer state" in text
    assert f"peak: {made['run'].peak() / 2**30:.2f} GiB, in the {made['run'].peak_phase()} phase" in text


def test_a_priced_ledger_is_the_traced_one(tmp_path: Path) -> None:
    common = ["profile", "--model", "qwen2.5-0.5b", "--seq", "1024", "--micro-batch", "8", "--set", "optimizer=fused"]
    made = {}
    for view in ("priced", "traced"):
        assert run([*common, "--view", view, "--json", str(tmp_path / view)]) == 0
        made[view] = ledger(tmp_path / view)
    assert made["priced"].peak() == pytest.approx(made["traced"].peak(), rel=0.005)


@pytest.mark.parametrize("view", ["priced", "traced", "run"])
def test_what_is_to_be_said_of_an_optimizer_is_said_in_each_view(
    tiny: str, capsys: pytest.CaptureFixture[str], view: str
) -> None:
    common = ["profile", "--model", tiny, "--seq", "8", "--set", "algorithm=bnb-paged-adamw8bit"]
    assert run([*common, "--view", view]) == 0
    assert "note: paged state counts as the device's" in capsys.readouterr().out


def test_a_large_model_is_traced_without_its_memory(tmp_path: Path) -> None:
    out = tmp_path / "l.json"
    arguments = ["--model", "llama-3.1-8b", "--seq", "512", "--set", "precision=bf16", "--set", "checkpointing=full"]
    assert run(["profile", *arguments, "--json", str(out)]) == 0
    made = ledger(out)
    weights = 2 * 8030261248
    assert made.entries["device"]["optimizer step"]["optimizer state"] == pytest.approx(2 * weights, rel=1e-3)
    assert made.entries["device"]["forward"]["weights"] == pytest.approx(weights, rel=1e-3)


def test_a_recipe_file_is_read_and_settings_go_over_it(tiny: str, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yml"
    recipe.write_text("micro_batch: 4\nprecision: bf16-autocast\noptimizer: fused\n")
    out = tmp_path / "l.json"
    arguments = ["profile", "--model", tiny, "--seq", "16", "--recipe", str(recipe), "--set", "optimizer=foreach"]
    assert run([*arguments, "--json", str(out)]) == 0
    written = json.loads(out.read_text())
    assert written["recipe"] == {"micro_batch": 4, "precision": "bf16-autocast"}


@pytest.mark.parametrize("name", ["step.png", "step.svg"])
def test_the_figure_is_drawn(tiny: str, tmp_path: Path, name: str) -> None:
    assert run(["profile", "--model", tiny, "--seq", "16", "--figure", str(tmp_path / name)]) == 0
    start = (tmp_path / name).read_bytes()[:64]
    assert start.startswith(b"\x89PNG") if name.endswith("png") else b"<?xml" in start
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


RANKS = ["--set", "ranks=2", "--set", "sharding=ddp"]
FSDP = ["--set", "sharding=fsdp"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nothing", "--seq", "8"], "nothing: neither a preset nor a config.json"),
        (["--model", "gpt2", "--seq", "0"], "--seq and --accumulation must be above zero"),
        (["--model", "gpt2", "--seq", "4096"], "more than the 1024 positions"),
        (["--model", "gpt2", "--seq", "8", "--set", "precision=fp64"], "precision must be one of fp32"),
        (["--model", "gpt2", "--seq", "8", "--set", "precision"], "write it as field=value"),
        (["--model", "gpt2", "--seq", "8", "--set", "precision=[bf16"], "'[bf16' is not YAML; write a word"),
        (["--model", "gpt2", "--seq", "8", "--set", "precison=fp32"], "has no field 'precison'"),
        (
            ["--model", "gpt2", "--seq", "8", "--micro-batch", "0"],
            "--micro-batch: recipe: micro_batch must be above zero",
        ),
        (["--model", "gpt2", "--seq", "8", "--set", "micro_batch=2024-13-45"], "'2024-13-45' is not YAML"),
        (["--model", "gpt2", "--seq", "8", "--set", "micro_batch=0x_"], "'0x_' is not YAML"),
        (["--model", "gpt2", "--seq", "8", "--set", f"micro_batch={'9' * 5000}"], "(5002 characters) is not YAML"),
        (["--model", "gpt2", "--seq", "8", "--set", f"micro_batch=0x{'f' * 5000}"], "a number of thousands of digits"),
        (["--model", "gpt2", "--seq", "8", "--set", f"micro_batch={'[' * 3000}"], "is not YAML"),
        (["--model", "gpt2", "--seq", "8", "--set", "ranks=1", "--set", "ranks=1"], "given by --set ranks already"),
        (
            ["--model", "gpt2", "--seq", "8", "--set", "micro_batch=2", "--micro-batch", "1"],
            "--micro-batch: micro_batch",
        ),
        (["--model", "gpt2", "--seq", "8", "--micro-batch", "9" * 20], "micro_batch must be at most 2^63 - 1"),
        (["--model", "llama-2-7b", "--seq", "1" + "0" * 20], "sequence_length must be at most 2^63 - 1"),
        (["--model", "llama-2-7b", "--seq", "1" + "0" * 15], "tensors of more than 2^63 bytes"),
        (["--model", "a" * 5000, "--seq", "8"], "(5002 characters): cannot be read"),
        (["--model", "", "--seq", "8"], "an empty name: neither a preset nor a config.json"),
        (["--model", "gpt2", "--seq", "8", "--set", "compile=true", "--view", "run"], "no view shows a compiled model"),
        (["--model", "gpt2", "--seq", "8", *RANKS, "--view", "run", "--figure", "x.png"], "--view run needs one rank"),
        (["--model", "gpt2", "--seq", "8", *FSDP, "--set", "ranks=100000000"], "are traced; price them instead"),
        (["--model", "gpt2", "--seq", "8", *FSDP, "--set", "ranks=4096"], "4096 shards are more than"),
        (["--model", "gpt2", "--seq", "8", "--json", ""], "--json .: is a folder"),
        (["--model", "gpt2", "--seq", "8", "--json", "/"], "--json /: is a folder"),
        (["--model", "gpt2", "--seq", "8", "--json", f"{__file__}/x.json"], ".py/x.json: cannot be written (Not a dir"),
        (["--model", "gpt2", "--seq", "8", "--json", "x" * 300], "cannot be written (File name too long)"),
        (["--model", "gpt2", "--seq", "8", "--figure", "no/x.png"], "--figure no/x.png: cannot be written"),
        (["--model", "gpt2", "--seq", "8", "--figure", "x.png", "--json", "x.png"], "are both x.png"),
        (["--model", "gpt2", "--seq", "8", "--view", "guessed"], "no such view; known: priced, traced, run"),
        (["--model", "gpt2", "--seq", "8", "--figure", "x.pdf"], "the name must end in .png or .svg"),
        (["--model", "gpt2", "--seq", "8", "--figure", "x.png", "--view", "priced"], "--figure needs --view traced"),
        (["--model", "gpt2", "--seq", "8", "--recipe", "no.yml"], "no.yml: cannot be read"),
        (["--model", "llama-3.1-70b", "--seq", "8", "--view", "run"], "GiB of memory at its peak"),
        (["--model", "gpt2", "--seq", "8", "--json", "/proc/no/x.json"], "cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["profile", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("- 1", [], "r.yml: a recipe must be a mapping of fields"),
        ("[]", [], "r.yml: a recipe must be a mapping of fields, got list"),
        ("false", [], "r.yml: a recipe must be a mapping of fields, got bool"),
        ("a: [", [], "r.yml: line 1: not valid YAML"),
        ("micro_batch: 2024-13-45", [], "r.yml: line 1: not valid YAML: '2024-13-45' is no timestamp"),
        ("micro_batch: 1\nmicro_batch: 2", [], "r.yml: line 2: not valid YAML: 'micro_batch' is written twice"),
        ("? [a]\n: 1", [], "r.yml: line 1: not valid YAML"),
        ("micro_batch: x", ["ranks=2"], "r.yml: recipe: micro_batch must be a whole number, got 'x'"),
        ("micro_batch: 2", ["ranks=x"], "--set ranks: recipe: ranks must be a whole number, got 'x'"),
        ("micro_batch: 2", ["ranks=2"], "r.yml, --set ranks: recipe: ranks (2) and sharding (none) do not fit"),
    ],
)
def test_a_fault_of_a_recipe_names_the_source(tmp_path: Path, text: str, settings: list[str], message: str) -> None:
    path = tmp_path / "r.yml"
    path.write_text(text)
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_recipe(path, settings, None)
    assert "\n" not in str(caught.value)


def test_an_empty_recipe_is_the_plain_one(tmp_path: Path) -> None:
    (tmp_path / "r.yml").write_text("# nothing yet\n")
    assert read_recipe(tmp_path / "r.yml", [], None) == Recipe(1)


def test_a_link_stays_and_a_device_is_written_to(tmp_path: Path) -> None:
    kept, link = tmp_path / "kept.json", tmp_path / "link.json"
    link.symlink_to(kept)
    arguments = ["profile", "--model", "gpt2", "--seq", "8", "--view", "priced", "--json"]
    assert run([*arguments, str(link)]) == 0
    assert link.is_symlink()
    assert ledger(kept).view == "priced"
    assert run([*arguments, "/dev/null"]) == 0
    assert Path("/dev/null").is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.json", "link.json"]


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["presets"]) == 0
    assert "gpt2 gpt2 12 768 124,439,808" in " ".join(capsys.readouterr().out.split())


def test_each_place_of_an_offloaded_recipe_has_its_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yml"
    recipe.write_text(
        "micro_batch: 1\nprecision: bf16-mixed\ncheckpointing: full\nranks: 8\nsharding: deepspeed-3\n"
        "offload: parameters-nvme\n"
    )
    arguments = ["--model", "llama-3.1-8b", "--seq", "2048", "--recipe", str(recipe), "--view", "priced"]
    assert run(["profile", *arguments, "--json", str(tmp_path / "l.json")]) == 0
    text = capsys.readouterr().out
    assert "one of 8 ranks (deepspeed-3), priced" in text
    assert "MiB, host" in text
    assert "MiB, disk" in text
    assert "note: DeepSpeed: what DeepSpeed keeps is exact" in " ".join(text.split())
    assert set(ledger(tmp_path / "l.json").entries) == {"device", "host", "disk"}
    assert run(["profile", *arguments[:-1], "traced"]) == 2
    assert "deepspeed-3 has a loop of its own" in capsys.readouterr().err


def test_several_ranks_are_profiled_by_trace(tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "l.json"
    settings = ["--set", "ranks=4", "--set", "sharding=fsdp", "--set", "precision=bf16-mixed"]
    assert run(["profile", "--model", tiny, "--seq", "16", *settings, "--view", "traced", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["workload"]["tokens_per_step"] == 4 * 16
    assert ledger(out).entries["device"]["backward"]["communication"] > 0
