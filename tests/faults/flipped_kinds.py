"""Every kind of file in a data directory and of object in a bucket. A kind that is not here is a finding of its own."""

import check

PARTITION = r"(?P<id>[A-Za-z0-9_-]{22})-(?P<partition>\d+)"
# Name of a kind, and which paths below the data directory it has. What is empty cannot be flipped.
FILES = {
    "lock": r"\.lock",
    "meta": r"meta\.properties",
    "reserve": r"reserve",
    "claims": r"bucket\.claims",
    "checkpoint": r"log\.checkpoint",
    "journal": r"journal/\d{20}\.journal",
    "segment": rf"{PARTITION}/\d{{20}}\.log",
    "index": rf"{PARTITION}/\d{{20}}\.index",
    "epochs": rf"{PARTITION}/leader-epoch-checkpoint",
    "producers": rf"{PARTITION}/\d{{20}}\.snapshot",
    "fence": rf"{PARTITION}\.fence",
    "controller identity": r"controller/identity",
    "controller log": r"controller/log-\d{20}",
    "controller log's spare": r"controller/log-spare",
    "controller snapshot": r"controller/snapshot-\d{20}",
    "controller snapshot's spare": r"controller/snapshot-spare",
    "in the making": r".*\.new",
    "cache shape": r"cache/shape",
    "cache": r"cache/foyer-storage-direct-fs-\d+",
}
OBJECTS = {
    "claim": r"cluster\.json",
    "broker's claim": check.BROKER.pattern,
    "segment object": check.SEGMENT.pattern,
    "page": check.PAGE.pattern,
    "manifest": check.MANIFEST.pattern,
}
EMPTY = {"lock"}
# A kill leaves these, or does not.
MAY_BE_ABSENT = {"in the making"}
