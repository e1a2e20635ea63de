"""Proximal policy optimisation (Schulman et al. 2017)."""
