"""Snapshots of port counters: JSON, sysfs and Prometheus text, and what lies between two of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.selection.counter_texts import read_counters
from app.selection.counters import SATURATED_32, Direction, Moved, Movement, Unit, check_unit
from app.selection.errors import CountersError

FLAT = {"mlx5_0": {"port_xmit_data": 5, "port_rcv_data": 7}}
WANTED = {("source", "mlx5_0", "1"): {"transmit": 5, "receive": 7}}
SYSFS = "/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
EXPORTED = 'node_infiniband_port_data_transmitted_bytes_total{device="mlx5_0",port="1"'


@pytest.mark.parametrize(
    "document",
    [
        {"source": FLAT},
        {"local": FLAT},
        {"source": {"mlx5_0": {"1": FLAT["mlx5_0"]}}},
        {"source": {"mlx5_0": {"ports": {"1": {"counters": FLAT["mlx5_0"]}}}}},
        {"source": {"mlx5_0/1": FLAT["mlx5_0"]}},
        {"source": {"mlx5_0": {"port_xmit_data": "5", "port_rcv_data": " 7\n", "port_xmit_packets": 99}}},
        {"source": f"{SYSFS}:5\n{SYSFS.replace('xmit', 'rcv')}:7\n"},
        {"source": [{"device": "mlx5_0", "port": 1, **FLAT["mlx5_0"]}], "unit": "words4", "taken_at": 17},
        [{"side": "source", "device": "mlx5_0", "port": 1, **FLAT["mlx5_0"]}],
        {"ports": [{"side": "source", "device": "mlx5_0", **FLAT["mlx5_0"]}]},
    ],
)
def test_json_forms(document: Any) -> None:
    assert read_counters(json.dumps(document)).ports == WANTED


@pytest.mark.parametrize(
    "text",
    [
        f"# source\n{SYSFS} 5\n{SYSFS.replace('xmit', 'rcv')}: 7\n",
        f"[source]\n{SYSFS}:5\n{SYSFS.replace('xmit', 'rcv')}=7",
        f"source:{SYSFS}:5\nsource:{SYSFS.replace('xmit', 'rcv')}:7",
        f'# TYPE x counter\n{EXPORTED},instance="source:9100"}} 5\n'
        f'{EXPORTED.replace("transmitted", "received")},side="source"}} 7e0\nup 1\n',
        '# source\ninfiniband_port_xmit_data{device="mlx5_0"} 5\ninfiniband_port_rcv_data{device="mlx5_0"} 7\n',
    ],
)
def test_text_forms(text: str) -> None:
    assert read_counters(text).ports == WANTED


@pytest.mark.parametrize("value", [None, "", "N/A", "-"])
def test_missing_is_not_zero(value: Any) -> None:
    for first, last in ((value, 5), (5, value), (value, value)):
        assert _moved(first, last) == Moved(None, "missing")
    assert _moved(0, 0) == Moved(0)


def test_missing_in_texts_is_not_zero_either() -> None:
    sysfs = read_counters(f"# source\n{SYSFS}\n")
    exported = read_counters(f"# source\n{EXPORTED}}} NaN\n")
    assert sysfs.ports == exported.ports == {("source", "mlx5_0", "1"): {"transmit": None}}


def test_a_device_that_one_snapshot_lacks_is_missing() -> None:
    there, gone = read_counters(_one(5)), read_counters(json.dumps({"target": FLAT}))
    for movement in (Movement(there, gone, "bytes"), Movement(gone, there, "bytes")):
        assert movement.moved("source", "mlx5_0", "transmit").trouble == "missing"
    assert Movement(there, there, "bytes").moved("source", "mlx5_9", "transmit").trouble == "missing"


def test_words_are_four_bytes() -> None:
    assert _moved(10, 35, "words4") == Moved(100)
    assert _moved(10, 35, "bytes") == Moved(25)


@pytest.mark.parametrize("unit", ["", "words", "octets", "Bytes"])
def test_the_unit_must_be_stated(unit: str) -> None:
    with pytest.raises(CountersError, match="words4 or bytes"):
        check_unit(unit)


def test_a_snapshot_that_states_another_unit_is_refused() -> None:
    stated = read_counters(json.dumps({"source": FLAT, "unit": "bytes"}))
    with pytest.raises(CountersError, match="words4 was stated, a snapshot says bytes"):
        Movement(stated, stated, "words4")


@pytest.mark.parametrize(
    ("last", "unit"),
    [(SATURATED_32, "words4"), (SATURATED_32, "bytes"), (4 * SATURATED_32, "bytes"), (2**64 - 1, "bytes")],
)
def test_a_counter_at_its_ceiling_is_saturated(last: int, unit: Unit) -> None:
    assert _moved(5, last, unit) == Moved(None, "saturated")
    assert _moved(last, last, unit) == Moved(None, "saturated")
    assert _moved(5, last - 1, unit).trouble is None


def test_a_64_bit_counter_may_pass_the_32_bit_ceiling() -> None:
    assert _moved(SATURATED_32, SATURATED_32 + 10) == Moved(10)


def test_a_counter_that_went_backwards_was_reset() -> None:
    assert _moved(6, 5) == Moved(None, "reset")


def test_ports_of_a_device_add_up_and_one_unknown_makes_it_unknown() -> None:
    def both(first: int, second: int | None) -> str:
        ports = {"1": {"port_xmit_data": first}, "2": {"port_xmit_data": second}}
        return json.dumps({"source": {"mlx5_0": ports}})

    assert _between(both(1, 1), both(5, 8)) == Moved(11)
    assert _between(both(1, 1), both(5, None)) == Moved(None, "missing")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no port"),
        ("{}", "names no port"),
        ("{", "not JSON"),
        ('{"sources": {}}', "sources: is none of source, target"),
        ('{"source": 5}', "source: must be"),
        ('{"source": {"mlx5_0": 5}}', "source.mlx5_0: must be"),
        ('{"source": {"mlx5_0": {"1": 5}}}', "source.mlx5_0.1: must be"),
        (_BAD := '{"source": {"mlx5_0": {"port_xmit_data": %s}}}', "not JSON"),
        (_BAD % "-1", "mlx5_0.1.port_xmit_data: must be a whole number"),
        (_BAD % "1.5", "must be a whole number"),
        (_BAD % "true", "must be a whole number"),
        (_BAD % "[]", "must be a whole number"),
        (_BAD % f'"{"9" * 30}"', "must be a whole number"),
        (_BAD % str(2**64 + 1), "must be a whole number"),
        (_BAD % "1e400", "must be a whole number"),
        ('{"source": {"": {"port_xmit_data": 1}}}', "source: '' is no name"),
        ('{"source": {"a\\u0000": {"port_xmit_data": 1}}}', "is no name of a device"),
        ('{"source": {"a": {"port_xmit_data": 1, "port_xmit_data_64": 1}}}', "stands twice"),
        ('[{"device": "a", "port_xmit_data": 1}]', "side must be source or target"),
        ('[{"side": "source", "port_xmit_data": 1}]', "ports.0: must be an object with side, device"),
        ('{"source": {"a": {"port_xmit_data": 1}}, "taken_at": "yesterday"}', "taken_at: must be seconds"),
        ('{"source": {"a": {"port_xmit_data": 1}}, "taken_at": %s}' % ("9" * 400), "taken_at: must be seconds"),
        ('{"source": {"a": {"port_xmit_data": 1}}, "taken_at": "2026-01-31T08:00:00"}', "with a time zone"),
        ('{"source": {"a": {"port_xmit_data": 1}}, "unit": "words"}', "unit: must be words4 or bytes"),
        (f"{SYSFS}:5\n", "line 1, side: whose it is"),
        (f"# source\n{SYSFS}:5\n{SYSFS}:6\n", "line 3, .*stands twice"),
        (f"# source\n{SYSFS}:five\n", "line 2, .*whole number"),
        ("# source\nfoo{a=\n", "line 2: neither a sysfs counter nor Prometheus"),
        ('# source\ninfiniband_port_xmit_data{port="1"} 5\n', "line 2, infiniband_port_xmit_data: has no label"),
        (f"{EXPORTED}}} 5\n", "line 1, .*side must be source or target"),
        (f"# source\n{EXPORTED}}} +Inf\n", "line 2, .*whole number"),
    ],
)
def test_refused(text: str, words: str) -> None:
    with pytest.raises(CountersError, match=words):
        read_counters(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"\\ud800": 1}',
        '{"source": {"\\ud800": 5}}',
        '{"source": {"a": {"counters": {"port_xmit_data\\ud800": 1, "x": 1}, "\\u001b[2J": 1}}, "\\u001b[2J": 1}',
        '{"source": [{"device": "\\ud800", "port": "x"}]}',
        '{"source": {"a": {"port_xmit_data": "\\ud800"}}}',
        '{"source": {"%s": 5}}' % ("a" * 10_000),
        '# source\n\x1b[31mport_xmit_data{port="1"} 5\n',
    ],
)
def test_what_is_refused_is_said_in_few_characters_that_can_be_shown(text: str) -> None:
    with pytest.raises(CountersError) as caught:
        read_counters(text)
    said = (str(caught.value), caught.value.message, caught.value.field)
    assert all(one.isprintable() for one in said)
    assert max(map(len, said)) <= 700


@pytest.mark.parametrize(
    "row",
    [
        f"{SYSFS}{' ' * 200_000}x y",
        f"{(SYSFS + ':') * 30_000} x",
    ],
    ids=["blanks", "paths"],
)
def test_a_long_row_is_refused_in_time_that_grows_with_its_length(row: str) -> None:
    with pytest.raises(CountersError, match="line 2: neither a sysfs counter nor Prometheus"):
        read_counters(f"# source\n{row}")


def _one(transmit: object) -> str:
    return json.dumps({"source": {"mlx5_0": {"port_xmit_data": transmit}}})


def _between(before: str, after: str, unit: Unit = "bytes", direction: Direction = "transmit") -> Moved:
    return Movement(read_counters(before), read_counters(after), unit).moved("source", "mlx5_0", direction)


def _moved(first: object, last: object, unit: Unit = "bytes") -> Moved:
    return _between(_one(first), _one(last), unit)
