"""SAC, TD3 and DQN: learning from a replay."""
