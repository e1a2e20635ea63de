"""Bodies: robots that imitate motion, each an MJCF file and a short TOML file beside it."""

from ludus.envs.bodies.body import Body, find_body

__all__ = ["Body", "find_body"]
