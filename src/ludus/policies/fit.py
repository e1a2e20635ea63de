"""Whether a policy fits the environments it is to act in."""

from typing import Any

from ludus.envs.abilities import interface_of
from ludus.envs.interface import changed_facts
from ludus.envs.row_space import ActionRow, RowSpace
from ludus.envs.vec import VecEnv
from ludus.errors import CheckpointError
from ludus.policies.policy import Policy


def refuse_misfit(policy: Policy, env: VecEnv) -> None:
    """One sentence, before torch complains of shapes: a policy goes with environments as it was trained in."""
    for what, known, found in (
        ("observations", policy.obs_space, env.obs_space),
        ("actions", policy.action_space, env.action_space),
    ):
        if known.shape != found.shape or not _same_parts(known, found):
            raise CheckpointError(
                f"The policy does not fit {env.name}: it was trained with {what} of the shape {known.shape}, and "
                f"here they are {found.shape}{_parts_of(found)}. The environment or its settings have changed "
                "since: train it anew."
            )
    robot, here = policy.interface.robot, interface_of(env).robot
    if robot and here and (changed := changed_facts(robot, here)):
        raise CheckpointError(
            f"The robot of {env.name} is not the one that the policy was trained on: its {', '.join(changed)} "
            "changed. Put its file back, or train anew; a newer Ludus may also read it otherwise."
        )


def _same_parts(known: Any, found: Any) -> bool:
    """Whether rows of the same size mean the same; vectors alone are in the order they always had."""
    if not isinstance(found, RowSpace):
        return not isinstance(known, RowSpace) and isinstance(known, ActionRow) == isinstance(found, ActionRow)
    if not isinstance(known, RowSpace):
        return not found.packed and found.mask is None
    return [part[:2] + part[3:] for part in known.parts] == [part[:2] + part[3:] for part in found.parts]


def _parts_of(space: Any) -> str:
    return f" ({', '.join(part.name for part in space.parts)})" if isinstance(space, RowSpace) else ""
