"""Learning from a replay: an agent, and the reward it is given where that is learned, on the same batches."""

from collections.abc import Callable

import torch
from torch import Tensor

from ludus import ranks
from ludus.algorithms.optimizer import FlatAdam
from ludus.algorithms.replay.agents import Agent, Batch
from ludus.algorithms.replay.batches import Batches, nothing
from ludus.algorithms.replay.config import ReplayConfig
from ludus.algorithms.replay.hindsight import Hindsight
from ludus.algorithms.replay.memory import Segments
from ludus.algorithms.replay.reward_view import RewardView
from ludus.algorithms.reward.config import RewardConfig
from ludus.algorithms.reward.rrd import RewardLearner, ircr_reward
from ludus.buffers.episodes import EpisodeStore
from ludus.buffers.replay import Replay, SequenceDraw, TransitionDraw
from ludus.envs.vec import State
from ludus.errors import ConfigError, TrainingError
from ludus.policies.replay_policy import ReplayPolicy
from ludus.policies.vision import draw_shifts, shift_observations, usual_shift

_MEASURE_EVERY = 10  # gradient steps: the agent's losses are means of some
_BEST_EPISODES = 10  # from which IRCR draws half of each batch


class ReplayLearner(Batches):
    """Trains an agent on what a store holds under "obs"."""

    def __init__(
        self,
        agent: Agent,
        store: Replay,
        config: ReplayConfig,
        reward: RewardConfig,
        reward_learner: RewardLearner | None,
        seed: int,
        cuda_graphs: bool = True,
        hindsight: Hindsight | None = None,
        reward_view: RewardView | None = None,
    ) -> None:
        super().__init__(store, config.train_batches, seed, cuda_graphs and _is_still(reward, reward_learner))
        self.agent, self.config, self._batch_size = agent, config, config.batch_size
        self._shift = _shift_of(config, agent.policy)
        self.hindsight = hindsight
        self._segments = Segments(store, config) if agent.policy.recurrent else None
        self._burn_in_rows = 0 if self._segments is None else self._segments.burn_in_rows  # of a batch
        self.fixed_scale = False  # the normalisers know all there will be
        self.worth: Tensor | None = None  # [steps] how often each is drawn; None: all alike
        self.reward, self.reward_learner, self._reward_view = reward, reward_learner, reward_view
        self._totals = torch.zeros(len(agent.measures), device=store.device)
        self._measured = torch.zeros((), device=store.device)
        self._reward_rate = torch.full((), reward.learning_rate, device=store.device)
        # Ranks add up in the order of their work, which two streams at a time do not have.
        # An encoder of images is taped, and its tape stays on one stream.
        apart = reward_learner is not None and not reward_learner.model.learned
        beside = store.device.type == "cuda" and apart and ranks.is_alone()
        self._side = torch.cuda.Stream(store.device) if beside else None

    @torch.inference_mode()
    def update(self, on_batch: Callable[[int], None] = lambda i: None) -> dict[str, Tensor]:
        self._totals.zero_()
        self._measured.zero_()
        self._run(on_batch)
        self._learn_scale()
        means = (self._totals / self._measured.clamp(min=1)).unbind()
        metrics = {f"train/{name}": value for name, value in zip(self.agent.measures, means, strict=True)}
        if self.reward_learner is not None:
            metrics["train/r_loss"] = self.reward_losses[: self.train_batches].mean()
        return metrics | {"train/skipped_updates": self._skipped()}

    # Drawing ------------------------------------------------------------------------------------
    def _draw(self) -> dict[str, Tensor]:
        """Rows: those of observations before, then those after; in each the reward's sub-sequences come first.

        The burn-in of a policy with a memory comes last.
        """
        batches = self.train_batches
        more: dict[str, Tensor] = {}
        lead: list[TransitionDraw] = []
        if self._segments is None:
            drawn = self._draw_transitions()
        else:
            drawn, burn_in, more["first"], more["keep"] = self._segments.draw(batches, self.generator)
            lead = [burn_in]
        if self.hindsight is not None:
            ahead = (self.config.n_step, self.config.gamma)
            drawn, more["goals"] = self.hindsight.relabel(self.store, drawn, *ahead, self.generator)
        reward, before, after = drawn.reward, drawn.row, drawn.next_row
        if self.reward.method == "ircr":
            reward = ircr_reward(self.store.episode_return[drawn.slot], *self._range_of_returns())
        if self.reward_learner is not None:
            sequence = draw_sequences(self.store, self.reward, batches, self.generator)
            more = sequence._asdict()
            row = sequence.row.flatten(1)
            before, after = torch.cat([row, before], 1), torch.cat([row + 1, after], 1)
        noise = self.agent.policy.head.noise((batches, 2 * self._batch_size), self.generator)
        rows = torch.cat([before, after, *(part.row for part in lead)], 1)
        if self.store.stacked_frames > 1:
            slot = torch.cat([part.slot for part in (drawn, drawn, *lead)], 1)
            more["starts"] = self.store.rows(slot, torch.zeros_like(slot))
        if self._shift:
            shown = 2 * self._batch_size + self._burn_in_rows
            shifts = draw_shifts(shown * batches, self._shift, self.generator)
            more["shifts"] = shifts.view(batches, -1, 2)
        return {"rows": rows, "reward": reward, "discount": drawn.discount, "noise": noise, **more}

    def _range_of_returns(self) -> tuple[Tensor, Tensor]:
        """The least and the greatest return of an episode that is stored, on any rank."""
        known, _ = self.store.returns_and_lengths()
        refuse_no_whole_episode(self.store)
        low, high = ranks.gather(torch.stack([known.min(), known.max()])).unbind(1)
        return low.min(), high.max()

    def _draw_transitions(self) -> TransitionDraw:
        config, store, batches = self.config, self.store, self.train_batches
        n, ahead = self._batch_size, (config.n_step, config.gamma)
        if self.worth is not None:
            assert isinstance(store, EpisodeStore)
            return store.draw_by_worth(batches, n, self.generator, self.worth, *ahead)
        if self.reward.method != "ircr":
            return store.draw_transitions(batches, n, self.generator, *ahead)
        some = store.draw_transitions(batches, n - n // 2, self.generator, *ahead, open_too=False)
        best = store.draw_best(batches, n // 2, self.generator, _BEST_EPISODES, *ahead)
        return TransitionDraw(*(torch.cat(parts, 1) for parts in zip(some, best, strict=True)))

    # Labels -------------------------------------------------------------------------------------
    def label_episodes(self, count: int) -> tuple[Tensor, Tensor]:
        """([count, longest] what every step of some finished episodes is worth now, which steps there are).

        Episodes are drawn in proportion to their length. Behind their ends rewards are 0.
        """
        drawn = self.store.draw_sequences(1, count, 1, self.generator, whole=True)
        row, inside = drawn.row[0], drawn.weight[0] > 0
        if self.reward_learner is None:
            reward = ircr_reward(drawn.episode_return[0], *self._range_of_returns())[:, None]
        else:
            reward = self.label(row.flatten(), row.flatten() + 1).view(row.shape)
        return reward * inside, inside

    def label(self, row: Tensor, next_row: Tensor) -> Tensor:
        """[n] what the reward network says now of transitions between rows of the store."""
        assert self.reward_learner is not None
        view = self.reward_view
        before, after = (view.obs(self.store.obs["obs"].index_select(0, rows)) for rows in (row, next_row))
        return self.reward_learner.label(before, view.action(self.store.action.index_select(0, row)), after)

    # One gradient step --------------------------------------------------------------------------
    def _kind_of(self, update: int) -> tuple[bool, ...]:
        return self._is_measured(update), *self.agent.kind_of(update)

    def _is_measured(self, update: int) -> bool:
        return update % min(_MEASURE_EVERY, self.config.train_batches) == 0  # at least one in each iteration

    def _batch(self, update: int) -> None:
        store, n = self.store, self._batch_size
        rows, reward = self._at_tick("rows"), self._at_tick("reward")
        half = self._half(rows)
        starts = self._at_tick("starts") if store.stacked_frames > 1 else rows
        obs, action = store.observations(rows, starts), store.action.index_select(0, rows[:half])
        before, after = obs[:half], obs[half:]
        if self.hindsight is not None:
            goals = self._at_tick("goals")
            self.hindsight.show(before, goals)
            self.hindsight.show(after, goals)
        await_reward: Callable[[], None] = nothing
        if self.reward_learner is not None:
            reward, await_reward = self._learn_reward(self.reward_learner, before, action, after)
            obs, action = torch.cat([before[-n:], after[-n:]]), action[-n:]
        if self._shift:
            obs = shift_observations(self.agent.policy.obs_space, obs, self._at_tick("shifts"), self._shift)
        x, discount, noise = self.agent.policy.prepare(obs), self._at_tick("discount"), self._at_tick("noise")
        burn_in = None
        if self._segments is not None:
            seen, _ = self.agent.policy.apart(x[2 * n :])
            x, burn_in = x[: 2 * n], self._segments.lead(seen, self._at_tick("first"), self._at_tick("keep"))
        batch = Batch(x, action, reward, discount, noise, await_reward, burn_in)
        measured = self.agent.learn(batch, update, self._is_measured(update))
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        if measured is not None:
            self._totals += measured
            self._measured += 1

    def _half(self, rows: Tensor) -> int:
        """How many rows of a batch are of observations before a transition."""
        return (len(rows) - self._burn_in_rows) // 2

    def _learn_reward(
        self, learner: RewardLearner, before: Tensor, action: Tensor, after: Tensor
    ) -> tuple[Tensor, Callable[[], None]]:
        """One gradient step of the reward network; returns what it thought of the transitions before that.

        On a GPU it runs beside the agent's step, on a stream of its own: the second result waits for the rewards.
        """
        drawn = self._tuple_at_tick(SequenceDraw)
        if self._side is None:
            return self._reward_step(learner, before, action, after, drawn, nothing), nothing
        labelled = torch.cuda.Event()
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            labels = self._reward_step(learner, before, action, after, drawn, labelled.record)
        return labels, lambda: torch.cuda.current_stream().wait_event(labelled)

    def _reward_step(
        self,
        learner: RewardLearner,
        before: Tensor,
        action: Tensor,
        after: Tensor,
        drawn: SequenceDraw,
        on_labels: Callable[[], None],
    ) -> Tensor:
        view = self.reward_view
        labels, loss = learner.joint(view.obs(before), view.action(action), view.obs(after), drawn, on_labels)
        learner.step(self._reward_rate)
        self.reward_losses.index_copy_(0, self._tick, loss.reshape(1))
        return labels

    # Around it ----------------------------------------------------------------------------------
    @property
    def reward_view(self) -> RewardView:
        """What the learned reward sees."""
        assert self._reward_view is not None
        return self._reward_view

    def _learn_scale(self) -> None:
        """One batch of observations an iteration goes into the normalisers."""
        normalizer = self.agent.policy.normalizer
        if self.fixed_scale or (normalizer is None and self.reward_learner is None):
            return
        rows = self._drawn["rows"][0]
        half = self._half(rows)  # the transitions are what comes last before it; sub-sequences may repeat steps
        obs = self.store.obs["obs"].index_select(0, rows[half - self._batch_size : half])
        if self.hindsight is not None:
            self.hindsight.show(obs, self._drawn["goals"][0])
        if normalizer is not None:
            self.agent.policy.learn_scales([obs])
        if self.reward_learner is not None:
            self.reward_learner.model.update_normalizer(self.reward_view.obs(obs))

    def optimizers(self) -> list[FlatAdam]:
        """Of all that is learned."""
        reward = [] if self.reward_learner is None else [self.reward_learner.optimizer]
        return [*self.agent.optimizers, *reward]

    def _skipped(self) -> Tensor:
        """Gradient steps left out since the last call as not finite, of the optimiser that left out most."""
        skipped = torch.stack([optimizer.skipped for optimizer in self.optimizers()]).max()
        for optimizer in self.optimizers():
            optimizer.skipped.zero_()
        return skipped

    def weights(self) -> list[Tensor]:
        return [optimizer.flat for optimizer in self.optimizers()]

    def set_rate_factor(self, factor: float) -> None:
        self.agent.rate.fill_(self.config.learning_rate * factor)
        self._reward_rate.fill_(self.reward.learning_rate * factor)

    def state(self) -> State:
        reward = None if self.reward_learner is None else self.reward_learner.state()
        return {**super().state(), "agent": self.agent.state(), "reward": reward}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.agent.load_state(state["agent"])
        if self.reward_learner is not None:
            self.reward_learner.load_state(state["reward"])


def _shift_of(config: ReplayConfig, policy: ReplayPolicy) -> int:
    """By how many pixels drawn images are moved at most."""
    if config.shift > 0 and not policy.has_images:
        raise ConfigError("--replay.shift moves images, and none are observed here: leave it out.")
    return usual_shift(policy.obs_space) if config.shift < 0 else config.shift


def refuse_no_whole_episode(store: Replay) -> None:
    """Learned rewards ask for finished episodes that the store still holds as a whole. Waits for the device."""
    if store.total_episodes_added > 0 and len(store.returns_and_lengths()[0]) == 0:
        raise TrainingError(
            "The replay holds no finished episode as a whole any more, so there is no return to learn from: "
            f"episodes have more than {store.longest:,} steps. Make --replay.longest larger, or end them sooner."
        )


def _is_still(reward: RewardConfig, learner: RewardLearner | None) -> bool:
    """Whether a graph can record it: neither whole episodes, which change in size, nor a taped encoder."""
    return reward.method != "rd" and (learner is None or not learner.model.learned)


class RewardBatches(Batches):
    """Trains a reward alone, on whatever observations a store holds."""

    def __init__(
        self,
        store: Replay,
        reward: RewardConfig,
        learner: RewardLearner,
        train_batches: int,
        seed: int,
        cuda_graphs: bool = True,
    ) -> None:
        super().__init__(store, train_batches, seed, cuda_graphs and _is_still(reward, learner))
        self.reward, self.learner = reward, learner
        self._rate = torch.full((), reward.learning_rate, device=store.device)

    def update(self, on_batch: Callable[[int], None] = lambda i: None) -> dict[str, Tensor]:
        with torch.no_grad():
            self._run(on_batch)
        skipped = self.learner.optimizer.skipped.clone()
        self.learner.optimizer.skipped.zero_()
        return {"train/r_loss": self.reward_losses[: self.train_batches].mean(), "train/skipped_updates": skipped}

    def _draw(self) -> dict[str, Tensor]:
        return draw_sequences(self.store, self.reward, self.train_batches, self.generator)._asdict()

    def _batch(self, update: int) -> None:
        drawn = self._tuple_at_tick(SequenceDraw)
        row, store = drawn.row.flatten(), self.store
        before = {name: field.index_select(0, row) for name, field in store.obs.items()}
        after = {name: field.index_select(0, row + 1) for name, field in store.obs.items()}
        loss = self.learner.learn(before, store.action.index_select(0, row), after, drawn, self._rate)
        self.reward_losses.index_copy_(0, self._tick, loss.reshape(1))

    def weights(self) -> list[Tensor]:
        return [self.learner.optimizer.flat]

    def set_rate_factor(self, factor: float) -> None:
        self._rate.fill_(self.reward.learning_rate * factor)

    def state(self) -> State:
        return {**super().state(), "learner": self.learner.state()}

    def load_state(self, state: State) -> None:
        super().load_state(state)
        self.learner.load_state(state["learner"])


def draw_sequences(store: Replay, reward: RewardConfig, batches: int, generator: torch.Generator) -> SequenceDraw:
    whole = reward.method == "rd"
    return store.draw_sequences(batches, reward.sequences, reward.rrd_sample_size, generator, whole)
