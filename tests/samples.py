"""Documents that several tests read or damage."""

from __future__ import annotations

from typing import Any

#: Three ops in the node-link form of the Moccasin data, listed out of order.
NODE_LINK: dict[str, Any] = {
    "directed": True,
    "multigraph": False,
    "graph": {},
    "nodes": [
        {"id": 5, "name": "conv", "cost_cpu": 3, "cost_ram": 100, "backward": False},
        {"id": 9, "name": "grad", "cost_cpu": 4.5, "cost_ram": 50.0, "backward": True},
        {"id": 7, "name": "relu", "cost_cpu": 1, "cost_ram": 100, "backward": False},
    ],
    "links": [{"source": 5, "target": 7}, {"source": 7, "target": 9}, {"source": 5, "target": 9}],
}
