#!lua flags=allow-oom
-- tenant delivery event url body keep_s -> 1. Makes the delivery of an event of no job, once: its id names the event.
if redis.call('EXISTS', rowkey(args.tenant, args.delivery)) == 0 then
  local now = now_us()
  keep({ id = args.delivery, tenant = args.tenant, job = '', event = args.event, url = args.url, created_us = int(now),
    tries = '0', state = 'pending', log = '[]', body = args.body }, now)
  redis.call('EXPIRE', rowkey(args.tenant, args.delivery), args.keep_s)
end
return 1
