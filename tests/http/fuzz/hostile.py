"""What nobody should send: JSON values, whole bodies, query values and ids, as they go over the wire."""

from __future__ import annotations

from typing import Final

DEEP, BEYOND_THE_STACK = 150, 200_000

#: JSON text; some of it is none, or more than Python's parser takes.
VALUES: Final = [
    "null", "true", "false", "0", "-0.0", "-1", "1", "5.0", "5.5", "1e3", "1e308", "1e400", "-1e400", "1e-400",
    "NaN", "Infinity", "-Infinity", "9007199254740993", "9223372036854775807", "9223372036854775808",
    "1" + "0" * 400, "1" + "0" * 5000, "-" + "9" * 25,
    '""', '" "', '"\\u0000"', '"a\\u0000b"', '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\N{PILE OF POO}"',
    '"' + "\N{GRINNING FACE}" * 300 + '"', '"' + "x" * 300 + '"', '"' + "y" * 200_000 + '"',
    "\"' OR '1'='1\"", '"`; DROP TABLE tandemq_tasks; --"', '"\\\\"', '"%s %(id)s {0} ${x}"', '"%_"', '"*"', '"{}"',
    '"\\r\\nX-Injected: 1"', '"../../etc/passwd"', '"\\u202e<script>alert(1)</script>"', '"1"', '"01"', '"-1"', '"NaN"',
    '"null"', '"true"', '"10/s"', '"1%"', '"2030-01-01T00:00:00Z"', '"2030-01-01"', '"9999-12-31T23:59:59Z"',
    '"0000-00-00T00:00:00Z"', '"Wed, 21 Oct 2015 07:28:00 GMT"', "[]", "[null]", "[[[]]]", '["a"]', "[1]", "{}",
    '{"a":1,"a":2}', '{"\\ud800":1}', '{"":{"":""}}', '{"__proto__":{"x":1}}', '{"state":"dead"}', '{"queue":"a"}',
    "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP, "[" * BEYOND_THE_STACK,
    "", "tru", "'a'", '"open', "1 2", "{", "undefined", "\N{NO-BREAK SPACE}1", '"\t"', '"\x01"',
]  # fmt: skip

#: Whole bodies.
BODIES: Final = [
    b"", b" ", b"null", b"true", b"[]", b"{}", b"5", b'"x"', b"{", b"}", b'{"a"', b"\xff", b'{"type":"\xff"}', b"\x00",
    b"\xef\xbb\xbf{}", b'\xef\xbb\xbf{"type":"t"}', '{"type":"t"}'.encode("utf-16"), b'{"type":"\xed\xa0\x80"}',
    b'{"type":"t"}{"type":"t"}', b'{"type":"t",}', b"{'type':'t'}", b'{"type":"t"} x', b'{"\\ud800":1}',
    b'{"' + b"k" * 100_000 + b'":1}', b'{"a":' * 50_000, b"[" * 200_000, b"9" * 100_000, b"\x1f\x8b\x08\x00\x00\x00",
    b"type=t&payload=x", b"<?xml version='1.0'?><a/>", b'{"constructor":1}', b'{"\x00":1}', b'{"a b;c":[]}',
]  # fmt: skip

#: Values of the query, percent-encoded.
QUERY_VALUES: Final = [
    "", "%20", "%00", "a%00b", "%ff", "%ed%a0%80", "%F0%9F%92%A9", "%2527", "'%20OR%201=1--", "%60", "a" * 5000, "%0a",
    "a%0ab", "-1", "0", "1", "01", "1.0", "1e3", "+1", "%201", "%D9%A1", "9223372036854775807", "9223372036854775808",
    "9" * 30, "null", "dead", "pending", "ready", "*", "%25", "_", "{}", "[]", "a,b", "..%2f..", "%3Cscript%3E", "%%",
    "%zz", "%u0041", "a;b", "a+b", "true",
]  # fmt: skip

#: Steps of a path, as they are sent.
IDS: Final = [
    "0", "-1", "+1", "01", "1.0", "1e3", "abc", "null", "1%00", "%31", "%ff", "9223372036854775808", "9" * 30, "1;2",
    "1,2", "*", "'", "%27", "{id}", "%F0%9F%92%A9", "...", "%2e%2e", "%2f", "1%0a", "a" * 3000, "%D9%A1",
    "claim", "batch",
]  # fmt: skip
