-- Write the generation of a queue if nobody changed it since it was read.
-- KEYS[1]  ns:{queue}:generation
-- ARGV[1]  the value read in this pass ('' for: there was none)     ARGV[2]  the new value
-- answer   1 written, 0 another value stands there
-- Atomic compare-and-set. Run twice: the second answers 0.
local current = redis.call('GET', KEYS[1]) or ''
if current ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
