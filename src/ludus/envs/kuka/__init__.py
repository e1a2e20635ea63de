"""A KUKA iiwa picks a cube up and places it on a pad."""
