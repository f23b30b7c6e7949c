#!lua flags=allow-oom
-- -> 1 unless Redis was emptied since the last recovery ended
return redis.call('EXISTS', P .. 'alive')
