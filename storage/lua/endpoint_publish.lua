#!lua flags=allow-oom
-- tenant endpoint nonce endpoint(JSON or '') -> ok. What the object store says of an endpoint, and the end of the change
-- that was begun under the nonce. An older word than the one that is known changes nothing.
local T, id = ARGV[1], ARGV[2]
redis.call('ZREM', P .. 'endpoints:changing', T .. '/' .. id .. '/' .. ARGV[3])
if ARGV[4] == '' then return 'ok' end
local said, known = cjson.decode(ARGV[4]), endpoint_of(T, id)
if known and known.revision >= said.revision then return 'ok' end
redis.call('HSET', tkey(T, 'endpoints'), id, ARGV[4])
if known and (known.url ~= said.url or known.enabled ~= said.enabled) then
  redis.call('DEL', receiver_key(T, id, 'health'))
  if redis.call('EXISTS', receiver_key(T, id, 'due')) == 1 then
    redis.call('ZADD', tkey(T, 'receivers'), int(now_us()), id)
  end
end
return 'ok'
