"""Commands on webhooks: they talk to a running service over HTTP."""

from __future__ import annotations

import time
import uuid
from typing import Annotated, Any

import httpx
import typer

from app.cli.client import POLL_S, Key, Url, call, connect, items
from app.cli.output import AsJson, put_json, say

app = typer.Typer(help="Webhooks of a running service.", no_args_is_help=True)
WebhookId = Annotated[uuid.UUID, typer.Argument(help="Id of the webhook.")]
DEFAULT_URL = "http://127.0.0.1:8000"
# A test that no worker has taken up by then waits in the log.
WAIT_S = 60.0


@app.command("create")
def create(
    target: Annotated[str, typer.Argument(help="URL that events are posted to.")],
    key: Key,
    url: Url = DEFAULT_URL,
    event: Annotated[list[str] | None, typer.Option(help="job.completed or job.failed; may be repeated.")] = None,
    description: Annotated[str, typer.Option(help="For people.")] = "",
    secret: Annotated[
        str | None, typer.Option(envvar="FAULTSENSE_WEBHOOK_SECRET", help="whsec_...; default: a fresh one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Register a URL (needs an admin key). The secret is shown once."""
    wanted: dict[str, Any] = {"url": target, "events": event, "description": description, "secret": secret}
    with connect(url, key) as client:
        made = call(client, "POST", "/webhooks", {name: value for name, value in wanted.items() if value})
    if as_json:
        put_json(made)
    else:
        say(f"webhook {made['id']}")
        say(f"secret  {made['secret']}")


@app.command("list")
def list_all(key: Key, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the registered webhooks, the newest first."""
    with connect(url, key) as client:
        found = list(items(client, "/webhooks"))
    if as_json:
        put_json(found)
        return
    for hook in found:
        state = "enabled" if hook["enabled"] else f"disabled ({hook['disabled_reason']})"
        say(f"{hook['id']}  {state}  {','.join(hook['events'])}  {hook['url']}  {hook['description']}".rstrip())


@app.command("test")
def test(webhook_id: WebhookId, key: Key, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Send a test event and wait for its first outcome. Exit status 1 when it is not delivered."""
    with connect(url, key) as client:
        _follow(client, call(client, "POST", f"/webhooks/{webhook_id}/test"), as_json=as_json)


@app.command("replay")
def replay(
    webhook_id: WebhookId,
    delivery_id: Annotated[uuid.UUID, typer.Argument(help="Id from `faultsense webhooks deliveries`.")],
    key: Key,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Send an event again, under its id, and wait for the outcome. Exit status 1 when it is not delivered."""
    with connect(url, key) as client:
        path = f"/webhooks/{webhook_id}/deliveries/{delivery_id}/replay"
        _follow(client, call(client, "POST", path), as_json=as_json)


@app.command("deliveries")
def deliveries(
    webhook_id: WebhookId,
    key: Key,
    url: Url = DEFAULT_URL,
    state: Annotated[str | None, typer.Option(help="pending, delivered, exhausted or disabled.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="The newest so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show the delivery log, the newest first."""
    query = httpx.QueryParams({"limit": limit, **({"state": state} if state else {})})
    with connect(url, key) as client:
        found = call(client, "GET", f"/webhooks/{webhook_id}/deliveries?{query}")["items"]
    if as_json:
        put_json(found)
        return
    for one in found:
        say(f"{one['id']}  {one['created_at']}  {one['type']}  {_outcome(one)}")


def _follow(client: httpx.Client, delivery: dict[str, Any], *, as_json: bool) -> None:
    """Poll a delivery until an attempt that is new has an outcome."""
    before = len(delivery["attempts"])
    ends = time.monotonic() + WAIT_S
    while not _has_outcome(delivery, before) and time.monotonic() < ends:
        time.sleep(POLL_S)
        delivery = call(client, "GET", delivery["links"]["self"])
    put_json(delivery) if as_json else say(_outcome(delivery))
    if delivery["state"] != "delivered":
        raise typer.Exit(1)


def _has_outcome(delivery: dict[str, Any], before: int) -> bool:
    new = delivery["attempts"][before:]
    return delivery["state"] != "pending" or any(one["duration_ms"] is not None for one in new)


def _outcome(delivery: dict[str, Any]) -> str:
    if not delivery["attempts"]:
        return f"{delivery['state']}: not sent yet"
    last = delivery["attempts"][-1]
    how = last["error"] or (f"answered {last['status']}" if last["status"] else "no outcome recorded")
    return f"{delivery['state']}: attempt {last['number']}, {how}"
