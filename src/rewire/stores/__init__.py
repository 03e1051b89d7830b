"""How weights are stored: masked (a dense tensor and a mask) or packed (non-zeros only)."""
