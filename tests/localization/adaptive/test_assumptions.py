"""What a job is told: it survives the log, and whatever else is in its place is refused by name."""

from __future__ import annotations

import dataclasses
import json
import math
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.localization.adaptive.assumptions import Assumptions
from app.localization.adaptive.costs import Costs
from app.localization.adaptive.planner import Targets
from app.localization.errors import SettingsError
from app.localization.settings import Settings

costs = st.builds(
    Costs,
    st.floats(1e-3, 1e5),
    st.floats(0, 1e5),
    st.floats(0, 1e5),
    st.one_of(st.integers(0, 2), st.floats(0, 2)),
)
targets = st.builds(
    Targets, st.floats(1.001, 1000), st.floats(1.001, 1000), st.one_of(st.none(), st.floats(0.001, 1e6))
)
assumed = st.builds(
    lambda costs, targets, transport, trusted, most: Assumptions(
        costs, targets, transport, trusted and costs is not None, most
    ),
    st.one_of(st.none(), costs),
    targets,
    st.sampled_from([None, "serial", "shared", "undiluted"]),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 10**6)),
)
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["fixed_ms", "sigma", "gpu", "path", "delay_ms", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)


@given(told=assumed)
@settings(max_examples=50, deadline=None)
def test_they_survive_the_log(told: Assumptions) -> None:
    whole = Settings(gpus=8, strategy="adaptive", adaptive=told)
    assert Assumptions.from_dict(json.loads(json.dumps(dataclasses.asdict(told)))) == told
    assert Settings.from_dict(json.loads(json.dumps(whole.to_dict()))) == whole


@given(
    document=st.one_of(
        plain,
        st.dictionaries(
            st.sampled_from(["costs", "targets", "transport", "trusted", "max_tokens", "other"]), plain, max_size=4
        ),
    )
)
@settings(max_examples=50, deadline=None)
def test_any_document_is_read_or_refused_by_name(document: object) -> None:
    with suppress(SettingsError):
        told = Assumptions.from_dict(document)
        assert isinstance(told.trusted, bool)
        assert told.max_tokens is None or told.max_tokens >= 1
        assert isinstance(told.targets, Targets)
        if told.costs is not None:
            assert math.isfinite(told.costs.healthy_ms(1, over_paths=True))


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ([], "adaptive"),
        ({"other": 1}, "adaptive.other"),
        ({"costs": 3}, "costs"),
        ({"costs": {"t0": 3}}, "costs.t0"),
        ({"costs": {"fixed_ms": "20"}}, "fixed_ms"),
        ({"costs": {"fixed_ms": True}}, "fixed_ms"),
        ({"costs": {"fixed_ms": None}}, "fixed_ms"),
        ({"costs": {"sigma": 10**400}}, "sigma"),
        ({"costs": {"compute_ms": math.nan}}, "compute_ms"),
        ({"targets": None}, "targets"),
        ({"targets": {"gpu": 1}}, "target_gpu"),
        ({"targets": {"path": None}}, "path"),
        ({"targets": {"delay_ms": 0}}, "target_delay"),
        ({"transport": "pigeon"}, "transport"),
        ({"transport": ["serial"]}, "transport"),
        ({"trusted": True}, "costs"),
        ({"trusted": "no", "costs": {}}, "trusted"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 8.0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
    ],
)
def test_what_is_refused_is_named(document: object, field: str) -> None:
    with pytest.raises(SettingsError) as refused:
        Assumptions.from_dict(document)
    assert refused.value.field == field
