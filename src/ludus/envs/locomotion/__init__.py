"""HalfCheetah, Hopper, Walker2d, Ant and Humanoid: Gymnasium's v5 environments on the batched simulator."""

from ludus.envs.locomotion.task import TASKS, LocomotionConfig, LocomotionTask, make_locomotion

__all__ = ["TASKS", "LocomotionConfig", "LocomotionTask", "make_locomotion"]
