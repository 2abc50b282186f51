-- for each transaction: for how many microseconds it acquires the run, or nothing; whether it releases it; how many
-- arguments follow; and these: run, position, fence, new position, count, crc of the body, body, card or not, card, its
-- crc, status or not, status, its digest, and large payloads, each behind its digest
local done = settled()
if done then
    return done
end
local time = now()
local all, index = {}, 1
while index <= #ARGV - 6 do
    local each = {ttl = arg(index), releases = arg(index + 1) == '1', first = index + 3}
    each.last = index + 2 + tonumber(arg(index + 2))
    each.n, each.run = find(arg(each.first))
    local position, fence = '0', '0'
    if each.run then
        position, fence = each.run.pos, each.run.fence
    end
    if each.ttl ~= '' then
        if each.run and held(each.run, time) then
            return refuse('busy')
        end
    end
    local expected = arg(each.first + 2)
    if fence ~= expected and (each.ttl == '' or expected ~= '0') then
        return refuse('fence', text(#all), fence)
    end
    if position ~= arg(each.first + 1) then
        return refuse('position', text(#all), position)
    end
    all[#all + 1] = each
    index = each.last + 1
end
local grown, words = 0, {'ok'}
for _, each in ipairs(all) do
    local names = {'pos', 'bytes', 'updated'}
    if not each.run then
        each.n, each.run = create(arg(each.first), time)
        names = FIELDS
    end
    if each.ttl ~= '' then
        each.run.fence = text(redis.call('HINCRBY', store, 'ticks', 1))
        names = FIELDS
    end
    grown = grown + write(each.n, each.run, each.first, each.last, time, names)
    if each.releases then
        redis.call('HDEL', key('run', each.n), 'until')
    elseif each.ttl ~= '' then
        redis.call('HSET', key('run', each.n), 'until', text(time + tonumber(each.ttl)))
    end
    words[#words + 1] = each.run.fence
end
count('bytes', grown)
return finish(unpack(words))
