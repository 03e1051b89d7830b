"""Callbacks for other trainers, one module per trainer. Nothing else in the library imports them."""
