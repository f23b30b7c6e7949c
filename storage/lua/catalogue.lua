#!lua flags=no-writes
-- -> name, entry(JSON), ready(1 or 0), ... Where no worker lives, none is ready.
local ranks, all = table_of(redis.call('HGETALL', P .. 'catalogue:ranks')), {}
local living = redis.call('ZCOUNT', P .. 'publishers', '(' .. int(now_us()), '+inf') > 0
local flat = redis.call('HGETALL', P .. 'catalogue')
for i = 1, #flat, 2 do
  all[#all + 1], all[#all + 2] = flat[i], flat[i + 1]
  all[#all + 1] = living and string.sub(ranks[flat[i]] or '', 1, 1) == '4' and 1 or 0
end
return all
