"""Callbacks for other trainers, one module each. The library never imports them."""
