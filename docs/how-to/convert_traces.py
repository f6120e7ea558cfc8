"""Convert a file of another format into a request trace: python3 convert_traces.py FORMAT FILE OUT [TOKENS_OF_AN_ID].

FORMAT is a function below; docs/how-to/trace.md says what each assumes. For a format of your own, copy one of them.
"""

import csv
import json
import sys
from pathlib import Path


def write(path, rows, **header):
    """Write rows of time, input tokens, output tokens and ids."""
    names = "timestamp", "input_length", "output_length", "hash_ids"
    lines = [header, *(dict(zip(names, row, strict=True)) for row in rows)]
    Path(path).write_text("".join(json.dumps(line) + "\n" for line in lines))


class Prefixes:
    """Gives every distinct prefix of a prompt a number."""

    def __init__(self):
        self.known = {}

    def ids(self, blocks):
        """An id for each block: the same where it and all before it are the same."""
        ids = [-1]
        for block in blocks:
            ids.append(self.known.setdefault((ids[-1], block), len(self.known)))
        return ids[1:]


def aiperf(lines, hash_tokens=512, per_second=1000, turn_s=lambda tokens: 0.2 + 0.02 * tokens):
    """Rows that hold what a turn adds, and its delay after the turn before (AIPerf: ms, guidellm: s). How long a turn
    takes is assumed; its output, which has no ids, becomes part of the next prompt.
    """
    prefixes, blocks, end_s = Prefixes(), {}, {}
    for number, line in enumerate(lines):
        row = json.loads(line)
        key, tokens, output = row["session_id"], row["input_length"], row["output_length"]
        begin_s = row["timestamp"] / per_second if "timestamp" in row else end_s[key] + row["delay"] / per_second
        prompt = blocks.setdefault(key, [])
        prompt += [(row["hash_ids"][at * 16 // hash_tokens], at * 16 % hash_tokens) for at in range(tokens // 16)]
        yield begin_s, 16 * len(prompt), output, prefixes.ids(prompt)
        prompt += [(number, "output", at) for at in range(output // 16)]
        end_s[key] = begin_s + turn_s(output)


def guidellm(lines):
    return aiperf(lines, per_second=1)


def weka(lines, apart_s=1.0):
    """AgentX: a conversation in a line, whose ids count in it alone and whose times begin with it."""
    prefixes = Prefixes()
    for number, line in enumerate(lines):
        talk = json.loads(line)
        scope = "" if talk.get("hash_id_scope") == "global" else number
        requests = list(talk["requests"])
        for request in requests:
            requests += request.get("requests", [])  # of an agent that it started
            if "hash_ids" in request:
                ids = prefixes.ids((scope, block) for block in request["hash_ids"])
                yield number * apart_s + request["t"], request["in"], request["out"], ids


def dynamo(lines):
    """The request log, with the hashes of each request's blocks in `request.replay`."""
    for line in lines:
        record = json.loads(line)
        request = record.get("event", record).get("request") or {}
        if replay := request.get("replay"):
            length, ids = replay["input_length"], replay["input_sequence_hashes"]
            yield request["request_received_ms"], length, request["output_tokens"], ids


def lmcache(lines):
    """What `lmcache server --lookup-hash-log-dir DIR` (0.5.6) writes: a hash for each whole chunk of a prompt. Lookups
    do not say how long the outputs are.
    """
    prefixes, seen = Prefixes(), set()
    for line in lines:
        row = json.loads(line)
        hashes, chunk = row["chunk_hashes"], row["chunk_size"]
        if row["request_id"] not in seen:  # a request that waits is looked up again
            seen.add(row["request_id"])
            tokens = min(row["seq_len"], (len(hashes) + 1) * chunk - 1)
            yield row["timestamp"], tokens, 0, prefixes.ids(hashes)


def burstgpt(lines):
    """BurstGPT has no ids: where it names sessions, a longer prompt is taken to continue the one before. Without
    sessions, requests share nothing.
    """
    prefixes, last = Prefixes(), {}
    for number, row in enumerate(csv.DictReader(lines)):
        session, tokens = row.get("Session ID") or number, int(row["Request tokens"])
        length, begin = last.get(session, (0, number))
        begin = begin if tokens > length else number
        last[session] = tokens, begin
        ids = prefixes.ids((begin, at) for at in range(tokens // 16))
        yield float(row["Timestamp"]), tokens, int(row["Response tokens"]), ids


# What makes the rows of a format, the tokens of one of its ids, and the unit of the times that it makes.
FORMATS = {
    "aiperf": (aiperf, 16, "s"),
    "guidellm": (guidellm, 16, "s"),
    "weka": (weka, 64, "s"),
    "dynamo": (dynamo, 16, "ms"),  # of trace_block_size
    "lmcache": (lmcache, 256, "s"),  # of chunk_size
    "burstgpt": (burstgpt, 16, "s"),
}

if __name__ == "__main__":
    if len(sys.argv) not in (4, 5) or sys.argv[1] not in FORMATS:
        sys.exit(f"{__doc__}\nFORMAT: {', '.join(FORMATS)}")
    rows_of, hash_tokens, time_unit = FORMATS[sys.argv[1]]
    with Path(sys.argv[2]).open() as source_lines:
        tokens = int(sys.argv[4]) if len(sys.argv) == 5 else hash_tokens
        write(sys.argv[3], rows_of(source_lines), hash_tokens=tokens, time_unit=time_unit)
