"""How a campaign ends: with everything stopped, what was counted told, and 1 where anything was found."""

import os
import shutil
import sys
import time


def run(campaign, folder):
    """Runs a campaign to its end. It has `run`, which gives what it counted, `end`, `report`, a `node` and `findings`."""
    begun, counted = time.monotonic(), {}
    try:
        counted = campaign.run()
    except Exception as error:  # noqa: BLE001 - it ends the campaign, with what was found so far
        campaign.findings.add(f"the campaign: {type(error).__name__}: {error}; {campaign.node.log_tail()}")
    finally:
        campaign.end()
    campaign.report(counted or {}, time.monotonic() - begun)
    if campaign.findings:
        sys.stdout.flush()
        # Threads of clients that wait for a node that is gone are not waited for.
        os._exit(1)
    shutil.rmtree(folder, ignore_errors=True)
