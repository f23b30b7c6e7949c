"""`penstock up`: the whole system on one machine, kept running by one supervisor."""
