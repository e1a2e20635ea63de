"""Environments whose observation is one number of a few: `gym:` presets learn them, on new starts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ludus
from ludus.presets import find_preset
from ludus.runs import evaluate_run
from ludus.show.console import Console

QUIET = {"log.report": False, "log.tensorboard": False, "seed": 0}


def learned(preset: str, folder: Path, episodes: int, **overrides: Any) -> float:
    """Mean return of the preset's best policy, on new starts."""
    run = ludus.train(preset, folder / "run", console=Console("quiet"), overrides=QUIET | overrides)
    return float(np.mean(evaluate_run(run, episodes, deterministic=True).returns))


def short(steps: int, episodes: int) -> dict[str, Any]:
    return {"loop": {"total_steps": steps}, "eval": {"every": steps, "episodes": episodes}}


def test_the_way_over_a_lake_that_is_not_slippery_is_found(tmp_path: Path) -> None:
    kwargs = {"env": {"kwargs": {"is_slippery": False}}}
    assert learned("gym:FrozenLake-v1", tmp_path, 64, **short(20_000, 64), **kwargs) == 1.0


def test_blackjack_is_played_nearly_as_well_as_it_can_be(tmp_path: Path) -> None:
    # The best strategy loses about 0.04 a game, sticking at once 0.18, playing as the dealer does 0.08.
    assert learned("gym:Blackjack-v1", tmp_path, 2_000, **short(20_000, 64)) > -0.08


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "episodes", "bar"),
    [
        ("gym:FrozenLake-v1", 2_000, 0.65),
        ("gym:Blackjack-v1", 20_000, -0.08),
        ("gym:Taxi-v4", 1_000, 6.0),
        ("gym:LunarLander-v3", 100, 200.0),
    ],
)
def test_presets_reach_their_bars(tmp_path: Path, preset: str, episodes: int, bar: float) -> None:
    if "LunarLander" in preset:
        pytest.importorskip("Box2D", reason="LunarLander needs Box2D")
    assert learned(preset, tmp_path, episodes) >= bar


def test_where_luck_decides_an_episode_the_best_policy_is_chosen_by_many() -> None:
    assert find_preset("gym:FrozenLake-v1").config.eval.episodes >= 500
    assert find_preset("gym:Blackjack-v1").config.eval.episodes >= 5_000
