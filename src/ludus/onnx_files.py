"""ONNX files: written aside, run by onnxruntime, compared with torch, and only then put in their place."""

import contextlib
import io
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ludus.errors import ConfigError, LudusError
from ludus.files import temporary_beside

TOLERANCE = 1e-4  # of an output's largest number, where that is above 1
_COMPARED = 7  # rows
_IR_OF_OPSET = {18: 8, 20: 9}  # the oldest file format that holds operators up to this set


@dataclass(frozen=True)
class Graph:
    """What a file is to hold."""

    step: torch.nn.Module  # of tensors [n, ...] to a tuple of such
    inputs: Mapping[str, Tensor]  # examples, [16, ...] each
    outputs: list[str]
    metadata: Mapping[str, str]
    batches: bool = True  # takes any number of rows; else one
    opset: int | None = None  # of ONNX operators; None: as torch likes


def need_onnx() -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401 (torch's exporter asks for it)
    except ImportError as error:
        raise ConfigError("Export needs more packages: pip install 'ludus[onnx]'.") from error


def write_checked(graph: Graph, file: Path) -> float:
    """Write the file; returns its largest difference to torch. Nothing is written where that is too large."""
    aside = temporary_beside(file)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _write(graph, aside)
        _finish(aside, graph.metadata)
        difference = _difference(graph, aside)
        if not difference <= TOLERANCE:
            raise LudusError(f"The exported policy differs from torch by {difference:.2g}; nothing was written.")
        aside.rename(file)
    except OSError as error:
        raise LudusError(f"{file} cannot be written: {error.strerror or error}.") from error
    finally:
        with contextlib.suppress(OSError):  # there may not even be such a folder
            aside.unlink()
    return difference


def _write(graph: Graph, path: Path) -> None:
    batch = torch.export.Dim("batch")
    some = graph.inputs.values()
    # The exporter talks a lot about its own workings.
    quiet = contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO())
    with warnings.catch_warnings(), quiet[0], quiet[1]:
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            graph.step,
            tuple(some if graph.batches else (value[:1] for value in some)),
            str(path),
            input_names=list(graph.inputs),
            output_names=graph.outputs,
            # of the one argument *inputs
            dynamic_shapes=(tuple({0: batch} for _ in graph.inputs),) if graph.batches else None,
            opset_version=graph.opset,
            dynamo=True,
            external_data=False,
        )


def _finish(file: Path, metadata: Mapping[str, str]) -> None:
    """Add what the file says of itself, and let runtimes that are years old read it.

    Torch declares a newer format than its operators need, only for notes about its own source on every node.
    """
    import onnx

    model = onnx.load(str(file))
    for part in (model.graph, *model.graph.node, *model.graph.value_info, *model.graph.initializer):
        part.ClearField("metadata_props")
    for named in (*model.graph.input, *model.graph.output):
        named.ClearField("metadata_props")
    opset = max(entry.version for entry in model.opset_import if not entry.domain)
    oldest = min((ir for most, ir in _IR_OF_OPSET.items() if opset <= most), default=model.ir_version)
    if not model.functions:
        model.ir_version = min(model.ir_version, oldest)
    onnx.helper.set_model_props(model, dict(metadata))
    onnx.save(model, str(file))


def _difference(graph: Graph, file: Path) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    some = {name: value[:_COMPARED] for name, value in graph.inputs.items()}
    size = _COMPARED if graph.batches else 1
    difference = 0.0
    for first in range(0, _COMPARED, size):
        rows = {name: value[first : first + size] for name, value in some.items()}
        with torch.no_grad():
            expected = graph.step(*rows.values())
        actual = session.run(None, {name: value.numpy() for name, value in rows.items()})
        for ours, theirs in zip(actual, expected, strict=True):
            scale = max(1.0, np.abs(theirs.numpy()).max())
            apart = np.abs(ours.astype(np.float64) - theirs.numpy()).max() / scale
            difference = max(difference, float(apart)) if np.isfinite(apart) else float("nan")
    return difference
