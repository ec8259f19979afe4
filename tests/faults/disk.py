"""The disk misbehaves: it fills, its syncs fail, its bits flip; and so do the bucket's.

    python disk.py --binary tidelog --fault-binary fault-node --folder DIR --seconds 60 --seed 1 [--only full syncs bits]

Prints what was done and counted, a line of JSON for each part. Exits with 1 where anything was found, and leaves the folder then.
"""

import argparse
import json
import os
import pathlib
import random
import shutil
import sys
import time

import small_disk

PARTS = ["full", "syncs", "bits"]
# Of the whole time; a part begins nothing new after its own.
SHARES = {"full": 0.35, "syncs": 0.25, "bits": 0.4}


def campaign(part, arguments, folder, rng, findings):
    # After `enter`: clients have threads.
    import failed_syncs
    import flipped_bits
    import full_disk

    if part == "full":
        return full_disk.FullDisk(arguments.binary, folder, rng, findings)
    if part == "syncs":
        return failed_syncs.FailedSyncs(arguments.fault_binary, folder, rng, findings)
    return flipped_bits.FlippedBits(arguments.binary, folder, rng, findings, arguments.everything)


def run(part, arguments):
    from ledger import Findings

    folder = pathlib.Path(arguments.folder).absolute() / part
    findings, counted, begun = Findings(), {}, time.monotonic()
    share = SHARES[part] / sum(SHARES[one] for one in arguments.only)
    # Of a number of seconds a part's own setting up and judging is not taken off.
    one = campaign(part, arguments, folder, random.Random(f"{arguments.seed} {part}"), findings)
    try:
        counted = one.run(begun + arguments.seconds * share)
    except Exception as error:  # noqa: BLE001 - it ends the campaign, with what was found so far
        findings.add(f"{part}: {type(error).__name__}: {error}; {one.node.log_tail()}")
    finally:
        one.end()
    seconds = round(time.monotonic() - begun, 1)
    document = {"part": part, "seed": arguments.seed, **counted, "seconds": seconds, "findings": findings.texts}
    print(json.dumps(document), flush=True)
    return not findings


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True, help="the product")
    parser.add_argument("--fault-binary", required=True, help="the product over layers that fail")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--everything", action="store_true", help="every kind of file at every place, however long it takes")
    arguments = parser.parse_args()
    try:
        small_disk.enter()
    except small_disk.NoSmallDisk as error:
        sys.exit(f"a small disk cannot be had here: {error}")
    good = all([run(part, arguments) for part in arguments.only])
    sys.stdout.flush()
    if good:
        shutil.rmtree(arguments.folder, ignore_errors=True)
    # Threads of clients that wait for a node that is gone are not waited for.
    os._exit(0 if good else 1)


if __name__ == "__main__":
    main()
