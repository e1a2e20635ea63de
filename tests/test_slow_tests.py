"""The list of slow tests names tests that exist: one that was renamed would be run, or left out, unnoticed."""

from pathlib import Path

TESTS = Path(__file__).parent


def test_every_slow_test_exists() -> None:
    lines = (TESTS / "slow.txt").read_text().splitlines()
    named = [line.partition("[")[0].split("::") for line in lines if not line.startswith("#")]
    assert named
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (TESTS / file).read_text()]
    assert missing == []
