"""Where a run computes, with how many threads and how exactly."""

import torch

from ludus import ranks
from ludus.config import TrainConfig
from ludus.errors import ConfigError
from ludus.training.gpu_ranks import join_gpus
from ludus.training.shared_gpu import check_products

PRECISIONS = {"float32": "highest", "tf32": "high", "bfloat16": "medium"}


def prepare_device(config: TrainConfig) -> torch.device:
    """The device of a run, with torch set as its configuration says."""
    device = find_device(config.device)
    torch.set_num_threads(config.torch_threads)
    torch.set_float32_matmul_precision(PRECISIONS[config.precision])
    check_products(device)
    join_gpus(device)
    return device


def find_device(name: str) -> torch.device:
    """Of this rank: with "cuda" the ranks of a machine take its GPUs in turn, with "cuda:1" all take that one."""
    try:
        if name == "cuda" and not ranks.is_alone():
            name = f"cuda:{ranks.local_rank() % max(1, torch.cuda.device_count())}"
        device = torch.zeros(1, device=name).device
        if device.type == "cuda":
            torch.cuda.set_device(device)  # streams, graphs and kernels go to the present one
        return device
    except (RuntimeError, AssertionError) as error:  # torch built without CUDA asserts
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--device {name} cannot be used here: {reason}; 'ludus doctor' shows what can."
        ) from error
