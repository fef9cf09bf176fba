"""The hint: ready and delayed task ids in Redis. The only package that imports redis."""
