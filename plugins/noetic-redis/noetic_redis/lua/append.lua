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
local grown = 0
if arg(5) ~= '0' then
    grown = add(n, run, position, 4, 14)
end
run.updated = text(time)
local card
if arg(8) == '1' then
    card, run.crc = arg(9), arg(10)
    names = FIELDS
end
if arg(11) == '1' then
    restate(n, run, arg(12), arg(13))
    names = FIELDS
end
grown = grown + save(n, run, names, card)
count('bytes', grown)
return finish('ok')
