"""A gradient step of PPO through a network of the user's, against plain autograd and the built-in layers.

    python benchmarks/taped.py [--save MACHINE]

The plain step is what a script would do with the same network: forward, loss, backward, clip, Adam.
"""

import argparse
import statistics
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

import keeping
from ludus.algorithms.ppo.config import PPOConfig
from ludus.algorithms.ppo.loss import Batch
from ludus.algorithms.ppo.update import PPO
from ludus.buffers.schedule import SegmentSchedule
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig

OBS, ACTIONS = gym.spaces.Box(-np.inf, np.inf, (32,), np.float32), gym.spaces.Box(-1, 1, (6,), np.float32)
SHAPES = [(256, 64), (1_024, 64), (256, 128), (1_024, 128), (4_096, 128)]  # rows of a minibatch, width
ROUNDS, MOST = 15, 1.3
COLUMNS = ("rows, width", "script", "module", "module / script", "built-in")


class Layers(nn.Module):
    """The built-in's shape: two stacks of two layers."""

    def __init__(self, obs_shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.actor, self.critic = (
            nn.Sequential(nn.Linear(obs_shape[0], width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
            for _ in range(2)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(x), self.critic(x)


def make_batch(rows: int) -> Batch:
    log_prob, advantage, returns, value = (torch.randn(rows) * 0.1 for _ in range(4))
    seen, action = torch.randn(rows, 32), torch.randn(rows, 6)
    return Batch(seen, action, log_prob, advantage, returns, value, 1 / rows, torch.zeros(0, 0), None)


class OfLudus:
    def __init__(self, rows: int, width: int, taped: bool) -> None:
        config = PolicyConfig(hidden=(width, width), network="here:Layers" if taped else "")
        if taped:
            config = PolicyConfig(network="here:Layers", network_kwargs={"width": width})
        policy = ActorCritic(OBS, ACTIONS, config, Layers if taped else None)
        ppo = PPOConfig(minibatches=1, entropy_coef=0.01, learning_rate=1e-4)
        self.ppo, self.batch = PPO(policy, ppo, SegmentSchedule(rows, rows, 1), 0), make_batch(rows)
        self.ppo.schedule_rates(0.0)

    def step(self) -> None:
        with torch.inference_mode():
            self.ppo.step(self.batch, measured=False)


class Plain:
    def __init__(self, rows: int, width: int) -> None:
        self.net, self.mean, self.value = Layers((32,), width), nn.Linear(width, 6), nn.Linear(width, 1)
        self.log_std = nn.Parameter(torch.zeros(6))
        parts = [self.net, self.mean, self.value]
        self.parameters = [*(p for part in parts for p in part.parameters()), self.log_std]
        self.adam, self.batch = torch.optim.Adam(self.parameters, lr=1e-4, fused=True), make_batch(rows)

    def step(self) -> None:
        batch = self.batch
        actor, critic = self.net(batch.x)
        normal = torch.distributions.Normal(self.mean(actor), self.log_std.exp(), validate_args=False)
        ratio = (normal.log_prob(batch.action).sum(1) - batch.old_log_prob).exp()
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.minimum(ratio * batch.advantage, clipped * batch.advantage).mean()
        loss = loss + 0.5 * (self.value(critic)[:, 0] - batch.returns).square().mean()
        loss = loss - 0.01 * normal.entropy().sum(1).mean()
        self.adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.adam.step()


def seconds(loop: OfLudus | Plain, times: int) -> float:
    started = time.process_time()
    for _ in range(times):
        loop.step()
    return (time.process_time() - started) / times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    keeping.add_option(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kept: list[list[Any]] = []
    for rows, width in SHAPES:
        loops: list[OfLudus | Plain] = [
            OfLudus(rows, width, taped=True),
            OfLudus(rows, width, taped=False),
            Plain(rows, width),
        ]
        times = max(5, 20_000 // rows)
        rounds = [[seconds(loop, times) for loop in loops] for _ in range(arguments.rounds + 1)][1:]
        taped, written, plain = (statistics.median(part) for part in zip(*rounds, strict=True))
        ratio = statistics.median(one / three for one, _, three in rounds)
        verdict = "ok" if ratio <= MOST else f"MISSED (bar {MOST})"
        print(
            f"{rows:5,} rows, {width} × {width}: plain {1e3 * plain:6.2f} ms, taped {1e3 * taped:6.2f} "
            f"({ratio:.2f} ×), written out {1e3 * written:6.2f} ({written / plain:.2f} ×)   {verdict}",
            flush=True,
        )
        judged = {"seeds": [round(ratio, 2)], "digits": 2, "bar": MOST, "better": "less"}
        script, module, built_in = (f"{1e3 * part:.3g}" for part in (plain, taped, written))
        kept.append([f"{rows:,}, {width} × {width}", script, module, judged, built_in])
    if arguments.save:
        keeping.keep("taped", "steps", arguments.save, COLUMNS, kept)


if __name__ == "__main__":
    main()
