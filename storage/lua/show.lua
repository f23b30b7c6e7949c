#!lua
-- tenant id fence data -> 1 shown | 0 not held. A picture of what is being made; one that comes twice does no harm.
local job = held(ARGV[1], ARGV[2], ARGV[3])
if not job then return 0 end
emit(job, 'job.preview', ARGV[4])
return 1
