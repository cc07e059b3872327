"""Plant each fault of the recovery code in turn and run the tests that must notice it: ``make mutants``.

Usage: ``python scripts/mutants.py [NAME ...] [--smoke]``. Without a name: all; ``--smoke``: the quickest few.
The tests must pass without a fault first. Prints a table, and exits 1 if a fault goes unnoticed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 300.0
FAILED = 1
"""Exit status of pytest when a test failed; others mean that none was run, or not to the end."""


@dataclass(frozen=True)
class Mutant:
    """A planted fault, what it does, and the fewest tests that must fail under it."""

    name: str
    part: str
    what: str
    tests: tuple[str, ...]
    smoke: bool = False


_STAR = "tests/patterns/test_star_machine.py::test_"
_STAR_SIM = "tests/patterns/test_star_sim.py::test_"
_CHAIN = "tests/patterns/test_chain.py::test_"
_MESH = "tests/patterns/test_mesh.py::test_"
_JOURNAL = "tests/journal/test_journal.py::test_"
_BUDGET = "tests/models/test_budget.py::test_"
_HOST = "tests/team/test_host.py::test_"
_RESUME = (
    "tests/collective/test_resume.py::test_f02_a_killed_run_is_taken_up_and_nothing_committed_runs_again"
)

MUTANTS = [
    Mutant("no_fencing", "star", "a lower epoch is obeyed", (f"{_STAR}a_member_obeys_no_lower_epoch",), True),
    Mutant(
        "accept_faulty",
        "star, mesh",
        "the output of a faulty member counts",
        (f"{_STAR}the_output_of_a_faulty_member_never_counts",),
    ),
    Mutant(
        "swap_keeps_assignment",
        "star",
        "an evicted member keeps its subtasks",
        (f"{_STAR}a_lost_member_is_swapped_and_its_late_output_is_still_welcome",),
    ),
    Mutant(
        "no_readmission",
        "star",
        "a crashed member that is back is not taken again",
        (f"{_STAR}a_crashed_member_that_is_back_is_taken_again_but_a_faulty_one_never",),
    ),
    Mutant(
        "work_again",
        "star",
        "finished work is done again when it is asked for again",
        (f"{_STAR}a_member_answers_a_repeated_dispatch_from_its_cache",),
    ),
    Mutant(
        "commit_twice",
        "star",
        "a second output of a finished subtask counts too",
        (f"{_STAR_SIM}without_stand_ins_the_hub_resumes_from_its_own_checkpoint",),
    ),
    Mutant(
        "stale_copy",
        "star",
        "a successor goes on from the oldest copy",
        (f"{_STAR_SIM}four_hundred_runs_with_every_kind_of_fault_end_and_commit_once",),
    ),
    Mutant(
        "quorum_off_by_one",
        "star, mesh",
        "half of the holders or voters is a majority",
        (f"{_MESH}members_propose_vote_adopt_and_work",),
    ),
    Mutant(
        "no_promise",
        "mesh",
        "a convener ignores what a quorum may have accepted",
        (f"{_MESH}a_later_convener_proposes_again_what_a_quorum_accepted",),
    ),
    Mutant(
        "no_retransmission",
        "star, chain, mesh",
        "an unanswered message is not sent again",
        (f"{_STAR}a_member_answers_a_repeated_dispatch_from_its_cache",),
    ),
    Mutant(
        "forget_cap",
        "star, chain, mesh",
        "replans, steps, swaps and generations are not capped",
        (f"{_STAR}fc_68_the_replan_cap_is_named_and_the_first_cause_kept",),
        True,
    ),
    Mutant(
        "no_generation_check",
        "chain",
        "a stale generation is executed",
        (f"{_CHAIN}an_older_generation_is_stale_and_a_newer_one_stops_the_run",),
    ),
    Mutant(
        "forget_at_handon",
        "chain",
        "a payload is dropped once it was handed on",
        (f"{_CHAIN}a_payload_is_kept_until_done_or_a_long_silence_of_the_root",),
    ),
    Mutant(
        "effect_before_checkpoint",
        "all machines",
        "effects come before the checkpoint that they rest on",
        (f"{_MESH}a_crash_at_every_boundary_is_survived[root]",),
    ),
    Mutant(
        "skip_fsync",
        "journal",
        "a commit is not synced to disk",
        (f"{_JOURNAL}f15_both_connections_sync_every_commit",),
        True,
    ),
    Mutant(
        "acknowledge_before_commit",
        "journal",
        "a record is acknowledged before it is written",
        (f"{_JOURNAL}fc_52_what_was_acknowledged_survives_kill_9[17]",),
    ),
    Mutant(
        "skip_checksum",
        "journal",
        "a damaged record is believed",
        (f"{_JOURNAL}a_missing_or_swapped_record_is_named",),
    ),
    Mutant(
        "lost_tail", "journal", "missing last records go unnoticed", (f"{_JOURNAL}a_lost_tail_is_noticed",)
    ),
    Mutant(
        "stale_checkpoint",
        "resume",
        "a run goes on from its first checkpoint",
        (f"{_RESUME}[after-9]", f"{_RESUME}[before-9]"),
    ),
    Mutant(
        "ignore_budget",
        "budget",
        "a reservation is never refused",
        (f"{_BUDGET}reserve_refuses_before_anything_is_spent",),
    ),
    Mutant(
        "forget_parent",
        "budget",
        "what a child spends does not count above it",
        (f"{_BUDGET}child_counts_against_its_parent_and_cannot_be_larger",),
    ),
    Mutant(
        "keep_reserved",
        "budget",
        "a reservation is not given back",
        (f"{_BUDGET}reservation_is_settled_once_and_released_on_exit",),
    ),
    Mutant(
        "forget_release",
        "assembly",
        "places that were reserved are not given back",
        ("tests/collective/test_run.py::test_places_that_a_run_did_not_use_are_given_back",),
    ),
    Mutant(
        "attempt_again",
        "host",
        "a repeated assignment starts the work a second time",
        (f"{_HOST}unknown_agents_and_duplicate_attempts_are_refused",),
    ),
    Mutant(
        "ignore_cancel",
        "host",
        "a cancellation does not reach the agent's code",
        (f"{_HOST}cancel_ends_a_subtask_wherever_it_is",),
    ),
]


def run(tests: list[str], mutant: str = "") -> tuple[int, str, float]:
    """Exit status, output and seconds of the tests with a fault planted."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PANDACORE_MUTANT": mutant}
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*command, *(["-x"] if mutant else []), *tests],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no end within {TIMEOUT_S:g} s", TIMEOUT_S
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


def noticed(output: str) -> str:
    """The first test that failed."""
    found = re.search(r"^FAILED \S*?::(\S+)", output, re.MULTILINE)
    return found[1] if found else "?"


def main() -> int:
    """Run the tests of the chosen mutants, without and with their faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="plant only these")
    parser.add_argument("--smoke", action="store_true", help="plant only the quickest few")
    options = parser.parse_args()
    if unknown := set(options.names) - {m.name for m in MUTANTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    chosen = [m for m in MUTANTS if m.name in options.names or (options.smoke and m.smoke)]
    chosen = chosen or MUTANTS
    status, output, wall_s = run(sorted({t for m in chosen for t in m.tests}))
    if status:
        print(output[-4000:])
        print("the tests fail without any fault: nothing can be said")
        return 1
    print(f"without a fault: all pass ({wall_s:.1f} s)\n", flush=True)
    print(f"{'fault':26} {'part':17} {'what it does':55} {'wall s':>6}  noticed by")
    missed = 0
    for mutant in chosen:
        status, output, wall_s = run(list(mutant.tests), mutant.name)
        missed += status != FAILED
        verdict = noticed(output) if status == FAILED else f"MISSED (pytest exit status {status})"
        print(f"{mutant.name:26} {mutant.part:17} {mutant.what:55} {wall_s:6.1f}  {verdict}", flush=True)
    print(f"\n{len(chosen) - missed} of {len(chosen)} noticed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
