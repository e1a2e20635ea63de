"""What is learned, and from what: decisions of the algorithms, each held to the reason its page gives."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import ludus
from ludus.training.loop import Trainer
from test_ppo_extras import HORIZON, ROWS, make_policy, make_ppo
from test_ppo_math import random_segments


# Divergence -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("limit", [1e-9, 0.01, 1e9])
def test_correctness_12_after_a_stop_the_metrics_are_of_the_pass_that_stopped_wherever_it_runs(
    limit: float,
) -> None:
    """On a GPU nobody asks whether to stop: the later passes run, learn nothing, and must not be measured."""
    found: list[dict[str, Tensor]] = []
    for asks in (True, False):
        policy = make_policy()
        ppo = make_ppo(policy, minibatches=4, update_epochs=5, learning_rate=3e-2, target_kl=limit)
        ppo._asks = asks
        found.append(ppo.update(random_segments(policy, ROWS, HORIZON, seed=0), 0.0))
    asked, unasked = found
    assert asked.keys() == unasked.keys()
    for name, value in asked.items():
        torch.testing.assert_close(value, unasked[name], msg=name, rtol=0, atol=0)


# The best of a task ---------------------------------------------------------------------------------
KUKA: dict[str, Any] = {
    "env": {"num_envs": 4, "fixed": True, "max_steps": 4},
    "groups": 1,
    "ppo": {"horizon": 4, "minibatches": 1, "update_epochs": 1},
    "policy": {"hidden": (8,)},
    "loop": {"total_steps": 32},
    "eval": {"every": 16, "episodes": 2, "stochastic": False},
    "log": {"tensorboard": False, "report": False},
}


def best_step(run: Path) -> int:
    return int((run / "checkpoints" / "best").resolve().name.rpartition("_")[2])


@pytest.mark.parametrize(("change", "anew"), [({"env.fixed": False}, True), ({"env.assist": 0.1}, False)])
def test_correctness_13_the_best_begins_anew_where_a_resume_changes_the_task(
    change: dict[str, Any], anew: bool, tmp_path: Path
) -> None:
    run = ludus.train("kuka-pick-place", run_dir=tmp_path / "run", **KUKA)

    class Unbeatable(ludus.Callback):
        """As if the best of the old task were far better than any of the new one."""

        def on_start(self, trainer: Trainer) -> None:
            self.forgotten = trainer.counters.best_step == -1

    watch = Unbeatable()
    ludus.resume(run, callbacks=[watch], overrides=change | {"loop.total_steps": 48, "eval.every": 16})
    assert watch.forgotten == anew
    if anew:
        assert best_step(run) == 48
