"""A part of a GPU: whether matrix products are right there.

NVIDIA's MPS can keep a process to some of a GPU's multiprocessors. With most parts of an H200 cuBLAS computes some
products wrongly, without an error (torch 2.11). What is learned from them is wrong, or not a number.
"""

import os
from collections.abc import Callable

import torch
from torch import Tensor

from ludus.errors import ConfigError

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_RIGHT_SHARES = "10, 14, 18, 25 and 50"  # of an H200, which has 132 multiprocessors
_TOLERANCE = 0.02  # of the largest number of a product

# Networks, outputs, inputs and rows of products that were wrong with one part or another.
_SHAPES = (
    *((1, 128, 512, 1024), (1, 512, 128, 1024), (1, 512, 128, 512), (1, 128, 512, 512), (1, 512, 1024, 128)),
    *((2, 256, 1024, 1024), (2, 1024, 256, 1024), (2, 256, 1024, 512), (2, 1024, 256, 512), (2, 1024, 1024, 256)),
)
Shape = tuple[int, int, int, int]


def check_products(device: torch.device) -> None:
    """A clear error where this process has a part of the GPU that makes products wrong."""
    share = os.environ.get(SHARE, "")
    if device.type != "cuda" or share in ("", "100") or not wrong_products(device):
        return
    count = torch.cuda.get_device_properties(device).multi_processor_count
    raise ConfigError(
        f"{SHARE}={share} leaves this process {count} multiprocessors, with which cuBLAS computes some matrix "
        f"products wrongly. On an H200 {_RIGHT_SHARES} are right: set one of them, or none."
    )


def wrong_products(
    device: torch.device, multiply: Callable[[Tensor, Tensor, Tensor], object] | None = None
) -> list[Shape]:
    """Which of some shapes come out wrong, by `multiply`(first factor, second factor, where the product goes)."""
    multiply, generator = multiply or _multiply, torch.Generator(device).manual_seed(0)

    def is_wrong(networks: int, outputs: int, inputs: int, rows: int) -> bool:
        def draw(*shape: int) -> Tensor:
            return torch.randn(networks, *shape, generator=generator, device=device).bfloat16()

        x = draw(inputs, rows)
        for weight in (draw(outputs, inputs), draw(inputs, outputs).transpose(1, 2)):
            found = torch.full((networks, outputs, rows), torch.nan, dtype=torch.bfloat16, device=device)
            multiply(weight, x, found)
            right = weight.double() @ x.double()
            if not (found - right).abs().amax() < _TOLERANCE * right.abs().amax():
                return True
        return False

    return [shape for shape in _SHAPES if is_wrong(*shape)]


def _multiply(first: Tensor, second: Tensor, product: Tensor) -> None:
    torch.bmm(first, second, out=product)
