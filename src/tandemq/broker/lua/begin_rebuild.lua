-- Empty the lists and sorted sets of a queue and mark it as being rebuilt, if nobody changed the mark since it was read.
-- KEYS[1]  ns:{queue}:generation     KEYS[2..]  every ready and delayed key of the queue
-- ARGV[1]  the value read in this pass ('' for: there was none)     ARGV[2]  the new value (install:epoch:building:start)
-- answer   1 begun, 0 another value stands there and nothing was touched
-- Atomic. Run twice: the second answers 0, so what the first rebuild has put back is not deleted.
local current = redis.call('GET', KEYS[1]) or ''
if current ~= ARGV[1] then
  return 0
end
for i = 2, #KEYS do
  redis.call('UNLINK', KEYS[i])
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
