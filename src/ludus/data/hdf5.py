"""The package h5py, asked for only when recorded data is."""

import importlib
from typing import Any

from ludus.errors import DataError


def h5py_module() -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError as error:
        raise DataError("Recorded data needs the package h5py: `pip install 'ludus[data]'`.") from error
