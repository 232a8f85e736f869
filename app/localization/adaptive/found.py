"""What a confirmation found."""

from __future__ import annotations

from dataclasses import dataclass

from app.localization.components import Component


@dataclass(frozen=True, slots=True)
class Found:
    """A confirmed component.

    Parameters
    ----------
    component : Component
        What is slow.
    log_odds : float
        Evidence of the confirmation against "it is as fast as the references".
    slowdown : float
        Its isolating probe over the references: what is seen, not what the path alone takes.
    censored : bool
        That probe was cut off at its deadline: it is at least so slow.
    accusing, acquitting : tuple of int
        Numbers of the probes that contain it and were slow, and of those that were not.
    part : str or None
        What of it is slow, where it is not the GPU or the path itself, see `Group.part`.
    """

    component: Component
    log_odds: float
    slowdown: float
    censored: bool
    accusing: tuple[int, ...]
    acquitting: tuple[int, ...]
    part: str | None = None
