"""How much memory learning from a replay will take."""

import math
from dataclasses import dataclass

from ludus.algorithms.optimizer import FlatAdam
from ludus.algorithms.replay.agents import Agent
from ludus.algorithms.replay.config import ReplayConfig, ReplayTrainConfig
from ludus.envs.goals import goal_parts
from ludus.policies.recurrent import RecurrentEncoder
from ludus.policies.replay_policy import ReplayPolicy
from ludus.policies.taped import TapedEncoder
from ludus.training.ram import size


@dataclass(frozen=True)
class ReplayMemoryPlan:
    """Bytes on the device of policy and replay. Environments come on top, and on a CPU the program itself."""

    store: int  # the replay buffer
    drawn: int  # which transitions an iteration learns from
    gradient: int  # what one gradient step holds
    networks: int  # weights, gradients, Adam's moments and target networks

    @property
    def total(self) -> int:
        return self.store + self.drawn + self.gradient + self.networks

    def line(self) -> str:
        parts = {"replay": self.store, "gradient step": self.gradient, "networks": self.networks}
        return f"memory {size(self.total)}: " + ", ".join(f"{name} {size(n)}" for name, n in parts.items())


def plan_memory(
    agent: Agent, optimizers: list[FlatAdam], config: ReplayTrainConfig, store: int
) -> ReplayMemoryPlan:
    """Of a replay that takes `store` bytes."""
    weights = sum(4 * optimizer.flat.nbytes for optimizer in optimizers)
    targets = sum(target.nbytes for target in agent.targets.values())
    gradient = config.replay.batch_size * _bytes_of_a_transition(agent, config.replay)
    return ReplayMemoryPlan(store, drawn_bytes(config, agent.policy), gradient, weights + targets)


def drawn_bytes(config: ReplayTrainConfig, policy: ReplayPolicy) -> int:
    """What an iteration's batches need to know, drawn and packed: rows, rewards, discounts and noise of each."""
    shifts = 2 * 2 * 8 if policy.has_images else 0
    a_batch = config.replay.batch_size * (2 * 8 + 4 + 4 + 2 * 4 * policy.head.noise_size + shifts)
    goals = goal_parts(policy.obs_space)
    a_batch += 0 if goals is None else config.replay.batch_size * 4 * goals[1].size
    if policy.recurrent:
        a_batch += math.ceil(config.replay.batch_size * (4 + (8 + 4 + shifts / 2) * _burn_in_share(config.replay)))
    a_batch += 8 * 4 * config.reward.rrd_batch_size if config.reward.learned else 0
    return 2 * config.replay.train_batches * a_batch


def _burn_in_share(replay: ReplayConfig) -> float:
    """Steps of the burn-in to each that is learned."""
    return replay.burn_in / replay.segment


def _bytes_of_a_transition(agent: Agent, replay: ReplayConfig) -> int:
    """Two observations are gathered, maybe shifted, and one is copied to be taped; the rest is computed."""
    policy = agent.policy
    row = math.prod(policy.obs_space.shape)
    seen = policy.shared_encoder or policy.encoder
    if isinstance(seen, RecurrentEncoder):  # the target encoder holds half as much: nothing is passed back there
        steps = 1.5 * (1 + _burn_in_share(replay))
        above = 2 * agent.numbers_of_a_row() if seen is policy.shared_encoder else 0
        return math.ceil(4 * (steps * (sum(seen.numbers_of_a_step()) + row) + above + 2 * row))
    if isinstance(seen, TapedEncoder):
        width = 1 if policy.obs_space.dtype == "uint8" else 4
        return 5 * width * row + 4 * seen.numbers_of_a_transition()
    return 2 * 4 * (agent.numbers_of_a_row() + 2 * row)
