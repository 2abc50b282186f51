-- run, position, fence, new position, count, crc of the body, body, card or not, card, its crc, status or not, status,
-- its digest, and large payloads, each behind its digest
local done = settled()
if done then
    return done
end
local n, run = find(arg(1))
local position, fence = '0', '0'
if run then
    position, fence = run.pos, run.fence
end
if fence ~= arg(3) then
    return refuse('fence', fence)
end
if position ~= arg(2) then
    return refuse('position', position)
end
local time = now()
local names = {'pos', 'bytes', 'updated'}
if not run then
    n, run = create(arg(1), time)
    names = FIELDS
end
count('bytes', write(n, run, 1, #ARGV - 6, time, names))
return finish('ok')
