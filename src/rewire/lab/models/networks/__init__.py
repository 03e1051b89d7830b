"""The networks: each file registers its own."""
