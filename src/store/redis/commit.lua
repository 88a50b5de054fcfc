-- commit: it ran.  Writes if the record is in progress under the holder's own
-- token, or is gone, or is of another one that is gone; wakes the waiters, if there are any.  For what LINSERT
-- alone can't decide, or not do: see ..._redis_plain.c.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 our lock   3 outcome   4 our token
--          5 life, ms   6 channel of the wake-ups
--
-- Returns  tag "1": committed, now or before
--          tag "2": there is no room; the record says that it ran
--          tag "0": somebody else's
--          tag "4": somebody else's, who still runs
--
-- A record is { lock, token } in progress, { lock, outcome, token } after
-- that, and "w" behind it if somebody waits.  Of an outcome, counted from 1:
-- 4 state, 5 reason, 14 to 17 length of the response, from 18 on the response.

local key, outcome, token = KEYS[1], ARGV[3], ARGV[4]
local record = redis.call('LRANGE', key, 0, -1)
local n = #record
local waits = record[n] == 'w'

-- Whether a record of somebody else is to be had: its lease is over, it is not
-- under hold, and it is of the same request.  The same stands in renew.lua.

local function lapsed(record)
    local old, second = record[1], record[2] or ''

    if #old < 89 or string.sub(old, 1, 2) ~= 'id' or string.byte(old, 4) == 1
    then
        return false
    end

    for _, part in ipairs({ { 22, 25 }, { 34, 65 }, { 66, 81 } }) do
        if string.sub(old, part[1], part[2])
           ~= string.sub(ARGV[2], part[1], part[2])
        then
            return false
        end
    end

    local life = redis.call('PTTL', KEYS[1])

    if #second == 16 then
        return life <= struct.unpack('>I8', old, 5)
    end

    -- unusable, since the outcome is unknown
    return #second >= 17 and string.sub(second, 4, 5) == '\3\1'
           and life <= struct.unpack('>I8', second, 6)
end

-- what another one gave back, or left behind, is as if nothing were there

local ours = n > 0 and record[waits and n - 1 or n] == token

if n > 0 and not ours
   and (record[2] == string.rep('\0', 16) or lapsed(record))
then
    redis.call('DEL', key)
    n = 0
end

if n > 0 then
    local runs = n == (waits and 3 or 2)

    if not ours then
        return ARGV[1] .. (runs and '4' or '0')
    end

    -- before, on another connection perhaps: where replicas are waited for,
    -- WAIT speaks for what its own connection wrote, so something is written
    if not runs then
        redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), 1))

        -- by LINSERT perhaps, whose reply did not tell of them
        if waits then
            redis.call('PUBLISH', ARGV[6], key)
        end

        return ARGV[1] .. '1'
    end
end

local function write(call)
    if n > 0 then
        return call('LINSERT', key, 'BEFORE', token, outcome)
    end

    return call('RPUSH', key, ARGV[2], outcome, token)
end

local result = '1'
local done = write(redis.pcall)

if type(done) == 'table' then

    if not string.find(done.err, 'OOM', 1, true) then
        return done
    end

    -- At maxmemory Redis refuses a write, but not PEXPIRE; and once a script
    -- has written, it lets it write on.

    result = '2'
    redis.call('PEXPIRE', key, ARGV[5])

    if string.byte(outcome, 4) == 2 then
        outcome = string.sub(outcome, 1, 3) .. '\3\4'
                  .. string.sub(outcome, 6, 13) .. '\0\0\0\0'
    end

    write(redis.call)
end

redis.call('PEXPIRE', key, ARGV[5])

if waits then
    redis.call('PUBLISH', ARGV[6], key)
end

return ARGV[1] .. result
