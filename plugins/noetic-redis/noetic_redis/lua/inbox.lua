-- run, behind which number, how many, how many bytes
local n = find(arg(1))
if not n then
    return {}
end
local rows, room = {}, tonumber(arg(4))
local found = redis.call('ZRANGEBYSCORE', key('inbox', n), '(' .. arg(2), '+inf', 'WITHSCORES', 'LIMIT', 0, arg(3))
for at = 1, #found, 2 do
    local name, number = found[at], text(found[at + 1])
    local stored = redis.call('HGET', key('signals', n), name)
    local own_number, crc, sum, from = string.match(stored or '', '^(%d+) (%d+) (%x+) ()')
    if own_number ~= number or sum ~= checksum('signal', n, name, number, crc) then
        fail('corrupt')
    end
    rows[#rows + 1] = {name, number, crc, string.sub(stored, from)}
    room = room - #stored
    if room <= 0 then
        break
    end
end
return rows
