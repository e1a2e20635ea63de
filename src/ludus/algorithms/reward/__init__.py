"""Return decomposition: a reward for every step, from one return for every episode."""
