-- Put one chunk of ids back and move the rebuild's cursor, if nobody moved it since it was read.
-- KEYS[1]  ns:{queue}:generation     KEYS[2..]  one ready or delayed key per group
-- ARGV[1]  the value read in this pass     ARGV[2]  the new value (cursor moved, or ready)
-- ARGV[3..] per key: 'LPUSH', 'RPUSH' or 'ZADD', the number n of arguments, then n ids, or n/2 pairs of due ms and id
-- answer   1 done, 0 another value stands there and nothing was touched
-- Atomic. Run twice: the second answers 0, so no id is put back twice. At most 4000 arguments per key.
local current = redis.call('GET', KEYS[1]) or ''
if current ~= ARGV[1] then
  return 0
end
local at = 3
for i = 2, #KEYS do
  local n = tonumber(ARGV[at + 1])
  redis.call(ARGV[at], KEYS[i], unpack(ARGV, at + 2, at + 1 + n))
  at = at + 2 + n
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
