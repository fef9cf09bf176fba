# -*- coding: utf-8 -*-
"""Does not parse on purpose: it declares UTF-8 and holds a byte of Latin-1."""

CITY = "Zürich"
