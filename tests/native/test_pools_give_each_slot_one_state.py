"""I7, I8, I11: every slot has one state, the counts add up, and a call that fails changes nothing.

Oracle: a list of states and the free slots in the order in which they will be given out.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from radix._native import ffi, lib

FREE, RESERVED, USED, QUARANTINE, RETIRED = range(5)


class Model:
    """The native pool beside its truth table; each call checks one against the other."""

    def __init__(self, capacity: int) -> None:
        out = ffi.new("rdx_pool **")
        assert lib.rdx_pool_new(capacity, out) == lib.RDX_OK
        self.pool: Any = ffi.gc(out[0], lib.rdx_pool_free)
        self.states = [FREE] * capacity
        self.free = list(range(capacity))

    def reserve(self, count: int) -> None:
        out = ffi.new("int32_t[]", max(1, count))
        status = lib.rdx_pool_reserve(self.pool, count, out)
        if count > len(self.free):
            assert status == lib.RDX_EFULL
            return
        assert status == lib.RDX_OK
        assert list(out[0:count]) == self.free[:count]
        for slot in self.free[:count]:
            self.states[slot] = RESERVED
        del self.free[:count]

    def move(self, slots: list[int], before: int, after: int) -> None:
        bad = ffi.new("uint32_t *", 999)
        status = lib.rdx_pool_move(
            self.pool, ffi.new("int32_t[]", slots or [0]), len(slots), before, after, bad
        )
        if before == after:
            assert status == lib.RDX_EARG
            return
        for i, slot in enumerate(slots):
            known = 0 <= slot < len(self.states)
            if not known or self.states[slot] != before or slot in slots[:i]:
                assert (status, bad[0]) == (lib.RDX_ESLOT, i)
                return
        assert (status, bad[0]) == (lib.RDX_OK, 999)
        for slot in slots:
            self.states[slot] = after
        self.free = [slot for slot in self.free if self.states[slot] == FREE]
        if after == FREE:
            self.free = slots + self.free

    def lend(self, first: int, count: int, *, back: bool) -> None:
        call = lib.rdx_pool_revive if back else lib.rdx_pool_retire
        before, after = (RETIRED, FREE) if back else (FREE, RETIRED)
        status = call(self.pool, first, count)
        if first + count > len(self.states):
            assert status == lib.RDX_EARG
            return
        slots = range(first, first + count)
        if any(self.states[slot] != before for slot in slots):
            assert status == lib.RDX_ESLOT
            return
        assert status == lib.RDX_OK
        for slot in slots:
            self.states[slot] = after
        self.free = [slot for slot in self.free if self.states[slot] == FREE]
        self.free += slots if back else []

    def grow(self, more: int) -> None:
        assert lib.rdx_pool_grow(self.pool, more) == lib.RDX_OK
        first = len(self.states)
        self.states += [FREE] * more
        self.free += range(first, first + more)

    def check(self) -> None:
        assert lib.rdx_pool_check(self.pool) == lib.RDX_OK
        assert lib.rdx_pool_capacity(self.pool) == len(self.states)
        found = [lib.rdx_pool_state(self.pool, slot) for slot in range(len(self.states))]
        assert found == self.states
        for state in range(5):
            assert lib.rdx_pool_count(self.pool, state) == self.states.count(state)


@given(data=st.data(), capacity=st.integers(0, 32))
def test_pool_equals_its_truth_table_after_every_call(data: st.DataObject, capacity: int) -> None:
    model = Model(capacity)
    for _ in range(data.draw(st.integers(1, 30))):
        act = data.draw(st.sampled_from(["reserve", "move", "move", "move", "lend", "grow"]))
        if act == "reserve":
            model.reserve(data.draw(st.integers(0, 9)))
        elif act == "move":
            before, after = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))
            fitting = [slot for slot, state in enumerate(model.states) if state == before]
            some = st.sampled_from(fitting) if fitting else st.just(0)
            slots = data.draw(st.lists(some, max_size=6, unique=True))
            slots += data.draw(st.lists(st.integers(-2, len(model.states) + 2), max_size=1))
            model.move(slots, before, after)
        elif act == "lend":
            first = data.draw(st.integers(0, len(model.states)))
            model.lend(first, data.draw(st.integers(0, 4)), back=data.draw(st.booleans()))
        else:
            model.grow(data.draw(st.integers(0, 4)))
        model.check()


def test_second_free_of_a_slot_is_refused_and_changes_nothing() -> None:
    """C62: sglang#13483: the tail of a cancelled prefetch was freed by the worker and by its
    caller, so two requests were given the same slots.
    """
    model = Model(4)
    model.reserve(4)
    model.move([3, 2, 1], RESERVED, FREE)
    model.move([1], RESERVED, FREE)
    model.move([0, 0], RESERVED, FREE)
    model.check()
    model.reserve(4)
    model.reserve(3)
    assert sorted(model.states) == [RESERVED] * 4


def test_refused_reservation_takes_nothing() -> None:
    """C14: kvcached#364: an allocation of n pages that failed at page k kept the first k. C13:
    vllm#24228: the count of free blocks fell before the check that refused the call.
    """
    model = Model(3)
    model.reserve(2)
    model.reserve(2)
    model.check()
    assert model.free == [2]


def test_allocation_failure_at_every_step_leaves_the_pool_as_it_was() -> None:
    model = Model(8)
    model.reserve(3)
    for k in range(1, 10):
        lib.rdx_alloc_fail_at(k)
        status = lib.rdx_pool_grow(model.pool, 500)
        lib.rdx_alloc_fail_at(0)
        if status == lib.RDX_OK:
            break
        assert status == lib.RDX_ENOMEM
        model.check()
    assert (k, lib.rdx_pool_capacity(model.pool)) == (3, 508)
    out = ffi.new("rdx_pool **")
    for k in range(1, 4):
        lib.rdx_alloc_fail_at(k)
        assert lib.rdx_pool_new(8, out) == lib.RDX_ENOMEM
    lib.rdx_alloc_fail_at(0)
    assert out[0] == ffi.NULL
