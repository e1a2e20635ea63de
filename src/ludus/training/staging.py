"""From one stage of a curriculum to the next: another job goes on with what the one before has learned.

One job is held at a time: there may be memory for one replay buffer and not for two.
"""

import gc
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ludus.envs.vec import State
from ludus.errors import MALFORMED, ConfigError, plain_text
from ludus.stages import Stage
from ludus.training.evaluator import judged_task
from ludus.training.job import Job

MakeStage = Callable[[Stage], Job]


class Baggage:
    """What a job hands to the next: weights, optimiser and replay buffer, but not what its environments did."""

    def __init__(self, job: Job) -> None:
        self._weights: dict[str, Mapping[str, Tensor]] = {
            name: {key: tensor.clone() for key, tensor in model.state_dict().items()}
            for name, model in job.models.items()
        }
        self._state: State = job.carried()
        self.plan = job.plan
        self.models: dict[str, dict[str, Any]] = {name: m.description() for name, m in job.models.items()}

    def give(self, job: Job, iteration: int) -> None:
        """Let a new job go on with it, after so many iterations."""
        for name, model in job.models.items():
            model.load_state_dict(dict(self._weights[name]))
        job.load_state(self._state, iteration)


def try_stages(stages: Sequence[Stage], make: MakeStage) -> None:
    """Make the job of every later stage and hand it what the first one has: what cannot work fails at once."""
    first = make(stages[0])
    baggage = Baggage(first)
    first.close()
    del first
    for number, stage in enumerate(stages[1:], 2):
        free_memory()
        _try_stage(number, stage, baggage, make)
    free_memory()


def free_memory() -> None:
    """Give back what closed jobs held: they refer to themselves, and Python clears such circles seldom."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # what torch keeps for later is not free to whoever asks the driver


def _try_stage(number: int, stage: Stage, baggage: Baggage, make: MakeStage) -> None:
    job = make(stage)
    try:
        _refuse_other_shape(number, baggage, job)
        baggage.give(job, 0)
    except MALFORMED as error:
        reason = plain_text(f"{type(error).__name__}: {error}", 300)
        raise ConfigError(f"Stage {number} cannot go on with what stage 1 has learned: {reason}") from error
    finally:
        job.close()


def _refuse_other_shape(number: int, first: Baggage, job: Job) -> None:
    if job.plan != first.plan:
        raise ConfigError(
            f"Stage {number} would make {job.plan.steps_per_iteration:,} steps and "
            f"{job.plan.batches_per_iteration:,} batches an iteration, and stage 1 "
            f"{first.plan.steps_per_iteration:,} and {first.plan.batches_per_iteration:,}: they must be the same."
        )
    for name, model in job.models.items():
        differing = [key for key, value in model.description().items() if first.models[name].get(key) != value]
        if differing:
            what = {"obs_space": "what is observed", "action_space": "the actions"}.get(differing[0], differing[0])
            raise ConfigError(f"Stage {number} changes {what}; all stages share one {name}.")


# What is told of stages -------------------------------------------------------------------------------
def stage_lines(stages: Sequence[Stage], present: int) -> list[str]:
    """The stages of a curriculum, the present one marked; none where there is only one."""
    told = [f"stage {number}: {stage.told}" for number, stage in enumerate(stages, 1)]
    told[present] += " ←" if present else ""
    return told if len(told) > 1 else []


def unreached_stages(stages: Sequence[Stage], present: int) -> list[str]:
    """What to say when a training has ended before its last stage."""
    now, last = present + 1, len(stages)
    if now == last:
        return []
    return [f"The training ended in stage {now} of {last}: {stages[present].told}. Its own settings never held."]


def task_number(stages: Sequence[Stage], present: int) -> int:
    """1, and one more for every stage so far that judges another task than the one before."""
    tasks = [judged_task(stage.config.env) for stage in stages[: present + 1]]
    return 1 + sum(one != other for one, other in itertools.pairwise(tasks))
