"""How much memory rollouts and the learning from them will take."""

import math
from dataclasses import dataclass

import torch

from ludus.algorithms.on_policy.update_data import update_shapes
from ludus.buffers.schedule import SegmentSchedule
from ludus.buffers.segments import buffer_shapes
from ludus.policies.actor_critic import ActorCritic
from ludus.training.ram import size

_CUBLAS_WORKSPACE = 32 * 2**20  # for each stream, on Hopper; less on others
_STREAMS = 3  # besides one for each group: the main one, one to warm up on, one to record on


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on the device of policy and buffer. Environments come on top, and on a CPU the program itself."""

    record: int  # the steps being recorded
    update: int  # what an update gathers of them
    gradient: int  # what one gradient step holds
    networks: int  # weights, gradients, Adam's moments, and perhaps a mean of weights
    libraries: int  # what cuBLAS keeps for itself on a GPU
    adversary: int = 0  # a discriminator and its windows, where there is motion to imitate

    @property
    def total(self) -> int:
        return self.record + self.update + self.gradient + self.networks + self.libraries + self.adversary

    def line(self) -> str:
        parts = {"recorded steps": self.record, "update": self.update, "gradient step": self.gradient}
        parts |= {"adversary": self.adversary} if self.adversary else {}
        return f"memory {size(self.total)}: " + ", ".join(f"{name} {size(n)}" for name, n in parts.items())


def plan_memory(
    policy: ActorCritic, schedule: SegmentSchedule, minibatches: int, groups: int = 1, average: bool = False
) -> MemoryPlan:
    obs_dtype = torch.uint8 if policy.obs_space.dtype == "uint8" else torch.float32
    shape = tuple(policy.obs_space.shape)
    record = buffer_shapes(schedule, shape, obs_dtype, policy.head.action_size, policy.state_size)
    steps = schedule.segments * schedule.horizon
    weights = sum(p.numel() * p.element_size() for p in policy.parameters())
    # Rows that are not kept prepared are gathered for a minibatch, and copied where they are taped.
    seen = 0 if policy.keeps_inputs else 2 * math.prod(shape) * obs_dtype.itemsize
    noise = 2 * (schedule.columns - 1) * schedule.rows * policy.head.noise_size * 4  # as drawn, and as kept
    return MemoryPlan(
        record=_bytes(record) + noise,
        update=_bytes(update_shapes(policy, schedule)),
        gradient=(steps // minibatches) * (4 * _numbers_of_a_step(policy) + seen),
        networks=(5 if average else 4) * weights,
        libraries=_CUBLAS_WORKSPACE * (_STREAMS + groups) if policy.device.type == "cuda" else 0,
    )


def _numbers_of_a_step(policy: ActorCritic) -> int:
    """How many numbers a gradient step holds of each of its steps."""
    head = policy.head.linear.out_features
    in_trunk = policy.trunk.numbers_of_a_step(on_cpu=policy.device.type == "cpu")
    return in_trunk + 6 * head + 12 + policy.head.action_size + 5


def _bytes(shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> int:
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values())
