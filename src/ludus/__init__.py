"""Ludus: one reinforcement-learning training system, from two CPU cores to a GPU.

import ludus
run = ludus.train("kuka-pick-place")
policy = ludus.load(run)
action = policy.act(obs, deterministic=True)
"""

from ludus import nn
from ludus.algorithms.registry import Algorithm, register_algorithm
from ludus.envs.registration import register_environments
from ludus.runs import make_env, resume, train
from ludus.saved_run import load
from ludus.training.callbacks import Callback
from ludus.version import __version__

register_environments()

__all__ = [
    "Algorithm",
    "Callback",
    "__version__",
    "load",
    "make_env",
    "nn",
    "register_algorithm",
    "resume",
    "train",
]
