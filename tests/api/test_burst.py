"""More requests at once than threads and connections together: all are answered, none is refused."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx
from fastapi.testclient import TestClient

from app.emulator.replica import EmulatedReplica
from app.kit.db import POOL
from app.settings import Settings
from tests.conftest import replica_document
from tests.support.api import ServedApi

THREADS = 40  # AnyIO's default, which FastAPI runs endpoints in


def test_a_burst(client: TestClient, settings: Settings, emulated: EmulatedReplica) -> None:
    """Without turns this takes the pool's timeout several times over and ends in 503s."""
    replica = client.post("/replicas", json=replica_document(emulated)).json()["id"]

    async def burst(url: str) -> Counter[int]:
        limits = httpx.Limits(max_connections=None)
        headers = dict(client.headers)
        async with httpx.AsyncClient(
            base_url=url, headers=headers, limits=limits, timeout=60, trust_env=False
        ) as many:

            async def one(number: int) -> int:
                if number % 2:
                    return (await many.get("/jobs")).status_code
                path, key = f"/replicas/{replica}/localize", {"Idempotency-Key": f"key-{number}"}
                return (await many.post(path, json={"dry_run": True}, headers=key)).status_code

            return Counter(await asyncio.gather(*map(one, range(2 * (THREADS + POOL)))))

    with ServedApi(settings) as api:
        assert set(asyncio.run(burst(api.url))) == {200}
