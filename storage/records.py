"""Jobs in Redis: the record is the truth, and every transition is one Lua script.

(being written)
"""
