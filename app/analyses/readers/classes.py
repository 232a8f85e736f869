"""Classes of like names, and hosts, from names such as ``host-a:mlx5_1``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.analyses.records import Label


def nic_classes(labels: Sequence[Label]) -> list[dict[Label, str]]:
    """The same NIC of each host is a class of its own, if all names are of hosts and NICs."""
    parts = _parts(labels)
    return [{name: nic for name, (_, nic) in parts.items()}] if parts else []


def hosts_of(labels: Sequence[Label], placement: Mapping[Label, str]) -> dict[Label, str] | None:
    """Host of each label: from the placement, else from the names; None unless all have one."""
    if labels and all(label in placement for label in labels):
        return {label: placement[label] for label in labels}
    return {name: host for name, (host, _) in _parts(labels).items()} or None


def _parts(labels: Sequence[Label]) -> dict[Label, tuple[str, str]]:
    """Host and NIC of each label; empty unless all have both."""
    parts: dict[Label, tuple[str, str]] = {}
    for name in labels:
        host, colon, nic = str(name).rpartition(":")
        if not colon:
            return {}
        parts[name] = host, nic.strip()
    return parts
