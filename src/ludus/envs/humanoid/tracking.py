"""How well a reference is followed: the measures by which motion imitation is compared."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.envs.bodies import Body

MEAN_DISTANCE = 0.5  # m: an evaluated episode has failed when the bodies' mean distance exceeds it
ANY_DISTANCE = 0.25  # m: the strict rule: when any body's distance does
LOW = 0.6  # m: of robots whose root stands lower these are half and a quarter of its height
_MEASURES = ("mpjpe", "mpjpe_local", "mpjpe_aligned", "velocity_error", "acceleration_error")


def farthest_followed(body: Body) -> tuple[float, float]:
    """m, of the mean over bodies and of any body: beyond it a reference is lost.

    A low robot that lies on its belly is nearer to itself than a human's size.
    """
    height = float(body.default_qpos[2])
    return (height / 2, height / 4) if height < LOW else (MEAN_DISTANCE, ANY_DISTANCE)


class TrackingMeasures:
    """Means over the frames of every row's episode so far.

    - mpjpe: mm, mean distance of the bodies to their references in the world
    - mpjpe_local: mm, the same with both roots in one place
    - mpjpe_aligned: mm, after the best rotation, scale and shift (Procrustes)
    - velocity_error, acceleration_error: m/s and m/s², mean length of the difference, by differences of positions
    """

    def __init__(
        self, rows: int, bodies: int, dt: float, device: torch.device, any_distance: float = ANY_DISTANCE
    ) -> None:
        self._dt, self._any_distance = dt, any_distance
        self._sums = torch.zeros((rows, len(_MEASURES)), dtype=torch.float64, device=device)
        self._frames = torch.zeros(rows, dtype=torch.float64, device=device)
        self.farthest = torch.zeros(rows, device=device)  # m, that any body was off so far
        self.closely = torch.zeros(rows, dtype=torch.float64, device=device)  # frames before any was too far off
        self._before = torch.zeros((2, rows, bodies, 3), device=device)  # differences one and two frames ago

    def begin(self, where: Tensor) -> None:
        """New episodes, which start on the reference, in the rows that `where`, [rows] bool, names."""
        self._sums.masked_fill_(where[:, None], 0.0)
        self._frames.masked_fill_(where, 0.0)
        self.farthest.masked_fill_(where, 0.0)
        self.closely.masked_fill_(where, 0.0)
        self._before.masked_fill_(where[:, None, None], 0.0)

    def add(self, bodies: Tensor, reference: Tensor) -> None:
        """One frame: [rows, bodies, 3] positions."""
        difference = bodies - reference
        distance = torch.linalg.vector_norm(difference, dim=-1)
        local = difference - difference[:, :1]
        speed = (difference - self._before[0]) / self._dt
        change = (difference - 2 * self._before[0] + self._before[1]) / self._dt**2
        self._before[1].copy_(self._before[0])
        self._before[0].copy_(difference)
        aligned = procrustes_distance(bodies, reference)
        means = [
            1000 * distance.mean(1),
            1000 * torch.linalg.vector_norm(local, dim=-1).mean(1),
            1000 * aligned.mean(1),
            torch.linalg.vector_norm(speed, dim=-1).mean(1),
            torch.linalg.vector_norm(change, dim=-1).mean(1),
        ]
        self._sums += torch.stack(means, dim=1)
        torch.maximum(self.farthest, distance.amax(1), out=self.farthest)
        self.closely += (self.closely == self._frames) & (self.farthest <= self._any_distance)
        self._frames += 1

    def results(self, lost: Tensor) -> dict[str, Tensor]:
        """[rows] each; what is of those alone that were not lost is NaN elsewhere."""
        means = (self._sums / self._frames.clamp(min=1)[:, None]).float()
        values = dict(zip(_MEASURES, means.unbind(1), strict=True))
        kept = {f"{name}_succeeded": value.masked_fill(lost, torch.nan) for name, value in values.items()}
        strict = ~lost & (self.farthest <= self._any_distance)
        return {"success": (~lost).float(), "success_strict": strict.float(), **values, **kept}


def procrustes_distance(points: Tensor, target: Tensor) -> Tensor:
    """[n, bodies] distances after the similarity transform of `points` [n, bodies, 3] that fits `target` best."""
    points, target = points.double(), target.double()
    points = points - points.mean(1, keepdim=True)
    center = target.mean(1, keepdim=True)
    target = target - center
    # What has diverged is not finite, and stays so below; by itself it would end the others' measurement.
    u, s, vh = torch.linalg.svd((points.transpose(1, 2) @ target).nan_to_num())
    # A reflection is no rotation: where the best is one, the weakest axis is turned back.
    sign = torch.ones_like(s)
    sign[:, 2] = torch.linalg.det(u @ vh).sign()
    rotation = (u * sign[:, None]) @ vh
    scale = (s * sign).sum(1) / points.square().sum((1, 2)).clamp(min=1e-12)
    moved = scale[:, None, None] * (points @ rotation)
    return torch.linalg.vector_norm(moved - target, dim=-1).float()


def clip_table(
    names: Sequence[str],
    clip: Sequence[float],
    metrics: dict[str, list[float]],
    shares: Sequence[float] | None = None,
    unseen: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """A line for every clip: the means of its episodes, and its share of the starts; the worst first.

    `unseen`: the last of the names, which were kept out of the training and have no share.
    """
    which = np.array(clip, dtype=int)
    columns = {measure: np.array(values) for measure, values in metrics.items()}
    table = []
    for number, name in enumerate(names):
        chosen = np.flatnonzero(which == number)
        line: dict[str, Any] = {"clip": name, "episodes": len(chosen)}
        for measure, values in columns.items():
            known = values[chosen]
            known = known[~np.isnan(known)]
            line["success_rate" if measure == "success" else measure] = float(known.mean()) if len(known) else None
        if shares is not None:
            line["share"] = shares[number] if number < len(shares) else 0.0
        if unseen:
            line["unseen"] = float(number >= len(names) - len(unseen))
        table.append(line)
    return sorted(table, key=lambda line: (line.get("success_rate") or 0, -(line.get("mpjpe") or 0)))
