"""A humanoid that imitates motion: its body, clips of motion, and the task of following them."""
