"""Ludus: one reinforcement-learning training system, from two CPU cores to a GPU.

import ludus
run = ludus.train("kuka-pick-place")
policy = ludus.load(run)
action = policy.act(obs, deterministic=True)
"""

__version__ = "0.1.0"

from ludus import nn
from ludus.algorithms.registry import Algorithm, register_algorithm
from ludus.envs.registration import register_environments
from ludus.runs import load, make_env, resume, train
from ludus.training.callbacks import Callback

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
