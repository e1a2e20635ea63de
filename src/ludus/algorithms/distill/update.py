"""Distillation: a policy that sees less learns to act as a trained one does (DAgger, Ross et al. 2011).

The student acts, the teacher says what it would have done, and the student makes that more likely:

    loss = −mean log π_student(a_teacher | what the student saw)

So the student is taught in the states that its own mistakes lead to.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ludus import ranks
from ludus.algorithms.distill.config import DistillConfig
from ludus.algorithms.on_policy.config import count_minibatches
from ludus.algorithms.on_policy.update_data import UpdateData
from ludus.algorithms.optimizer import FlatAdam
from ludus.buffers.schedule import SegmentSchedule
from ludus.buffers.segments import Segments
from ludus.envs.vec import State, derive_seed, restore_generator
from ludus.graphs import Graphed, graph_pool
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.heads import MASKED_LOGIT
from ludus.training.job import OnBatch

Advice = Callable[[Tensor], Tensor]  # observations → what the teacher would do, as the student stores actions


class Distiller:
    """Updates a student from its own rollouts and its teacher's advice."""

    def __init__(
        self,
        policy: ActorCritic,
        advice: Advice,
        config: DistillConfig,
        schedule: SegmentSchedule,
        seed: int,
        cuda_graphs: bool = True,
    ) -> None:
        count_minibatches(config, schedule, policy.recurrent, "distill")
        self.policy, self.config, self._advice = policy, config, advice
        device = policy.device
        self.optimizer = FlatAdam(policy.parameters(), config.max_grad_norm)
        self.generator = torch.Generator(device=device).manual_seed(derive_seed(seed, *ranks.own_stream(2)))
        self.rate_factor = 1.0
        self._rate = torch.zeros((), device=device)
        self._totals = torch.zeros(2, device=device)  # loss and norm of the gradient, of the last pass
        self._data = UpdateData(policy, schedule)
        self._units = schedule.segments if policy.recurrent else schedule.segments * schedule.horizon
        self._ids = torch.zeros(self._units // config.minibatches, dtype=torch.int64, device=device)
        graphed = partial(Graphed, device=device, enabled=cuda_graphs, pool=graph_pool(device))
        self._train = graphed(self._train_on_part)

    @torch.inference_mode()
    def update(
        self, segments: Segments, progress: float, on_batch: OnBatch = lambda batch: None
    ) -> dict[str, Tensor]:
        """Improve the student on one rollout; `progress` (0 to 1) is how much of the training is done."""
        config, data = self.config, self._data
        rate = config.learning_rate + (config.learning_rate_final - config.learning_rate) * progress
        self._rate.fill_(rate * self.rate_factor)
        data.load(segments)
        data.gather(None)
        told = torch.cat([self._advice(obs) for obs in data.observations()])
        data.steps[:, : self.policy.head.action_size] = told
        self.optimizer.skipped.zero_()
        for epoch in range(config.update_epochs):
            self._totals.zero_()
            order = torch.randperm(self._units, generator=self.generator, device=self.policy.device)
            for batch, ids in enumerate(order.chunk(config.minibatches), epoch * config.minibatches + 1):
                self._ids.copy_(ids)
                self._train()
                on_batch(batch)
        self.policy.head.limit_std(torch.inf)
        self.policy.learn_scales(data.observations_of_agents())
        loss, norm = (self._totals / config.minibatches).unbind()
        metrics = {"train/imitation_loss": loss, "train/grad_norm": norm}
        spread = self.policy.head.spread()
        metrics |= {} if spread is None else {"train/std": spread.mean()}
        metrics["train/learning_rate"] = torch.tensor(rate * self.rate_factor, dtype=torch.float64)
        return metrics | {"train/skipped_updates": self.optimizer.skipped.clone()}

    def _train_on_part(self) -> None:
        """One gradient step."""
        data, policy, head = self._data, self.policy, self.policy.head
        state, keep, steps = data.state, None, self._ids
        if policy.recurrent:
            steps = data.steps_of(self._ids)
            state, keep = data.state.index_select(0, self._ids), data.keep.index_select(1, self._ids)
        rows = data.steps.index_select(0, steps)
        share: float | Tensor = 1.0 / len(rows)
        agents: float | Tensor = 1.0  # this minibatch's weight among those of all ranks
        if not data.all_present:
            agents = rows[:, -1].sum()
            share = rows[:, -1] / agents.clamp(min=1.0)
        done = policy.forward_pass(data.inputs(steps), state, keep)
        log_prob, saved = head.score(done.params, rows[:, : head.action_size])
        weight = torch.full_like(log_prob, -1.0).mul_(share)
        if policy.mask is not None:  # a teacher that does not see the mask may advise what is not valid
            weight.masked_fill_(log_prob < MASKED_LOGIT / 2, 0.0)
        gradient = head.seed_gradient(saved, weight, share, None)
        policy.backward(done, gradient, torch.zeros_like(done.value))
        loss = self.optimizer.average((log_prob * weight).sum()[None], agents)
        assert loss is not None
        self._totals += torch.cat([loss, self.optimizer.step(self._rate)[None]])

    def state(self) -> State:
        return {
            "optimizer": self.optimizer.state(),
            "generator": self.generator.get_state(),
            "rate_factor": self.rate_factor,
        }

    def load_state(self, state: State) -> None:
        self.optimizer.load_state(state["optimizer"])
        restore_generator(self.generator, state["generator"])
        self.rate_factor = state["rate_factor"]
