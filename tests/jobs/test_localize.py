"""Jobs from request to verdict: the API, the runner and the prober against an emulated replica."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from app.emulator.replica import EmulatedReplica
from app.jobs import repository, service
from app.jobs.models import JobEvent
from app.jobs.runner import run_slice
from app.localization.replay import replay_lines
from app.settings import Settings
from tests.conftest import FAST, QUICK, replica_document

Localize = Callable[..., dict[str, Any]]


def names(job: dict[str, Any]) -> list[str]:
    return [f"{s['kind']}:{'-'.join(map(str, s['members']))}" for s in job["verdict"]["suspects"]]


def codes(job: dict[str, Any]) -> set[str]:
    return {reason["code"] for reason in job["verdict"]["reasons"]}


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        ([], []),
        (["gpu:5*4"], ["gpu:5"]),
        (["path:1-6+20ms"], ["path:1-6"]),
        (["path:1>6+20ms"], ["path:1-6"]),
        (["gpu:2*4", "path:1-6+30ms"], ["gpu:2", "path:1-6"]),
    ],
)
def test_finds_what_was_injected(
    localize: Localize, client: TestClient, emulated: EmulatedReplica, faults: list[str], expected: list[str]
) -> None:
    emulated.set_faults(faults)
    job = localize(emulated)
    assert job["state"] == "succeeded"
    assert job["verdict"]["outcome"] == ("localized" if expected else "healthy"), job["verdict"]
    assert names(job) == expected
    assert job["progress"]["done"] == job["progress"]["planned"] > 0
    assert job["phase"] is None
    log = client.get(job["links"]["log"]).text
    assert replay_lines(log.splitlines()).identical


def test_the_whole_story_is_readable(localize: Localize, client: TestClient, emulated: EmulatedReplica) -> None:
    emulated.set_faults(["gpu:5*4"])
    job = localize(emulated)
    measured: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = client.get(
            job["links"]["probes"], params={"limit": 7, **({"cursor": cursor} if cursor else {})}
        ).json()
        measured += page["items"]
        assert len(page["items"]) == 7 or page["next_cursor"] is None
        if (cursor := page["next_cursor"]) is None:
            break
    assert len(measured) == job["verdict"]["cost"]["measurements"]
    assert [m["seq"] for m in measured] == sorted({m["seq"] for m in measured})
    slow = {m["number"]: m["tbt_ms"] for m in measured if 5 in m["members"] and m["phase"] == 1}
    fast = {m["number"]: m["tbt_ms"] for m in measured if 5 not in m["members"] and m["phase"] == 1}
    assert min(slow.values()) > max(fast.values())
    assert set(slow) <= set(job["verdict"]["suspects"][0]["accusing"])
    settings = json.loads(client.get(job["links"]["log"]).text.splitlines()[0])
    assert settings["engine"] == "0.32.0"


def test_allgather_replica_names_gpus_only(localize: Localize) -> None:
    with EmulatedReplica(gpus=8, mode="allgather", faults=("gpu:5*8",), **FAST) as replica:
        assert names(localize(replica)) == ["gpu:5"]
        replica.set_faults(["path:1-2+20ms"])
        job = localize(replica)
    assert job["verdict"]["outcome"] == "inconclusive"
    assert codes(job) == {"paths_not_selectable"}


def test_uniform_slowdown_needs_an_earlier_healthy_job(
    client: TestClient, engine: Engine, settings: Settings, emulated: EmulatedReplica
) -> None:
    """All-gather: a slow path is a uniform offset, visible only against history."""
    replica_id = ""
    outcomes = []
    for faults in ([], [f"gpu:{r}*4" for r in range(8)]):
        emulated.set_faults(faults)
        if not replica_id:
            replica_id = client.post("/replicas", json=replica_document(emulated)).json()["id"]
        job_id = uuid.UUID(client.post(f"/replicas/{replica_id}/localize", json=QUICK).json()["id"])
        assert run_slice(engine, settings, job_id) == "ended"
        outcomes.append(client.get(f"/jobs/{job_id}").json()["verdict"]["outcome"])
    assert outcomes == ["healthy", "uniform_slowdown"]


def test_a_hang_is_inconclusive_with_the_set_under_test(
    localize: Localize, monkeypatch: pytest.MonkeyPatch
) -> None:
    with EmulatedReplica(gpus=8, faults=("gpu:6!hang",), **FAST) as replica:
        from app.settings import get_settings

        monkeypatch.setattr(get_settings(), "probe_timeout_s", 0.5)
        job = localize(replica)
    assert job["state"] == "succeeded"
    assert job["verdict"]["outcome"] == "inconclusive"
    assert codes(job) == {"engine_hung"}
    assert "GPU 6 was under test" in job["verdict"]["summary"]


def test_a_rank_refused_on_its_own_url_is_localized(localize: Localize) -> None:
    with EmulatedReplica(gpus=8, rank_choice="url", faults=("gpu:6!error",), **FAST) as replica:
        job = localize(replica)
    assert (job["verdict"]["outcome"], names(job)) == ("localized", ["gpu:6"])
    assert job["verdict"]["suspects"][0]["slowdown"] is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"model": "another"}, "model_mismatch"),
        ({"gpus": 16}, "too_few_ranks"),
    ],
)
def test_a_wrong_replica_is_refused_before_any_probe(
    localize: Localize, client: TestClient, emulated: EmulatedReplica, change: dict[str, Any], code: str
) -> None:
    emulated.set_faults([])
    document = replica_document(emulated)
    if "model" in change:
        document["manifest"]["model"] = change["model"]
    else:
        from app.probe_model.synthetic import synthetic_manifest

        url = emulated.endpoints[0]["url"]
        document["gpus"] = 16
        document["manifest"] = synthetic_manifest(16).model_dump(mode="json")
        document["probe_endpoints"] = [{"url": url, "ranks": "0-15", "rank_choice": "header"}]
    before = emulated.stats()["steps"]
    job = localize(emulated, **{name: document[name] for name in ("gpus", "manifest", "probe_endpoints")})
    assert job["state"] == "failed"
    assert job["error"]["code"] == code
    assert emulated.endpoints[0]["url"] in job["error"]["detail"]
    assert client.get(job["links"]["probes"]).json()["items"] == []
    assert emulated.stats()["steps"] == before


def test_a_busy_replica_answers_409_with_the_job(client: TestClient, emulated: EmulatedReplica) -> None:
    replica = client.post("/replicas", json=replica_document(emulated)).json()
    first = client.post(replica["links"]["localize"], json=QUICK)
    assert first.status_code == 202
    assert first.headers["Location"] == f"/jobs/{first.json()['id']}"
    second = client.post(replica["links"]["localize"], json=QUICK)
    assert second.status_code == 409
    assert second.headers["Location"] == first.headers["Location"]
    assert second.headers["content-type"] == "application/problem+json"
    assert client.delete(replica["links"]["self"]).status_code == 409
    assert client.post(f"{first.headers['Location']}/cancel").json()["state"] == "cancelled"
    assert client.post(replica["links"]["localize"], json=QUICK).status_code == 202


def test_dry_run_probes_nothing(client: TestClient, emulated: EmulatedReplica) -> None:
    replica = client.post("/replicas", json=replica_document(emulated, limits={"probes_per_second": 2})).json()
    tiers = {"parents": {"0": "spine-a", "1": "spine-b"}}
    client.put(replica["links"]["topology"], json=emulated.topology | tiers)
    before = emulated.stats()["steps"]
    plan = client.post(replica["links"]["localize"], json={"dry_run": True, "k": 4, "repeats": 3})
    assert plan.status_code == 200
    assert plan.json()["probes"] == 6
    assert plan.json()["measurements"] == 18
    assert plan.json()["seconds_at_least"] == 9.0
    assert plan.json()["settings"]["hosts"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert plan.json()["settings"]["shared"]["tier_2"] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert plan.json()["settings"]["topology_version"] == 1
    assert emulated.stats()["steps"] == before
    assert client.get("/jobs").json()["items"] == []


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"k": 9}, "body.k"),
        ({"k": 1}, "body.k"),
        ({"alpha": 1}, "body.alpha"),
        ({"repeats": 0}, "body.repeats"),
        ({"repeats": 16}, "body.repeats"),
        ({"decode_tokens": 5000}, "body.decode_tokens"),
        ({"prompt_tokens": 9000}, "body.prompt_tokens"),
        ({"prompt_tokens": 4000, "k": 4}, "body.prompt_tokens"),
        ({"strategy": "guess"}, "body.strategy"),
        ({"colour": "red"}, "body.colour"),
        ({"deadline_s": -1}, "body.deadline_s"),
    ],
)
def test_what_is_out_of_range_is_named(
    client: TestClient, emulated: EmulatedReplica, request_: dict[str, Any], field: str
) -> None:
    replica = client.post("/replicas", json=replica_document(emulated)).json()
    refused = client.post(replica["links"]["localize"], json=request_)
    assert refused.status_code == 422, refused.text
    assert field in {error["field"] for error in refused.json()["errors"]}
    assert client.get("/jobs").json()["items"] == []


def test_a_probe_that_the_token_limit_would_take_minutes_for_is_refused(
    client: TestClient, emulated: EmulatedReplica
) -> None:
    limits = {"probes_per_second": 10, "tokens_per_second": 10}
    replica = client.post("/replicas", json=replica_document(emulated, limits=limits)).json()
    refused = client.post(replica["links"]["localize"], json={"k": 4})
    assert refused.status_code == 422
    assert "512 tokens, 51 s at the replica's limits.tokens_per_second" in refused.json()["detail"]


def test_no_choice_of_the_sender_is_refused(client: TestClient, emulated: EmulatedReplica) -> None:
    blind = [{**emulated.endpoints[0], "rank_choice": "none"}]
    for change in ({"layout": {"tp": 8, "dp": 1, "all2all": "sparse"}}, {"probe_endpoints": blind}):
        replica = client.post("/replicas", json=replica_document(emulated, **change)).json()
        refused = client.post(replica["links"]["localize"], json={})
        assert (refused.status_code, refused.json()["code"]) == (422, "no_rank_choice")


def test_a_running_job_is_cancelled_within_one_probe(
    client: TestClient,
    engine: Engine,
    settings: Settings,
    emulated: EmulatedReplica,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emulated.set_faults([])
    replica = client.post("/replicas", json=replica_document(emulated)).json()
    job = client.post(replica["links"]["localize"], json={**QUICK, "repeats": 15}).json()
    appended = repository.append

    def cancel_after_the_fifth(db: Session, job_row: Any, seq: int, *args: Any, **kwargs: Any) -> bool | None:
        if seq == 5:
            assert client.post(job["links"]["cancel"]).status_code == 202
        return appended(db, job_row, seq, *args, **kwargs)

    monkeypatch.setattr(repository, "append", cancel_after_the_fifth)
    assert run_slice(engine, settings, uuid.UUID(job["id"])) == "ended"
    ended = client.get(job["links"]["self"]).json()
    assert ended["state"] == "cancelled"
    log = [json.loads(line) for line in client.get(job["links"]["log"]).text.splitlines()]
    assert [event["type"] for event in log[5:]] == ["measured", "cancelled", "verdict"]
    assert client.post(job["links"]["cancel"]).status_code == 202, "cancelling twice is no error"


def test_cancelling_an_ended_job_is_a_conflict(
    localize: Localize, client: TestClient, emulated: EmulatedReplica
) -> None:
    emulated.set_faults([])
    job = localize(emulated)
    refused = client.post(f"/jobs/{job['id']}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "job_ended")


def test_a_job_goes_on_in_slices(
    client: TestClient, engine: Engine, settings: Settings, emulated: EmulatedReplica
) -> None:
    emulated.set_faults(["gpu:5*4"])
    replica = client.post("/replicas", json=replica_document(emulated)).json()
    job = client.post(replica["links"]["localize"], json=QUICK).json()
    short = settings.model_copy(update={"slice_s": 0.2})
    slices = 1
    while run_slice(engine, short, uuid.UUID(job["id"])) == "again":
        slices += 1
    assert slices > 1
    ended = client.get(job["links"]["self"]).json()
    assert names(ended) == ["gpu:5"]
    assert ended["attempt"] == slices
    log = client.get(job["links"]["log"]).text.splitlines()
    assert sum(json.loads(line)["type"] == "resumed" for line in log) == slices - 1
    assert replay_lines(log).identical


def test_the_deadline_gives_the_best_answer_so_far(
    client: TestClient, engine: Engine, settings: Settings, emulated: EmulatedReplica
) -> None:
    emulated.set_faults([])
    replica = client.post("/replicas", json=replica_document(emulated)).json()
    job = client.post(replica["links"]["localize"], json={**QUICK, "repeats": 15, "deadline_s": 0.7}).json()
    assert run_slice(engine, settings, uuid.UUID(job["id"])) == "ended"
    ended = client.get(job["links"]["self"]).json()
    assert (ended["state"], ended["verdict"]["outcome"]) == ("succeeded", "inconclusive")
    assert codes(ended) == {"deadline"}


class TestLease:
    """A lease with an attempt number fences every write."""

    @pytest.fixture
    def job(self, client: TestClient, emulated: EmulatedReplica) -> dict[str, Any]:
        emulated.set_faults([])
        replica = client.post("/replicas", json=replica_document(emulated)).json()
        document: dict[str, Any] = client.post(replica["links"]["localize"], json=QUICK).json()
        return document

    def test_only_one_worker_gets_a_job(self, db: Session, engine: Engine, job: dict[str, Any]) -> None:
        job_id = uuid.UUID(job["id"])
        first, _ = repository.claim(db, job_id, 15)
        db.commit()
        with Session(engine) as other:
            assert repository.claim(other, job_id, 15) == (None, False)
        assert first is not None
        assert (first.attempt, first.state) == (1, "running")

    def test_a_worker_that_lost_its_lease_writes_nothing(
        self, db: Session, engine: Engine, settings: Settings, client: TestClient, job: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        appended = repository.append

        def overtaken(session: Session, row: Any, seq: int, *args: Any, **kwargs: Any) -> bool | None:
            if seq == 3:
                with Session(engine) as other:
                    other.execute(text("UPDATE jobs SET attempt = attempt + 1, lease_until = now() + '15 s'"))
                    other.commit()
            return appended(session, row, seq, *args, **kwargs)

        monkeypatch.setattr(repository, "append", overtaken)
        assert run_slice(engine, settings, uuid.UUID(job["id"])) == "lease_lost"
        assert len(repository.events(db, uuid.UUID(job["id"]))) == 3
        assert client.get(job["links"]["self"]).json()["state"] == "running"

    def test_a_silent_worker_loses_its_job_and_another_ends_it(
        self, db: Session, engine: Engine, settings: Settings, client: TestClient, job: dict[str, Any]
    ) -> None:
        job_id = uuid.UUID(job["id"])
        assert repository.claim(db, job_id, 15)[0] is not None
        db.commit()
        assert service.sweep(db, 30) == []
        db.execute(text("UPDATE jobs SET lease_until = now() - interval '1 s'"))
        db.commit()
        assert service.sweep(db, 30) == [job_id]
        db.commit()
        assert run_slice(engine, settings, job_id) == "ended"
        ended = client.get(job["links"]["self"]).json()
        assert (ended["state"], ended["attempt"]) == ("succeeded", 2)

    def test_a_hint_that_nobody_followed_is_sent_again(self, db: Session, job: dict[str, Any]) -> None:
        assert service.sweep(db, 30) == []
        db.execute(text("UPDATE jobs SET hinted_at = now() - interval '31 s'"))
        assert service.sweep(db, 30) == [uuid.UUID(job["id"])]
        assert service.sweep(db, 30) == [], "and not by the next sweep at once"

    def test_a_queued_job_past_its_deadline_expires(
        self, db: Session, client: TestClient, job: dict[str, Any]
    ) -> None:
        db.execute(text("UPDATE jobs SET deadline_at = now() - interval '1 s'"))
        service.sweep(db, 30)
        db.commit()
        ended = client.get(job["links"]["self"]).json()
        assert (ended["state"], ended["error"]["code"]) == ("expired", "expired")

    def test_a_job_that_no_worker_can_end_is_given_up(
        self, db: Session, client: TestClient, job: dict[str, Any]
    ) -> None:
        db.execute(text("UPDATE jobs SET state = 'running', deadline_at = now() - interval '1 h'"))
        service.sweep(db, 30)
        db.commit()
        assert client.get(job["links"]["self"]).json()["error"]["code"] == "lost"

    def test_a_log_of_another_version_fails_the_job(
        self, db: Session, engine: Engine, settings: Settings, client: TestClient, job: dict[str, Any]
    ) -> None:
        for seq, (kind, data) in enumerate([("settings", {"gpus": 8, "k": 4}), ("measured", {"number": 99})]):
            db.add(JobEvent(job_id=uuid.UUID(job["id"]), seq=seq, type=kind, attempt=1, data=data))
        db.commit()
        assert run_slice(engine, settings, uuid.UUID(job["id"])) == "ended"
        assert client.get(job["links"]["self"]).json()["error"]["code"] == "log_mismatch"
