#!lua flags=allow-oom
-- tenant id fence outcome(succeeded|failed|canceled|retry) record {name: text} retry_delay_us done total(optional) unit
-- phases
-- -> {ok | canceled | already | fenced, proposal or false}. A job whose end was requested before ends as canceled, whatever the
-- attempt says.
-- `record` has the fields of the attempt's result, of which those of the outcome are written.
local job, why = held(args.tenant, args.id, args.fence)
if not job then return { why, false } end
local now = now_us()
local outcome, result, reply = args.outcome, args.record, 'ok'
if job.cancel == '1' and outcome ~= 'canceled' and not is_part(job) then
  outcome, reply, result.bytes_out = 'canceled', 'canceled', nil
end
local fields = progress(job, args.done, args.total or '', args.unit)
fields.ended_by, fields.metrics, fields.phases = args.fence, result.metrics, args.phases
add_used(job, fields, result)
if outcome == 'retry' then
  if job.cancel == '1' then
    outcome = 'canceled'
  elseif tonumber(job.attempt) >= tonumber(job.max_attempts) then
    outcome = 'failed'
  else
    local due = now + args.retry_delay_us
    redis.call('HINCRBY', P .. 'counts:retried', job.model, 1)
    unlease(job)
    job.phases = args.phases
    fields.attempts, fields.phases = past_attempts(job, 'retrying', now), ''
    fields.state, fields.phase, fields.error, fields.due_us = 'delayed', 'waiting', result.error or '', int(due)
    write(job, fields)
    redis.call('ZADD', P .. 'delayed', int(due), job.name)
    expire_at(job, due + job.ttl_us)
    local data = '{"attempt":%s,"delay_s":%.6f,"metrics":%s}'
    emit(job, 'job.retrying', string.format(data, job.attempt, args.retry_delay_us / 1000000, result.metrics), job.error)
    return { 'ok', false }
  end
end
fields.error = outcome == 'failed' and result.error or ''
if outcome == 'succeeded' then
  fields.text, fields.data, fields.artifacts = result.text, result.data, result.artifacts
  fields.provenance, fields.output = result.provenance, result.output
  local total = fields.total or job.total
  if total ~= '' then fields.done = total end  -- prompts that were not needed are done too
end
return { reply, finish(job, outcome, fields, now) or false }
