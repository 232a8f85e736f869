"""Judge ports and links: states, link rates, and counts of errors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TypeVar

import numpy as np

from app.analyses.judge_ranks import judge_per_rank
from app.analyses.judging import inconclusive, suspect
from app.analyses.records import ErrorCounts, Judgement, Label, LinkStates, PerRank, Ports, Reason, Suspect

T = TypeVar("T")
#: Fewer errors than this happen on any network.
_FEW_ERRORS = 10
#: The culprit has this many times the errors of all others; those that only pass on what is broken have some, too.
_DOMINATES = 20.0
#: Decades, for error rates.
_DECADES = 2.0
#: A GPU whose links are all down is named where this many others have all of theirs.
_LEAST_PEERS = 3


def judge_ports(record: Ports) -> Judgement:
    """Judge the states and link rates of ports.

    Parameters
    ----------
    record : Ports
        States, rates and, where known, the rates that the ports should have.
    """
    layers = {record.kind.get(port, "") for port in record.up}
    parts = [_of_layer(record, layer) for layer in sorted(layers)]
    if len(parts) == 1:
        return _judge_layer(parts[0])
    answers = [_judge_layer(part) if len(part.up) > 2 else _few(part) for part in parts]
    suspects = [suspect for answer in answers for suspect in answer.suspects]
    reasons = [reason for answer in answers for reason in answer.reasons]
    worst = next((answer for answer in answers if answer.outcome != "healthy"), answers[0])
    return Judgement("localized" if suspects else worst.outcome, suspects, reasons)


def _of_layer(record: Ports, layer: str) -> Ports:
    """The ports of one link layer: others serve something else, and are not their like."""

    def own(values: Mapping[Label, T]) -> dict[Label, T]:
        return {port: value for port, value in values.items() if record.kind.get(port, "") == layer}

    trouble = {counter: own(counts) for counter, counts in record.trouble.items()}
    return Ports(own(record.up), own(record.rate), own(record.expected), own(record.kind), trouble)


def _few(part: Ports) -> Judgement:
    names = ", ".join(map(str, part.up))
    if all(part.up.values()):
        text = f"{names}: of another link layer than the others, with too few of its like to be compared"
        return Judgement("healthy", reasons=[Reason("not_compared", text)])
    return inconclusive("port_down", f"{names}: not all active, of a link layer that others do not have: unused?")


def _judge_layer(record: Ports) -> Judgement:
    down = [port for port, up in record.up.items() if not up]
    if down and len(down) < len(record.up) / 2:
        text = f"{', '.join(map(str, down))}: not active while the others are"
        return Judgement("localized", [suspect(port, None) for port in down], [Reason("port_down", text)])
    if down:
        text = f"{len(down)} of {len(record.up)} ports are not active: unused, or a shared cause"
        return inconclusive("mostly_down", text)
    below = {p: want / record.rate[p] for p, want in record.expected.items() if record.rate.get(p)}
    if len(below) > 2 and min(below.values()) >= 1.3:
        text = f"every port runs at 1/{min(below.values()):.1f} or less of the speed of its interface"
        return Judgement("uniform_slowdown", reasons=[Reason("below_expected", text)])
    if len(record.rate) < 2:
        answer = Judgement("healthy", reasons=[Reason("all_active", "every port is active; no rates to compare")])
    else:
        answer = judge_per_rank(PerRank(record.rate, "low", metric="link rate"))
    return _with_trouble(answer, record) if answer.outcome == "healthy" else answer


def _with_trouble(answer: Judgement, record: Ports) -> Judgement:
    """Ports that are all up and alike: one that was down time and again says so in its counts."""
    judged = {
        name: judge_errors(ErrorCounts([counts], [None])) for name, counts in record.trouble.items() if counts
    }
    named = {name: found for name, found in judged.items() if found.suspects}
    if not named:
        return answer
    text = "; ".join(f"{name}: {found.suspects[0].name} has nearly all" for name, found in named.items())
    suspects = {suspect.name: suspect for found in named.values() for suspect in found.suspects}
    if len(suspects) > 1:
        return inconclusive("not_separated", f"the counts point at different ports: {text}")
    return Judgement("localized", list(suspects.values()), [Reason("errors_at_one_port", text)])


def judge_errors(record: ErrorCounts) -> Judgement:
    """Judge counts (or rates) of errors: one port alone, with different peers where the peers are named."""
    if not any(record.runs):
        return inconclusive("too_few", "no port has a count")
    named = [_dominant(run, log_scale=record.log_scale) for run in record.runs]
    if all(name is None for name in named):
        quiet = all(_is_quiet(run, log_scale=record.log_scale) for run in record.runs)
        if quiet:
            return Judgement("healthy", reasons=[Reason("no_errors", "no port has errors that count")])
        text = "several ports have errors; those that only pass on broken packets count them, too"
        return inconclusive("bystanders", text)
    names = set(named)
    peers = {peer for peer in record.peers if peer is not None}
    if len(names) > 1 or (peers and len(peers) < 2):
        text = "the errors move from run to run" if len(names) > 1 else "one peer only: port, path or peer"
        return inconclusive("not_separated", text)
    (port,) = names
    assert port is not None
    text = f"{port}: has nearly all errors" + (f", with {len(peers)} different peers" if peers else "")
    accused = Suspect("path", [port], None, str(port)) if record.of_links else suspect(port, None)
    return Judgement("localized", [accused], [Reason("errors_at_one_port", text)])


def _dominant(run: Mapping[Label, float], *, log_scale: bool) -> Label | None:
    if not run:
        return None
    ordered = sorted(run.items(), key=lambda item: (-item[1], str(item[0])))
    first = ordered[0][1]
    second = ordered[1][1] if len(ordered) > 1 else 0.0
    if log_scale:
        rates = [value for value in run.values() if value > 0]
        if len(run) < 3 or len(rates) < 1 or first <= 0:
            return None
        floor = max(second, 1e-15)
        return ordered[0][0] if np.log10(first / floor) >= _DECADES else None
    return ordered[0][0] if first >= _FEW_ERRORS and first >= _DOMINATES * second else None


def _is_quiet(run: Mapping[Label, float], *, log_scale: bool) -> bool:
    if log_scale:
        rates = [value for value in run.values() if value > 0]
        return not rates or max(rates) < 1e-12 or np.log10(max(rates) / min(rates)) < _DECADES
    return max(run.values(), default=0.0) < _FEW_ERRORS


def judge_links(record: LinkStates) -> Judgement:
    """Judge the links of GPUs: single links (or all of one GPU) that are down, or slower than the rest.

    Notes
    -----
    Which links are connected is a matter of the board: what several GPUs have alike, or half of them have, is
    taken for wiring. A GPU without any active link is named only where bridges between pairs cannot explain it.
    """
    down = {gpu: [k for k, speed in enumerate(links) if speed == 0] for gpu, links in record.links.items()}
    there = {gpu: [k for k, speed in enumerate(links) if speed is not None] for gpu, links in record.links.items()}
    if not any(there.values()):
        return Judgement("healthy", reasons=[Reason("no_links", "no GPU has links")])
    patterns = {tuple(links) for gpu, links in down.items() if there[gpu]}
    listed = all(record.links.values())
    if listed and not any(down.values()):
        return _link_speeds(record)
    if listed and len(down) > 1 and len(patterns) == 1:
        text = "the same links are inactive on every GPU: not connected on this board, or a shared cause"
        return inconclusive("same_everywhere", text)
    dead = [gpu for gpu in down if down[gpu] and len(down[gpu]) == len(there[gpu])]
    if not listed or dead:
        return _dead_gpu(down, there, dead if listed else [])
    return _single_links(down, sum(map(len, there.values())))


def _dead_gpu(
    down: Mapping[Label, Sequence[int]], there: Mapping[Label, Sequence[int]], dead: Sequence[Label]
) -> Judgement:
    """One GPU without an active link among peers that have all of theirs.

    With bridges between pairs its partner would have none, either, or be the one that is left of an odd number.
    """
    peers = set(down).difference(dead)
    alike = {len(links) for links in there.values()}
    whole = not any(down[gpu] for gpu in peers) and len(alike) == 1
    if len(dead) == 1 and whole and len(peers) >= _LEAST_PEERS and len(down) % 2 == 0:
        text = f"no link of it is active; all links of its {len(peers)} peers are"
        return Judgement("localized", [_gpu(dead[0], None)], [Reason("all_links_down", text)])
    text = "a GPU has no active link at all: a missing bridge and a fault look alike"
    return inconclusive("all_links_down", text)


def _single_links(down: Mapping[Label, Sequence[int]], links: int) -> Judgement:
    """Inactive links of GPUs that have active ones, too, unless the board may be wired so."""
    hit = [(gpu, link) for gpu, found in down.items() for link in found]
    patterns = Counter(tuple(found) for found in down.values() if found)
    if max(patterns.values()) > 1 or 1 < sum(patterns.values()) >= len(down) / 2:
        text = "several GPUs have inactive links, the same ones or half of the GPUs: the board may be wired so"
        return inconclusive("wiring", text)
    if len(hit) > links / 2:
        return inconclusive("mostly_down", "most links are inactive")
    reason = Reason("link_down", "inactive while other links of the same GPU are active")
    return Judgement("localized", [_link(gpu, link, None) for gpu, link in hit], [reason])


def _gpu(gpu: Label, times: float | None) -> Suspect:
    return Suspect("gpu", [gpu], times, f"gpu {gpu}" if isinstance(gpu, int) else gpu)


def _link(gpu: Label, link: int, times: float | None) -> Suspect:
    name = f"{f'gpu {gpu}' if isinstance(gpu, int) else gpu} link {link}"
    return Suspect("path", [name], times, name)


def _link_speeds(record: LinkStates) -> Judgement:
    speeds = [(gpu, k, s) for gpu, links in record.links.items() for k, s in enumerate(links) if s]
    normal = float(np.median([s for _, _, s in speeds]))
    slow = [(gpu, k, normal / s) for gpu, k, s in speeds if normal / s >= 1.3]
    if not slow:
        return Judgement("healthy", reasons=[Reason("all_active", "every link is active at the same speed")])
    if len(slow) > len(speeds) / 4:
        return inconclusive("two_levels", "links run at two speeds")
    number = Counter(gpu for gpu, _, _ in speeds)
    slow_of: dict[Label, list[float]] = defaultdict(list)
    for gpu, _, times in slow:
        slow_of[gpu].append(times)
    whole = {gpu: found for gpu, found in slow_of.items() if len(found) == number[gpu] > 1}
    most = max(number.values())
    if any(number[gpu] != most for gpu in whole):
        return inconclusive("two_levels", "a GPU with fewer links runs them at another speed: another model")
    suspects = [_gpu(gpu, round(median(found), 3)) for gpu, found in whole.items()]
    suspects += [_link(gpu, k, round(times, 3)) for gpu, k, times in slow if gpu not in whole]
    return Judgement("localized", suspects)
