#!/usr/bin/env python3
"""What copies cost beyond their bytes, on one copy stream and on two in turn.

The pattern of a plan on pages: a ring of slots; each copy waits for the last reader of its slot, and each reader for its
copy. Prints one line of JSON for each variant: the time of a pass, as a ratio to one copy of all bytes, and what each copy costs beyond
its share, in microseconds (medians of passes that take turns). Needs torch and a GPU."""

import argparse
import json
import statistics
import time

import torch


def passes(host, device, pieces, slots, streams, readers):
    """A function that issues one pass and waits for it. ``readers``: kernels read what was copied."""
    size = device.numel() // slots
    compute = torch.cuda.current_stream()
    read = [torch.cuda.Event() for _ in range(slots)]
    ready = [torch.cuda.Event() for _ in range(slots)]
    total = torch.zeros((), device="cuda", dtype=torch.int64)
    parts = [device[slot * size : (slot + 1) * size] for slot in range(slots)]
    words = [part.view(torch.int64) for part in parts]
    sources = [host[i * size : (i + 1) * size] for i in range(pieces)]

    def copy(i):
        slot, stream = i % slots, streams[i % len(streams)]
        if readers:
            stream.wait_event(read[slot])
        with torch.cuda.stream(stream):
            parts[slot].copy_(sources[i], non_blocking=True)
        if readers:
            ready[slot].record(stream)

    def run():
        for i in range(pieces + slots if readers else pieces):
            if readers and i >= slots:
                slot = i % slots
                compute.wait_event(ready[slot])
                torch.sum(words[slot][: 1 << 17], dim=0, out=total)
                read[slot].record(compute)
            if i < pieces:
                copy(i)
        torch.cuda.synchronize()

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1_750_000_000, help="bytes of a pass")
    parser.add_argument("--pieces", type=int, nargs="+", default=[28, 56, 113, 226], help="copies of a pass")
    parser.add_argument("--passes", type=int, default=20)
    args = parser.parse_args()
    most = max(args.pieces)
    unit = args.bytes // most // 4096 * 4096
    host = torch.empty(most * unit + 4096 * most, dtype=torch.uint8)
    host.random_(0, 255)
    rt = torch.cuda.cudart()
    assert int(rt.cudaHostRegister(host.data_ptr(), host.numel(), 0)) == 0
    streams = [torch.cuda.Stream() for _ in range(3)]
    for pieces in args.pieces:
        size = args.bytes // pieces // 4096 * 4096
        ring = torch.empty(4 * size, dtype=torch.uint8, device="cuda")
        whole = torch.empty(size * pieces, dtype=torch.uint8, device="cuda")
        variants = {"all at once": passes(host, whole, 1, 1, streams[:1], False)}
        for count, slots in [(1, 2), (2, 2), (1, 3), (2, 3), (3, 3), (2, 4)]:
            variants[f"{count} streams, {slots} slots"] = passes(host, ring[: slots * size], pieces, slots, streams[:count], True)
        for count in (1, 2):
            variants[f"{count} streams, no readers"] = passes(host, ring[: 2 * size], pieces, 2, streams[:count], False)
        times = {name: [] for name in variants}
        for turn in range(args.passes + 3):
            for name, run in variants.items():
                begun = time.perf_counter()
                run()
                if turn >= 3:
                    times[name].append(time.perf_counter() - begun)
        bare = statistics.median(times["all at once"])
        for name in variants:
            took = statistics.median(times[name])
            row = {"pieces": pieces, "bytes": size, "variant": name, "ratio": round(took / bare, 4)}
            row["each_us"] = round((took - bare) / pieces * 1e6, 2)
            print(json.dumps(row), flush=True)
        del ring, whole


if __name__ == "__main__":
    main()
