"""Products are held against exact ones where a process has only a part of a GPU."""

import pytest
import torch
from torch import Tensor

from ludus.errors import ConfigError
from ludus.training import shared_gpu

CPU = torch.device("cpu")
SHAPES = ((1, 64, 96, 80), (2, 48, 64, 96))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_gpu, "_SHAPES", SHAPES)


def multiply_all_but_a_corner(first: Tensor, second: Tensor, product: Tensor) -> None:
    whole = first @ second
    product[:, 32:] = whole[:, 32:]
    product[:, :32, 64:] = whole[:, :32, 64:]


def multiply_only_plain(first: Tensor, second: Tensor, product: Tensor) -> None:
    torch.bmm(first, second, out=product)
    if not first.is_contiguous():
        product[0, 5, 7] += 100.0


def test_right_products_are_found_right() -> None:
    assert shared_gpu.wrong_products(CPU) == []


def test_products_of_which_a_corner_is_not_written_are_found() -> None:
    assert shared_gpu.wrong_products(CPU, multiply_all_but_a_corner) == list(SHAPES)


def test_products_that_are_wrong_in_one_layout_alone_are_found() -> None:
    assert shared_gpu.wrong_products(CPU, multiply_only_plain) == list(SHAPES)


def test_without_a_part_of_a_gpu_nothing_is_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_gpu, "wrong_products", lambda device: pytest.fail("it was"))
    cuda = torch.device("cuda")
    for share in (None, "", "100"):
        if share is None:
            monkeypatch.delenv(shared_gpu.SHARE, raising=False)
        else:
            monkeypatch.setenv(shared_gpu.SHARE, share)
        shared_gpu.check_products(cuda)
    monkeypatch.setenv(shared_gpu.SHARE, "34")
    shared_gpu.check_products(CPU)


def test_the_error_names_the_shares_that_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        multi_processor_count = 44

    monkeypatch.setenv(shared_gpu.SHARE, "34")
    monkeypatch.setattr(shared_gpu, "wrong_products", lambda device: [(1, 128, 512, 1024)])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    with pytest.raises(ConfigError, match=r"=34 leaves this process 44 .* 10, 14, 18, 25 and 50 are right"):
        shared_gpu.check_products(torch.device("cuda"))
