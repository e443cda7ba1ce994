"""One map for all intermediates that the backward pass needs: save it, or compute it again.

Rematerialization fills this map by a named rule or by a list of names; later techniques (compression, offload,
automatic choice) fill the same map, so they compose by construction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
from jax import checkpoint_policies

from brim.ops import Block

Rule = Literal["save", "recompute", "dots", "dots_without_batch"]


@dataclass(frozen=True)
class Residuals:
    """What happens to each intermediate of a block.

    Attributes:
        rule: for intermediates without an entry of their own. `save`: keep them all (no rematerialization);
            `recompute`: keep none but the block's inputs; `dots`: keep results of matrix products;
            `dots_without_batch`: keep those of products with weights, not those of attention.
        saved: names of intermediates that are kept whatever the rule says.
    """

    rule: Rule = "save"
    saved: frozenset[str] = frozenset()

    def policy(self) -> Callable[..., Any]:
        """The map as a policy for `jax.checkpoint`."""
        by_rule = {
            "recompute": checkpoint_policies.nothing_saveable,
            "dots": checkpoint_policies.dots_saveable,
            "dots_without_batch": checkpoint_policies.dots_with_no_batch_dims_saveable,
        }[self.rule]
        if not self.saved:
            return by_rule
        by_name = checkpoint_policies.save_only_these_names(*sorted(self.saved))
        return checkpoint_policies.save_from_both_policies(by_rule, by_name)

    def wrap(self, block: Block, *, prevent_cse: bool) -> Block:
        """The block with this map applied to its intermediates.

        It must wrap the BODY of the scan: around the scan it would save nothing. Inside a loop XLA cannot merge the
        recomputation with the first computation, so the barrier against it (`prevent_cse`) is needed only where layers
        are unrolled.
        """
        if self.rule == "save":
            return block
        return jax.checkpoint(block, policy=self.policy(), prevent_cse=prevent_cse)
