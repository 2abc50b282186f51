-- run, position, new run, card, its crc, status, its digest, the position, count, crc and body of a transaction behind the
-- shared part, and large payloads, each behind its digest
local done = settled()
if done then
    return done
end
local n, run = find(arg(1))
if not n then
    return refuse('none')
end
local at, shared = tonumber(arg(2)), {}
if at < 0 or at > tonumber(run.pos) then
    return refuse('end')
end
for _, part in ipairs(at > 0 and parts_of(n, run) or {}) do
    local stream, upto = part[1], part[2]
    shared[#shared + 1] = {stream, text(math.min(upto, at))}
    if upto >= at then
        if #redis.call('XRANGE', key('log', stream), text(at), text(at), 'COUNT', 1) == 0 then
            return refuse('end')
        end
        break
    end
end
if redis.call('HEXISTS', key('ids'), arg(3)) == 1 then
    return refuse('exists')
end
local made, new = create(arg(3), now())
local parts = {}
for index, part in ipairs(shared) do
    redis.call('ZADD', key('refs', part[1]), part[2], made)
    parts[index] = part[2] .. ':' .. part[1]
end
new.pos, new.parts, new.crc = text(at), table.concat(parts, ','), arg(5)
restate(made, new, arg(6), arg(7))
count('records', at)
local grown = 0
if arg(9) ~= '0' then
    grown = add(made, new, text(at), 8, 12, #ARGV - 6)
end
count('bytes', grown + save(made, new, FIELDS, arg(4)))
return finish('ok')
