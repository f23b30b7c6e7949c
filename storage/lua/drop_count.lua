#!lua flags=allow-oom
-- name n ... -> the number of names
for i = 1, #ARGV, 2 do redis.call('HINCRBY', P .. 'counts:drops', ARGV[i], ARGV[i + 1]) end
return #ARGV / 2
