"""Is a run, bit for bit, the one that was left alone? Models, training state, metrics; only times differ."""

import json
from pathlib import Path
from typing import Any

_TIMED = ("time/", "system/", "TimeCost(sec)/")


def differences(run: Path, alone: Path) -> list[str]:
    """What differs, in words; nothing where the runs are bit-equal."""
    one, two = newest(run), newest(alone)
    if one is None or two is None or one.name != two.name:
        return [f"the last checkpoint is {one and one.name}, not {two and two.name}"]
    found = []
    for part in sorted(
        {file.stem for file in two.glob("*.safetensors")} | {f.stem for f in one.glob("*.safetensors")}
    ):
        found += _tensor_differences(one, two, part)
        found += _tree_differences(_plain(one / f"{part}.json"), _plain(two / f"{part}.json"), f"{part}.json")
    rows, others = metric_rows(run), metric_rows(alone)
    if len(rows) != len(others):
        found.append(f"{len(rows)} rows of metrics instead of {len(others)}")
    for row, other in zip(rows, others, strict=False):
        found += _tree_differences(row, other, f"metrics at step {other.get('step')}")
    if _pointed(run / "checkpoints" / "best") != _pointed(alone / "checkpoints" / "best"):
        found.append("another checkpoint is the best")
    for name in ("evaluation.json", "R_loss.f32"):
        if _bytes(run / name) != _bytes(alone / name):
            found.append(f"{name} differs")
    return found


def newest(run: Path) -> Path | None:
    found = [path for path in (run / "checkpoints").glob("step_*") if path.name.removeprefix("step_").isdigit()]
    return max(found, key=lambda path: int(path.name.removeprefix("step_")), default=None)


def metric_rows(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.startswith(_TIMED)} for row in rows]


def is_final(run: Path) -> bool:
    return (run / "final").exists()


def _tensor_differences(one: Path, two: Path, part: str) -> list[str]:
    from safetensors.torch import load_file

    files = [folder / f"{part}.safetensors" for folder in (one, two)]
    if not all(file.exists() for file in files):
        return [f"{part}.safetensors is in one of them alone"]
    ours, theirs = map(load_file, files)
    if ours.keys() != theirs.keys():
        return [f"{part}.safetensors holds other tensors: {sorted(ours.keys() ^ theirs.keys())[:3]}"]
    same = {name: _raw(ours[name]) == _raw(theirs[name]) for name in theirs}
    return [f"{part}.safetensors: {name} differs" for name, equal in same.items() if not equal]


def _raw(tensor: Any) -> tuple[Any, Any, bytes]:
    return tensor.dtype, tensor.shape, tensor.contiguous().flatten().view(-1).numpy().tobytes()


def _plain(path: Path) -> Any:
    found = json.loads(path.read_text())
    found.get("state", {}).get("counters", {}).pop("seconds", None)
    return found


def _tree_differences(one: Any, two: Any, where: str) -> list[str]:
    if isinstance(one, dict) and isinstance(two, dict):
        keys = sorted(one.keys() | two.keys())
        parts = (_tree_differences(one.get(key), two.get(key), f"{where}: {key}") for key in keys)
        return [difference for part in parts for difference in part]
    return [] if one == two else [f"{where} is {str(one)[:40]} instead of {str(two)[:40]}"]


def _pointed(path: Path) -> str:
    """What a link, or a text file where there are no links, points to."""
    if path.is_symlink() or not path.is_file():
        return path.resolve().name
    return Path(path.read_text().strip()).name


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
