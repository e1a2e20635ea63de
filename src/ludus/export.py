"""A policy for other programs: ONNX with the normaliser and the action bounds inside."""

import contextlib
import io
import logging
import warnings
from pathlib import Path

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.envs.row_space import ONLY_PART, Part
from ludus.errors import ConfigError, LudusError
from ludus.files import temporary_beside
from ludus.policies.policy import Policy
from ludus.saved_run import load

TOLERANCE = 1e-4


def export_onnx(run: str | Path, file: str | Path, trust: bool = False) -> float:
    """Write the deterministic policy of a run; returns the largest difference to torch on random input.

    The file takes `obs` [batch, *obs] float32, or uint8 of an image, and gives `action` [batch, ...] in the
    environment's units. Where observations have parts it takes those that the actor sees, by their names, each as
    the environment gives it, and an `action_mask`. With a memory it also takes `state` [batch, state] (or
    `hidden_state`, where a part is named so), zeros where an episode begins, and gives `new_state` for the next.
    It is written only after it has been run and compared. `trust` as in `ludus.resume`.
    """
    file = Path(file)
    if file.suffix != ".onnx":
        raise ConfigError(f"The file to export to must end in .onnx, not {file.name!r}.")
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (torch's exporter asks for it)
    except ImportError as error:
        raise ConfigError("Export needs more packages: pip install 'ludus[onnx]'.") from error
    policy = load(run, trust)
    generator = torch.Generator().manual_seed(0)
    inputs = {part.name: _some(part, generator) for part in policy.seen_parts()}
    if policy.state_size:
        name = "hidden_state" if "state" in inputs else "state"
        inputs[name] = torch.randn((16, policy.state_size), generator=generator) * 0.5
    aside = temporary_beside(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(_Step(policy), inputs, aside)
        session = onnxruntime.InferenceSession(str(aside), providers=["CPUExecutionProvider"])
        some = {name: value[:7] for name, value in inputs.items()}
        with torch.no_grad():
            expected = _Step(policy)(*some.values())
        actual = session.run(None, {name: value.numpy() for name, value in some.items()})
        difference = max(
            float(np.abs(ours.astype(np.float64) - theirs.numpy()).max())
            for ours, theirs in zip(actual, expected, strict=True)
        )
        if not difference <= TOLERANCE:
            raise LudusError(f"The exported policy differs from torch by {difference:.2g}; nothing was written.")
        aside.rename(file)
    except OSError as error:
        raise LudusError(f"{file} cannot be written: {error.strerror or error}.") from error
    finally:
        with contextlib.suppress(OSError):  # there may not even be such a folder
            aside.unlink()
    return difference


def _some(part: Part, generator: torch.Generator) -> Tensor:
    """[16, ...] of a part of an observation, at random."""
    if part.kind == "image":
        assert isinstance(part.space, gym.spaces.Box)
        most = int(part.space.high.max())
        return torch.randint(0, most + 1, (16, *part.shape), generator=generator, dtype=torch.uint8)
    if part.kind == "mask":
        mask = torch.rand((16, *part.shape), generator=generator) < 0.5
        mask[:, 0] = True
        return mask.float()
    shape = part.space.shape if part.name == ONLY_PART else part.shape
    return torch.randn((16, *(shape or ())), generator=generator) * 3


class _Step(torch.nn.Module):
    """What the file holds: a state only where the policy has one."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.names = [part.name for part in policy.seen_parts()]

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        policy = self.policy
        parts = dict(zip(self.names, inputs, strict=False))
        state = inputs[-1] if policy.state_size else policy.start(0)
        action, new_state = policy(parts[ONLY_PART] if policy.rows is None else parts, state)
        return (action, new_state) if policy.state_size else (action,)


def _write(step: _Step, inputs: dict[str, Tensor], path: Path) -> None:
    # The exporter talks a lot about its own workings.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        batch = torch.export.Dim("batch")
        torch.onnx.export(
            step,
            tuple(inputs.values()),
            str(path),
            input_names=list(inputs),
            output_names=["action", "new_state"][: 1 + bool(step.policy.state_size)],
            dynamic_shapes=(tuple({0: batch} for _ in inputs),),  # of the one argument *inputs
            dynamo=True,
            external_data=False,
        )
