#!lua flags=no-writes
-- tenant id -> view | 0 unknown | 1 gone
local found, missing = batch_view(ARGV[1], ARGV[2])
return found or missing
