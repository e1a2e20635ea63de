"""How much memory a run will take, told before it is taken."""

import itertools
import math
from dataclasses import dataclass

import psutil
import torch

from ludus.algorithms.adversary import AdversaryConfig
from ludus.algorithms.update_data import update_shapes
from ludus.buffers.segments import SegmentSchedule, buffer_shapes
from ludus.errors import ConfigError
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.policy import PolicyConfig

_CUBLAS_WORKSPACE = 32 * 2**20  # for each stream, on Hopper; less on others
_STREAMS = 3  # besides one for each group: the main one, one to warm up on, one to record on


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on the device of policy and buffer. Environments come on top, and on a CPU the program itself."""

    record: int  # the steps being recorded
    update: int  # what an update gathers of them
    gradient: int  # what one gradient step holds
    networks: int  # weights, gradients and Adam's moments
    libraries: int  # what cuBLAS keeps for itself on a GPU
    adversary: int = 0  # a discriminator and its windows, where there is motion to imitate

    @property
    def total(self) -> int:
        return self.record + self.update + self.gradient + self.networks + self.libraries + self.adversary

    def line(self) -> str:
        parts = {"recorded steps": self.record, "update": self.update, "gradient step": self.gradient}
        parts |= {"adversary": self.adversary} if self.adversary else {}
        return f"memory {size(self.total)}: " + ", ".join(f"{name} {size(n)}" for name, n in parts.items())


def plan_memory(policy: ActorCritic, schedule: SegmentSchedule, minibatches: int, groups: int = 1) -> MemoryPlan:
    obs_dtype = torch.uint8 if policy.obs_space.dtype == "uint8" else torch.float32
    shape = tuple(policy.obs_space.shape)
    record = buffer_shapes(schedule, shape, obs_dtype, policy.head.action_size, policy.state_size)
    steps = schedule.segments * schedule.horizon
    weights = sum(p.numel() * p.element_size() for p in policy.parameters())
    noise = 2 * (schedule.columns - 1) * schedule.rows * policy.head.noise_size * 4  # as drawn, and as kept
    return MemoryPlan(
        record=_bytes(record) + noise,
        update=_bytes(update_shapes(policy, schedule)),
        gradient=4 * (steps // minibatches) * _numbers_of_a_step(policy),
        networks=4 * weights,
        libraries=_CUBLAS_WORKSPACE * (_STREAMS + groups) if policy.device.type == "cuda" else 0,
    )


def _numbers_of_a_step(policy: ActorCritic) -> int:
    """How many numbers a gradient step holds of each of its steps."""
    head = policy.head.linear.out_features
    in_trunk = policy.trunk.numbers_of_a_step(on_cpu=policy.device.type == "cpu")
    return in_trunk + 6 * head + 12 + policy.head.action_size + 5


def adversary_bytes(size: int, rows: int, steps: int, config: AdversaryConfig) -> int:
    """What an adversary holds for windows of `size` numbers, of `steps` steps of so many rows."""
    widths = [size, *config.hidden, 1]
    weights = sum(a * b + b for a, b in itertools.pairwise(widths))
    windows = steps * rows + config.replay + 2 * config.batch_size
    # Of a demonstrated window and one of the policy's: drawn and standardised; the slope, and its gradient;
    # every layer's output and what is passed back through it, once more for the penalty.
    gradient = config.batch_size * (6 * size + 8 * sum(config.hidden))
    networks = 6 * weights  # weights, gradients as taken and as kept, of the penalty, Adam's two moments
    return 4 * (windows * size + gradient + networks)


def refuse_large_networks(inputs: int, config: PolicyConfig, networks: int, device: torch.device) -> None:
    """The same before any network is made: `networks` of them, their gradients, moments and targets."""
    memory = 4 * config.memory_size * (config.memory_size + (config.hidden or (inputs,))[-1])
    weights = sum(a * b for a, b in itertools.pairwise((inputs, *config.hidden)))
    weights += 0 if config.memory == "none" else memory
    advice = "Make --policy.hidden or --policy.memory-size smaller."
    refuse_what_cannot_fit(4 * 4 * networks * weights, f"networks of {weights:,} weights", advice, device)


def _bytes(shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> int:
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values())


def refuse_what_cannot_fit(needed: int, plan: str, advice: str, device: torch.device) -> None:
    """A sentence before the machine runs out of memory; `plan` says what it is for."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else psutil.virtual_memory().available
    if needed > free:
        raise ConfigError(
            f"This run needs {size(needed)} of memory, but {device.type} has {size(free)} free. Its plan: "
            f"{plan}. {advice}"
        )


def size(number: float) -> str:
    """1,234,567 → 1.2 MB."""
    units = ["B", "kB", "MB", "GB"]
    while number >= 1000 and len(units) > 1:
        number, units = number / 1000, units[1:]
    return f"{number:.0f} {units[0]}" if number >= 100 else f"{number:.1f} {units[0]}"
