"""The acceptance rule."""

from __future__ import annotations

from typing import Any

import pytest

from app.selection.errors import RailFileError
from tests.selection.support import IDLE, MIB, counters, device, judged, lines, of, port, record, selection, target

N = 100 * MIB
EVEN = lines(record({0: N, 1: N}))
CARRIED = counters({0: N, 1: N}, {4: N, 5: N})


def test_all_bytes_where_they_were_selected_pass() -> None:
    found = judged(EVEN, CARRIED)
    assert found.result == "pass"
    assert [(r.local, r.remote, r.result) for r in found.rails] == [
        ("mlx5_0", "mlx5_4", "pass"),
        ("mlx5_1", "mlx5_5", "pass"),
    ]
    assert {(r.selected_bytes, r.source_wire_bytes, r.target_wire_bytes) for r in found.rails} == {(N, N, N)}
    assert found.distribution.shape == "even"
    assert found.reasons == ()


@pytest.mark.parametrize(
    ("ratio", "result"),
    [(0.979, "fail"), (0.981, "pass"), (1.0, "pass"), (1.099, "pass"), (1.101, "fail")],
)
@pytest.mark.parametrize("side", ["source", "target"])
def test_wire_bytes_lie_between_two_percent_less_and_ten_more(side: str, ratio: float, result: str) -> None:
    some = int(N * ratio)
    after = counters({0: N, 1: some if side == "source" else N}, {4: N, 5: some if side == "target" else N})
    found = judged(EVEN, after)
    assert (found.result, of(found, "mlx5_1").result, of(found, "mlx5_0").result) == (result, result, "pass")
    if result == "fail":
        assert f"{some} wire bytes are {ratio:.3f} of {N} selected" in of(found, "mlx5_1").reason
        assert of(found, "mlx5_1").reason.startswith(side)


def test_read_goes_the_other_way() -> None:
    reading = lines(record({0: N, 1: N}, op_type="READ"))
    assert judged(reading, counters({0: N, 1: N}, {4: N, 5: N}, read=True)).result == "pass"
    assert judged(reading, CARRIED).result != "pass"
    assert judged(EVEN, counters({0: N, 1: N}, {4: N, 5: N}, read=True)).result != "pass"


def test_writes_and_reads_in_one_file_are_judged_apart() -> None:
    both = lines(record({0: N, 1: N}), record({0: 3 * N, 1: 3 * N}, op_type="read"))

    def after(read_1: int) -> dict[str, Any]:
        return {
            "source": {"mlx5_0": port(1000 + N, 2000 + 3 * N), "mlx5_1": port(1000 + N, 2000 + read_1)},
            "target": {"mlx5_4": port(1000 + 3 * N, 2000 + N), "mlx5_5": port(1000 + read_1, 2000 + N)},
        }

    assert judged(both, after(3 * N)).result == "pass"
    swapped = judged(both, after(N))
    assert (swapped.result, of(swapped, "mlx5_0").result, of(swapped, "mlx5_1").result) == ("fail", "pass", "fail")


def test_a_record_of_a_mix_is_compared_by_the_sum_of_both_ways() -> None:
    mixed = lines(record({0: N, 1: N}, op_type="mix"))
    half = {"source": {}, "target": {}}
    for side, devices in (("source", (0, 1)), ("target", (4, 5))):
        half[side] = {f"mlx5_{i}": port(1000 + N // 4, 2000 + 3 * N // 4) for i in devices}
    assert judged(mixed, half).result == "pass"


def test_an_operation_without_direction_is_inconclusive() -> None:
    found = judged(lines(record({0: N, 1: N}, op_type="probe")), CARRIED)
    assert (found.result, found.reasons[0].code) == ("inconclusive", "operation_unknown")
    assert {rail.result for rail in found.rails} == {"inconclusive"}


def test_when_the_pair_differs_in_op_type_only_agreement_counts() -> None:
    differing = lines(record({0: N, 1: N}), target(2 * N, op_type="read"))
    assert judged(differing, CARRIED).result == "pass"
    found = judged(differing, counters({0: N, 1: N}, {4: N, 5: N}, read=True))
    assert (found.result, {rail.result for rail in found.rails}) == ("inconclusive", {"inconclusive"})
    assert found.reasons[-1].code == "operation_differs"


def test_eligible_but_never_selected_fails() -> None:
    one = selection(device(0, 2 * N), device(1, 0, available=False))
    found = judged(lines(record({}, selection=one)), counters({0: 2 * N, 1: 0}, {4: 2 * N, 5: 0}))
    assert found.result == "fail"
    assert of(found, "mlx5_0").result == "pass"
    assert of(found, "mlx5_1").reason == "eligible, but never selected: it was not available"
    assert found.distribution.shape == "single"


@pytest.mark.parametrize(("value", "word"), [(None, "missing"), (3, "reset"), (0xFFFFFFFF, "saturated")], ids=str)
@pytest.mark.parametrize(
    ("side", "device_name", "name"),
    [("source", "mlx5_1", "port_xmit_data"), ("target", "mlx5_5", "port_rcv_data")],
)
def test_never_selected_and_without_a_counter_is_inconclusive(
    side: str, device_name: str, name: str, value: int | None, word: str
) -> None:
    one = lines(record({0: 2 * N, 1: 0}))
    after = counters({0: 2 * N, 1: 0}, {4: 2 * N, 5: 0})
    assert judged(one, after).result == "fail"
    after[side][device_name][name] = value
    found = judged(one, after)
    assert found.result == of(found, "mlx5_1").result == "inconclusive"
    assert of(found, "mlx5_1").reason == f"eligible, but never selected; {side} {device_name}: counter {word}"
    assert of(found, "mlx5_0").result == "pass"


def test_a_rail_that_no_counter_names_is_not_known_to_be_still() -> None:
    found = judged(lines(record({0: N, 1: 0})), counters({0: N}, {4: N, 5: 0}), counters({0: 0}, {4: 0, 5: 0}))
    assert found.result == of(found, "mlx5_1").result == "inconclusive"
    assert "source mlx5_1: counter missing" in of(found, "mlx5_1").reason


def test_a_gap_in_the_direction_that_a_rail_had_no_bytes_of_is_a_gap() -> None:
    both = lines(record({0: N, 1: N}), record({0: N, 1: 0}, op_type="read"))
    after = {
        "source": {"mlx5_0": port(1000 + N, 2000 + N), "mlx5_1": port(1000 + N, 2000)},
        "target": {"mlx5_4": port(1000 + N, 2000 + N), "mlx5_5": port(1000, 2000 + N)},
    }
    assert judged(both, after).result == "pass"
    after["source"]["mlx5_1"]["port_rcv_data"] = None
    found = judged(both, after)
    assert (found.result, of(found, "mlx5_1").reason) == ("inconclusive", "source mlx5_1: counter missing")


def test_selected_but_not_eligible_fails() -> None:
    found = judged(lines(record({0: N, 1: N, 2: 5, 3: 0})), CARRIED)
    assert found.result == "fail"
    stranger = of(found, "mlx5_2")
    assert (stranger.remote, stranger.selected_bytes, stranger.result) == (None, 5, "fail")
    assert [r.local for r in found.rails] == ["mlx5_0", "mlx5_1", "mlx5_2"]


def test_a_rail_that_was_selected_and_carried_nothing_fails_by_name() -> None:
    found = judged(EVEN, counters({0: 2 * N, 1: 0}, {4: 2 * N, 5: 0}))
    assert found.result == "fail"
    assert {rail.local: rail.result for rail in found.rails} == {"mlx5_0": "fail", "mlx5_1": "fail"}


def _with_other(moved: int | None, side: str = "source", direction: str = "port_xmit_data") -> tuple[Any, Any]:
    before = {**IDLE, side: {**IDLE[side], "mlx5_9": port()}}
    idle = port()[direction]
    assert idle is not None
    other = {**port(), direction: None if moved is None else idle + moved}
    return {**CARRIED, side: {**CARRIED[side], "mlx5_9": other}}, before


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize("direction", ["port_xmit_data", "port_rcv_data"])
def test_other_ports_may_move_a_mebibyte_or_half_a_percent(side: str, direction: str) -> None:
    assert judged(EVEN, *_with_other(MIB, side, direction)).result == "pass"
    found = judged(EVEN, *_with_other(MIB + 1, side, direction))
    assert found.result == "fail"
    (other,) = found.other_ports
    assert (other.side, other.device, other.moved_bytes, other.result) == (side, "mlx5_9", MIB + 1, "fail")
    huge = lines(record({0: 4 * N, 1: 4 * N}))
    carried, before = _with_other(4 * MIB, side, direction)
    after = counters({0: 4 * N, 1: 4 * N}, {4: 4 * N, 5: 4 * N})
    after[side]["mlx5_9"] = carried[side]["mlx5_9"]
    assert judged(huge, after, before).result == "pass"


def test_another_port_without_counter_is_not_known_to_be_still() -> None:
    found = judged(EVEN, *_with_other(None))
    assert (found.result, found.other_ports[0].result) == ("inconclusive", "inconclusive")


def _spoilt(side: str, device_name: str, name: str, value: int | None) -> dict[str, Any]:
    return {**CARRIED, side: {**CARRIED[side], device_name: {**CARRIED[side][device_name], name: value}}}


@pytest.mark.parametrize(("value", "word"), [(None, "missing"), (3, "reset"), (0xFFFFFFFF, "saturated")], ids=str)
@pytest.mark.parametrize(
    ("side", "device_name", "name"),
    [("source", "mlx5_1", "port_xmit_data"), ("target", "mlx5_5", "port_rcv_data")],
)
def test_an_unusable_counter_is_inconclusive(
    side: str, device_name: str, name: str, value: int | None, word: str
) -> None:
    found = judged(EVEN, _spoilt(side, device_name, name, value))
    assert found.result == of(found, "mlx5_1").result == "inconclusive"
    assert f"{side} {device_name}: counter {word}" in of(found, "mlx5_1").reason
    assert of(found, "mlx5_0").result == "pass"
    wire = (of(found, "mlx5_1").source_wire_bytes, of(found, "mlx5_1").target_wire_bytes)
    assert wire == ((None, N) if side == "source" else (N, None))


def test_one_unusable_counter_leaves_the_whole_open_even_where_another_rail_fails() -> None:
    after = _spoilt("source", "mlx5_1", "port_xmit_data", None)
    after["target"] = {**after["target"], "mlx5_4": port(1000, 2000 + N // 2)}
    found = judged(EVEN, after)
    assert (found.result, of(found, "mlx5_0").result) == ("inconclusive", "fail")


def test_the_counter_of_the_other_direction_is_not_needed() -> None:
    assert judged(EVEN, _spoilt("source", "mlx5_1", "port_rcv_data", None)).result == "pass"


def test_words_taken_for_bytes_are_not_a_broken_rail() -> None:
    found = judged(EVEN, counters({0: N // 4, 1: N // 4}, {4: N // 4, 5: N // 4}))
    assert found.result == "inconclusive"
    assert "unit" in found.reasons[0].text
    assert judged(EVEN, counters({0: N // 4, 1: N // 4}, {4: N // 4, 5: N // 4}), unit="words4").result == "pass"
    assert "is the unit right?" in of(judged(EVEN, CARRIED, unit="words4"), "mlx5_0").reason


@pytest.mark.parametrize("read", [False, True])
def test_bytes_taken_for_words_are_not_a_broken_rail(*, read: bool) -> None:
    records = lines(record({0: N, 1: N}, op_type="read" if read else "write"))
    wire = int(1.007 * N)
    after = counters({0: wire, 1: wire}, {4: wire, 5: wire}, read=read)
    for side in ("source", "target"):  # a port that idles by the right unit
        after[side]["mlx5_9"] = port(1000 + MIB // 2)
    before = {side: {**IDLE[side], "mlx5_9": port()} for side in ("source", "target")}
    assert judged(records, after, before).result == "pass"
    found = judged(records, after, before, unit="words4")
    assert (found.result, [reason.code for reason in found.reasons]) == ("inconclusive", ["unit_doubtful"])
    assert "unit" in found.reasons[0].text
    assert {one.result for one in (*found.rails, *found.other_ports)} == {"inconclusive", "pass"}
    assert "is the unit right?" in of(found, "mlx5_0").reason


def test_the_unit_is_doubted_though_one_rail_is_broken_besides() -> None:
    records = lines(record({0: N, 1: N, 2: N}))
    rails = {"all": [{"local": f"mlx5_{i}", "remote": f"mlx5_{i + 4}"} for i in range(3)]}
    idle = counters(dict.fromkeys(range(3), 0), dict.fromkeys(range(4, 7), 0))
    after = counters({0: N, 1: N, 2: N // 2}, {4: N, 5: N, 6: N // 2})
    assert judged(records, after, idle, rails=rails).result == "fail"
    found = judged(records, after, idle, rails=rails, unit="words4")
    assert (found.result, {rail.result for rail in found.rails}) == ("inconclusive", {"inconclusive"})


@pytest.mark.parametrize(
    ("source", "remote"),
    [
        ({0: N, 1: 4 * N}, {4: N, 5: 4 * N}),
        ({0: 4 * N, 1: 4 * N}, {4: N, 5: N}),
        ({0: 3 * N, 1: 3 * N}, {4: 3 * N, 5: 3 * N}),
    ],
    ids=["one rail", "one side", "three times"],
)
def test_more_than_was_selected_is_no_matter_of_units_elsewhere(
    source: dict[int, int], remote: dict[int, int]
) -> None:
    found = judged(EVEN, counters(source, remote))
    assert (found.result, found.reasons, of(found, "mlx5_1").result) == ("fail", (), "fail")


@pytest.mark.parametrize("noise", [0, MIB])
@pytest.mark.parametrize("op_type", ["read", "write"])
def test_counters_of_the_other_direction_say_so(op_type: str, noise: int) -> None:
    """Requests and acknowledgements go the other way, so it need not stand still."""
    after = counters({0: N, 1: N}, {4: N, 5: N}, read=op_type == "write")
    for counted in (*after["source"].values(), *after["target"].values()):
        counted[min(counted, key=lambda name: counted[name] - (port()[name] or 0))] += noise
    found = judged(lines(record({0: N, 1: N}, op_type=op_type)), after)
    assert (found.result, {rail.result for rail in found.rails}) == ("inconclusive", {"inconclusive"})
    assert [reason.code for reason in found.reasons] == ["direction_doubtful"]
    assert "op_type" in found.reasons[0].text
    assert "no counter moved" not in found.reasons[0].text


def test_a_little_the_other_way_is_not_called_nothing() -> None:
    found = judged(EVEN, counters({0: MIB, 1: 0}, {4: MIB, 5: 0}, read=True))
    assert (found.result, found.reasons[0].code) == ("inconclusive", "window_not_enclosing")
    assert found.reasons[0].text.startswith("no counter of the operation's direction moved")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.97])
def test_window_that_does_not_enclose_the_run(share: float) -> None:
    some = int(N * share)
    found = judged(EVEN, counters({0: some, 1: some}, {4: some, 5: some}))
    assert (found.result, found.reasons[0].code) == ("inconclusive", "window_not_enclosing")
    assert {rail.result for rail in found.rails} == {"inconclusive"}


def test_snapshots_in_the_wrong_order_do_not_enclose_the_run() -> None:
    at = ({**IDLE, "taken_at": 200}, {**CARRIED, "taken_at": "1970-01-01T00:02:00+00:00"})
    assert judged(EVEN, at[1], at[0]).result == "inconclusive"
    assert judged(EVEN, {**CARRIED, "taken_at": 201}, at[0]).result == "pass"


def test_merged_requests_are_compared_by_bytes() -> None:
    found = judged(lines(record({0: N, 1: N}), target(2 * N, operations=4000)), CARRIED)
    assert found.result == "pass"
    assert [reason.code for reason in found.reasons] == ["allocations_differ"]


@pytest.mark.parametrize("difference", [-MIB, MIB])
def test_bytes_that_were_selected_but_not_transferred_are_no_clean_run(difference: int) -> None:
    found = judged(lines(record({0: N, 1: N}), target(2 * N + difference)), CARRIED)
    assert (found.result, found.reasons[0].code) == ("inconclusive", "bytes_differ")


def test_a_run_without_a_window_left_bytes_on_the_wire() -> None:
    found = judged(lines(record({0: N, 1: N}), target(2 * N), target(N)), CARRIED)
    assert (found.result, found.reasons[0].code) == ("inconclusive", "window_without_record")


def test_folded_tails_are_not_multiples_of_the_block() -> None:
    odd = {0: N + 4097, 1: N - 12345}
    folded = selection(device(0, odd[0], slices=3), device(1, odd[1], slices=2))
    found = judged(
        lines(record({}, selection=folded), target(2 * N - 8248)), counters(odd, {4: odd[0], 5: odd[1]})
    )
    assert found.result == "pass"


def test_windows_of_a_sweep_add_up() -> None:
    sweep = lines(record({0: N, 1: N}, block_size=1), record({0: N, 1: N}, block_size=2))
    assert judged(sweep, counters({0: 2 * N, 1: 2 * N}, {4: 2 * N, 5: 2 * N})).result == "pass"
    assert judged(sweep, CARRIED).result == "inconclusive"


def test_rails_that_share_a_remote_are_judged_together_there() -> None:
    shared = {"all": [{"local": "mlx5_0", "remote": "mlx5_4"}, {"local": "mlx5_1", "remote": "mlx5_4"}]}
    found = judged(EVEN, counters({0: N, 1: N}, {4: 2 * N, 5: 0}), rails=shared)
    assert found.result == "pass"
    assert of(found, "mlx5_0").target_wire_bytes == 2 * N
    assert "at the target together with mlx5_1" in of(found, "mlx5_0").reason
    lost = judged(EVEN, counters({0: N, 1: N}, {4: N, 5: N}), rails=shared)
    assert lost.result == "fail"
    assert {rail.result for rail in lost.rails} == {"fail"}


def test_what_many_rails_have_in_common_is_said_of_the_first_of_them() -> None:
    every = range(40)
    rails = {"all": [{"local": f"mlx5_{i}", "remote": f"mlx5_{i}"} for i in every]}
    rails["all"] += [{"local": "mlx5_0", "remote": f"mlx5_{i}"} for i in every if i]
    found = judged(lines(record(dict.fromkeys(every, N))), *_carried(every), rails=rails)
    assert found.result == "pass"
    assert of(found, "mlx5_1").reason.count("mlx5_") == 1 + 16 + 16
    assert " and 24 more: " in of(found, "mlx5_1").reason
    assert of(found, "mlx5_1").reason.endswith(" and 23 more")
    assert of(found, "mlx5_0").remote == "+".join(f"mlx5_{i}" for i in every)


def _carried(devices: range) -> tuple[dict[str, Any], dict[str, Any]]:
    moved, idle = (dict.fromkeys(devices, n) for n in (N, 0))
    return counters(moved, moved), counters(idle, idle)


def test_a_mesh_without_direct_rails_names_all_remotes() -> None:
    mesh = {"all": [{"local": a, "remote": b} for a in ("mlx5_0", "mlx5_1") for b in ("mlx5_4", "mlx5_5")]}
    found = judged(EVEN, counters({0: N, 1: N}, {4: N // 2, 5: 3 * N // 2}), rails=mesh)
    assert found.result == "pass"
    assert of(found, "mlx5_0").remote == "mlx5_4+mlx5_5"


def test_unknown_rails_are_refused() -> None:
    with pytest.raises(RailFileError, match="unknown local device mlx5_0"):
        judged(lines(record({7: N})), CARRIED)
    with pytest.raises(RailFileError, match="unknown remote device mlx5_5"):
        judged(EVEN, counters({0: N, 1: N}, {4: N}), counters({0: 0, 1: 0}, {4: 0}))
