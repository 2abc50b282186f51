-- What every script begins with. Ids come as arguments and become fields of hashes, never parts of a key's name.
-- Numbers are texts, as they come and as they are stored: the server's own numbers are doubles.
local store, base, salt = KEYS[1], ARGV[1], ARGV[2]
-- Of writes: the session, the first number of its piece of work, the write's number, and whether it was sent before.
local session, floor, number, again = ARGV[3], ARGV[4], ARGV[5], ARGV[6]

local function arg(index)
    return ARGV[6 + index]
end

local function fail(what)
    error('noetic:' .. what, 0)
end

if redis.call('HGET', store, 'salt') ~= salt then
    fail('gone')
end

local function key(name, part)
    return part and base .. name .. ':' .. part or base .. name
end

local function now()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end

local function text(value)
    return string.format('%.0f', value)
end

-- A checksum that takes in what it is of and where that is. Each part has its length before it.
local function checksum(...)
    local parts = {salt, ...}
    for index, part in ipairs(parts) do
        parts[index] = #part .. ':' .. part
    end
    return string.sub(redis.sha1hex(table.concat(parts)), 1, 16)
end

-- Writes happen once: a session notes the results of its last piece of work, and a caller that lost the answer asks again.
local mark = key('mark', session)
local known = false

local function settled()
    local found = redis.call('HMGET', mark, 'floor', number)
    known = found[1]
    if known and tonumber(known) > tonumber(floor) then
        fail('stale')
    end
    if known ~= floor or not found[2] then
        return nil
    end
    local result = {}
    for word in string.gmatch(found[2], '%S+') do
        result[#result + 1] = word
    end
    return result
end

-- Comes last: the first write of a script is the one that a server without memory refuses, and then nothing is written.
local function finish(...)
    local result = {...}
    if known ~= floor then
        redis.call('UNLINK', mark)
        redis.call('HSET', mark, 'floor', floor)
        redis.call('ZADD', key('used'), text(now()), session)
    end
    redis.call('HSET', mark, number, table.concat(result, ' '))
    return result
end

local function refuse(...)
    -- What was sent before may still be on its way, and shall not do later what the caller was told it had not done.
    if again == '1' then
        return finish(...)
    end
    return {...}
end

local FIELDS = {'id', 'pos', 'fence', 'status', 'skey', 'crc', 'parts', 'bytes', 'created', 'updated'}

local function run_checksum(n, run)
    local parts = {}
    for index, name in ipairs(FIELDS) do
        parts[index] = run[name]
    end
    return checksum('run', n, unpack(parts))
end

local PLACE = {'at', 'priority', 'lives', 'queue', 'flow', 'key'}

-- What has the ready runs of one key: a queue, a flow, and the key, which most runs have none of.
local function lane_of(place)
    local lane = place.queue .. '\n' .. place.flow
    return place.key == '' and lane or lane .. '\n' .. place.key
end

local function place_checksum(n, place)
    local parts = {'place', n, place.at, place.priority, place.lives, place.queue, place.flow}
    if place.key ~= '' then
        parts[#parts + 1] = place.key
    end
    return checksum(unpack(parts))
end

-- A run's place in a queue is a field of the run: the time from which on it may be claimed, or nothing, the priority,
-- how many owners in a row have claimed it, a checksum, and the names, which hold no control characters.
local function read_place(n, stored)
    local at, priority, lives, sum, queue, flow, own = string.match(
        stored, '^(%d*) (-?%d+) (%d+) (%x+) ([^\n]+)\n([^\n]+)\n?([^\n]*)$'
    )
    local place = {at = at, priority = priority, lives = lives, queue = queue, flow = flow, key = own}
    if not at or sum ~= place_checksum(n, place) then
        fail('corrupt')
    end
    return place
end

local function load(n)
    local found = redis.call('HMGET', key('run', n), 'seal', 'until', 'place', unpack(FIELDS))
    local run = {['until'] = found[2] or ''}
    for index, name in ipairs(FIELDS) do
        if not found[index + 3] then
            fail('corrupt')
        end
        run[name] = found[index + 3]
    end
    if found[1] ~= run_checksum(n, run) or (run['until'] ~= '' and not tonumber(run['until'])) then
        fail('corrupt')
    end
    if found[3] then
        run.place = read_place(n, found[3])
    end
    return run
end

-- The same for lists: nothing for a run of which something else is stored than was written, so that it hides no other.
local function readable(n)
    local fine, run = pcall(load, n)
    return fine and run or nil
end

local function find(run_id)
    local n = redis.call('HGET', key('ids'), run_id)
    if not n then
        return nil, nil
    end
    local run = load(n)
    if run.id ~= run_id then
        fail('corrupt')
    end
    return n, run
end

local function held(run, time)
    return run['until'] ~= '' and tonumber(run['until']) > time
end

-- Queues. A claim looks at what waits for a flow in a queue. In an index of these two each run stands with its turn: in
-- `owned` by when its lease ends, in `asleep` by its time; or, by its lane, in `ready`. In `keys` stand the keys that have
-- ready runs, by when one of them was claimed last. Claims move turns when the time has come, so what sleeps or has an
-- owner costs a claim nothing.
local function part_of(place)
    return redis.sha1hex(place.queue .. '\n' .. place.flow)
end

local function ready_of(place)
    return key('ready', redis.sha1hex(lane_of(place)))
end

-- A run comes into the index of those that are ready.
local function make_ready(place, turn, time)
    redis.call('ZADD', ready_of(place), 0, turn)
    if place.key ~= '' then
        redis.call('ZADD', key('keys', part_of(place)), 'NX', time, place.key)
    end
end

local function padded(value, width)
    return string.rep('0', width - #value) .. value
end

-- Turns sort as texts: the priority, the highest first, the time, or nines, and the run's number; behind these digits the
-- key.
local function turn_of(n, place)
    local at = place.at == '' and string.rep('9', 18) or padded(place.at, 18)
    return padded(text(1000000 - place.priority), 7) .. at .. padded(n, 16) .. place.key
end

local function turn_key(turn)
    return string.sub(turn, 42)
end

local function turn_time(turn)
    return tonumber(string.sub(turn, 8, 25)) or 0
end

local function is_asleep(place, time)
    return place.at == '' or tonumber(place.at) > time
end

-- Puts a run where claims look for it, by its place and its owner; or nowhere, if it has no place. `old` is the place
-- that it had. The first write takes memory, so that a server without any refuses it.
local function stand(n, run, time, old)
    local place = run.place
    local lane = place and place.queue .. '\n' .. place.flow
    if lane then
        redis.call('ZADD', key('lanes'), 0, lane)
    end
    if old then
        local before, part, turn, ready = old.queue .. '\n' .. old.flow, part_of(old), turn_of(n, old), ready_of(old)
        redis.call('ZREM', key('asleep', part), turn)
        redis.call('ZREM', key('owned', part), turn)
        redis.call('ZREM', ready, turn)
        if old.key ~= '' and redis.call('EXISTS', ready) == 0 then
            redis.call('ZREM', key('keys', part), old.key)
        end
        if before ~= lane then
            local left = redis.call(
                'EXISTS', key('asleep', part), key('owned', part), key('ready', part), key('keys', part)
            )
            if left == 0 then
                redis.call('ZREM', key('lanes'), before)
            end
        end
    end
    if place then
        local turn, part = turn_of(n, place), part_of(place)
        if held(run, time) then
            redis.call('ZADD', key('owned', part), run['until'], turn)
        elseif is_asleep(place, time) then
            redis.call('ZADD', key('asleep', part), text(turn_time(turn)), turn)
        else
            make_ready(place, turn, text(time))
        end
    end
end

local function requeue(n, run, time, changes)
    local old, place = run.place, {}
    for _, name in ipairs(PLACE) do
        place[name] = changes[name] or old[name]
    end
    local numbers = {place.at, place.priority, place.lives, place_checksum(n, place)}
    redis.call('HSET', key('run', n), 'place', table.concat(numbers, ' ') .. ' ' .. lane_of(place))
    run.place = place
    stand(n, run, time, old)
end

local function leave_queue(n, run)
    local old = run.place
    redis.call('HDEL', key('run', n), 'place')
    run.place = nil
    stand(n, run, nil, old)
end

-- Ends an owner's lease. The run was not lost with its owner, so its lives begin anew.
local function give_up(n, run, time)
    redis.call('HDEL', key('run', n), 'until')
    run['until'] = ''
    if run.place then
        requeue(n, run, time, {lives = '0'})
    end
end

-- Begins an owner's lease, or lengthens it.
local function own(n, run, time, micros)
    run['until'] = text(time + tonumber(micros))
    redis.call('HSET', key('run', n), 'until', run['until'])
    if run.place then
        stand(n, run, time, run.place)
    end
end

-- Puts a signal into a run's inbox, unless one with its key waits there; gives its number.
local function deliver(n, run, time, name, crc, body)
    local number = redis.call('ZSCORE', key('inbox', n), name)
    if number then
        return text(number)
    end
    number = text(redis.call('HINCRBY', store, 'ticks', 1))
    local head = number .. ' ' .. crc .. ' ' .. checksum('signal', n, name, number, crc)
    redis.call('HSET', key('signals', n), name, head .. ' ' .. body)
    redis.call('ZADD', key('inbox', n), number, name)
    if run.place and is_asleep(run.place, time) then
        requeue(n, run, time, {at = text(time)})
    end
    return number
end

-- Shared budgets. A row is a field of a hash, by its name and period, neither of which holds control characters; behind
-- its checksum it is JSON, in which numbers are texts, and an empty table an object.
local function read_budget(place)
    local stored = redis.call('HGET', key('budgets'), place)
    if not stored then
        return nil
    end
    local sum, from = string.match(stored, '^(%x+) ()')
    local body = sum and string.sub(stored, from)
    if not sum or sum ~= checksum('budget', place, body) then
        fail('corrupt')
    end
    return body
end

local function create(run_id, time)
    local n = text(redis.call('HINCRBY', store, 'ticks', 1))
    redis.call('HSET', key('ids'), run_id, n)
    redis.call('ZADD', key('runs'), n, n)
    return n, {
        id = run_id, pos = '0', fence = '0', status = '', skey = '', crc = '0', parts = '', bytes = '0',
        created = text(time), updated = text(time), ['until'] = '',
    }
end

-- Writes the fields that have changed; those of a new run are all new.
local function save(n, run, names, card)
    local fields = {'seal', run_checksum(n, run)}
    for _, name in ipairs(names) do
        fields[#fields + 1] = name
        fields[#fields + 1] = run[name]
    end
    local grown = 0
    if card then
        grown = #card - redis.call('HSTRLEN', key('run', n), 'card')
        fields[#fields + 1] = 'card'
        fields[#fields + 1] = card
    end
    redis.call('HSET', key('run', n), unpack(fields))
    return grown
end

-- The index of runs by status. `skey` is the status's digest, which is part of a key's name.
local function restate(n, run, status, skey)
    if run.skey ~= skey then
        if run.skey ~= '' then
            redis.call('ZREM', key('status', run.skey), n)
        end
        if skey ~= '' then
            redis.call('ZADD', key('status', skey), n, n)
        end
    end
    run.status, run.skey = status, skey
end

local function count(name, by)
    if by ~= 0 then
        redis.call('HINCRBY', store, name, text(by))
    end
end

-- Add a transaction behind a run's end: its arguments are the new position, the count of records, the crc of the body
-- and the body, and from `blobs` to `last` large payloads, each behind its digest. Gives the bytes that were added.
local function add(n, run, position, first, blobs, last)
    local digests, grown = {}, 0
    for index = blobs, last, 2 do
        digests[#digests + 1] = arg(index)
    end
    local new, records, crc, body = arg(first), arg(first + 1), arg(first + 2), arg(first + 3)
    local joined = table.concat(digests)
    redis.call(
        'XADD', key('log', n), new .. '-0', 'c', records, 'k', crc, 's',
        checksum('log', n, new, records, crc, joined), 'd', joined, 'b', body
    )
    for index, digest in ipairs(digests) do
        if redis.call('ZADD', key('uses', n), 'NX', position, digest) == 1 then
            if redis.call('HINCRBY', key('blobs'), digest, 1) == 1 then
                local data = arg(blobs - 1 + 2 * index)
                redis.call('SET', key('blob', digest), data)
                grown = grown + #data
            end
        end
    end
    run.bytes = text(tonumber(run.bytes) + #body)
    run.pos = new
    count('records', tonumber(records))
    return grown + #body
end

-- Write a transaction, whose arguments go from `first` to `last`. Gives the bytes that were added.
local function write(n, run, first, last, time, names)
    local grown = 0
    if arg(first + 4) ~= '0' then
        grown = add(n, run, run.pos, first + 3, first + 13, last)
    end
    run.updated = text(time)
    local card
    if arg(first + 7) == '1' then
        card, run.crc = arg(first + 8), arg(first + 9)
        names = FIELDS
    end
    if arg(first + 10) == '1' then
        restate(n, run, arg(first + 11), arg(first + 12))
        names = FIELDS
    end
    return grown + save(n, run, names, card)
end

-- The streams that a journal is made of, each with the position up to which it is: what it shares, and its own.
local function parts_of(n, run)
    local parts = {}
    for upto, stream in string.gmatch(run.parts, '(%d+):(%d+)') do
        parts[#parts + 1] = {stream, tonumber(upto)}
    end
    parts[#parts + 1] = {n, tonumber(run.pos)}
    return parts
end

-- Takes away what is not read any more of a stream whose run is gone: all, or what is behind its last fork.
local function trim(stream, bytes)
    if redis.call('EXISTS', key('run', stream)) == 1 then
        return
    end
    local log, uses = key('log', stream), key('uses', stream)
    local keep = redis.call('ZREVRANGE', key('refs', stream), 0, 0, 'WITHSCORES')[2] or '0'
    local freed = 0
    if keep == '0' and bytes then
        freed = tonumber(bytes)
    else
        repeat
            local rows = redis.call('XRANGE', log, text(tonumber(keep) + 1), '+', 'COUNT', 16)
            for _, row in ipairs(rows) do
                freed = freed + #row[2][10]
                redis.call('XDEL', log, row[1])
            end
        until #rows == 0
    end
    for _, digest in ipairs(redis.call('ZRANGEBYSCORE', uses, keep, '+inf')) do
        redis.call('ZREM', uses, digest)
        if redis.call('HINCRBY', key('blobs'), digest, -1) <= 0 then
            redis.call('HDEL', key('blobs'), digest)
            freed = freed + redis.call('STRLEN', key('blob', digest))
            redis.call('UNLINK', key('blob', digest))
        end
    end
    if keep == '0' then
        redis.call('UNLINK', log, uses, key('refs', stream))
    end
    count('bytes', -freed)
end

-- Takes a run away. It begins with a command that needs no memory, so that a full server can be emptied.
local function forget(n, run)
    local card = redis.call('HSTRLEN', key('run', n), 'card')
    redis.call('UNLINK', key('run', n), key('inbox', n), key('signals', n))
    if run.place then
        leave_queue(n, run)
    end
    redis.call('HDEL', key('ids'), run.id)
    redis.call('ZREM', key('runs'), n)
    restate(n, run, '', '')
    count('records', -tonumber(run.pos))
    count('bytes', -card)
    local parts = parts_of(n, run)
    for index = 1, #parts - 1 do
        redis.call('ZREM', key('refs', parts[index][1]), n)
        trim(parts[index][1])
    end
    trim(n, run.bytes)
end

-- A run, as lists show it.
local function shown(n, run, time)
    return {
        n, run.id, run.pos, run.status, run.crc, redis.call('HGET', key('run', n), 'card') or '',
        run.created, run.updated, held(run, time) and '1' or '0',
    }
end
