"""The conformance suite sees what it is there for: tiers broken on purpose, one fault each, fail
the test that names it, and the tier that they are made of fails none.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest

from radix.errors import TierError, TierFullError
from radix.groups import Group
from radix.tier import Slots, Tier, TierMode, TierUsage, Transfer, TransferDone
from tiers.copies import Moved
from tiers.host import HostTier
from tiers.pools import all_of
from tiers.slab import stride_bytes
from tiers.testing import TierConformance
from tiers.transfer import Completion


class _TakesWhatThereIs(HostTier):
    def reserve(self, group: int, count: int) -> Slots:
        try:
            return super().reserve(group, count)
        except TierFullError:
            super().reserve(group, self.free_blocks(group))
            raise


class _FreesTwice(HostTier):
    def free(self, group: int, slots: Slots) -> None:
        for slot in slots:
            try:
                super().free(group, np.array([slot], np.int32))
            except TierError:
                continue


class _FreesHalfOfAWrongCall(HostTier):
    def free(self, group: int, slots: Slots) -> None:
        for slot in slots:
            super().free(group, np.array([slot], np.int32))


class _ForgetsFences(HostTier):
    def fence(self, group: int, slots: Slots) -> None:
        super().fence(group, slots)
        super().lift(group, slots)

    def lift(self, group: int, slots: Slots) -> None:
        return


class _AcknowledgesTwice(HostTier):
    def poll(self) -> list[TransferDone]:
        done = super().poll()
        return done + done


class _ForgetsCancelledJobs(HostTier):
    def cancel(self, job: int) -> None:
        self._running.pop(job, None)
        self._jobs.pop(job, None)
        self._engine.cancel(job)

    def _ended(self, moved: Moved | Completion) -> None:
        if self._copies[moved.job][0] in self._jobs:
            super()._ended(moved)


class _SwapsBlocks(HostTier):
    def store(self, transfer: Transfer, upper: Tier) -> None:
        super().store(replace(transfer, lower_slots=transfer.lower_slots[::-1].copy()), upper)


class _StoresNothing(HostTier):
    def store(self, transfer: Transfer, upper: Tier) -> None:
        size = self._groups[transfer.group].block_bytes
        nbytes = size * len(transfer.upper_slots)
        self._done.append(all_of(transfer, good=True, nbytes=nbytes, error=None))


class _WritesOneByteMore(HostTier):
    def commit(self, group: int, slots: Slots) -> None:
        super().commit(group, slots)
        plane, size = self.planes(group)[0], self._groups[group].block_bytes
        end = int(plane["base"]) + int(slots[0]) * int(plane["stride"]) + stride_bytes(size)
        if end < self._memory.address + self.limit_bytes:
            ctypes.c_uint8.from_address(end).value ^= 255


class _IgnoresItsMode(HostTier):
    def reserve(self, group: int, count: int) -> Slots:
        mode, self._mode = self._mode, TierMode.ON
        try:
            return super().reserve(group, count)
        finally:
            self._mode = mode


class _CountsNothing(HostTier):
    def usage(self) -> TierUsage:
        return TierUsage(0, self.limit_bytes, (0,) * len(self._groups))


class _LivesOn(HostTier):
    def flush(self) -> None:
        return


class _AttachesAgain(HostTier):
    def attach(self, groups: tuple[Group, ...], page_bytes: int, upper: Tier | None) -> None:
        if not self._groups:
            super().attach(groups, page_bytes, upper)


def _faults_of(kind: type[HostTier]) -> set[str]:
    """The tests of the suite that a tier fails."""

    class Suite(TierConformance):
        steps = 60

        def make_tier(self, groups: tuple[Group, ...], blocks: int) -> Tier:
            return kind(sum(blocks * stride_bytes(group.block_bytes) for group in groups))

    failed = set()
    for name in [name for name in dir(Suite) if name.startswith("test_")]:
        suite = Suite()
        suite.setup_method()
        try:
            getattr(suite, name)()
        except (AssertionError, TierError, ValueError, KeyError):
            failed.add(name)
        suite.teardown_method()
    return failed


def test_a_whole_tier_fails_no_test() -> None:
    assert _faults_of(HostTier) == set()


@pytest.mark.parametrize(
    ("kind", "seen_by"),
    [
        (_TakesWhatThereIs, "test_reserve_is_all_or_nothing"),
        (_FreesTwice, "test_wrong_moves_of_slots_change_nothing"),
        (_FreesHalfOfAWrongCall, "test_wrong_moves_of_slots_change_nothing"),
        (_ForgetsFences, "test_fenced_slots_are_not_given_out"),
        (_AcknowledgesTwice, "test_many_jobs_at_once_end_once_each"),
        (_ForgetsCancelledJobs, "test_a_cancelled_job_ends_once_and_leaves_no_trace"),
        (_SwapsBlocks, "test_what_was_stored_comes_back"),
        (_StoresNothing, "test_random_runs_agree_with_a_dictionary"),
        (_WritesOneByteMore, "test_blocks_beside_a_copied_one_keep_their_bytes"),
        (_IgnoresItsMode, "test_modes_stop_what_they_name"),
        (_CountsNothing, "test_usage_stays_within_limits"),
        (_LivesOn, "test_close_is_final_and_may_be_repeated"),
        (_AttachesAgain, "test_attaching_twice_is_refused"),
    ],
)
def test_a_broken_tier_fails_the_test_that_names_its_fault(
    kind: type[HostTier], seen_by: str
) -> None:
    assert seen_by in _faults_of(kind)
