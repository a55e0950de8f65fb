"""The hierarchy: options of a block, the H-ILP that merges them, expansion to a flat schedule."""
