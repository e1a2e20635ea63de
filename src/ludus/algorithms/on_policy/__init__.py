"""What algorithms that learn from rollouts share: the rollout, its segments and the job around them."""
