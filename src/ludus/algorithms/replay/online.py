"""SAC, TD3 and DQN in environments: an iteration is some steps and the batches that go with them."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ludus import ranks
from ludus.algorithms.replay.batches import nothing
from ludus.algorithms.replay.collector import ReplayCollector
from ludus.algorithms.replay.config import ReplayConfig, ReplayTrainConfig
from ludus.algorithms.replay.hindsight import hindsight_warnings, make_hindsight
from ludus.algorithms.replay.job import ReplayJob, make_policy, obs_field
from ludus.algorithms.replay.learner import refuse_no_whole_episode
from ludus.algorithms.replay.memory import check_memory
from ludus.algorithms.replay.ram import drawn_bytes
from ludus.algorithms.reward.config import check_reward_config
from ludus.buffers.episodes import EpisodeStore, store_bytes
from ludus.buffers.lanes import LaneStore, lane_store_bytes
from ludus.buffers.replay import Replay
from ludus.config import make_plan
from ludus.envs import make_groups
from ludus.envs.abilities import doubts, interface_of, plan_lines
from ludus.envs.vec import State, VecEnv, advice_on_faults
from ludus.errors import ConfigError, TrainingError
from ludus.policies.replay_policy import ReplayPolicy
from ludus.training.callbacks import Watcher
from ludus.training.evaluator import limit_warnings
from ludus.training.job import Show
from ludus.training.ram import refuse_what_cannot_fit

_EPISODES_FOR_UNITS = 10
_UNKNOWN_LENGTH = 1_000  # steps an episode may take where the environment has no time limit


class OffPolicyJob(ReplayJob):
    """Collects and learns in turns; on a GPU, collects while it learns."""

    def __init__(self, config: ReplayTrainConfig, device: torch.device) -> None:
        envs = make_groups(config.env, config.groups, device, config.episodic_reward)
        rows = sum(env.num_rows for env in envs)
        replay = config.replay
        self._steps = -(-replay.steps // rows)  # of each environment
        plan = make_plan(config, self._steps * rows * ranks.size(), replay.train_batches)
        policy = make_policy(config, envs[0].obs_space, envs[0].action_space, device)
        policy.interface = interface_of(envs[0])
        check_memory(config, policy, envs[0])
        longest = replay.longest or envs[0].max_steps or _UNKNOWN_LENGTH
        in_lanes = _is_work_of_one_device(envs, device) and not policy.recurrent
        # Where both are work of one GPU, environments step while the policy learns. Their many small kernels go
        # first: a gradient step's large ones fill the rest.
        self._stream = torch.cuda.Stream(device, priority=-1) if in_lanes and device.type == "cuda" else None
        kept_free = 0 if self._stream is None else _rows_kept_free(replay, rows, self._steps)
        self.warnings = _check(config, envs[0], plan.total_steps, longest)
        if in_lanes and config.reward.method != "none":
            _refuse_small_rings(replay.capacity, rows, longest, kept_free)
        self._longest = longest
        if unlimited := limit_warnings(config, envs[0]):
            end = "is not learned from as a whole" if in_lanes else "ends the training"
            told = f"The replay has room for episodes of {longest:,} steps; a longer one {end}."
            self.cautions = (*unlimited, f"{told} --replay.longest makes more room.")
        fields = {"obs": obs_field(policy.obs_space)}, ((policy.head.action_size,), torch.float32)
        shape = (*fields, replay.capacity, rows, longest)
        hidden, more = config.episodic_reward, (envs[0].stacked_frames, policy.state_size)
        self._bytes = lane_store_bytes(*shape, hidden) if in_lanes else store_bytes(*shape, hidden, *more)
        stored = self._bytes * min(plan.total_steps // ranks.size(), replay.capacity) // replay.capacity
        _refuse_large_replay(self._bytes, stored, replay.capacity, device)
        refuse_what_cannot_fit(
            drawn_bytes(config, policy),
            f"{replay.train_batches:,} batches of {replay.batch_size:,} transitions, drawn at once",
            "Make --replay.train-batches or --replay.batch-size smaller.",
            device,
        )
        store: Replay
        if in_lanes:
            store = LaneStore(*shape, device, hidden)
            store.kept_free = kept_free
        else:
            store = EpisodeStore(*shape, device, hidden, *more)
        hindsight = make_hindsight(config, envs[0])
        self.warnings += (*hindsight_warnings(config, envs[0]), *doubts(envs[0]))
        super().__init__(config, device, policy, store, hindsight)
        self.plan = plan
        self._plan_memory(self._bytes)
        self.grows_by = stored * ranks.size()
        self.collector = self._make_collector(envs, policy)
        self.collector.timing = self.timing
        self._collected = 0
        self._collects_first = False  # before it learns: the store of some rank is empty

    def _make_collector(self, envs: list[VecEnv], policy: ReplayPolicy) -> ReplayCollector:
        """What fills the store; an algorithm of one's own may explore otherwise."""
        graphs, beside = self.config.cuda_graphs, self._stream is not None
        return ReplayCollector(envs, policy, self.store, self.config.seed, cuda_graphs=graphs, beside=beside)

    def iteration(self, number: int, progress: float, show: Show) -> dict[str, Tensor]:
        self.collector.set_progress(progress)
        self.learner.agent.set_progress(progress, self.collector.actor.policy.head)
        done, warmup, steps = number * self.plan.steps_per_iteration, self.config.replay.warmup, self._steps
        collect = partial(self._collect, steps, done < warmup, lambda t: show((t + 1) / steps, 0))
        self._collected = done + self.plan.steps_per_iteration
        beside = self._stream is not None and done >= max(warmup, 1) and not self._collects_first
        if beside and self._ready():
            self.learner.on_drawn = collect  # and learn meanwhile from what was there before
        else:
            collect()
            self._await_collected()
            self._collects_first = False
            if number + 1 == self.plan.total_iterations and self.learner.updates == 0:
                self._collect_until_ready(at_random=done < warmup)
            elif self._collected < max(warmup, 1) or not self._ready():
                return {}
        metrics = self._learn(lambda batch: show(1.0, batch))
        self.learner.on_drawn = nothing
        self._await_collected()
        self.collector.actor.note()
        return metrics

    def _collect(self, steps: int, at_random: bool, on_step: Callable[[int], None] = lambda t: None) -> None:
        if self._stream is None:
            self.collector.collect(steps, at_random, on_step)
            return
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode(False), torch.cuda.stream(self._stream):
            self.collector.collect(steps, at_random, on_step)

    def _await_collected(self) -> None:
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)

    def watch(self, watcher: Watcher) -> bool:
        self.collector.watch(watcher)
        return True

    def _ready(self) -> bool:
        """Returns to decompose come with the ends of episodes; their units are those of the first few.

        Every rank draws from its own episodes, so each needs one.
        """
        reward = self.config.reward
        if reward.method == "none" or (ranks.is_alone() and self.learner.updates > 0):  # counting may wait
            return True
        wanted = _EPISODES_FOR_UNITS if reward.learned and reward.normalize_returns else 1
        told = ranks.gather_plain((self.store.total_episodes_added, len(self.store.returns_and_lengths()[0])))
        added, whole = zip(*told, strict=True)
        return min(whole) > 0 and sum(added) >= wanted

    def _collect_until_ready(self, at_random: bool) -> None:
        """A training shorter than its warm-up is a trial: its last iteration learns, whatever was skipped."""
        for _ in range(_EPISODES_FOR_UNITS * self._longest):
            if self._ready():
                return
            self._collect(1, at_random)
            self._await_collected()
            self._collected += self.collector.rows * ranks.size()
        refuse_no_whole_episode(self.store)
        raise TrainingError("No episode ended in all of the training: there is no return to decompose.")

    def cycle_metrics(self) -> dict[str, float]:
        metrics = {**self.collector.episode_metrics(), **super().cycle_metrics()}
        if self.config.reward.method != "none" and self._collected >= self.config.replay.warmup:
            refuse_no_whole_episode(self.store)
        if self.tabulated:
            metrics["Timesteps"] = self._collected  # the store lets the oldest go
            metrics["Episodes"] = sum(ranks.gather_plain(self.store.total_episodes_added))
        return metrics

    def fault_advice(self) -> dict[str, str]:
        return advice_on_faults(self.collector.groups[0].env)

    def lines(self) -> list[str]:
        config, replay, envs = self.config, self.config.replay, self.config.env.num_envs
        each = f"on each of {ranks.size()} ranks " if ranks.size() > 1 else ""
        ratio = replay.train_batches / self.plan.steps_per_iteration
        paid = "paid once per episode, " if config.episodic_reward else ""
        idle = max(0, -(-replay.warmup // self.plan.steps_per_iteration) - 1)  # iterations that only collect
        learning = max(1, self.plan.total_iterations - idle)
        hindsight = self.learner.hindsight
        return [
            *plan_lines(self.collector.groups[0].env),
            self._setting_line(),
            *([] if hindsight is None else [hindsight.line()]),
            f"{each}{envs:,} environment{'s' * (envs > 1)}, {paid}{ratio:.3g} updates a step after "
            f"{replay.warmup:,} random steps; replay of {replay.capacity:,} rows; {self.memory_plan.line()}",
            self._batches_line(learning * replay.train_batches),
        ]

    def begin_with_new_weights(self) -> None:
        super().begin_with_new_weights()
        self._hand_to_actor()

    def _hand_to_actor(self) -> None:
        """A copy that acts is one iteration behind: it is handed the weights twice."""
        self.collector.actor.note()
        self.collector.actor.note()

    def refuse_faulty_environments(self) -> None:
        self.collector.refuse_faulty_rows()

    def state(self, whole: bool) -> State:
        self.refuse_faulty_environments()
        collector = self.collector.state() if whole else None
        return {**super().state(whole), "store": self.store.state(), "collector": collector}

    def own_paths(self) -> tuple[str, ...]:
        return (*super().own_paths(), "store", "collector")

    def load_state(self, state: State, iteration: int) -> bool:
        super().load_state(state, iteration)
        saved, goes_on = state["store"], state["collector"] is not None
        # Of a rank that was not there when this was saved there is none.
        is_new = saved is None or not self.store.load_state(saved, open_too=goes_on)
        self._collects_first = ranks.anyone(is_new)
        self._hand_to_actor()
        if not goes_on:
            self.collector.begin_anew()
            return False
        self.collector.load_state(state["collector"])
        return True

    def close(self) -> None:
        super().close()
        self.collector.close()


def _is_work_of_one_device(envs: list[VecEnv], device: torch.device) -> bool:
    """Acting, stepping and recording then need no host, and the replay is told of ends by none."""
    return all(env.capturable and env.device.type == device.type and env.stacked_frames == 1 for env in envs)


def _rows_kept_free(replay: ReplayConfig, rows: int, steps: int) -> int:
    """Rows of each environment that may be written while batches are learned from: one a step, two at an end."""
    most = 2 * steps
    if 2 * most >= replay.capacity // rows:
        raise ConfigError(
            f"--replay.capacity {replay.capacity:,} is too small for {rows:,} environments that add up to "
            f"{most:,} rows each while the policy learns: give more than {2 * most * rows:,}, or make "
            "--replay.steps smaller."
        )
    return most


def _refuse_large_replay(needed: int, stored: int, rows: int, device: torch.device) -> None:
    """Checkpoints are written from, and read into, a copy in host memory of what is stored."""
    plan, advice, host = f"the replay, {rows:,} rows", "Make --replay.capacity smaller.", torch.device("cpu")
    if device.type == "cpu":
        refuse_what_cannot_fit(needed + stored, f"{plan}, and a copy of it to save", advice, host)
    else:
        refuse_what_cannot_fit(needed, plan, advice, device)
        refuse_what_cannot_fit(stored, f"a copy of {plan}, to save it", advice, host)


def _refuse_small_rings(capacity: int, rows: int, longest: int, kept_free: int) -> None:
    """Where returns are decomposed, a whole episode must be there while the next one, as long, is written."""
    least = rows * (2 * longest + 1 + kept_free)
    if capacity < least:
        raise ConfigError(
            f"--replay.capacity {capacity:,} cannot hold two episodes of each of the {rows:,} environments, of "
            f"{longest:,} steps and a last observation; {least:,} is the least."
        )


def _check(config: ReplayTrainConfig, env: VecEnv, total: int, longest: int) -> tuple[str, ...]:
    """A clear error where the numbers do not fit each other; otherwise warnings."""
    replay = config.replay
    if 0 < replay.longest < env.max_steps:
        raise ConfigError(
            f"--replay.longest {replay.longest:,} is less than the {env.max_steps:,} steps an episode of "
            f"{env.name} may take; leave it at 0."
        )
    if longest >= replay.capacity:
        raise ConfigError(
            f"--replay.capacity {replay.capacity:,} cannot hold one episode of {longest:,} steps and its last "
            f"observation; {longest + 1:,} is the least, a hundred times that is usual."
        )
    warnings = check_reward_config(config.reward, longest)
    if replay.warmup >= total:
        warnings.append(
            f"--replay.warmup {replay.warmup:,} is not shorter than the training, {total:,} steps: actions are "
            "random, and only the last iteration learns. That tries whether all works; to learn, train longer."
        )
    return tuple(warnings)
