"""The data sets: each file registers one."""
