"""`--save` of a benchmark writes what was measured into its result file, and nothing else there changes."""

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from pages.figures import RESULTS

BENCHMARKS = RESULTS.parent


def test_a_benchmark_writes_its_figures_with_command_commit_machine_and_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import keeping
    import taped

    results = Path(shutil.copytree(RESULTS, tmp_path / "results"))
    monkeypatch.setattr(keeping, "RESULTS", results)
    monkeypatch.setattr(taped, "SHAPES", [(256, 64)])
    monkeypatch.setattr(sys, "argv", ["taped.py", "--rounds", "1", "--save", "two-cores"])
    taped.main()
    before, after = (tomllib.loads((folder / "taped.toml").read_text()) for folder in (RESULTS, results))
    (place,) = (i for i, part in enumerate(before["parts"]) if part.get("name") == "steps")
    new = after["parts"].pop(place)
    before["parts"].pop(place)
    assert before == after
    assert new["command"] == "python benchmarks/taped.py --rounds 1"
    assert re.fullmatch(r"[0-9a-f]{7}( with changes)?, \d{4}-\d\d-\d\d", new["recorded"])
    assert new["machine"] == "two-cores"
    ((shape, script, module, ratio, built_in),) = new["rows"]
    assert shape == "256, 64 × 64"
    printed = capsys.readouterr().out
    assert f"({ratio['seeds'][0]:.2f} ×)" in printed
    assert all(float(told) > 0 for told in (script, module, built_in))


def test_a_part_that_is_new_comes_after_the_others_and_before_the_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import keeping

    results = Path(shutil.copytree(RESULTS, tmp_path / "results"))
    monkeypatch.setattr(keeping, "RESULTS", results)
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--save=h200", "--groups", "2"])
    keeping.keep(
        "gpu", "new", "h200", ("", "rate"), [('a "quoted" name', {"seeds": [1.5], "unit": "%"}), ("ü", 2)]
    )
    before, after = (tomllib.loads((folder / "gpu.toml").read_text()) for folder in (RESULTS, results))
    new = after["parts"].pop()
    assert before == after
    assert new["rows"] == [['a "quoted" name', {"seeds": [1.5], "unit": "%"}], ["ü", 2]]
    assert new["command"] == "python benchmarks/gpu.py --groups 2"
