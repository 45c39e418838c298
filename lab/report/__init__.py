"""Reports over seeds: gather run folders, estimate, set beside the papers, draw, write.

records   one run folder read into a record
gather    all of them below a folder, with an index so that only what is new is read again
settings  runs that differ in nothing but the seed, together
outcomes  what a setting's seeds say, with intervals, and how settings compare
against   a published table beside it
figures   curves, survival, learning rates, gradients
page      HTML, Markdown, CSV, PNG and PDF
"""
