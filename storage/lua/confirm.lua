#!lua
-- tenant id created_us -> view | 0 unknown | 1 gone. The reservation's manifest is in the object store: let it be
-- claimed. Its place is that of the time at which the manifest says that the job was made.
local job = load(ARGV[1], ARGV[2])
if not job then return redis.call('EXISTS', tkey(ARGV[1], 'gone:' .. ARGV[2])) end
if job.state ~= 'reserved' then return view(job) end
redis.call('ZREM', P .. 'reserved', job.name)
redis.call('SREM', qkey(job.queue, 'reserved'), job.name)
enlist(job, ARGV[3])
-- A job that was made anew is older than its record.
if job.created_us ~= ARGV[3] then emit(job, 'job.recovered', {}) end
write(job, { state = 'queued', created_us = ARGV[3], rank = int(job.rank + ARGV[3] - job.created_us) })
local now = now_us()
enqueue(job)
expire_at(job, now + job.ttl_us)
announce(job, 'job.queued', job.created_us)
emit(job, 'job.created', { model = job.model, queue = job.queue })
return view(job)
