"""Flat solvers behind one interface; `hremate.solvers.registry` lists them."""
