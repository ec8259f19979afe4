"""What must hold when the kills are over: every acknowledged record once, in order, at its offset, from both tiers; manifests and
bucket agree; nothing that is named is missing, and nothing that nobody names outlives the orphan age."""

import re
import time

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from fault_node import GRACE_SECONDS, ORPHAN_AGE_SECONDS, wait_until
from load import BYTES_KEPT, MILLISECONDS_KEPT, SILENCE_SECONDS_MAX, Reading, consumer, take_all

SEGMENT = re.compile(r"topics/(?P<topic>.+)-(?P<id>.{22})/(?P<partition>\d+)/(?P<base>\d{20})-\d+-\d+-\d+\.seg")
BROKER = re.compile(r"brokers/\d+\.json")
PAGE = re.compile(r"topics/(?P<topic>.+)-(?P<id>.{22})/(?P<partition>\d+)/pages/(?P<base>\d{20})-\d+-\d+\.page")
MANIFEST = re.compile(r"topics/(?P<topic>.+)-(?P<id>.{22})/(?P<partition>\d+)/manifest-\d{20}\.manifest")
MANIFESTS_KEPT = 3


def every_acknowledged_record_is_there_once_in_order(node, load, where):
    """Reads every lasting partition from its log start to its end. Gives how many records came."""
    findings = load.findings
    source = consumer(node.address)
    readings, ends, lows = {}, {}, {}
    for ledger in load.ledgers:
        place = (ledger.topic, ledger.partition)
        lows[place], ends[place] = source.get_watermark_offsets(TopicPartition(*place), timeout=30)
        readings[place] = Reading(ledger, ledger.topic != "keep")
        if ends[place] != ledger.sent:
            findings.add(f"{where}: {ledger} ends at {ends[place]}, and {ledger.sent} records were acknowledged")
    source.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in readings])

    def left():
        at = {place: max(reading.next or 0, lows[place]) for place, reading in readings.items()}
        return {place: (at[place], ends[place]) for place in readings if at[place] < ends[place]}

    count, silent_since = 0, time.monotonic()
    while left() and not findings:
        came = take_all(source, readings, findings, count=2000)
        count += came
        if came:
            silent_since = time.monotonic()
            continue
        for place in left():
            # Retention goes on meanwhile.
            lows[place] = source.get_watermark_offsets(TopicPartition(*place), timeout=30)[0]
        if time.monotonic() > silent_since + SILENCE_SECONDS_MAX:
            findings.add(f"{where}: nothing is read any more, at {left()}; {node.log_tail()}")
    source.close()
    for reading in readings.values():
        log_start_is_what_was_asked_for(reading.ledger, node, findings, where)
    return count


def log_start_is_what_was_asked_for(ledger, node, findings, where):
    """Nothing below the log start may be missed: it lies where retention or DeleteRecords may have moved it."""
    status = partition_status(node, ledger.topic, ledger.partition)
    if status is None:
        findings.add(f"{where}: {ledger} is not in the tier's status")
        return
    start, now = status["log_start"], int(time.time() * 1000)
    if ledger.topic == "keep" and start != 0:
        findings.add(f"{where}: {ledger} begins at {start}, and nothing of it may go")
    if ledger.topic == "trimmed" and not ledger.trimmed_to <= start <= ledger.asked_to:
        findings.add(f"{where}: {ledger} begins at {start}, not in {ledger.trimmed_to}..{ledger.asked_to}")
    if ledger.topic == "by-size" and start > 0:
        kept = sum(len(ledger.content(number)) for number in range(start, ledger.sent))
        # A batch's headers and record framing are beside the values.
        if kept < BYTES_KEPT * 0.6:
            findings.add(f"{where}: {ledger} keeps {kept} bytes, and {BYTES_KEPT} are asked for")
    if ledger.topic == "by-age" and start > 0 and ledger.times[start - 1] > now - MILLISECONDS_KEPT:
        findings.add(f"{where}: {ledger} begins at {start}, and the record before is {now - ledger.times[start - 1]} ms old")


def partition_status(node, topic, partition):
    status = node.get("/v1/tier/status")
    for entry in (status or {}).get("topics", []):
        if entry["topic"] == topic:
            return next((part for part in entry["partitions"] if part["partition"] == partition), None)
    return None


def everything_becomes_cold(node, findings):
    """Waits until every record is in the bucket and gone from local disk."""

    def cold():
        status = node.get("/v1/tier/status")
        parts = [part for entry in (status or {"topics": []})["topics"] for part in entry["partitions"]]
        return parts and all(p["tiered_end"] == p["local_log_start"] == p["log_end"] for p in parts)

    try:
        wait_until(cold, 60, "everything is in the bucket and gone from local disk", every=0.2)
    except TimeoutError as error:
        findings.add(f"{error}: {node.get('/v1/tier/status')}")


def segments(node):
    """Every segment object that a manifest names: key to (topic, status). None where it cannot be told now."""
    status = node.get("/v1/tier/status")
    if status is None:
        return None
    named = {}
    for entry in status["topics"]:
        found = node.get(f"/v1/tier/segments?topic={entry['topic']}")
        if found is None:
            return None
        named.update({segment["key"]: (entry["topic"], segment) for segment in found["segments"]})
    return named


def manifests_are_contiguous(node, findings):
    """Ranges follow one another from the log start to the tiered end."""
    status = node.get("/v1/tier/status") or {"topics": []}
    for entry in status["topics"]:
        found = node.get(f"/v1/tier/segments?topic={entry['topic']}") or {"segments": []}
        for part in entry["partitions"]:
            own = [s for s in found["segments"] if s["partition"] == part["partition"]]
            for one, next_one in zip(own, own[1:]):
                if one["end_offset"] != next_one["base_offset"]:
                    findings.add(f"{entry['topic']}-{part['partition']}: a gap between {one} and {next_one}")
            # The status is a moment older than the segments: retention may have moved the start, and nothing is uploaded any more.
            if own and own[-1]["end_offset"] != part["tiered_end"]:
                findings.add(f"{entry['topic']}-{part['partition']}: {own[-1]} does not end at {part['tiered_end']}")
            if own and own[0]["base_offset"] > part["log_start"] and entry["topic"] not in ("by-size", "by-age"):
                findings.add(f"{entry['topic']}-{part['partition']}: {own[0]} begins behind {part['log_start']}")


def nothing_named_is_missing(node, findings):
    """Every object that manifests name before and after a listing is in it, with its length."""
    before, objects, after = segments(node), node.objects(), segments(node)
    if before is None or after is None:
        findings.add("the tier does not tell its segments")
        return 0
    for key, (topic, segment) in before.items():
        if key in after and objects.get(key) != segment["object_bytes"]:
            findings.add(f"{topic}: {segment} is named, and the bucket has {objects.get(key)} bytes of it")
    return len(before)


def unnamed(node):
    """What of the bucket nobody names. None where it cannot be told now."""
    objects, named, status = node.objects(), segments(node), node.get("/v1/tier/status")
    if named is None or status is None:
        return None
    live = {entry["topic_id"] for entry in status["topics"]}
    left, pages, manifests = [], {}, {}
    for key in objects:
        if key == "cluster.json" or key in named or BROKER.fullmatch(key):
            continue
        page, manifest = PAGE.fullmatch(key), MANIFEST.fullmatch(key)
        if page and page["id"] in live:
            # A page that grows is written anew under the same base, and its predecessor goes.
            pages.setdefault((page["id"], page["partition"], page["base"]), []).append(key)
        elif manifest and manifest["id"] in live:
            manifests.setdefault((manifest["id"], manifest["partition"]), []).append(key)
        else:
            left.append(key)
    for keys in pages.values():
        left += keys[1:] if len(keys) > 1 else []
    for keys in manifests.values():
        left += sorted(keys)[MANIFESTS_KEPT:]
    return left


def no_orphan_outlives_its_age(node, findings, age_seconds):
    """What nobody names goes within the orphan age, the sweep's period and the grace of deletions."""
    seconds = 2.5 * age_seconds + GRACE_SECONDS + 10
    try:
        wait_until(lambda: unnamed(node) == [], seconds, "everything in the bucket is named", every=0.5)
    except TimeoutError as error:
        left = unnamed(node)
        findings.add(f"{error}: {len(left or [])} are left: {sorted(left or [])[:6]}")


def local_folders_are_of_living_partitions(node, findings):
    """A deleted partition leaves no folder, and no file is left in the making."""
    status = node.get("/v1/tier/status") or {"topics": []}
    living = {f"{e['topic_id']}-{p['partition']}" for e in status["topics"] for p in e["partitions"]}
    for entry in node.data.iterdir():
        is_partition = entry.is_dir() and re.fullmatch(r".{22}-\d+", entry.name)
        if is_partition and entry.name not in living:
            findings.add(f"the folder {entry.name} is of no partition: {sorted(p.name for p in entry.iterdir())}")
        if is_partition:
            for left in entry.glob("*.new"):
                findings.add(f"{left} was left in the making")


def all_of_it(node, load, orphan_age_seconds=ORPHAN_AGE_SECONDS):
    """Every check, in order. Gives what was counted."""
    findings, counted = load.findings, {}
    counted["read_hot"] = every_acknowledged_record_is_there_once_in_order(node, load, "hot")
    if findings:
        return counted
    everything_becomes_cold(node, findings)
    node.drop_cache()
    counted["read_cold"] = every_acknowledged_record_is_there_once_in_order(node, load, "cold")
    manifests_are_contiguous(node, findings)
    counted["objects_named"] = nothing_named_is_missing(node, findings)
    no_orphan_outlives_its_age(node, findings, orphan_age_seconds)
    nothing_named_is_missing(node, findings)
    local_folders_are_of_living_partitions(node, findings)
    return counted
