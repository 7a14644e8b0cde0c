"""What people type after `radix replay`: capacities, budgets, policies and tiers, checked before
any work.

Kept here: an option is refused with an `OptionError` that names it and says what was expected;
sizes that are accepted are exact (a percentage is worked out in integers, never in floating point).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from radix.options import OptionError, size_of
from radix.policy.eviction import NATIVE_POLICIES, TIMED_POLICIES

ONLINE_POLICIES = NATIVE_POLICIES
OPTIMAL = "optimal"
ALL = "all"
POLICIES = (*ONLINE_POLICIES, OPTIMAL)
TIERS = ("device", "host", "disk")
# Slots are numbered by int32.
CAPACITY_LIMIT = 1 << 31
_COUNT = re.compile(r"[0-9]{1,12}")
_PERCENT = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?)%")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_SEED = re.compile(r"[0-9]{1,18}")
# A budget has to be counted in 64 bits, and a replay without a limit takes one that none reaches.
BUDGET_LIMIT_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class Capacity:
    """A capacity as typed: `amount` blocks, or `amount` percent of a trace's unique blocks."""

    text: str
    amount: Fraction
    percent: bool

    def blocks(self, unique_blocks: int) -> int:
        """Return the capacity in blocks: floor(unique_blocks x N / 100) for N percent.

        >>> parse_capacities("18279,5%")[1].blocks(182790)
        9139

        Raises:
            OptionError: it comes to no block at all, or to more than slots can number.
        """
        blocks = self.amount * unique_blocks / 100 if self.percent else self.amount
        count = blocks.numerator // blocks.denominator
        origin = f"{self.text} of {unique_blocks} unique blocks" if self.percent else self.text
        if count < 1:
            raise OptionError("--capacity", f"{origin} is no block; give at least 1")
        if count >= CAPACITY_LIMIT:
            raise OptionError("--capacity", f"{origin} is too large; the limit is 2^31 - 1 blocks")
        return count


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget as typed: `amount` bytes, or `amount` percent of a replay's full footprint."""

    text: str
    amount: Fraction
    percent: bool

    def bytes(self, footprint_bytes: int) -> int:
        """Return the budget in bytes: floor(footprint x N / 100) for N percent.

        >>> [budget.bytes(1000) for budget in parse_budgets("4KiB,1.5MB,0.25%")]
        [4096, 1500000, 2]

        Raises:
            OptionError: it comes to no byte, or to 2^62 and more.
        """
        amount = self.amount * footprint_bytes / 100 if self.percent else self.amount
        count = amount.numerator // amount.denominator
        origin = f"{self.text} of {footprint_bytes} bytes" if self.percent else self.text
        if count < 1:
            raise OptionError("--budget-bytes", f"{origin} is no byte; give at least 1")
        if count >= BUDGET_LIMIT_BYTES:
            raise OptionError("--budget-bytes", f"{origin} is too large; the limit is 4096 PiB")
        return count


@dataclass(frozen=True, slots=True)
class TierSizes:
    """Blocks a tier, from the fastest down; 0 where a replay goes without that tier."""

    device: int
    host: int
    disk: int


def parse_capacities(text: str) -> tuple[Capacity, ...]:
    """Parse "18279,5%" into capacities, in the order given.

    Raises:
        OptionError: an entry is neither a count of blocks nor a percentage, or is a count of 0.
    """
    capacities = []
    for entry in (part.strip() for part in text.split(",")):
        percent = _PERCENT.fullmatch(entry)
        if percent is None and _COUNT.fullmatch(entry) is None:
            what = f"{entry!r} is neither a number of blocks nor a percentage such as 5%"
            raise OptionError("--capacity", what)
        capacity = Capacity(entry, Fraction(percent[1] if percent else entry), percent is not None)
        if not capacity.percent:
            capacity.blocks(0)
        capacities.append(capacity)
    return tuple(capacities)


def parse_budgets(text: str) -> tuple[Budget, ...]:
    """Parse "1%,4GiB" into budgets, in the order given.

    Raises:
        OptionError: an entry is neither a size nor a percentage, or is a size of 0.
    """
    budgets = []
    for entry in (part.strip() for part in text.split(",")):
        percent, size = _PERCENT.fullmatch(entry), size_of(entry)
        if percent is not None:
            budgets.append(Budget(entry, Fraction(percent[1]), True))
        elif size is not None:
            budget = Budget(entry, size, False)
            budget.bytes(0)
            budgets.append(budget)
        else:
            what = f"{entry!r} is neither a size such as 4GiB nor a percentage such as 5%"
            raise OptionError("--budget-bytes", what)
    return tuple(budgets)


def parse_share(option: str, text: str) -> float:
    """Parse "30%" into 0.3.

    Raises:
        OptionError: it is no percentage, or above 100.
    """
    match = _PERCENT.fullmatch(text.strip())
    if match is None or float(match[1]) > 100:
        raise OptionError(option, f"expected 0% to 100%, not {text!r}")
    return float(match[1]) / 100


def parse_policies(text: str, *, hinted: bool = False) -> tuple[str, ...]:
    """Parse "lru,optimal" into policy names, in the order given; "all" is all that are known, but
    for those that go by hints where there are none: they do then what `lru` does.

    Raises:
        OptionError: a name is unknown or stands twice.
    """
    names = tuple(part.strip() for part in text.split(","))
    if names == (ALL,):
        return tuple(name for name in POLICIES if hinted or name not in TIMED_POLICIES)
    for name in names:
        if name not in POLICIES:
            raise OptionError("--policy", f"unknown policy {name!r}; known: {', '.join(POLICIES)}")
    if len(set(names)) < len(names):
        raise OptionError("--policy", f"a policy stands twice in {text!r}")
    return names


def parse_orders(text: str) -> tuple[str, ...]:
    """Parse the policies of a replay of a model, where no optimum is known.

    Raises:
        OptionError: a name is unknown, stands twice, or is that of the optimum.
    """
    names = parse_policies(text)
    if text.strip() == ALL:
        return tuple(name for name in names if name != OPTIMAL)
    if OPTIMAL in names:
        raise OptionError("--policy", f"no {OPTIMAL} is known for the groups of a model")
    return names


def parse_tiers(text: str) -> TierSizes:
    """Parse "device=2000,host=8000,disk=64000" into blocks a tier.

    Raises:
        OptionError: an entry is not name=blocks, a name is unknown or stands twice, a size is 0, or
        there is
            no device to serve from.
    """
    sizes: dict[str, int] = {}
    for entry in (part.strip() for part in text.split(",")):
        name, equals, size = (part.strip() for part in entry.partition("="))
        if not equals or not _COUNT.fullmatch(size):
            raise OptionError("--tiers", f"{entry!r} is not of the form device=2000")
        if name not in TIERS:
            raise OptionError("--tiers", f"unknown tier {name!r}; known: {', '.join(TIERS)}")
        if name in sizes:
            raise OptionError("--tiers", f"tier {name!r} stands twice")
        if not 1 <= int(size) < CAPACITY_LIMIT:
            raise OptionError("--tiers", f"{entry!r}: a tier holds 1 to 2^31 - 1 blocks")
        sizes[name] = int(size)
    if "device" not in sizes:
        raise OptionError("--tiers", "the device tier is missing; give device=BLOCKS")
    return TierSizes(sizes["device"], sizes.get("host", 0), sizes.get("disk", 0))


def parse_positive(option: str, text: str) -> int:
    """Parse a count that must be at least 1.

    Raises:
        OptionError: it is not.
    """
    if not _COUNT.fullmatch(text.strip()) or int(text) < 1:
        raise OptionError(option, f"expected an integer of at least 1, got {text!r}")
    return int(text)


def parse_seconds(option: str, text: str) -> float:
    """Parse a time in seconds, such as 20 or 0.5.

    Raises:
        OptionError: it is none.
    """
    if not _SECONDS.fullmatch(text.strip()):
        raise OptionError(option, f"expected seconds such as 20 or 0.5, got {text!r}")
    return float(text)


def parse_amount(option: str, text: str) -> float:
    """Parse a number above 0, such as 4.9e14.

    Raises:
        OptionError: it is none.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise OptionError(option, f"expected a number above 0, such as 4.9e14, got {text!r}")
    return value


def parse_bytes_per_s(option: str, text: str) -> float:
    """Parse bytes a second, such as 12GB or 2.5GiB.

    Raises:
        OptionError: it is none.
    """
    value = size_of(text)
    if not value:
        raise OptionError(option, f"expected bytes a second such as 12GB, got {text!r}")
    return float(value)


def parse_bytes(option: str, text: str) -> int:
    """Parse a size such as 4GiB, of a whole byte at least.

    Raises:
        OptionError: it is none.
    """
    value = size_of(text)
    if not value or value < 1:
        raise OptionError(option, f"expected a size such as 4GiB, got {text!r}")
    return int(value)


def parse_seed(text: str) -> int:
    """Parse what random numbers are made from: an integer of at least 0.

    Raises:
        OptionError: it is none.
    """
    if not _SEED.fullmatch(text):
        raise OptionError("--seed", f"expected an integer of at least 0, got {text!r}")
    return int(text)
