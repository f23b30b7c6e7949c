#!lua flags=allow-oom
-- name entry(JSON) ... -> ok. What workers exported of their models.
for i = 1, #ARGV, 2 do redis.call('HSET', P .. 'catalogue', ARGV[i], ARGV[i + 1]) end
return 'ok'
