"""Observations and actions with parts, as rows: what goes in comes out, bit for bit."""

import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from ludus.envs.gym.spaces import adapt_spaces
from ludus.envs.random_actions import made_valid, random_actions
from ludus.envs.row_space import MASK, ActionRow, RowSpace, choice_slices, is_image
from ludus.errors import ConfigError, LudusError
from ludus.policies.reader import Reader, channels_first_shape
from ludus.policies.spaces import describe_space, space_from

IMAGE = spaces.Box(0, 255, (9, 10, 3), np.uint8)
VECTOR = spaces.Box(-np.inf, np.inf, (3, 2), np.float64)
NUMBERS = spaces.Dict({"pose": VECTOR, "kind": spaces.Discrete(4), "more": spaces.Tuple([spaces.MultiBinary(3)])})
MIXED = spaces.Dict({"camera": IMAGE, "pose": VECTOR, MASK: spaces.MultiBinary(5), "wrist": IMAGE, "x": NUMBERS})
ACTION = spaces.Dict(
    {
        "grip": spaces.Discrete(3, start=-1),
        "arm": spaces.Box(-2.0, 4.0, (2, 2), np.float64),
        "tools": spaces.Tuple(
            [
                spaces.MultiBinary(2),
                spaces.MultiDiscrete(np.array([[2, 3], [4, 5]]), start=np.array([[1, 1], [0, 7]])),
            ]
        ),
        "gear": spaces.Box(0, 5, (1,), np.int64),
    }
)


def leaf(tree: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def test_numbers_alone_are_gymnasiums_flat_row() -> None:
    row = RowSpace(NUMBERS)
    assert not row.packed
    flat: Any = spaces.flatten_space(NUMBERS)
    np.testing.assert_array_equal(row.low, flat.low.astype(np.float32))
    np.testing.assert_array_equal(row.high, flat.high.astype(np.float32))
    NUMBERS.seed(0)
    for _ in range(20):
        obs = NUMBERS.sample()
        np.testing.assert_array_equal(row.to_row(obs), np.asarray(spaces.flatten(NUMBERS, obs)).astype(np.float32))


@pytest.mark.parametrize(("value", "error"), [(3, ValueError), (-2, ValueError), (0.5, TypeError)])
def test_a_choice_that_is_not_there_is_refused(value: float, error: type[Exception]) -> None:
    row = RowSpace(spaces.Dict({"kind": spaces.Discrete(3, start=-1), "pose": VECTOR}))
    for there in (1, np.int64(1), np.array([1])):
        assert row.to_row({"kind": there, "pose": np.zeros((3, 2))}).tolist() == [0, 0, 1, *[0] * 6]
    with pytest.raises(error):
        row.to_row({"kind": value, "pose": np.zeros((3, 2))})


def test_every_part_comes_out_of_a_row_of_bytes_as_it_went_in() -> None:
    row = RowSpace(MIXED)
    assert row.packed
    assert row.dtype == np.uint8
    assert row.shape[0] % 16 == 0
    assert [part.name for part in row.parts][-3:] == ["camera", "wrist", MASK]
    MIXED.seed(0)
    batch = [MIXED.sample() for _ in range(7)]
    rows = torch.from_numpy(np.stack([row.to_row(obs) for obs in batch]))
    for part in row.parts:
        assert part.start % (4 if part.kind == "vector" else 16) == 0
        values = row.part_of(rows, part)
        assert values.untyped_storage().data_ptr() == rows.untyped_storage().data_ptr(), "a copy was made"
        for obs, value in zip(batch, values, strict=True):
            raw = leaf(obs, part.path)
            wanted = raw if part.kind == "image" else np.asarray(spaces.flatten(part.space, raw))
            np.testing.assert_array_equal(value.numpy(), wanted.astype(value.numpy().dtype))


def test_a_batch_of_observations_is_told_from_a_single_one() -> None:
    row = RowSpace(MIXED)
    one, two = MIXED.sample(), MIXED.sample()
    names = [part.name for part in row.parts]

    def both(a: Any, b: Any) -> Any:
        if isinstance(a, dict):
            return {key: both(a[key], b[key]) for key in a}
        return tuple(map(both, a, b)) if isinstance(a, tuple) else np.stack([a, b])

    rows, single = row.pack(both(one, two), names)
    assert not single
    np.testing.assert_array_equal(rows, [row.to_row(one), row.to_row(two)])
    assert row.pack(one, names)[1]


def test_parts_that_nobody_needs_may_be_left_out() -> None:
    row, obs = RowSpace(MIXED), MIXED.sample()
    less = {name: value for name, value in obs.items() if name != "wrist"}
    rows, single = row.pack(less, ["camera", "pose"])
    assert single
    parts = row.split(torch.from_numpy(rows))
    assert not parts["wrist"].any()
    assert (parts["camera"].numpy() == obs["camera"]).all()
    with pytest.raises(KeyError):
        row.pack(less, ["wrist"])


@pytest.mark.parametrize(
    "space", [RowSpace(MIXED), RowSpace(MIXED, masks=False), RowSpace(NUMBERS), ActionRow(ACTION)]
)
def test_a_space_comes_back_from_its_description(space: Any) -> None:
    again = space_from(json.loads(json.dumps(describe_space(space))))
    assert type(again) is type(space)
    assert again == space
    assert again.raw == space.raw
    if isinstance(space, RowSpace):
        assert again.parts == space.parts


@pytest.mark.parametrize(
    "description",
    [
        {"kind": "Box", "shape": [2**40], "dtype": "uint8", "low": ["0"], "high": ["1"]},
        {"kind": "MultiBinary", "n": [2**20, 2**20]},
        {"kind": "Discrete", "n": 2**40, "start": 0},
    ],
)
def test_a_strangers_space_may_not_be_huge(description: Any) -> None:
    with pytest.raises(LudusError, match="too large; up to 16,777,216 are known"):
        space_from({"kind": "RowSpace", "masks": True, "raw": {"kind": "Dict", "spaces": [["a", description]]}})


def test_spaces_within_spaces_have_an_end() -> None:
    description: Any = {"kind": "Discrete", "n": 2, "start": 0}
    for _ in range(40):
        description = {"kind": "Tuple", "spaces": [description]}
    with pytest.raises(LudusError, match="more than 16 spaces within each other"):
        space_from(description)


# Images -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "channels_first"),
    [
        ((9, 10, 3), (3, 9, 10)),
        ((3, 9, 10), (3, 9, 10)),
        ((4, 84, 84), (4, 84, 84)),
        ((4, 96, 90, 3), (12, 96, 90)),
    ],
)
def test_images_are_seen_channels_first_and_frames_as_channels(
    shape: tuple[int, ...], channels_first: Any
) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    assert is_image(space)
    assert channels_first_shape(shape) == channels_first
    image = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    seen = Reader(space).for_module(image)
    assert isinstance(seen, Tensor)
    assert seen.shape == (2, *channels_first)
    frame = (image[:, -1] if len(shape) == 4 else image).float() / 255
    last = frame.movedim(-1, 1) if shape[-1] == 3 else frame
    torch.testing.assert_close(seen[:, -last.shape[1] :], last)


def test_flags_on_a_grid_are_an_image_of_zeros_and_ones() -> None:
    space = adapt_spaces(spaces.Box(0, 1, (10, 10, 4), np.bool_), spaces.Discrete(2), "grid").obs
    assert space.dtype == np.uint8
    seen = Reader(space).for_module(torch.ones(1, 10, 10, 4, dtype=torch.uint8))
    assert isinstance(seen, Tensor)
    assert seen.unique().tolist() == [1.0]


def test_a_table_of_bytes_is_no_image() -> None:
    assert not is_image(spaces.Box(0, 255, (200, 3), np.uint8))
    assert not is_image(spaces.Box(0, 255, (4, 5, 3), np.uint8))


# Actions ----------------------------------------------------------------------------------------------
def test_a_row_of_a_mixed_action_is_one_that_the_environment_takes() -> None:
    row = ActionRow(ACTION)
    drawn = random_actions(row, (200,), torch.Generator().manual_seed(0))
    for action in drawn.numpy():
        assert ACTION.contains(row.to_raw(action))
    everything = [row.to_raw(action) for action in drawn.numpy()]
    assert {int(action["grip"]) for action in everything} == {-1, 0, 1}
    assert {int(action["tools"][1][1, 1]) for action in everything} == {7, 8, 9, 10, 11}


def test_a_drawn_action_becomes_the_next_valid_one() -> None:
    raw = spaces.Dict({"x": spaces.Box(-1, 1, (2,)), MASK: spaces.MultiBinary(sum([3, 2, 2, 2, 3, 4, 5]))})
    obs_space, action_space = RowSpace(raw), ActionRow(ACTION)
    generator = torch.Generator().manual_seed(0)
    action = random_actions(action_space, (500,), generator)
    mask = (torch.rand((500, 21), generator=generator) < 0.4).float()
    for choice in choice_slices(action_space):
        mask[:, choice.start] = 1.0
    rows = torch.cat([torch.zeros(500, 2), mask], 1)
    valid = made_valid(action, rows, obs_space, action_space)
    for taken, allowed in zip(valid.numpy(), mask, strict=True):
        made = action_space.to_raw(taken)
        tools, numbers = made["tools"]
        chosen = [made["grip"] + 1, *tools, *(numbers.reshape(-1) - np.array([1, 1, 0, 7]))]
        assert all(allowed[part][int(n)] for part, n in zip(choice_slices(action_space), chosen, strict=True))


def test_a_space_that_is_no_set_of_numbers_is_refused() -> None:
    text = spaces.Dict({"say": spaces.Text(5), "go": spaces.Discrete(2)})
    with pytest.raises(ConfigError, match="Ludus can act in Box, Discrete, MultiDiscrete and MultiBinary"):
        adapt_spaces(VECTOR, text, "talker")
    graph: gym.Space = spaces.Dict({"net": spaces.Graph(spaces.Box(0, 1), None)})
    with pytest.raises(ConfigError, match="no fixed set of numbers"):
        adapt_spaces(graph, spaces.Discrete(2), "netter")


# Odd spaces -------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({}), "nothing to see"),
        (spaces.Tuple(()), "nothing to see"),
        (spaces.Dict({MASK: spaces.MultiBinary(2)}), "nothing to see"),
        (spaces.Dict({"a.b": VECTOR, "a": spaces.Dict({"b": VECTOR})}), "two parts of one name"),
        (spaces.Dict({("a", 1): VECTOR}), "must be text"),  # type: ignore[dict-item]
    ],
)
def test_a_space_that_cannot_be_seen_is_refused_in_a_sentence(space: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        adapt_spaces(space, spaces.Discrete(2), "odd")


def test_empty_parts_single_numbers_and_texts_are_seen_and_described() -> None:
    raw = spaces.Dict(
        {
            "empty": spaces.Box(0, 1, (0,)),
            "one": spaces.Box(0, 1, ()),
            "say": spaces.Text(3),
            "v": spaces.Box(0, 1, (2,)),
        }
    )
    row = RowSpace(raw)
    raw.seed(0)
    obs = raw.sample()
    np.testing.assert_array_equal(row.to_row(obs), np.asarray(spaces.flatten(raw, obs)).astype(np.float32))
    again = space_from(json.loads(json.dumps(describe_space(row))))
    assert again.shape == row.shape


def test_images_of_other_integers_are_stored_and_others_refused() -> None:
    row = RowSpace(spaces.Dict({"image": IMAGE}))
    image = np.full(IMAGE.shape, 200, np.int64)
    assert row.split(torch.from_numpy(row.to_row({"image": image})[None]))["image"].unique().tolist() == [200]
    for wrong in (image + 100, image / 255):
        with pytest.raises(ValueError, match="its space says uint8"):
            row.to_row({"image": wrong})


def test_spaces_of_the_same_size_but_other_parts_are_not_equal() -> None:
    one, other = (
        RowSpace(spaces.Dict({"x": spaces.Box(0, 1, (a,)), "y": spaces.Box(0, 1, (4 - a,))})) for a in (1, 3)
    )
    assert one != other
    action = ActionRow(spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(0, 1, (1,))}))
    assert action != spaces.Box(0, 1, (2,))


@pytest.mark.parametrize("shape", [(8, 8, 111), (9, 9, 20), (10, 10, 16)])
def test_many_channels_are_still_channels(shape: tuple[int, ...]) -> None:
    assert channels_first_shape(shape) == (shape[2], *shape[:2])
    assert channels_first_shape((shape[2], *shape[:2])) == (shape[2], *shape[:2])
