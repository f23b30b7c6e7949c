#!lua flags=no-writes
-- tenant before_us limit states(JSON list) model canceling('1', '0' or '') -> {{record...}, next_before_us}
-- Newest first. Looks at 5000 jobs at most; the cursor then lets the caller go on.
local before, limit, seen = ARGV[2], tonumber(ARGV[3]), 0
local states = {}
for _, name in ipairs(cjson.decode(ARGV[4])) do states[name] = true end
local found = {}
while #found < limit and seen < 5000 do
  local rows = redis.call('ZREVRANGEBYSCORE', tkey(ARGV[1], 'jobs'), before, '-inf', 'WITHSCORES', 'LIMIT', 0, 100)
  if #rows == 0 then return { found, '' } end
  for i = 1, #rows, 2 do
    seen, before = seen + 1, '(' .. int(tonumber(rows[i + 1]))
    local job = load(ARGV[1], rows[i])
    local canceling = job and job.cancel == '1' and '1' or '0'
    if job and states[job.state] and (ARGV[5] == '' or job.model == ARGV[5])
      and (ARGV[6] == '' or job.state ~= 'running' or ARGV[6] == canceling) then
      found[#found + 1] = flatten(job)
      if #found == limit then break end
    end
  end
end
return { found, before }
