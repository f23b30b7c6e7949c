#!lua
-- tenant id created_us -> view | 0 unknown | 1 gone
-- The manifest of a reservation is stored: the job may now be claimed. Its place in the queue is that of the creation time
-- in the manifest.
local job = load(args.tenant, args.id)
if not job then return redis.call('EXISTS', tkey(args.tenant, 'gone:' .. args.id)) end
if job.state ~= 'reserved' then return view(job) end
redis.call('ZREM', P .. 'reserved', job.name)
redis.call('SREM', qkey(job.queue, 'reserved'), job.name)
-- A job that is recreated from its manifest is older than its record. Any other was listed by `submit` at this time.
if job.created_us ~= args.created_us then
  enlist(job, args.created_us)
  emit(job, 'job.recovered', {})
end
write(job, { state = 'queued', created_us = args.created_us, rank = int(job.rank + args.created_us - job.created_us) })
local now = now_us()
admit(job, now)
announce(job, 'job.queued', job.created_us)
emit(job, 'job.created', { model = job.model, queue = job.queue })
return view(job, SUBMIT_LANES)
