#!lua flags=allow-oom
-- tenant id -> 1 if a reservation was deleted without a trace
local job = load(args.tenant, args.id)
if not job or job.state ~= 'reserved' then return 0 end
redis.call('ZREM', P .. 'reserved', job.name)
redis.call('ZREM', P .. 'expiring', job.name)
redis.call('SREM', qkey(job.queue, 'reserved'), job.name)
redis.call('SREM', tkey(job.tenant, 'live'), job.id)
unlist(job)
forget_follower(job)
if batch_of(job) then
  redis.call('SREM', bkey(job.tenant, job.batch, 'live'), job.id)
  recount(job, job.batch, job.state, -1)
end
redis.call('DEL', jobkey(job.tenant, job.id), jobkey(job.tenant, job.id) .. ':events')
redis.call('PUBLISH', P .. 'changes', job.name)
return 1
