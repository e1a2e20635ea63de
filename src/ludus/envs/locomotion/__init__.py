"""HalfCheetah, Hopper, Walker2d, Ant and Humanoid: Gymnasium's v5 environments on the batched simulator."""
