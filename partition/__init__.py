"""Partitions of a graph into convex blocks, forward parts paired with backward parts."""
