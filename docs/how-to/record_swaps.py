"""Record the swaps of vLLM or SGLang as a trace: copy this file to the engine's machine (docs/how-to/trace.md)."""

import atexit
import json
import time
from collections import deque
from pathlib import Path


class Recorder:
    """Writes swaps in the order of their submission, each once it and all before it are done."""

    def __init__(self, path, block_bytes):
        self.file = Path(path).open("w", buffering=1)  # noqa: SIM115, open until the engine ends
        self.file.write(json.dumps({"kvbench_trace": 1, "block_bytes": block_bytes}) + "\n")
        self.begin, self.jobs, self.pending = time.monotonic(), 0, deque()
        atexit.register(self.flush, everything=True)

    def now(self):
        return time.monotonic() - self.begin

    def record(self, began, direction, host, gpu, is_done):
        line = {"t": began, "d": direction, "job": self.jobs, "host": runs(host), "gpu": runs(gpu)}
        self.jobs += 1
        self.pending.append((line, is_done))
        self.flush()

    def flush(self, everything=False):
        for line, is_done in self.pending:
            if "done" not in line and is_done():
                line["done"] = self.now()
        while self.pending and (everything or "done" in self.pending[0][0]):
            self.file.write(json.dumps(self.pending.popleft()[0]) + "\n")


def runs(ids):
    """First id and count of each run; the count is negative where ids descend."""
    flat = []
    for number in map(int, ids):
        if flat and flat[-1] > 0 and number == flat[-2] + flat[-1]:
            flat[-1] += 1
        elif flat and (flat[-1] < 0 or flat[-1] == 1) and number == flat[-2] - abs(flat[-1]):
            flat[-1] = -abs(flat[-1]) - 1
        else:
            flat += [number, 1]
    return flat


def record_vllm(recorder):
    from vllm.v1.kv_offload.cpu.gpu_worker import SingleDirectionOffloadingHandler as Handler

    submit, finished, done = Handler.transfer_async, Handler.get_finished, set()

    def transfer_async(self, job_id, src_spec, dst_spec):
        began = recorder.now()
        accepted = submit(self, job_id, src_spec, dst_spec)
        source, destination = src_spec.block_ids, dst_spec.block_ids
        host, gpu = (destination, source) if self.gpu_to_cpu else (source, destination)
        recorder.record(began, "d2h" if self.gpu_to_cpu else "h2d", host, gpu, lambda: job_id in done)
        return accepted

    def get_finished(self):
        results = finished(self)
        done.update(result.job_id for result in results)
        recorder.flush()
        return results

    Handler.transfer_async, Handler.get_finished = transfer_async, get_finished


def record_sglang(recorder):
    from sglang.srt.managers.cache_controller import HiCacheController as Controller

    def wrap(method, direction, queue, acks):
        start = getattr(Controller, method)

        def recorded(self):
            began, operations = recorder.now(), list(getattr(self, queue))
            result = start(self)
            if operations:
                host, gpu = (
                    [
                        row // self.page_size
                        for one in operations
                        for row in getattr(one, side)[:: self.page_size].tolist()
                    ]
                    for side in ("host_indices", "device_indices")
                )
                recorder.record(began, direction, host, gpu, getattr(self, acks)[-1].finish_event.query)
            return result

        setattr(Controller, method, recorded)

    wrap("start_writing", "d2h", "write_queue", "ack_write_queue")
    wrap("start_loading", "h2d", "load_queue", "ack_load_queue")
