"""The five axes of a method, one file each: start, drop, allocate, grow, schedule. No part imports another."""
