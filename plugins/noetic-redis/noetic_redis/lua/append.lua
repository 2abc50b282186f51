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
    local digests = {}
    for index = 14, #ARGV - 6, 2 do
        digests[#digests + 1] = arg(index)
    end
    local joined, body = table.concat(digests), arg(7)
    redis.call(
        'XADD', key('log', n), arg(4) .. '-0', 'c', arg(5), 'k', arg(6), 's',
        checksum('log', n, arg(4), arg(5), arg(6), joined), 'd', joined, 'b', body
    )
    for index, digest in ipairs(digests) do
        if redis.call('ZADD', key('uses', n), 'NX', position, digest) == 1 then
            if redis.call('HINCRBY', key('blobs'), digest, 1) == 1 then
                local data = arg(13 + 2 * index)
                redis.call('SET', key('blob', digest), data)
                grown = grown + #data
            end
        end
    end
    grown = grown + #body
    run.bytes = text(tonumber(run.bytes) + #body)
    run.pos = arg(4)
    count('records', tonumber(arg(5)))
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
