"""Print the routing scores of the embedders that are there."""

from __future__ import annotations

import asyncio
import sys

from pandacore.evals.routing import score
from pandacore.models.embedders import HashingEmbedder


async def main() -> None:
    for dimension in (384, 1024, 4096):
        found = await score(HashingEmbedder(dimension))
        sys.stdout.write(
            f"{found.model_id}: top-1 {found.top1:.3f}, top-3 {found.top3:.3f}, top-10 {found.top10:.3f}, "
            f"mean reciprocal rank {found.mrr:.3f} over {found.messages} messages\n"
        )


if __name__ == "__main__":
    asyncio.run(main())
