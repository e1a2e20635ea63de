"""Adversarial imitation: PPO that a discriminator pays for moving as demonstrated."""
