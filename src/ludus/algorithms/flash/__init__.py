"""FlashSAC (Holiday-Robot 2026): soft actor-critic that stays stable with large networks and few updates."""
