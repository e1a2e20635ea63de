"""After which iterations a run is saved, and how that is told before it starts."""

from ludus.config import CheckpointConfig, Plan


def is_due(saving: CheckpointConfig, plan: Plan, iterations: int) -> bool:
    """Whether the newest iteration is the nearest to a step, or ends an epoch, after which to save."""
    if saving.every:
        number = _nearest(iterations * plan.steps_per_iteration, saving.every)
        return number > 0 and _nearest(number * saving.every, plan.steps_per_iteration) == iterations
    return iterations % (plan.iterations_per_epoch * max(1, saving.every_epochs)) == 0


def saving_lines(saving: CheckpointConfig, plan: Plan) -> list[str]:
    """When it is saved, where that was asked for."""
    kept = "all are kept" if saving.keep == "all" else f"the newest {saving.keep} and the best are kept"
    if saving.every_epochs:
        epochs = "epoch" if saving.every_epochs == 1 else f"{saving.every_epochs:,} epochs"
        return [f"checkpoint every {epochs}; {kept}"]
    if not saving.every:
        return [f"checkpoint every epoch; {kept}"] if saving.keep == "all" else []
    steps = plan.steps_per_iteration
    first = [max(1, _nearest(number * saving.every, steps)) * steps for number in (1, 2, 3)]
    near = f" (at {', '.join(f'{step:,}' for step in first)} …)" if saving.every % steps else ""
    return [f"checkpoint every {saving.every:,} {plan.unit}{near}; {kept}"]


def _nearest(number: int, unit: int) -> int:
    """How many of `unit` are nearest to a number."""
    return (2 * number + unit) // (2 * unit)
