"""Encoders and augmentation of images."""

import numpy as np
import pytest
import torch

from ludus.errors import ConfigError
from ludus.policies.vision import (
    ConvEncoder,
    FrozenEncoder,
    draw_shifts,
    make_encoder,
    shift_images,
    to_float,
    where_and_how_much,
)


def images(n: int, h: int, w: int, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, h, w, 3), generator=g, dtype=torch.uint8)


@pytest.mark.parametrize("size", [(24, 24), (48, 48), (48, 64), (84, 84), (96, 128), (128, 128)])
@pytest.mark.parametrize("kind", ["conv", "frozen"])
def test_encoders_take_every_usual_size(kind: str, size: tuple[int, int]) -> None:
    encoder = make_encoder(kind, (*size, 3), 40, seed=1)  # type: ignore[arg-type]
    with torch.no_grad():
        features = encoder(images(5, *size))
    assert features.shape == (5, 40)
    assert features.dtype == torch.float32
    assert features.isfinite().all()
    assert (features[0] - features[1]).abs().max() > 1e-4
    assert sum(p.numel() for p in encoder.parameters()) < 300_000


def test_an_image_is_refused_where_it_is_none() -> None:
    for shape in ((48, 48), (48, 48, 1), (3, 48, 48), (8, 48, 3)):
        with pytest.raises(ConfigError, match="an image is"):
            ConvEncoder(shape, 8)


def test_float_images_are_channels_last_and_between_minus_one_and_one() -> None:
    x = images(3, 20, 24)
    out = to_float(x)
    assert out.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(out.permute(0, 2, 3, 1), x.numpy() / 127.5 - 1, atol=1e-6)


def test_places_are_where_the_channel_responds() -> None:
    maps = torch.zeros(1, 2, 9, 13)
    maps[0, 0, 2, 10] = maps[0, 1, 8, 0] = 50.0
    features = where_and_how_much(maps)[0]
    grid_x, grid_y = np.linspace(-1, 1, 13), np.linspace(-1, 1, 9)
    np.testing.assert_allclose(features[:2], [grid_x[10], grid_x[0]], atol=1e-4)
    np.testing.assert_allclose(features[2:4], [grid_y[2], grid_y[8]], atol=1e-4)
    np.testing.assert_allclose(features[4:], [50 / 117] * 2, atol=1e-5)


def test_a_frozen_encoder_is_its_seed() -> None:
    x = images(4, 48, 48)
    a, b, c = (FrozenEncoder((48, 48, 3), 64, seed)(x) for seed in (3, 3, 4))
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)
    assert not list(FrozenEncoder((48, 48, 3), 64, 3).parameters())
    assert not a.requires_grad


def test_frozen_features_follow_what_moves() -> None:
    """A square in front of a fixed background: its place can be read off linearly, on frames not fitted on."""
    g = torch.Generator().manual_seed(0)
    place = torch.randint(0, 56, (400, 2), generator=g)
    x = images(1, 64, 64).div(4, rounding_mode="floor").repeat(400, 1, 1, 1)
    for i, (row, column) in enumerate(place.tolist()):
        x[i, row : row + 8, column : column + 8] = torch.tensor([250, 40, 40], dtype=torch.uint8)
    features = FrozenEncoder((64, 64, 3), 64, 0)(x)
    inputs = torch.cat([features, torch.ones(400, 1)], 1).double()
    fit = torch.linalg.lstsq(inputs[:300], place[:300].double()).solution
    error = (inputs[300:] @ fit - place[300:]).square().mean(0)
    assert (1 - error / place[300:].double().var(0) > 0.9).all()


@pytest.mark.parametrize("pixels", [0, 1, 4])
def test_shifts_equal_padding_and_cropping(pixels: int) -> None:
    x, g = images(30, 17, 23), torch.Generator().manual_seed(1)
    shifts = draw_shifts(30, pixels, g)
    shifted = shift_images(x, shifts, pixels)
    padded = np.pad(x.numpy(), ((0, 0), (pixels, pixels), (pixels, pixels), (0, 0)), mode="edge")
    for i, (down, right) in enumerate(shifts.tolist()):
        crop = padded[i, pixels - down : pixels - down + 17, pixels - right : pixels - right + 23]
        np.testing.assert_array_equal(shifted[i], crop)
    assert set(shifts.flatten().tolist()) == set(range(-pixels, pixels + 1))
