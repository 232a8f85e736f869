"""Classes of like names: hosts, and what comes after the host in ``host-a:mlx5_1``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.analyses.records import Label


def name_classes(labels: Sequence[Label], hosts: Mapping[Label, str]) -> list[dict[Label, str]]:
    """Ways to tell classes apart: the NIC's own name on several hosts, and the host.

    Parameters
    ----------
    labels : sequence
        All labels.
    hosts : mapping
        Host of each label, where known.
    """
    found: list[dict[Label, str]] = []
    parts = {name: name.rpartition(":") for name in labels if isinstance(name, str) and ":" in name}
    if len(parts) == len(labels) and labels:
        found.append({name: part[2].strip() for name, part in parts.items()})
        hosts = hosts or {name: part[0] for name, part in parts.items()}
    if len(hosts) == len(labels):
        found.append(dict(hosts))
    return found
