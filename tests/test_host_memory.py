"""What a process may still take: within its control groups, of either version, caches not counted as taken."""

from pathlib import Path

import pytest

from efficient_training import host_memory

GIB = 2**30
V2 = {"memory.max": "{most}", "memory.current": "{used}", "memory.stat": "anon 1\ninactive_file {cache}\n"}
V1 = {
    "memory.limit_in_bytes": "{most}",
    "memory.usage_in_bytes": "{used}",
    "memory.stat": "total_active_file {cache}\ninactive_file 7\n",
}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 64 GiB available, whose control groups stand in the folder."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Found", (), {"available": 64 * GIB}))
    monkeypatch.setattr(host_memory, "ROOT", tmp_path)
    monkeypatch.setattr(host_memory, "OWN", tmp_path / "own")
    return tmp_path


def group(folder: Path, files: dict[str, str], most: object, used: int, cache: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text.format(most=most, used=used, cache=cache))


def test_without_control_groups_it_is_what_the_system_says(machine: Path) -> None:
    assert host_memory.available_bytes() == 64 * GIB


def test_the_narrowest_group_counts_and_its_cache_can_be_given_back(machine: Path) -> None:
    (machine / "own").write_text("0::/a/b\n")
    group(machine / "a" / "b", V2, "max", 9 * GIB, 0)
    group(machine / "a", V2, 16 * GIB, 10 * GIB, 4 * GIB)
    assert host_memory.available_bytes() == 10 * GIB
    group(machine / "a" / "b", V2, 10 * GIB, 9 * GIB, GIB)
    assert host_memory.available_bytes() == 2 * GIB


@pytest.mark.parametrize("path", ["/docker/x", "/"])
def test_version_1_has_its_own_files_and_no_limit_is_a_large_one(machine: Path, path: str) -> None:
    (machine / "own").write_text(f"3:cpuset:/\n4:hugetlb,memory:{path}\n0::/\n")
    group(machine / "memory", V1, 2**63 - 4096, 9 * GIB, 0)
    assert host_memory.available_bytes() == 64 * GIB
    group(machine / "memory", V1, 8 * GIB, 7 * GIB, 2 * GIB)
    assert host_memory.available_bytes() == 3 * GIB


def test_without_psutil_the_kernel_is_asked_and_elsewhere_nothing_is_known(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psutil", None)
    found = host_memory.available_bytes()
    assert found is None or found > 0
    monkeypatch.setattr(host_memory, "_of_meminfo", lambda: None)
    assert host_memory.available_bytes() is None
