-- commit: it ran.  Writes if the record is in progress under the holder's own
-- token, or is gone; wakes the waiters, if there are any.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 our record, with its response   3 its life,
--          ms   4 channel of the wake-ups
--
-- Returns  tag "1": committed, now or before
--          tag "2": there is no room; the record says that it ran
--          tag "0": somebody else's
--          tag "4": somebody else's, who still runs
--
-- Of a record, counted from 1: 4 state, 5 reason, 7 waits, 8 to 23 token, 32 to
-- 35 size of the response, from 105 on the response and the details.

local key, record = KEYS[1], ARGV[2]
local old = redis.call('GET', key)
local details = ''

if old then
    if string.sub(old, 8, 23) ~= string.sub(record, 8, 23) then
        return ARGV[1] .. (string.byte(old, 4) == 1 and '4' or '0')
    end

    -- before, on another connection perhaps: where replicas are waited for,
    -- WAIT speaks for what its own connection wrote, so something is written
    if string.byte(old, 4) ~= 1 then
        redis.call('PEXPIRE', key, math.max(redis.call('PTTL', key), 1))
        return ARGV[1] .. '1'
    end

    if #old > 104 then
        details = string.sub(old, 105)
        record = record .. details
    end
end

local result = '1'
local done = redis.pcall('SET', key, record, 'PX', ARGV[3])

if done.err then

    if not string.find(done.err, 'OOM', 1, true) then
        return done
    end

    -- At maxmemory Redis refuses SET, but not PEXPIRE; and once a script has
    -- written, it lets it write on.

    result = '2'
    redis.call('PEXPIRE', key, ARGV[3])

    if string.byte(record, 4) == 2 then
        record = string.sub(record, 1, 3) .. '\3\4' .. string.sub(record, 6, 31)
                 .. '\0\0\0\0' .. string.sub(record, 36, 104) .. details
    end

    redis.call('SET', key, record, 'PX', ARGV[3])
end

if old and string.byte(old, 7) == 1 then
    redis.call('PUBLISH', ARGV[4], key)
end

return ARGV[1] .. result
