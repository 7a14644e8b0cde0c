"""The asserts of the public suite are told apart like those of a test."""

import pytest

pytest.register_assert_rewrite("tiers.testing", "tiers.testing_parts", "tiers.rig")
