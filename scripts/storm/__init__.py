"""The storm: faults, typos and hostile folders, run over the lab and counted."""
