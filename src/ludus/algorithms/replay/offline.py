"""SAC, TD3 or DQN on recorded episodes alone: environments are only there to evaluate in."""

import dataclasses

import torch
from torch import Tensor

from ludus.algorithms.replay.agents import TD3
from ludus.algorithms.replay.config import ReplayTrainConfig, TD3TrainConfig
from ludus.algorithms.replay.job import ReplayJob, make_policy, obs_field
from ludus.algorithms.replay.memory import check_memory
from ludus.algorithms.replay.recorded import Recorded, load_recorded
from ludus.algorithms.replay.recorded_rows import RecordedRows
from ludus.algorithms.replay.reward_view import view_of_recording
from ludus.algorithms.replay.worth import worth_of_steps
from ludus.algorithms.reward.config import check_reward_config
from ludus.algorithms.reward.metrics import equal_returns_warning
from ludus.buffers.episodes import EpisodeStore
from ludus.config import make_plan
from ludus.data.episode import Episode
from ludus.data.reading import DataSummary
from ludus.envs import make_eval_env
from ludus.envs.abilities import interface_of
from ludus.envs.vec import State
from ludus.errors import ConfigError
from ludus.policies.replay_heads import GreedyHead
from ludus.policies.replay_policy import ReplayPolicy
from ludus.training.job import Show

_ROWS_AT_ONCE = 4_096
_SPREAD = 1e-3  # a smaller part of the largest reward is no spread


class OfflineJob(ReplayJob):
    """An iteration is batches alone. The data is not in a checkpoint: it is read again, and must be the same."""

    recorded: Recorded
    divides_rewards = True  # by their spread; off where the agent scales them itself

    def __init__(self, config: ReplayTrainConfig, device: torch.device) -> None:
        # Recorded observations are all there: their exact moments are known before the first gradient step.
        networks = dataclasses.replace(config.policy, normalize_obs=config.data.normalize_obs)
        config = dataclasses.replace(config, policy=networks)
        env = make_eval_env(config.env, 1)
        policy = make_policy(config, env.obs_space, env.action_space, device)
        policy.interface = interface_of(env)
        check_memory(config, policy, env)
        env.close()
        self._policy_of_data = policy
        self.recorded = load_recorded(
            dataclasses.replace(config.data, held_out=0.0),  # environments measure, so all is learned from
            config.seed,
            device,
            fields=lambda summary: {"obs": self._field(summary)},
            prepare=self._prepare,
            kept_action=lambda summary: policy.head.action_size,
        )
        store = self.recorded.store
        policy.learn_scales([store.obs["obs"][: store.steps + store.episodes]])
        if self.divides_rewards:
            self.reward_scale = _reward_scale(store)
            store.reward /= self.reward_scale
        super().__init__(config, device, policy, store, reward_view=view_of_recording(policy, self._rows))
        self.learner.fixed_scale = True
        self._prepare_reward()
        batches = config.replay.train_batches
        self.plan = make_plan(config, batches, batches, "batches")
        self._refuse_late_tutor()
        self._plan_memory(self.recorded.bytes)

    def _refuse_late_tutor(self) -> None:
        """One that is ready only after the last iteration has begun: the policy would never learn."""
        iterations = self.plan.total_iterations
        tutor = self.config.td3.tutor if isinstance(self.config, TD3TrainConfig) else 0.0
        if tutor > (iterations - 1) / iterations:
            raise ConfigError(
                f"--td3.tutor {tutor:g} leaves the policy no iteration of its own: there are {iterations:,} of "
                f"{self.plan.batches_per_iteration} batches. Train longer, or make it or --train-batches smaller."
            )

    def _prepare_reward(self) -> None:
        """What a learned reward standardises by, and what is suspicious about its episodes."""
        if self.learner.reward_learner is None:
            return
        store, view = self.recorded.store, self.learner.reward_view
        for rows in store.obs["obs"][: store.steps + store.episodes].split(_ROWS_AT_ONCE):
            self.learner.reward_learner.model.update_normalizer(view.obs(rows))
        equal = equal_returns_warning(self.recorded.returns)
        self.warnings = (
            *check_reward_config(self.config.reward, store.longest_finished),
            *([] if equal is None else [equal]),
        )

    def _field(self, summary: DataSummary) -> tuple[tuple[int, ...], torch.dtype]:
        """The observation, if it is one the policy's environment gives."""
        policy = self._policy_of_data
        field = obs_field(policy.obs_space)
        self._rows = RecordedRows(policy.obs_space, policy.learned_parts(), summary, field[1])
        head, choices = policy.head, summary.num_actions
        if isinstance(head, GreedyHead):
            fits = 0 < choices <= head.start + head.linear.out_features
        else:
            fits = not choices and summary.action_size == head.action_size
        if not fits:
            told = f"{choices} choices" if choices else f"{summary.action_size} numbers"
            raise ConfigError(f"The recorded actions ({told}) are not the environment's ({policy.action_space}).")
        return field

    def _prepare(self, episode: Episode) -> tuple[dict[str, Tensor], Tensor]:
        policy: ReplayPolicy = self._policy_of_data
        action = policy.head.from_env(torch.from_numpy(episode.action).to(policy.device))
        if isinstance(policy.head, GreedyHead) and float(action.min()) < 0:
            lowest = int(action.min()) + policy.head.start
            raise ConfigError(f"A recorded action is {lowest}, which is none of {policy.action_space}.")
        return {"obs": self._rows.of(episode)}, action.cpu()

    def load_state(self, state: State, iteration: int) -> bool:
        self.learner.worth = None  # as critics that are gone saw it
        return super().load_state(state, iteration)

    def iteration(self, number: int, progress: float, show: Show) -> dict[str, Tensor]:
        self.learner.agent.set_progress(progress)
        self._choose_steps()
        batches = self.plan.batches_per_iteration
        return self._learn(lambda batch: show(batch / batches, batch))

    @torch.inference_mode()
    def _choose_steps(self) -> None:
        """Those that a tutor's critics find worth imitating, once it is ready."""
        agent, policy = self.learner.agent, self.policy
        if isinstance(agent, TD3) and agent.tutor_is_ready and self.learner.worth is None:
            self.learner.worth = worth_of_steps(
                self.recorded.store,
                lambda obs, action: agent.judge(policy.prepare(obs), action),
                self.config.replay.advantage,
            )

    def lines(self) -> list[str]:
        return [
            self._setting_line(),
            f"{self.recorded.line()}; {self._imitation_line()}; {self.memory_plan.line()}",
            self._reward_line(),
            self._batches_line(),
        ]

    def _imitation_line(self) -> str:
        bc, advantage = self.config.replay.bc, self.config.replay.advantage
        how = f"imitation by advantage (weight {advantage:g})" if advantage else "imitation"
        if not self.config.replay.imitates:
            how = "the critic alone, without imitation"
        elif bc:
            how += f" beside the critic's say of {bc:g}"
        if isinstance(self.config, TD3TrainConfig) and self.config.td3.tutor:
            alone = f"{self.config.td3.tutor:.0%} of the training"
            how += f"; after {alone} the policy imitates what critics value"
        return how

    def _reward_line(self) -> str:
        reward = self.learner.reward_learner
        if reward is not None:
            seen = ", ".join(reward.model.obs)
            return f"reward, critics and policy learn together, from one return an episode; the reward sees {seen}"
        if self.config.reward.method == "ircr":
            return "rewards are the episode's return, from 0 to 1"
        if not self.divides_rewards:
            return "rewards scaled by the returns that they add up to"
        return f"rewards divided by their standard deviation, {self.reward_scale:.3g}"


def _reward_scale(store: EpisodeStore) -> float:
    """The spread of all steps' rewards: beside its own first guesses a critic would not see smaller ones."""
    paid = torch.ones(len(store.reward), dtype=torch.bool, device=store.device)
    finished = store.length > 0
    paid[store.start[finished] + store.length[finished]] = False  # the row after the last step
    paid[store.steps + store.episodes :] = False
    reward = store.reward[paid]
    spread = float(reward.std())
    return spread if spread > _SPREAD * float(reward.abs().max()) else 1.0
