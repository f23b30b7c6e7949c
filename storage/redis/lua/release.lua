#!lua flags=allow-oom
-- tenant id fence phases -> {ok | already | fenced, proposal or false}. A draining worker gives the job back. The next
-- attempt has the same number.
local job, why = held(args.tenant, args.id, args.fence)
if not job then return { why, false } end
local now = now_us()
job.phases = args.phases
if job.cancel == '1' then return { 'ok', finish(job, 'canceled', { ended_by = args.fence, phases = args.phases }, now) or false } end
requeue(job, { given_back = '1', ended_by = args.fence }, 'job.released', { attempt = tonumber(job.attempt) }, now, 'released')
return { 'ok', false }
