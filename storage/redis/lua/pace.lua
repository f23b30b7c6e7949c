#!lua
-- tenant interval_us burst_us -> microseconds by which a submission comes too early; 0 where it is in time, and counted.
-- The generic cell rate algorithm (ITU-T I.371): `even` is when all submissions so far would have come at the tenant's rate.
-- A call that is repeated counts twice.
local key, now = tkey(args.tenant, 'even'), now_us()
local even = math.max(now, tonumber(redis.call('GET', key) or '0')) + args.interval_us
local early = even - now - args.burst_us
if early > 0 then return int(early) end
redis.call('SET', key, int(even), 'PXAT', int(math.ceil(even / 1000)))
return '0'
