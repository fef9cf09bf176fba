"""Does not parse on purpose: a print statement of Python 2."""


def greet(name):
    print "hello", name
