"""What it costs to be a rank on a GPU: a process that is none, and the same as the only rank, in turns.

The only rank goes the whole way: every sum of gradients and moments through a process group of NCCL, inside the
CUDA graphs. A third one sends its sums through the CPU, between the graphs, as ranks do that share a GPU.

python benchmarks/ranks_gpu.py                 all cases
python benchmarks/ranks_gpu.py forage-LSTM     one of them
"""

import argparse
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gpu import NETWORKS, WARM_UP, Loop, make_loop, seconds
from ludus import ranks
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.presets import find_preset
from ludus.settings import apply_overrides
from ludus.training.device import find_device
from ludus.training.gpu_ranks import Staged, join_gpus

MOST = 1.02  # times as long as without ranks, of a whole iteration
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "forage-LSTM": ("forage-large", {"policy": NETWORKS["LSTM 256"][0]}),
    "forage-minGRU": ("forage-large", {"policy": NETWORKS["minGRU 256"][0]}),
    "forage-MLP": ("forage-large", {"policy": NETWORKS["MLP 128"][0]}),
    "kuka": ("kuka-pick-place-large", {}),  # needs MuJoCo Warp
    "kuka-update": ("kuka-pick-place-large", {"env.simulator": "threads"}),  # without rollouts: no bar
}
WAYS = ("alone", "nccl", "staged")


@contextmanager
def going(way: str, nccl: ranks.Transport) -> Iterator[None]:
    """As no rank, as a rank by NCCL, or as one through the CPU."""
    here = ranks._Here
    transport = here.transport
    here.gpu_transport = {"alone": None, "nccl": nccl, "staged": Staged()}[way]
    here.transport = None if way == "alone" else transport
    try:
        yield
    finally:
        here.transport, here.gpu_transport = transport, nccl


def prepare(loop: Loop, whole: bool) -> Callable[[], object]:
    """What is measured, with its graphs recorded."""
    if whole:
        work: Callable[[], object] = loop.run
    else:
        loop.rollout()
        work = lambda: loop.ppo.update(loop.segments, 0.0)  # noqa: E731
    for _ in range(WARM_UP):
        work()
    return work


def measure(name: str, rounds: int, iterations: int, nccl: ranks.Transport) -> bool:
    preset, changes = CASES[name]
    config, whole = apply_overrides(find_preset(preset).config, changes), name != "kuka-update"
    assert isinstance(config, PPOTrainConfig)
    works, loops, times = {}, [], {way: list[float]() for way in WAYS}
    for way in WAYS:
        with going(way, nccl):
            loop, _ = make_loop(config)
            works[way] = prepare(loop, whole)
            loops.append(loop)
    for number in range(rounds):
        for way in WAYS if number % 2 else WAYS[::-1]:
            with going(way, nccl):
                times[way].append(seconds(works[way], iterations))
    for loop in loops:
        loop.collector.close()
    milliseconds = {way: 1e3 * statistics.median(times[way]) for way in WAYS}
    ratios = {way: milliseconds[way] / milliseconds["alone"] for way in WAYS}
    pairs = sorted(there / without for there, without in zip(times["nccl"], times["alone"], strict=True))
    fine = ratios["nccl"] <= MOST or not whole
    updates = config.ppo.minibatches * config.ppo.update_epochs
    print(
        f"{name:14} {milliseconds['alone']:7.2f} ms alone   {milliseconds['nccl']:7.2f} by NCCL, × "
        f"{ratios['nccl']:.4f} (rounds {pairs[0]:.4f} to {pairs[-1]:.4f})   "
        f"{milliseconds['staged']:7.2f} through the CPU, × {ratios['staged']:.3f}   {updates} gradient steps  "
        f"{'' if not whole else 'ok' if fine else f'MISSED (bar {MOST})'}",
        flush=True,
    )
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=10, help="in each round")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "This benchmark needs a CUDA GPU.\n")
    ranks.join(ranks.Ticket(0, 1, ranks.make_memory(1)))
    join_gpus(find_device("cuda"))
    nccl = ranks._Here.gpu_transport
    assert nccl is not None
    version = ".".join(map(str, torch.cuda.nccl.version()))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, NCCL {version}, {type(nccl).__name__}")
    fine = [measure(name, arguments.rounds, arguments.iterations, nccl) for name in arguments.cases]
    ranks.leave()
    parser.exit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
