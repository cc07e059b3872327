"""Generated from ``proto/pandacore/rpc/v1``; run ``make proto`` after an edit there."""
