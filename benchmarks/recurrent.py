"""Speed of training with an LSTM of 128 units on CPU cores, beside sb3-contrib's RecurrentPPO and PufferLib.

    python benchmarks/recurrent.py

Per CPU-second: an environment that gives random observations of the size of PufferLib's breakout (118 numbers, 3
actions) at almost no cost, in PufferLib's shape (64-step segments, minibatches of 8,192 steps, one pass).
PufferLib 3.0 makes 39,000 agent-steps per second of one core with its default LSTM of 128 units (its C breakout).

Beside RecurrentPPO, in turns: CartPole without velocities through Gymnasium, 8 environments, with RecurrentPPO's
default number of samples, batch size and passes (1,024 samples, 128, 10) on both sides. What differs is how far
the gradient reaches back: a whole piece of an episode there, a segment of 16 (or 8) steps here; the state is
carried on both. With thousands of steps a batch both are bound by arithmetic; that ratio is printed too.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.algorithms.on_policy.collector import Collector
from ludus.algorithms.ppo.config import PPOConfig
from ludus.algorithms.ppo.update import PPO
from ludus.buffers.schedule import SegmentSchedule
from ludus.envs.config import ForageConfig
from ludus.envs.forage import Forage
from ludus.envs.gym.config import GymConfig
from ludus.envs.gym.env import make_gym
from ludus.envs.vec import State, Step, VecEnv
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.config import PolicyConfig

PUFFERLIB = 39_000  # agent-steps per CPU-second
OBS, ACTIONS, LENGTH = 118, 3, 200
CART_POLE = "ludus/CartPoleNoVelocity-v1"


class Noise(VecEnv):
    """Observations drawn beforehand; an episode ends after about `LENGTH` steps."""

    name = "noise"
    device = torch.device("cpu")
    truncates = False
    obs_space = gym.spaces.Box(-np.inf, np.inf, (OBS,), np.float32)
    action_space = gym.spaces.Discrete(ACTIONS)

    def __init__(self, rows: int) -> None:
        self.num_rows = rows
        self._table = torch.randn((64, rows, OBS))
        self._never = torch.zeros(rows, dtype=torch.bool)
        self._t = 0

    def reset(self, seed: int) -> Tensor:
        return self._table[0]

    def begin_step(self, action: Tensor) -> None:
        self._action = action

    def end_step(self) -> Step:
        self._t += 1
        obs = self._table[self._t % len(self._table)]
        ended = (torch.arange(self.num_rows) + self._t) % LENGTH == 0
        return Step(obs, self._action.float(), ended, self._never, obs, {})

    def state(self) -> State:
        return {"t": self._t}

    def load_state(self, state: State) -> None:
        self._t = state["t"]


@dataclass(frozen=True)
class Shape:
    """Samples of an iteration and what is made of them."""

    horizon: int  # steps of a segment
    segments: int
    minibatches: int
    passes: int

    @property
    def samples(self) -> int:
        return self.horizon * self.segments


def ludus_rates(env: VecEnv, shape: Shape, iterations: int) -> tuple[float, float]:
    """Agent-steps per second, and per second of CPU time."""
    torch.set_num_threads(1)
    policy = ActorCritic(
        env.obs_space,
        env.action_space,
        PolicyConfig(hidden=(128,), activation="relu", memory="lstm", memory_size=128, normalize_obs=False),
    )
    config = PPOConfig(minibatches=shape.minibatches, update_epochs=shape.passes, entropy_coef=0.001)
    schedule = SegmentSchedule(env.num_rows, shape.segments, shape.horizon)
    collector, ppo = (
        Collector([env], policy, schedule, config.gamma, seed=0),
        PPO(policy, config, schedule, seed=0),
    )

    def run(update: int) -> None:
        ppo.update(collector.collect(update), 0.0)

    run(0)
    wall, cpu = time.perf_counter(), time.process_time()
    for update in range(1, iterations + 1):
        run(update)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return iterations * shape.samples / wall, iterations * shape.samples / cpu


def contrib_rate(env: Any, shape: Shape, iterations: int) -> float:
    """Steps per second of sb3-contrib's RecurrentPPO."""
    from sb3_contrib import RecurrentPPO

    torch.set_num_threads(1)  # more made it slower
    model = RecurrentPPO(
        "MlpLstmPolicy",
        env,
        n_steps=shape.samples // env.num_envs,
        batch_size=shape.samples // shape.minibatches,
        n_epochs=shape.passes,
        policy_kwargs={
            "lstm_hidden_size": 128,
            "shared_lstm": True,
            "enable_critic_lstm": False,
            "net_arch": [],
            "features_extractor_class": _encoder(),
        },
        device="cpu",
    )
    model.learn(shape.samples)
    start = time.perf_counter()
    model.learn(shape.samples * iterations, reset_num_timesteps=False)
    return iterations * shape.samples / (time.perf_counter() - start)


def _encoder() -> Any:
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Encoder(BaseFeaturesExtractor):
        def __init__(self, space: gym.Space[Any]) -> None:
            super().__init__(space, 128)
            self.layer = torch.nn.Linear(space.shape[0], 128)  # type: ignore[index]

        def forward(self, obs: Tensor) -> Tensor:
            return torch.relu(self.layer(obs))

    return Encoder


def _for_sb3(env: VecEnv) -> Any:
    """Our batch as a batch of SB3's: no loop over environments on either side."""
    from stable_baselines3.common.vec_env import VecEnv as Sb3VecEnv

    class Batch(Sb3VecEnv):
        def reset(self) -> np.ndarray:
            return env.reset(0).numpy()

        def step_async(self, actions: np.ndarray) -> None:
            env.begin_step(torch.as_tensor(actions))

        def step_wait(self) -> Any:
            step = env.end_step()
            infos: list[dict[str, Any]] = [{} for _ in range(env.num_rows)]
            return step.obs.numpy(), step.reward.numpy(), step.done.numpy(), infos

        def close(self) -> None: ...

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * env.num_rows

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None: ...

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
            return [None] * env.num_rows

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * env.num_rows

    return Batch(env.num_rows, env.obs_space, env.action_space)


def beside_contrib(repeats: int) -> dict[int, float]:
    """The ratio on CartPole without velocities, by the length of our segments."""
    from stable_baselines3.common.env_util import make_vec_env

    ratios: dict[int, list[float]] = {16: [], 8: []}
    for _ in range(repeats):
        theirs = contrib_rate(make_vec_env(CART_POLE, n_envs=8), Shape(128, 8, 8, 10), 1)
        for horizon, of in ratios.items():
            env = make_gym(GymConfig(id=CART_POLE), 8)
            ours, _ = ludus_rates(env, Shape(horizon, 1024 // horizon, 8, 10), 6)
            of.append(ours / theirs)
            print(f"    segments of {horizon}: {ours:,.0f} steps/s, RecurrentPPO {theirs:,.0f}", flush=True)
    return {horizon: statistics.median(of) for horizon, of in ratios.items()}


def report(name: str, value: float, bar: float | None, unit: str) -> bool:
    verdict = "" if bar is None else f"   bar {bar:,.0f}   {'ok' if value >= bar else 'MISSED'}"
    print(f"{name:62} {value:10,.1f} {unit}{verdict}", flush=True)
    return bar is None or value >= bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats

    def per_cpu_second(make: Callable[[], VecEnv], shape: Shape, iterations: int) -> float:
        return statistics.median(ludus_rates(make(), shape, iterations)[1] for _ in range(repeats))

    bar = 1.5 * PUFFERLIB
    large, small = Shape(64, 512, 4, 1), Shape(16, 512, 4, 1)
    passed = [
        report(
            "agent-steps per CPU-second, PufferLib's shape", per_cpu_second(lambda: Noise(512), large, 2), bar, ""
        )
    ]
    report("the same with 16-step segments", per_cpu_second(lambda: Noise(512), small, 8), None, "")
    forage = per_cpu_second(lambda: Forage(ForageConfig(), 128), small, 8)
    report("forage, its environment included", forage, None, "")
    torch.set_float32_matmul_precision("medium")
    report("PufferLib's shape with --precision bfloat16", per_cpu_second(lambda: Noise(512), large, 2), None, "")
    torch.set_float32_matmul_precision("highest")
    ratios = beside_contrib(repeats)
    passed.append(report("ratio to sb3-contrib's RecurrentPPO, segments of 16", ratios[16], 10.0, "x"))
    report("the same with segments of 8", ratios[8], None, "x")
    noise = Shape(64, 64, 4, 1)
    ratio = ludus_rates(Noise(64), noise, 10)[0] / contrib_rate(_for_sb3(Noise(64)), noise, 3)
    report("ratio with batches of 1,024 steps, one pass, 118 numbers", ratio, None, "x")
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
