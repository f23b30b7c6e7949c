#!lua flags=allow-oom
-- tenant id outcome(JSON) announce_within_us -> record | 1 gone
-- Makes the record what the stored `outcome.json` says, whatever it was before; a record that Redis lost is made anew.
-- Only who put that object, or read it, may call this. A terminal record stays as it is.
local tenant, id = ARGV[1], ARGV[2]
local job = load(tenant, id)
if job and TERMINAL[job.state] then return flatten(job) end
if not job and redis.call('EXISTS', tkey(tenant, 'gone:' .. id)) == 1 then return 1 end
local outcome = cjson.decode(ARGV[3])
local fields = outcome.record
local completed = tonumber(fields.completed_us)
fields.revision, fields.delivery = nil, nil
if not job then
  job = { name = tenant .. '/' .. id, tenant = tenant, id = id, model = fields.model, queue = fields.queue, revision = '0',
    batch = fields.batch }
  fields.delivery = 'none'
  enlist(job, fields.created_us)
  redis.call('SADD', P .. 'queues', job.queue)
  if now_us() - completed > tonumber(ARGV[4]) then
    job.silent = true
  else
    for _, row in ipairs(outcome.deliveries) do
      row.leased_us = nil
      keep(row, now_us())
      fields.delivery = 'pending'
    end
  end
end
if not job.created_us then
  emit(job, 'job.recovered', { attempt = tonumber(fields.attempt), worker = fields.worker, fence = fields.fence })
end
terminate(job, fields.state, fields, completed)
job.silent = nil
return flatten(job)
