"""What an evaluation plays: every start once, by as few rows as need no longer for it."""

import heapq
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ludus.envs.humanoid.config import HumanoidConfig
from ludus.envs.humanoid.motions import MotionLibrary

_LONGER = 1.1  # than the longest episode alone all of them may take
Plan = tuple[Tensor, Tensor, Tensor]  # [starts] each: clip, second at which it is begun, steps


def evaluation_plan(config: HumanoidConfig, library: MotionLibrary) -> Plan:
    """The episodes of an evaluation.

    A looping clip is followed from starts spread over its cycle, for an episode's longest time and for at least
    one cycle; any other from its beginning to its end.
    """
    plan, dt = [], library.body.dt
    for number, clip in enumerate(library.clips):
        if clip.loop:
            phases = [clip.duration * i / config.eval_starts for i in range(config.eval_starts)]
            longest = max(config.max_steps, math.ceil(clip.duration / dt - 1e-6))
            plan += [(number, start, longest) for start in phases]
        else:
            plan.append((number, 0.0, max(1, int(clip.duration / dt + 1e-6))))
    clips, starts, steps = zip(*plan, strict=True)
    return torch.tensor(clips), torch.tensor(starts, dtype=torch.float64), torch.tensor(steps)


def shared_out(steps: Sequence[int], rows: int) -> list[list[int]]:
    """Which episodes each row plays: the longest goes first, to the row that has least to do (Graham 1969).

    With as many rows as episodes each row plays the one of its own number.
    """
    own: list[list[int]] = [[] for _ in range(rows)]
    loads = [(0, row) for row in range(rows)]
    for episode in sorted(range(len(steps)), key=lambda i: -steps[i]):
        load, row = loads[0]
        own[row].append(episode)
        heapq.heapreplace(loads, (load + steps[episode], row))
    return sorted(sorted(episodes) for episodes in own)


def fewest_rows(steps: Sequence[int]) -> int:
    """How many rows play these episodes in about the time that the longest takes.

    With one row each, those of short clips would be simulated on and on until the longest has ended.
    """
    longest = max(steps)
    rows = math.ceil(sum(steps) / longest)
    while rows < len(steps):
        busiest = max(sum(steps[i] for i in own) for own in shared_out(steps, rows))
        if busiest <= _LONGER * longest:
            return rows
        rows += 1 + rows // 16
    return len(steps)


class EvaluationStarts:
    """The starts that rows play, one after another."""

    def __init__(self, plan: Plan, rows: int, device: torch.device) -> None:
        self.clip, self.began, self.steps = (part.to(device) for part in plan)
        own = shared_out(plan[2].tolist(), rows)
        self.of_rows = torch.tensor([len(starts) for starts in own])  # how many
        # What comes after each start; and at last, for every row, what it begins with.
        after = torch.zeros(len(plan[2]) + rows, dtype=torch.int64)
        for row, starts in enumerate(own):
            after[starts] = torch.tensor([*starts[1:], starts[0]])
            after[len(plan[2]) + row] = starts[0]
        self.after = after.to(device)
        self.before_first = len(plan[2]) + torch.arange(rows, device=device)
