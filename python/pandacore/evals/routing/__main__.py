"""Print the routing scores of the baseline, of the offline embedder and of the models that are named."""

from __future__ import annotations

import asyncio
import sys

from pandacore.evals.routing import RoutingScore, score, score_bm25
from pandacore.models.embedders import HashingEmbedder, ModelEmbedder
from pandacore.models.handle import connect


def show(found: RoutingScore) -> None:
    sys.stdout.write(
        f"{found.model_id}: top-1 {found.top1:.3f}, top-3 {found.top3:.3f}, top-10 {found.top10:.3f}, "
        f"mean reciprocal rank {found.mrr:.3f} over {found.messages} messages\n"
    )


async def main(models: list[str]) -> None:
    for held_out in (False, True):
        show(score_bm25(held_out=held_out))
        for dimension in (256, 512, 1024):
            show(await score(HashingEmbedder(dimension), held_out=held_out))
        for model in models:
            async with connect(model) as handle:
                show(await score(await ModelEmbedder.of(handle.client), held_out=held_out))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
