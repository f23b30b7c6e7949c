#!lua flags=allow-oom
-- who -> 1 if `who` was the active keeper and no longer is
if redis.call('GET', P .. 'keeper') ~= ARGV[1] then return 0 end
return redis.call('DEL', P .. 'keeper')
