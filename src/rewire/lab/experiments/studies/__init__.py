"""The experiments: each file registers one, most of them a table or a figure of the paper."""
