"""The list of slow tests names tests that exist: one that was renamed would be run, or left out, unnoticed."""

import pytest

from conftest import MISSING


def test_every_slow_test_exists(request: pytest.FixtureRequest) -> None:
    """Each case of each test, in the files that were collected."""
    assert request.config.stash[MISSING] == []
