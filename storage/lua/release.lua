#!lua flags=allow-oom
-- tenant id fence -> {ok | already | fenced, proposal or false}. A draining worker gives the job back; the attempt is
-- begun again: the next claim has the same number.
local job, why = held(ARGV[1], ARGV[2], ARGV[3])
if not job then return { why, false } end
local now = now_us()
if job.cancel == '1' then return { 'ok', finish(job, 'canceled', { ended_by = ARGV[3] }, now) or false } end
requeue(job, { given_back = '1', ended_by = ARGV[3] }, 'job.released', { attempt = tonumber(job.attempt) }, now)
return { 'ok', false }
