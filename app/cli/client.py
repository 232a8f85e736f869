"""Client commands: they talk to a running service over HTTP."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import typer

from app.cli.output import AsJson, Refused, put_json, say

POLL_S = 0.25
PAGE = 500
ENDED = {"succeeded", "failed", "cancelled", "expired"}

jobs = typer.Typer(help="Jobs of a running service.", no_args_is_help=True)
Url = Annotated[str, typer.Option(envvar="FAULTSENSE_URL", help="The service.")]
Key = Annotated[str, typer.Option(envvar="FAULTSENSE_API_KEY", help="API key.", show_envvar=True)]


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("localize")(localize)
    app.add_typer(jobs, name="jobs")


def localize(
    replica: Annotated[str, typer.Argument(help="Id or name of the replica.")],
    key: Key,
    url: Url = "http://127.0.0.1:8000",
    strategy: Annotated[str, typer.Option(help="auto, adaptive, faultsense or pairwise.")] = "auto",
    k: Annotated[int | None, typer.Option(help="GPUs a probe.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Suspicious above alpha x baseline.")] = None,
    repeats: Annotated[int | None, typer.Option(help="Measurements a probe.")] = None,
    decode_tokens: Annotated[int | None, typer.Option(help="Decoded tokens a destination.")] = None,
    deadline_s: Annotated[float | None, typer.Option(help="Give the best answer by then.")] = None,
    webhook_url: Annotated[str | None, typer.Option(help="Told when the job ends.")] = None,
    webhook_secret: Annotated[
        str | None, typer.Option(envvar="FAULTSENSE_WEBHOOK_SECRET", help="whsec_...; signs for --webhook-url.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan; probe nothing.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Print the job and return.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find the slow GPU or path of a replica; waits and shows progress."""
    wanted: dict[str, Any] = {
        "strategy": strategy,
        "k": k,
        "alpha": alpha,
        "repeats": repeats,
        "decode_tokens": decode_tokens,
        "deadline_s": deadline_s,
        "dry_run": dry_run,
        "webhook_url": webhook_url,
        "webhook_secret": webhook_secret if webhook_url else None,
    }
    request = {name: value for name, value in wanted.items() if value is not None}
    with connect(url, key) as client:
        job = call(client, "POST", f"/replicas/{_replica_id(client, replica)}/localize", request)
        if dry_run or detach:
            put_json(job) if as_json else say(_plan(job) if dry_run else f"job {job['id']}")
            return
        report(watch_job(client, job["id"]), as_json=as_json)


@jobs.command("watch")
def watch(
    job_id: Annotated[uuid.UUID, typer.Argument(help="Id of the job.")],
    key: Key,
    url: Url = "http://127.0.0.1:8000",
    as_json: AsJson = False,
) -> None:
    """Follow a job to its verdict."""
    with connect(url, key) as client:
        report(watch_job(client, str(job_id)), as_json=as_json)


def items(client: httpx.Client, path: str) -> Iterator[dict[str, Any]]:
    """All items of a list, page by page."""
    cursor = ""
    while True:
        page = call(client, "GET", f"{path}?limit={PAGE}{cursor}")
        yield from page["items"]
        if page["next_cursor"] is None:
            return
        cursor = f"&cursor={page['next_cursor']}"


def connect(url: str, key: str) -> httpx.Client:
    """A client of the service.

    Raises
    ------
    Refused
        The URL or the key cannot be one.
    """
    if not url.startswith(("http://", "https://")):
        raise Refused(f"--url must begin with http:// or https://, got {url!r}")
    if not key.isascii() or not key.isprintable():
        raise Refused("--key holds characters that no API key has")
    headers = {"Authorization": f"Bearer {key}"}
    try:
        return httpx.Client(base_url=url, headers=headers, timeout=30.0, trust_env=False)
    except httpx.InvalidURL as error:
        raise Refused(f"--url: {error}") from None


def call(client: httpx.Client, method: str, path: str, document: object = None) -> Any:
    """One request; a problem answer becomes a refusal with its detail.

    Raises
    ------
    Refused
        The service cannot be reached, or answers with a problem.
    """
    try:
        response = client.request(method, path, json=document)
    except httpx.HTTPError as error:
        raise Refused(f"{client.base_url} cannot be reached ({type(error).__name__})") from None
    if response.is_error:
        raise Refused(_problem(response))
    try:
        return response.json()
    except ValueError:
        raise Refused(f"{client.base_url} does not answer as a FaultSense service") from None


def watch_job(client: httpx.Client, job_id: str) -> dict[str, Any]:
    """Poll a job until it ends, with a progress bar on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    job: dict[str, Any] = call(client, "GET", f"/jobs/{job_id}")  # before the bar: a refusal stands alone
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("queued", total=None)
        while True:
            progress.update(
                bar,
                description=_stage(job),
                completed=job["progress"]["done"],
                total=max(job["progress"]["planned"], 1),
            )
            if job["state"] in ENDED:
                return job
            time.sleep(POLL_S)
            job = call(client, "GET", f"/jobs/{job_id}")


def report(job: dict[str, Any], *, as_json: bool) -> None:
    """Print how a job ended; exit status 1 when it has no verdict."""
    if as_json:
        put_json(job)
    else:
        for line in describe(job):
            say(line)
    if job["verdict"] is None:
        raise typer.Exit(1)


def describe(job: dict[str, Any]) -> list[str]:
    """A job's end in lines: the answer first, then its evidence."""
    verdict = job["verdict"]
    if verdict is None:
        error = job["error"] or {"code": job["state"], "detail": "no verdict"}
        return [f"{job['state']}: {error['detail']} ({error['code']})"]
    named = verdict["outcome"] in {"localized", "healthy"}  # the other summaries begin with the outcome
    lines = [f"{verdict['outcome']}: {verdict['summary']}" if named else verdict["summary"]]
    for suspect in verdict["suspects"]:
        name = f"{suspect['kind']}:{'-'.join(map(str, suspect['members']))}"
        slow = "does not answer" if suspect["slowdown"] is None else f"{suspect['slowdown']:.2f}x"
        lines.append(
            f"  {name:14} {slow:16} confidence {suspect['confidence']:.2f}"
            f"  accused by probes {_numbers(suspect['accusing'])}; acquitted by {_numbers(suspect['acquitting'])}"
        )
    lines += [f"  hidden behind it: {', '.join(verdict['masked'])}"] if verdict["masked"] else []
    lines += [f"  not tested: {', '.join(verdict['untested'][:8])}"] if verdict["untested"] else []
    lines += [f"  {reason['code']}: {reason['text']}" for reason in verdict["reasons"]]
    return [*lines, *_effort(verdict)]


def _effort(verdict: dict[str, Any]) -> list[str]:
    cost, seen = verdict["cost"], verdict["detectable"]
    path = ", no path" if seen["path"] is None else f" and a path from {seen['path']}x"
    delay = "" if seen["delay_ms"] is None else f" or +{seen['delay_ms']:.1f} ms"
    return [
        f"  {cost['probes']} probes, {cost['measurements']} measurements, {cost['seconds']:.1f} s of probing",
        f"  could see a GPU from {seen['gpu']}x{path}{delay}, at best",
    ]


def _numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:6])) or "none"
    return f"{shown} and {len(numbers) - 6} more" if len(numbers) > 6 else shown


def _stage(job: dict[str, Any]) -> str:
    phases = {1: "covering", 2: "drilling down"}
    return phases.get(job["phase"] or 0, job["state"]) if job["state"] == "running" else str(job["state"])


def _replica_id(client: httpx.Client, text: str) -> str:
    try:
        return str(uuid.UUID(text))
    except ValueError:
        pass
    for replica in items(client, "/replicas"):
        if replica["name"] == text:
            return str(replica["id"])
    raise Refused(f"no replica is called {text!r}")


def _plan(plan: dict[str, Any]) -> str:
    effort = f"{plan['measurements']} measurements, {plan['tokens']} tokens, {plan['path_units']} path-units"
    lines = [
        f"{plan['settings']['strategy']}: {plan['probes']} probes to certify it healthy (lower bound"
        f" {plan['lower_bound']}), {effort}; at the replica's limits {plan['seconds_at_least']} s or more"
    ]
    lines += [_detectable_by(name, some) for name, some in plan["by_transport"].items()]
    return "\n".join(lines)


def _detectable_by(transport: str, smallest: dict[str, Any]) -> str:
    gpu, path = (f"from {smallest[kind]}x" if smallest[kind] else "not at all" for kind in ("gpu", "path"))
    return f"where sends are {transport}, by usual costs and noise: GPUs {gpu}, paths {path}"


def _problem(response: httpx.Response) -> str:
    try:
        document = response.json()
        return f"{document['detail']} ({response.status_code} {document['code']})"
    except (ValueError, KeyError, TypeError):
        return f"the service answers {response.status_code}"
