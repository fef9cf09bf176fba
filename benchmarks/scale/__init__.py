"""``make bench-scale``: does tandemq stay as fast with millions of rows, and its processes as small?"""
