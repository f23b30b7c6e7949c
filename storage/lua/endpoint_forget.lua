#!lua flags=allow-oom
-- tenant endpoint -> ok. Nothing is left of a deleted endpoint, not even that it was deleted.
local known = endpoint_of(ARGV[1], ARGV[2])
if known and known.deleted then redis.call('HDEL', tkey(ARGV[1], 'endpoints'), ARGV[2]) end
return 'ok'
