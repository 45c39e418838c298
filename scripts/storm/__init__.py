"""The storm: faults, signals, damage and bad input let loose on the lab, by a seed, and what it makes of them."""
