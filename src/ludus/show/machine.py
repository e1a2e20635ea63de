"""How much of the machine a run takes: processor, memory, and of a GPU where it uses one."""

import ctypes
import time
from collections.abc import Callable
from functools import cache

import psutil
import torch

_LOOK_S = 10.0  # seconds between two looks for children
_NVML = "libnvidia-ml.so.1"  # comes with NVIDIA's driver


class Machine:
    """Measures this process and its children; utilisation is that since the last call.

    `clock`: seconds since any moment.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._family = _family()
        self._at = self._looked = clock()
        self._used = _cpu_seconds(self._family)

    def metrics(self) -> dict[str, float]:
        self._look_for_children()
        metrics = {
            "system/cpu_percent": self._cpu_percent(),
            "system/memory_mb": sum(_resident_mb(process) for process in self._family),
        }
        if torch.cuda.is_initialized():  # else the run is not on a GPU, and asking would take memory there
            metrics["system/gpu_memory_allocated_mb"] = torch.cuda.max_memory_allocated() / 2**20
            metrics["system/gpu_memory_reserved_mb"] = torch.cuda.max_memory_reserved() / 2**20
            if (busy := _gpu_percent(torch.cuda.current_device())) is not None:
                metrics["system/gpu_percent"] = busy
        return metrics

    def _look_for_children(self) -> None:
        """Now and then: every process of the machine is asked for its parent, which may take longer than a row."""
        if self._clock() - self._looked < _LOOK_S:
            return
        family, self._looked = _family(), self._clock()
        self._used += _cpu_seconds([process for process in family if process not in self._family])
        self._family = family

    def _cpu_percent(self) -> float:
        """Of all cores that the run may use."""
        then, before = self._at, self._used
        self._at, self._used = self._clock(), _cpu_seconds(self._family)
        return 100 * max(0.0, self._used - before) / (max(self._at - then, 1e-9) * _cores())


def _family() -> list[psutil.Process]:
    process = psutil.Process()
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return [process]


def _cpu_seconds(family: list[psutil.Process]) -> float:
    """All that was computed, by children that have ended, too."""
    seconds = 0.0
    for process in family:
        try:
            times = process.cpu_times()
        except psutil.Error:  # it has just ended
            continue
        seconds += times.user + times.system
        seconds += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return seconds


@cache
def _cores() -> int:
    affinity = getattr(psutil.Process(), "cpu_affinity", None)  # not everywhere
    return len(affinity()) if affinity is not None else psutil.cpu_count() or 1


def _resident_mb(process: psutil.Process) -> float:
    try:
        return float(process.memory_info().rss) / 2**20
    except psutil.Error:  # it has just ended
        return 0.0


# A GPU ----------------------------------------------------------------------------------------------
class _Rates(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


@cache
def _nvml(device: int) -> tuple[ctypes.CDLL, ctypes.c_void_p] | None:
    """NVIDIA's management library and its handle of a GPU, which it may number otherwise than torch does."""
    try:
        library = ctypes.CDLL(_NVML)
        handle, name = ctypes.c_void_p(), f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        failed = library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
    except (OSError, AttributeError):  # no driver, or one that knows less
        return None
    return None if failed else (library, handle)


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


def free_gpu_mb(device: int = 0) -> float | None:
    """Memory that nobody takes of a GPU; None where it does not tell. Asking takes none."""
    found, memory = _nvml(device), _Memory()
    if found is None or found[0].nvmlDeviceGetMemoryInfo(found[1], ctypes.byref(memory)):
        return None
    return float(memory.free) / 2**20


def _gpu_percent(device: int) -> float | None:
    """Share of the last moments in which the GPU was at work, for whomever; None where it does not tell."""
    found, rates = _nvml(device), _Rates()
    if found is None or found[0].nvmlDeviceGetUtilizationRates(found[1], ctypes.byref(rates)):
        return None
    return float(rates.gpu)
