"""Whose files a launch's folder holds."""

import os
from pathlib import Path

import pytest

from efficient_training import launching
from efficient_training.errors import UserError
from efficient_training.launch import launch, run, slurm
from efficient_training.launch.folder import MARKER, Folder
from efficient_training.launch.job import Job

OWN = ["rank-0.log", "rank-1.start.json", "rank-1.report-0001-000002.json", "rank-0.end.77.part", "launcher.log"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_with_the_users_files_is_refused_and_untouched(tmp_path: Path) -> None:
    precious = ["launcher.log", "rank-table.csv", "torchrun"]
    for name in precious:
        (tmp_path / name).write_text("precious")
    script = Path(__file__).parent / "scripts" / "plain.py"
    with pytest.raises(UserError, match=r"has files that no launch made; take a new one, or an empty one$"):
        launch(script, "nothing", folder=tmp_path, backend="gloo", progress=False)
    assert names(tmp_path) == precious


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "logs").make()
    for name in OWN:
        (folder / name).touch()
    with pytest.raises(UserError, match=r"is in use by another launch; take another, or wait for its end$"):
        Folder(folder).make()
    assert set(OWN) < set(names(folder))


def test_of_an_earlier_launchs_folder_only_its_logs_are_removed(tmp_path: Path) -> None:
    first = Folder(tmp_path)
    first.make()
    for name in [*OWN, "rank-table.csv", "rank-0.pt"]:
        (tmp_path / name).touch()
    (tmp_path / "torchrun").mkdir()
    first.release()
    Folder(tmp_path).make()
    assert names(tmp_path) == [MARKER, "rank-0.pt", "rank-table.csv"]


def test_launches_in_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    places = [Folder(tmp_path / "launches" / "ok", new=True) for _ in range(3)]
    assert [place.make().name for place in places] == ["ok", "ok-2", "ok-3"]
    for place in reversed(places):
        place.discard()
    assert names(tmp_path) == []


def test_a_name_that_cannot_be_a_folder_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/within"):
        with pytest.raises(UserError, match=f"the folder {tmp_path}/{name}: not a directory; take another$"):
            Folder(tmp_path / name).make()


def test_a_job_that_goes_on_keeps_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Folder(tmp_path)
    place.make()
    place.note(job="7")
    place.release()
    (tmp_path / "rank-0.log").touch()
    monkeypatch.setattr(slurm, "goes_on", lambda number: number == "7")
    with pytest.raises(UserError, match="is in use by job 7 of SLURM"):
        Folder(tmp_path).make()
    assert names(tmp_path) == [MARKER, "rank-0.log"]
    monkeypatch.setattr(slurm, "goes_on", lambda _: False)
    Folder(tmp_path).make()
    assert names(tmp_path) == [MARKER]


def test_temporary_folders_of_killed_launches_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    killed, alive, young = Folder(None), Folder(None), Folder(None)
    for place in (killed, alive, young):
        place.make()
    for place in (killed, young):
        place.release()
    for place in (killed, alive):
        os.utime(place.path / MARKER, (0, 0))
    Folder(None).make()
    assert [place.path.exists() for place in (killed, alive, young)] == [False, True, True]


@pytest.mark.parametrize("wait", [True, False])
def test_a_refused_submission_leaves_nothing(wait: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\necho 'sbatch: error: no controller' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", str(sbatch.parent), prepend=":")
    script = tmp_path / "ok.py"
    script.touch()
    asked = tmp_path / "empty"
    asked.mkdir()
    job = Job(script, launcher="slurm", backend="gloo")
    for path in (tmp_path / "launches" / "ok", asked):
        with pytest.raises(UserError, match="SLURM refuses the job: no controller; see `sinfo`"):
            run(job, Folder(path), progress=False) if wait else launching.submit(job, Folder(path))
    assert names(asked) == []
    assert names(tmp_path) == ["bin", "empty", "ok.py"]


def test_a_disk_without_locks_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    assert Folder(tmp_path / "logs").make().exists()
