"""Distillation: an iteration is a rollout of the student and the batches that its teacher's advice makes of it."""

from typing import Any

import torch
from torch import Tensor

from ludus.algorithms.distill.config import DistillConfig, DistillTrainConfig
from ludus.algorithms.distill.update import Advice, Distiller
from ludus.algorithms.on_policy.job import OnPolicyJob
from ludus.buffers.schedule import SegmentSchedule
from ludus.config_files import load_shared_config
from ludus.envs.row_space import RowSpace
from ludus.envs.vec import VecEnv
from ludus.errors import CheckpointError, ConfigError, TrustError
from ludus.policies.actor_critic import ActorCritic
from ludus.policies.factory import find_signed_network
from ludus.policies.heads import BoxHead
from ludus.policies.policy import MakeNetwork, Policy
from ludus.training.address import find_checkpoint, read_address
from ludus.training.checkpoint import load_policy
from ludus.training.run_folder import CONFIG
from ludus.trust import require_trust


class DistillJob(OnPolicyJob):
    """Learns from each rollout once, by what the teacher would have done in it."""

    config: DistillTrainConfig

    def __init__(self, config: DistillTrainConfig, device: torch.device) -> None:
        self._teacher = load_teacher(config.distill.teacher).to(device)
        super().__init__(config, device)

    def _make_learner(self, groups: list[VecEnv], schedule: SegmentSchedule) -> Distiller:
        config = self.config
        advice = make_advice(self._teacher, self.policy, groups[0], config.distill)
        return Distiller(self.policy, advice, config.distill, schedule, config.seed, config.cuda_graphs)

    def lines(self) -> list[str]:
        part = self.config.distill.teacher_part
        sees = f", which sees {part}" if part else ""
        return [*super().lines(), f"taught by {self.config.distill.teacher}{sees}"]


def load_teacher(run: str) -> Policy:
    """The best policy of a run, or that of the checkpoint it names (RUN@100000).

    Code of its own is imported only if this user trained it on this machine.
    """
    if not run:
        raise ConfigError("Say who teaches: --distill.teacher RUN, the folder of a trained run.")
    try:
        address = read_address(run)
        folder, checkpoint = address.folder, find_checkpoint(address)
    except CheckpointError as error:
        raise CheckpointError(f"The teacher cannot be loaded: {error}") from error

    def find(name: str, kwargs: dict[str, Any]) -> MakeNetwork:
        config = load_shared_config(folder / CONFIG)
        try:
            require_trust(config, folder, False)
        except TrustError as error:
            reason = str(error).partition(" Code from")[0]
            raise TrustError(
                f"The teacher {reason} A teacher with code of its own must be your own run."
            ) from error
        return find_signed_network(config.policy, name, kwargs)

    teacher = load_policy(checkpoint, find)
    if teacher.recurrent:
        raise ConfigError(f"The teacher {run} has a memory; one is needed that acts on what it sees now.")
    return teacher.eval()


def make_advice(teacher: Policy, student: ActorCritic, env: VecEnv, config: DistillConfig) -> Advice:
    """What the teacher would do, as the student stores actions."""
    part = _part_for(teacher, env, config)
    if teacher.action_space != student.action_space:
        raise ConfigError(
            f"The teacher acts in {teacher.action_space}, and {env.name} in {student.action_space}: they must be "
            "the same."
        )
    empty = torch.zeros((0, 0), device=student.device)

    def advice(obs: Tensor) -> Tensor:
        seen = obs if part is None else _numbers(env.obs_space, obs, part)
        params, _ = teacher.params_of(teacher.prepare(seen), empty)
        action = teacher.head.mode(params)
        if isinstance(student.head, BoxHead):  # the units of heads differ: SAC's are squashed
            return student.head.from_env(teacher.head.to_env(action))
        return action

    return advice


def _part_for(teacher: Policy, env: VecEnv, config: DistillConfig) -> str | None:
    space, name = env.obs_space, config.teacher_part
    if name:
        known = {part.name: part for part in space.parts} if isinstance(space, RowSpace) else {}
        if name not in known:
            there = ", ".join(known) or "none: they are one row of numbers"
            raise ConfigError(f"--distill.teacher-part {name}: the parts of an observation are {there}.")
        shape: tuple[int, ...] = known[name].shape
    else:
        shape = tuple(space.shape)
    if shape != tuple(teacher.obs_space.shape):
        what = f"the part {name}" if name else "what is observed"
        raise ConfigError(
            f"The teacher sees {tuple(teacher.obs_space.shape)}, and {what} is {shape}. Name the part it was "
            "trained on with --distill.teacher-part."
        )
    return name or None


def _numbers(space: object, obs: Tensor, name: str) -> Tensor:
    assert isinstance(space, RowSpace)
    return space.split(obs)[name]
