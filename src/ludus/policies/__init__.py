"""Networks: normaliser → encoder → (memory) → heads."""
