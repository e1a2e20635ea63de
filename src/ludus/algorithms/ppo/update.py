"""Proximal policy optimisation (Schulman et al. 2017) on segments.

    ratio_t = π(a_t|s_t) / π_old(a_t|s_t)
    loss = −mean min(ratio · A, clip(ratio, 1 ± ε) · A) + c_v · mean (V − R)² − c_e · mean entropy

The derivative of that loss with respect to the networks' outputs is short, so it is written out
(`loss.py`), and the policy takes it from there through its layers. Nothing inside an update waits
for a value from the device: stops and skips are flags that the optimiser reads there.
"""

import itertools
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ludus import ranks
from ludus.algorithms.on_policy.config import count_minibatches
from ludus.algorithms.on_policy.update_data import UpdateData, prioritized
from ludus.algorithms.optimizer import FlatAdam
from ludus.algorithms.ppo.config import PPOConfig
from ludus.algorithms.ppo.loss import KL, Batch, loss_gradient
from ludus.algorithms.return_scale import ReturnScale
from ludus.buffers.schedule import SegmentSchedule
from ludus.buffers.segments import Segments
from ludus.envs.vec import State, derive_seed, restore_generator
from ludus.graphs import Graphed, graph_pool
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.reader import Apart
from ludus.training.job import OnBatch

_SMALL = 2**16  # steps of a rollout of which copies may be made

_MEASURES = 6  # policy loss, value loss, entropy, KL, clip fraction, norm of the gradient


class PPO:
    """Updates a policy from rollouts.

    The tensors of an update are allocated once and stay in place, so that on a GPU its parts can be recorded as
    CUDA graphs; on a CPU the same methods are simply called.
    """

    def __init__(
        self,
        policy: ActorCritic,
        config: PPOConfig,
        schedule: SegmentSchedule,
        seed: int,
        cuda_graphs: bool = True,
    ) -> None:
        count_minibatches(config, schedule, policy.recurrent or config.prio_alpha > 0)
        self.policy, self.config, self.schedule = policy, config, schedule
        device = policy.device
        self.optimizer = FlatAdam(policy.parameters(), config.max_grad_norm)
        self.generator = torch.Generator(device=device).manual_seed(derive_seed(seed, *ranks.own_stream(2)))
        self._initial = self.optimizer.flat.clone() if config.l2_init > 0 else None
        self.returns = ReturnScale(device)
        self.rate_factor = 1.0  # moved by kl_control "adapt"
        self.stopped = torch.zeros((), device=device)  # 1 once the divergence limit was passed
        self._stops = config.target_kl > 0 and config.kl_control == "stop"
        self._asks = device.type == "cpu"  # free there; elsewhere the optimiser skips what is left
        self._over = torch.zeros((), dtype=torch.bool, device=device)  # it was passed before the present pass
        # What a schedule changes, where a recorded graph can read it.
        self._rate, self.entropy_coef = torch.zeros((), device=device), torch.zeros((), device=device)
        self._totals = torch.zeros(_MEASURES, device=device)
        self._by_segment = policy.recurrent or config.prio_alpha > 0
        self._data = UpdateData(policy, schedule)
        steps = schedule.segments * schedule.horizon
        self._units = schedule.segments if self._by_segment else steps  # what a pass deals out
        # A small rollout is put in a new order once a pass; parts of a large one are gathered one by one.
        small = steps <= _SMALL and not policy.has_images
        self._shuffles = not self._by_segment and small and device.type == "cpu"
        self._ids = torch.zeros(self._units // config.minibatches, dtype=torch.int64, device=device)
        self._weights = torch.ones(len(self._ids), device=device)
        # One large pass estimates anew; what is large, or has a memory, goes in the parts that also train it.
        parts = 1 if small and not policy.recurrent else config.minibatches
        self._refresh_ids = torch.zeros(self._units // parts, dtype=torch.int64, device=device)
        graphed = partial(Graphed, device=device, enabled=cuda_graphs, pool=graph_pool(device))
        self._gather = graphed(partial(self._data.gather, self.returns if config.normalize_returns else None))
        gae = (config.gamma, config.gae_lambda, config.rho_clip, config.c_clip, config.normalize_advantage)
        self._estimate = graphed(partial(self._data.estimate, *gae))
        self._refresh_part = graphed(self._refresh_part_of_data)
        self._train, self._train_quietly = (graphed(partial(self._train_on_part, m)) for m in (True, False))

    # One update ---------------------------------------------------------------------------------
    @torch.inference_mode()  # no bookkeeping for a tape that is never used: each call is a little cheaper
    def update(
        self, segments: Segments, progress: float, on_batch: OnBatch = lambda batch: None
    ) -> dict[str, Tensor]:
        """Improve the policy on one rollout; `progress` (0 to 1) is how much of the training is done."""
        config, batch = self.config, itertools.count(1)
        rate, entropy_coef = self.schedule_rates(progress)
        self._data.load(segments)
        self._gather()
        if not segments.judged:
            self._refresh()
            self._data.record_judgement()
        elif config.rho_clip > 0 and not self.schedule.aligned:  # an older policy began some of the segments
            self._refresh()
        self._estimate()
        summary = self._summary(rate, entropy_coef)
        self.stopped.zero_()
        self.optimizer.skipped.zero_()
        for epoch in range(config.update_epochs):
            if epoch and (config.recompute_advantages or config.rho_clip > 0):
                self._refresh()
                self._estimate()
            measured = epoch == config.update_epochs - 1 or config.target_kl > 0
            self._pass(progress, measured, lambda: on_batch(next(batch)))
            if self._asks and bool(self.stopped):
                break
        self._after(progress)
        return self._losses() | summary | self._after_summary()

    def _pass(self, progress: float, measured: bool, after_each: Callable[[], None]) -> None:
        """One gradient step on every part."""
        self._begin_measuring()
        parts = self._draw(progress)
        if self._shuffles:
            order = torch.cat([ids for ids, _ in parts])
            rows, inputs = self._data.steps.index_select(0, order), self._data.inputs(order)
            pieces: tuple[Tensor | Apart, ...] = inputs.chunk(len(parts))
            for some, x in zip(rows.chunk(len(parts)), pieces, strict=True):
                self.step(self._as_batch(some, x, self._data.state, None), measured)
                after_each()
            return
        train = self._train if measured else self._train_quietly
        for ids, weights in parts:
            self._ids.copy_(ids)
            if weights is not None:
                self._weights.copy_(weights)
            train()
            after_each()

    def _begin_measuring(self) -> None:
        """Anew in each pass, but what is measured stays that of the last pass in which anything was learned."""
        if self._stops:
            self._over.copy_(self.stopped > 0)
            self._totals.masked_fill_(~self._over, 0.0)
        else:
            self._totals.zero_()

    def _draw(self, progress: float) -> "list[tuple[Tensor, Tensor | None]]":
        """The parts of one pass: every step or segment exactly once, or segments by their priority."""
        config = self.config
        if config.prio_alpha == 0:
            order = torch.randperm(self._units, generator=self.generator, device=self.policy.device)
            return [(ids, None) for ids in order.chunk(config.minibatches)]
        beta = config.prio_beta + (1 - config.prio_beta) * progress
        ids, weights = prioritized(self._data.priority, self._units, config.prio_alpha, beta, self.generator)
        return list(zip(ids.chunk(config.minibatches), weights.chunk(config.minibatches), strict=True))

    def _train_on_part(self, measured: bool) -> None:
        self.step(self._batch(self._ids), measured)

    def _batch(self, ids: Tensor) -> Batch:
        data, recurrent = self._data, self.policy.recurrent
        steps = data.steps_of(ids) if self._by_segment else ids
        state = data.state.index_select(0, ids) if recurrent else data.state
        keep = data.keep.index_select(1, ids) if recurrent else None
        return self._as_batch(data.steps.index_select(0, steps), data.inputs(steps), state, keep)

    def _as_batch(self, rows: Tensor, x: Tensor | Apart, state: Tensor, keep: Tensor | None) -> Batch:
        """`rows` are those of `UpdateData.steps`."""
        size = self.policy.head.action_size
        old_log_prob, advantage, returns, old_value, present = rows[:, size:].unbind(1)
        if self.config.prio_alpha > 0:
            advantage = (advantage.view(-1, len(self._weights)) * self._weights).flatten()
        share: float | Tensor = 1.0 / len(rows)
        weight: float | Tensor = 1.0
        if not self._data.all_present:
            weight = present.sum()
            share = present / weight.clamp(min=1.0)
        return Batch(x, rows[:, :size], old_log_prob, advantage, returns, old_value, share, state, keep, weight)

    def step(self, batch: Batch, measured: bool) -> None:
        """One gradient step."""
        config = self.config
        done = self.policy.forward_pass(batch.x, batch.state, batch.keep)
        has_bonus = config.entropy_coef != 0 or config.entropy_coef_final != 0
        bonus, limits = (
            self.entropy_coef if has_bonus else None,
            (config.clip, config.value_clip, config.value_coef),
        )
        seed = loss_gradient(self.policy.head, done.params, done.value, batch, bonus, *limits, measured)
        if config.bound_coef > 0:
            outside = self.policy.head.bound_gradient(done.params, batch.share, config.bound_coef)
            if outside is not None:
                seed.params.add_(outside)
        self.policy.backward(done, seed.params, seed.value)
        means = self.optimizer.average(seed.means, batch.weight)
        if self._initial is not None:
            self.optimizer.grad.add_(self.optimizer.flat - self._initial, alpha=2 * config.l2_init)
        if means is not None and self._stops:
            torch.maximum(self.stopped, (means[KL] > 1.5 * config.target_kl).float(), out=self.stopped)
        norm = self.optimizer.step(self._rate, self.stopped if config.target_kl > 0 else None)
        if means is not None:
            measured_now = torch.cat([means, norm[None]])
            self._totals += measured_now.masked_fill_(self._over, 0.0) if self._stops else measured_now

    # Before the gradient steps ------------------------------------------------------------------
    def _refresh(self) -> None:
        """Values and the actions' probabilities from the newest policy."""
        data, policy = self._data, self.policy
        for ids in torch.arange(self._units, device=policy.device).split(len(self._refresh_ids)):
            self._refresh_ids.copy_(ids)
            self._refresh_part()
        if not policy.recurrent:
            data.last_value.copy_(policy.value_of(data.following_inputs(), data.state))

    def _refresh_part_of_data(self) -> None:
        data, policy, ids = self._data, self.policy, self._refresh_ids
        steps = data.steps_of(ids) if self._by_segment else ids
        if policy.recurrent:
            state, keep = data.state.index_select(0, ids), data.keep.index_select(1, ids)
            done = policy.forward_pass(data.inputs(steps), state, keep)
            assert done.trunk.last_state is not None
            params, value = done.params, done.value
            data.last_value[ids] = policy.value_of(data.following_inputs(ids), done.trunk.last_state)
        else:
            params, value, _ = policy.params_and_value_of(data.inputs(steps), data.state)
        action = data.steps.index_select(0, steps)[:, : policy.head.action_size]
        data.value.view(-1)[steps] = value
        data.log_prob.view(-1)[steps] = policy.head.log_prob(params, action)

    # Around the update --------------------------------------------------------------------------
    def schedule_rates(self, progress: float) -> tuple[float, float]:
        config = self.config
        rate = config.learning_rate + (config.learning_rate_final - config.learning_rate) * progress
        entropy = config.entropy_coef + (config.entropy_coef_final - config.entropy_coef) * progress
        self._rate.fill_(rate * self.rate_factor)
        self.entropy_coef.fill_(entropy)
        return rate * self.rate_factor, entropy

    def _after(self, progress: float) -> None:
        self.policy.head.limit_std(self._highest_std(progress))
        # After the update, so that learning sees the standardisation that acting saw.
        self.policy.learn_scales(self._data.observations_of_agents())

    def _highest_std(self, progress: float) -> float:
        """Closes geometrically."""
        begin, end = self.config.std_closing
        if not self.config.std_final or progress <= begin:
            return math.inf
        start = max(self.policy.config.initial_std, self.config.std_final)
        return start * (self.config.std_final / start) ** min(1.0, (progress - begin) / (end - begin))

    def _losses(self) -> dict[str, Tensor]:
        """Means over the last pass, named as in Stable-Baselines3, where the entropy is a loss, too."""
        policy, value, entropy, kl, clipped, norm = (self._totals / self.config.minibatches).unbind()
        return {
            "train/loss": policy + self.config.value_coef * value - self.entropy_coef * entropy,
            "train/policy_gradient_loss": policy,
            "train/value_loss": value,
            "train/entropy_loss": -entropy,
            "train/approx_kl": kl,
            "train/clip_fraction": clipped,
            "train/grad_norm": norm,
        }

    def _summary(self, rate: float, entropy_coef: float) -> dict[str, Tensor]:
        return {
            "train/explained_variance": self._data.explained_variance(),
            "train/learning_rate": torch.tensor(rate, dtype=torch.float64),
            "train/ent_coef": torch.tensor(entropy_coef, dtype=torch.float64),
        }

    def _after_summary(self) -> dict[str, Tensor]:
        summary = {"train/skipped_updates": self.optimizer.skipped.clone()}
        spread = self.policy.head.spread()
        if spread is not None:
            summary["train/std"] = spread.mean()
        return summary

    def adapt_rate(self, kl: float) -> None:
        """Between iterations: slow down when the policy moved too far, speed up when it hardly moved."""
        if self.config.target_kl > 0 and self.config.kl_control == "adapt" and math.isfinite(kl):
            if kl > 2 * self.config.target_kl:
                self.rate_factor = max(self.rate_factor / 1.5, 0.01)
            elif kl < 0.5 * self.config.target_kl:
                self.rate_factor = min(self.rate_factor * 1.5, 10.0)

    def state(self) -> State:
        return {
            "optimizer": self.optimizer.state(),
            "returns": self.returns.state(),
            "generator": self.generator.get_state(),
            "rate_factor": self.rate_factor,
            "initial": None if self._initial is None else self._initial.clone(),
        }

    def begin_with_new_weights(self) -> None:
        """What `l2_init` pulls towards."""
        if self._initial is not None:
            self._initial.copy_(self.optimizer.flat)

    def load_state(self, state: State) -> None:
        self.optimizer.load_state(state["optimizer"])
        self.returns.load_state(state["returns"])
        restore_generator(self.generator, state["generator"])
        self.rate_factor = state["rate_factor"]
        if self._initial is not None and state["initial"] is not None:
            self._initial.copy_(state["initial"])
