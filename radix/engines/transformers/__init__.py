"""Generation with Hugging Face models over a prefix cache: what the model's own cache classes hold
of a prompt is kept in host memory and on disk, and the next prompt that begins alike is computed
from where it parts.

``PrefixGenerator`` puts a model over tiers; ``groups_of`` says what a model's blocks are, so that
tiers can be sized before they are made.
"""

from radix.engines.versions import TESTED, installed

try:
    from radix.engines.transformers.generator import PrefixGenerator, Restored, groups_of
except ImportError as error:
    raise ImportError(
        f"transformers {installed('transformers')}: {error}; the adapter was run with transformers "
        f"{', '.join(TESTED['transformers'])}: install one of these, with torch"
    ) from error

__all__ = ["PrefixGenerator", "Restored", "groups_of"]
