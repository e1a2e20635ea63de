"""Training speed beside Stable-Baselines3, as ratios in one run on one machine.

    python benchmarks/speed.py                    all cases
    python benchmarks/speed.py kuka cartpole      some

Both sides train the same environment with the same network, the same number of samples and the same
gradient steps (batch size, passes). They take turns, so that a busy machine disturbs both alike.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import gymnasium as gym
import mujoco
import torch
from mujoco.batch import Batch

import ludus
from ludus.algorithms.ppo.config import PPOTrainConfig
from ludus.config import CheckpointConfig, EvalConfig, LogConfig, LoopConfig
from ludus.envs.kuka.scripted import scripted_action
from ludus.envs.kuka.task import SUBSTEPS, KukaPickPlace
from ludus.presets import find_preset
from ludus.ranks import available_cores
from ludus.show.console import Console
from ludus.training.callbacks import Callback
from ludus.training.loop import Trainer


@dataclass(frozen=True)
class Case:
    """One comparison: our preset, the same environment for Stable-Baselines3, and the bar to pass."""

    preset: str
    sb3_env: str
    bar: float
    iterations: int
    sb3_iterations: int
    num_envs: int | None = None  # where the preset's own number is not what one would give SB3


CASES = {
    "kuka": Case("kuka-pick-place", "ludus/KukaPickPlace-v0", 8.0, 8, 1),
    "half-cheetah": Case("half-cheetah", "HalfCheetah-v5", 5.0, 10, 2),
    "gym-half-cheetah": Case("gym:HalfCheetah-v5", "HalfCheetah-v5", 2.0, 10, 2),
    "cartpole": Case("gym:CartPole-v1", "CartPole-v1", 4.0, 60, 12),
}


class Clock(Callback):
    """Times iterations after the first, which pays for warming up."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_iteration(self, run: Trainer) -> None:
        self.times.append(time.perf_counter())

    def seconds_per_iteration(self) -> float:
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)


def ludus_rate(config: PPOTrainConfig, iterations: int) -> float:
    """Training steps per second, end to end."""
    steps = config.env.num_envs * config.ppo.horizon
    config = replace(
        config,
        loop=LoopConfig(total_steps=steps * (iterations + 1)),
        eval=EvalConfig(every=10**12, episodes=1, stochastic=False),
        checkpoint=CheckpointConfig(),
        log=LogConfig(report=False),
    )
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder, Console("quiet") as console:
        ludus.train("benchmark", run_dir=Path(folder) / "run", callbacks=[clock], console=console, config=config)
    return steps / clock.seconds_per_iteration()


def sb3_rate(env_id: str, config: PPOTrainConfig, iterations: int) -> float:
    """The same for Stable-Baselines3's PPO, with its own default number of torch threads."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.vec_env import VecNormalize

    torch.set_num_threads(available_cores())
    ppo, steps = config.ppo, config.env.num_envs * config.ppo.horizon
    env = make_vec_env(env_id, n_envs=config.env.num_envs, seed=0)
    env = VecNormalize(env, norm_obs=config.policy.normalize_obs, norm_reward=ppo.normalize_returns)
    model = PPO(
        "MlpPolicy",
        env,
        n_steps=ppo.horizon,
        batch_size=steps // ppo.minibatches,
        n_epochs=ppo.update_epochs,
        policy_kwargs={"net_arch": list(config.policy.hidden)},
        device="cpu",
    )
    model.learn(steps)
    started = time.perf_counter()
    model.learn(steps * iterations, reset_num_timesteps=False)
    seconds = time.perf_counter() - started
    env.close()
    return steps * iterations / seconds


def compare(name: str, case: Case, repeats: int) -> bool:
    config = find_preset(case.preset).config
    assert isinstance(config, PPOTrainConfig)
    # SB3 estimates advantages once an iteration: so do we here, whatever the preset.
    config = replace(config, ppo=replace(config.ppo, recompute_advantages=False))
    ours, theirs = [], []
    for _ in range(repeats):
        theirs.append(sb3_rate(case.sb3_env, config, case.sb3_iterations))
        ours.append(ludus_rate(config, case.iterations))
    ratio = statistics.median(ours) / statistics.median(theirs)
    batch = config.env.num_envs * config.ppo.horizon // config.ppo.minibatches
    print(
        f"{name:17} ludus {statistics.median(ours):8,.0f}/s   SB3 {statistics.median(theirs):7,.0f}/s   "
        f"ratio {ratio:5.1f}   bar {case.bar:.0f}   {'ok' if ratio >= case.bar else 'MISSED'}   "
        f"({config.env.num_envs} envs, batches of {batch} × {config.ppo.update_epochs} passes, "
        f"net {config.policy.hidden})",
        flush=True,
    )
    return ratio >= case.bar


def raw_rate(num_sims: int, steps: int = 40) -> float:
    """Control steps per second of `mujoco.batch` alone on the KUKA scene, in the states of a pick and place."""
    config = find_preset("kuka-pick-place").config.env
    env = KukaPickPlace(config, num_sims, available_cores(), evaluation=False)  # type: ignore[arg-type]
    obs = env.reset(0)
    batch = Batch(env.mj_model, nsim=num_sims, nthread=available_cores())
    seconds = 0.0
    for _ in range(steps):
        env.begin_step(scripted_action(obs))
        obs = env.end_step().obs
        batch.state[:] = env.sim.state()["rows"].numpy()
        started = time.perf_counter()
        batch.step(nstep=SUBSTEPS, stage=int(mujoco.mjtStage.mjSTAGE_NONE.value))
        seconds += time.perf_counter() - started
    env.close()
    return num_sims * steps / seconds


def share_of_raw(repeats: int) -> bool:
    config = find_preset("kuka-pick-place").config
    assert isinstance(config, PPOTrainConfig)
    raw, ours = [], []
    for _ in range(repeats):
        raw.append(raw_rate(config.env.num_envs))
        ours.append(ludus_rate(config, 8))
    share = statistics.median(ours) / statistics.median(raw)
    print(
        f"{'share of raw':17} ludus {statistics.median(ours):8,.0f}/s   raw {statistics.median(raw):7,.0f}/s   "
        f"share {share:5.0%}   bar 60 %   {'ok' if share >= 0.6 else 'MISSED'}",
        flush=True,
    )
    return share >= 0.6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], "raw", *CASES], help="which (all by default)")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    gym.logger.min_level = gym.logger.ERROR
    mujoco.set_mju_user_warning(lambda text: None)  # HalfCheetah's file has an attribute MuJoCo deprecates
    chosen = arguments.cases or ["raw", *CASES]
    passed = []
    for name in chosen:
        run = share_of_raw if name == "raw" else lambda repeats, name=name: compare(name, CASES[name], repeats)
        passed.append(run(arguments.repeats))
    sys.exit(0 if all(passed) else 1)


if __name__ == "__main__":
    main()
