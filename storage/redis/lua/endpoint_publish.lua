#!lua flags=allow-oom
-- tenant endpoint nonce entry(JSON, optional) -> ok. Publishes an endpoint as it is in the object store, and ends the
-- change that was begun under the nonce. An entry of an older revision changes nothing.
local T, id = args.tenant, args.endpoint
redis.call('ZREM', P .. 'endpoints:changing', T .. '/' .. id .. '/' .. args.nonce)
if not args.entry then return 'ok' end
local found, known = cjson.decode(args.entry), endpoint_of(T, id)
if known and known.revision >= found.revision then return 'ok' end
redis.call('HSET', tkey(T, 'endpoints'), id, args.entry)
if known and (known.url ~= found.url or known.enabled ~= found.enabled) then
  redis.call('DEL', receiver_key(T, id, 'health'))
  if redis.call('EXISTS', receiver_key(T, id, 'due')) == 1 then
    redis.call('ZADD', tkey(T, 'receivers'), int(now_us()), id)
  end
end
return 'ok'
