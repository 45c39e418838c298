"""Reports over seeds: gather run folders, estimate, compare with the papers, draw, write.

records   one run folder read into a record
gather    all run folders below a folder, with an index so that only new or changed ones are read
settings  groups of runs that differ in nothing but the seed
outcomes  what a setting's seeds say, with intervals, and how settings compare
against   a published table beside the measured runs
figures   curves, survival, learning rates, gradients
page      HTML, Markdown, CSV, PNG and PDF
"""
