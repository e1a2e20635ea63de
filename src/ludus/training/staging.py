"""From one stage of a curriculum to the next: another job goes on with what the one before has learned."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ludus.envs.vec import State
from ludus.errors import MALFORMED, ConfigError, plain_text
from ludus.stages import Stage
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

    def give(self, job: Job, iteration: int) -> None:
        """Let a new job go on with it, after so many iterations."""
        for name, model in job.models.items():
            model.load_state_dict(dict(self._weights[name]))
        job.load_state(self._state, iteration)


def try_stages(stages: Sequence[Stage], first: Job, make: MakeStage) -> None:
    """Make the job of every later stage and hand it what `first` has: what cannot work fails at once."""
    baggage = Baggage(first) if len(stages) > 1 else None
    for number, stage in enumerate(stages[1:], 2):
        assert baggage is not None
        job = make(stage)
        try:
            _refuse_other_shape(number, first, job)
            baggage.give(job, 0)
        except MALFORMED as error:
            reason = plain_text(f"{type(error).__name__}: {error}", 300)
            raise ConfigError(f"Stage {number} cannot go on with what stage 1 has learned: {reason}") from error
        finally:
            job.close()


def _refuse_other_shape(number: int, first: Job, job: Job) -> None:
    if job.plan != first.plan:
        raise ConfigError(
            f"Stage {number} would make {job.plan.steps_per_iteration:,} steps and "
            f"{job.plan.batches_per_iteration:,} batches an iteration, and stage 1 "
            f"{first.plan.steps_per_iteration:,} and {first.plan.batches_per_iteration:,}: they must be the same."
        )
    for name, model in job.models.items():
        theirs: dict[str, Any] = first.models[name].description()
        differing = [key for key, value in model.description().items() if theirs.get(key) != value]
        if differing:
            what = {"obs_space": "what is observed", "action_space": "the actions"}.get(differing[0], differing[0])
            raise ConfigError(f"Stage {number} changes {what}; all stages share one {name}.")
