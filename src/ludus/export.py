"""A policy for other programs: ONNX with the normaliser and the action bounds inside."""

import contextlib
import io
import logging
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ludus.errors import ConfigError, LudusError
from ludus.files import temporary_beside
from ludus.policies.policy import Policy
from ludus.runs import load

TOLERANCE = 1e-4


def export_onnx(run: str | Path, file: str | Path, trust: bool = False) -> float:
    """Write the deterministic policy of a run; returns the largest difference to torch on random input.

    The file takes `obs` [batch, *obs] float32 and gives `action` [batch, ...] in the environment's units. With a
    memory it also takes `state` [batch, state], zeros where an episode begins, and gives `new_state` for the next.
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
    obs = torch.randn((16, *policy.obs_space.shape), generator=generator) * 3
    state = torch.randn((16, policy.state_size), generator=generator) * 0.5
    inputs = {"obs": obs, "state": state} if policy.state_size else {"obs": obs}
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


class _Step(torch.nn.Module):
    """What the file holds: a state only where the policy has one."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, obs: Tensor, state: Tensor | None = None) -> tuple[Tensor, ...]:
        action, new_state = self.policy(obs, self.policy.start(0) if state is None else state)
        return (action,) if state is None else (action, new_state)


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
            output_names=["action", "new_state"][: len(inputs)],
            dynamic_shapes=tuple({0: batch} for _ in inputs),
            dynamo=True,
            external_data=False,
        )
