"""The version, for whoever must name it without importing all of Ludus."""

__version__ = "0.1.0"
