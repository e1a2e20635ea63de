"""A policy for other programs: ONNX with the normaliser and the action bounds inside."""

import contextlib
import io
import logging
import warnings
from pathlib import Path

import numpy as np
import torch

from ludus.errors import ConfigError, LudusError
from ludus.runs import load

TOLERANCE = 1e-4


def export_onnx(run: str | Path, file: str | Path) -> float:
    """Write the deterministic policy of a run; returns the largest difference to torch on random input.

    The file takes `obs` [batch, *obs] float32 and gives `action` [batch, ...] in the environment's units.
    It is written only after it has been run and compared.
    """
    file = Path(file)
    if file.suffix != ".onnx":
        raise ConfigError(f"The file to export to must end in .onnx, not {file.name!r}.")
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (torch's exporter asks for it)
    except ImportError as error:
        raise ConfigError("Export needs more packages: pip install 'ludus[onnx]'.") from error
    policy = load(run)
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn((16, *policy.obs_space.shape), generator=generator) * 3
    aside = file.with_name(file.name + ".tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(policy, obs, aside)
        session = onnxruntime.InferenceSession(str(aside), providers=["CPUExecutionProvider"])
        with torch.no_grad():
            expected = policy(obs[:7]).numpy()
        actual = session.run(None, {"obs": obs[:7].numpy()})[0]
        difference = float(np.abs(actual.astype(np.float64) - expected).max())
        if not difference <= TOLERANCE:
            raise LudusError(f"The exported policy differs from torch by {difference:.2g}; nothing was written.")
        aside.rename(file)
    except OSError as error:
        raise LudusError(f"{file} cannot be written: {error.strerror or error}.") from error
    finally:
        with contextlib.suppress(OSError):  # there may not even be such a folder
            aside.unlink()
    return difference


def _write(policy: torch.nn.Module, obs: torch.Tensor, path: Path) -> None:
    # The exporter talks a lot about its own workings.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            policy,
            (obs,),
            str(path),
            input_names=["obs"],
            output_names=["action"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            external_data=False,
        )
