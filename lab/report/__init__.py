"""Reports over seeds: gather run folders, estimate, compare with the papers, draw, write.

Read in this order: ``records`` and ``gather`` (run folders), ``settings`` (runs that differ in the seed alone),
``outcomes`` (what seeds say, with intervals), ``against`` (the papers), ``rows`` and ``drawings`` (tables and figures),
``assemble`` (a report), ``write`` (its files), ``make`` (all of this in one call).
"""
