"""Speed of training with an LSTM of 128 units on CPU cores, beside sb3-contrib's RecurrentPPO and PufferLib.

    python benchmarks/recurrent.py

The environment gives random observations of the size of PufferLib's breakout (118 numbers, 3 actions) at almost no
cost, so that what is measured is the training. Both sides use the same rows, segments, minibatches and passes.
PufferLib 3.0 with its default LSTM of 128 units makes 39,000 agent-steps per second of one core (its C breakout).
"""

import argparse
import statistics
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from ludus.algorithms.ppo import PPO, PPOConfig
from ludus.buffers.segments import SegmentSchedule
from ludus.envs.forage import Forage, ForageConfig
from ludus.envs.vec import State, Step, VecEnv
from ludus.policies.policy import Policy, PolicyConfig
from ludus.training.collector import Collector

PUFFERLIB = 39_000  # agent-steps per CPU-second
OBS, ACTIONS, LENGTH = 118, 3, 200


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


def ludus_rates(env: VecEnv, horizon: int, minibatches: int, passes: int, iterations: int) -> tuple[float, float]:
    """Agent-steps per second, and per second of CPU time."""
    torch.set_num_threads(1)
    policy = Policy(
        env.obs_space,
        env.action_space,
        PolicyConfig(hidden=(128,), activation="relu", memory="lstm", memory_size=128, normalize_obs=False),
    )
    config = PPOConfig(horizon=horizon, minibatches=minibatches, update_epochs=passes, entropy_coef=0.001)
    schedule = SegmentSchedule(env.num_rows, env.num_rows, horizon)
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
    steps = iterations * env.num_rows * horizon
    return steps / wall, steps / cpu


def contrib_rates(
    env: VecEnv, horizon: int, minibatches: int, passes: int, iterations: int
) -> tuple[float, float]:
    """The same for sb3-contrib's RecurrentPPO, with its own default number of torch threads."""
    from sb3_contrib import RecurrentPPO

    torch.set_num_threads(torch.get_num_interop_threads())
    steps = env.num_rows * horizon
    model = RecurrentPPO(
        "MlpLstmPolicy",
        _for_sb3(env),
        n_steps=horizon,
        batch_size=steps // minibatches,
        n_epochs=passes,
        policy_kwargs={
            "lstm_hidden_size": 128,
            "shared_lstm": True,
            "enable_critic_lstm": False,
            "net_arch": [],
            "features_extractor_class": _encoder(),
        },
        device="cpu",
    )
    model.learn(steps)
    wall, cpu = time.perf_counter(), time.process_time()
    model.learn(steps * iterations, reset_num_timesteps=False)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return iterations * steps / wall, iterations * steps / cpu


def _encoder() -> Any:
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class Encoder(BaseFeaturesExtractor):
        def __init__(self, space: gym.Space[Any]) -> None:
            super().__init__(space, 128)
            self.layer = torch.nn.Linear(OBS, 128)

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


def report(name: str, value: float, bar: float, unit: str) -> bool:
    verdict = "ok" if value >= bar else "MISSED"
    print(f"{name:52} {value:10,.1f} {unit}   bar {bar:,.1f}   {verdict}", flush=True)
    return value >= bar


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    passed = []
    # PufferLib's shape: 64-step segments, minibatches of 8,192 steps, one pass.
    rates = [ludus_rates(Noise(512), 64, 4, 1, 2)[1] for _ in range(repeats)]
    passed.append(
        report("agent-steps per CPU-second, 118 numbers", statistics.median(rates), 1.5 * PUFFERLIB, "/s")
    )
    small = [ludus_rates(Noise(512), 16, 4, 1, 8)[1] for _ in range(repeats)]
    report("the same with 16-step segments", statistics.median(small), 1.5 * PUFFERLIB, "/s")
    forage = [ludus_rates(Forage(ForageConfig(), 128), 16, 4, 1, 8)[1] for _ in range(repeats)]
    report("forage, environment included", statistics.median(forage), 1.5 * PUFFERLIB, "/s")
    ratios = []
    for _ in range(repeats):
        theirs, _ = contrib_rates(Noise(64), 64, 4, 1, 1)
        ours, _ = ludus_rates(Noise(64), 64, 4, 1, 10)
        print(f"    64 rows × 64, 4 minibatches: ludus {ours:,.0f}/s, RecurrentPPO {theirs:,.0f}/s", flush=True)
        ratios.append(ours / theirs)
    passed.append(report("ratio to sb3-contrib's RecurrentPPO", statistics.median(ratios), 10.0, "x"))
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
