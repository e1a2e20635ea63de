"""Gymnasium environments (and PettingZoo's) as rows of a batch, in this process or in workers."""
