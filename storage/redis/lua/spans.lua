#!lua
-- done {T/ID...} limit wanted_ms kept -> {{record...} of jobs that have ended, oldest first, more(1 or 0)}
-- A keeper asks for the jobs whose spans it exports next; `done` are those that it has. Jobs are listed for as long as a
-- keeper asks, at most `kept` of them. Jobs without a record are left out.
redis.call('SET', P .. 'spans:wanted', '1', 'PX', args.wanted_ms)
local ended = P .. 'spans:ended'
if #args.done > 0 then redis.call('ZREM', ended, unpack(args.done)) end
redis.call('ZREMRANGEBYRANK', ended, 0, -tonumber(args.kept) - 1)
local names, found = redis.call('ZRANGE', ended, 0, args.limit - 1), {}
for _, name in ipairs(names) do
  local tenant, id = split(name)
  local flat = redis.call('HGETALL', jobkey(tenant, id))
  if #flat == 0 then redis.call('ZREM', ended, name) else found[#found + 1] = flat end
end
return { found, redis.call('ZCARD', ended) > #found and 1 or 0 }
