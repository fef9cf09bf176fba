"""Does not parse on purpose: the list is never closed."""

PRICES = [
    1,
    2,


def total():
    return sum(PRICES)
