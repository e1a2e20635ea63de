"""Distillation: a trained policy teaches one that sees less."""
