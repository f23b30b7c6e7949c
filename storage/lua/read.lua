#!lua flags=no-writes
-- tenant id -> view | 0 unknown | 1 gone
local job, missing = find(ARGV[1], ARGV[2])
return job and view(job) or missing
