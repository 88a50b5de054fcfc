-- Copyright (C) the contributors of ngx_http_idempotency_module
-- SPDX-License-Identifier: BSD-2-Clause

-- begin: acquires the lock of a record, or returns the record.  Used where
-- SET ... NX GET can't decide, see ..._redis_command.c.
--
-- KEYS[1]  the record
-- ARGV     1 tag of this call   2 our lock   3 life, ms
--          4 ms since the request arrived   5 "1": the key alone decides
--          6 "0"; "1": the request would wait; "2": it is waiting for a
--          record in progress; "3": and the lease of that can't have expired
--
-- Returns  tag "1" how: the lock is ours.  "0": there was no record, or the
--          lock was ours already; "1" time labels: its holder was gone;
--          "2" time: the record had expired.  The time has 8 bytes: when the
--          request of the previous record arrived.  The labels are the first
--          bytes of the details of that record
--          { tag "2" ms to live, record }: the record, unchanged; the caller
--          checks it, and refuses a form that it does not know
--          tag "3": the record was in progress and is gone, without a release
--
-- A record is a string, see ..._redis_record.c.  Offsets, counted from 1:
-- 3 version, 4 state, 5 reason, 6 kind, 7 mark of a waiter, 9 to 16 grace,
-- 25 to 40 token, 42 to 45 scheme, 46 to 53 time, 54 to 85 fingerprint,
-- 86 to 101 identity, 102 to 109 target, 110 to 113 length of the details,
-- 118 details; they begin with the labels, 395 bytes at most.  The kind is 1
-- under hold, plus 2 if the lock was taken over: the request may have run
-- before.  A token of zeros is that of a lock that was released for a waiter,
-- see release.lua.
--
-- The rest of the lease is the time to live of the key, less the grace, so
-- only the clock of the server counts.  The same is the rest of the ttl of a
-- record that is not in progress, and the rest of the lease of an unknown
-- outcome that is not under hold.  After the lease the same request may run,
-- but no other: the fingerprint stays as long as the key does.
--
-- If the clock of the server was set back, keys live longer than they were
-- told to.  A lock with our own grace was written with our own life; one that
-- has more left gets that, so that the lease of a dead holder ends.

local key, lock = KEYS[1], ARGV[2]
local old = redis.call('GET', key)

if not old then

    if ARGV[6] >= '2' then
        return ARGV[1] .. '3'
    end

    local set = redis.pcall('SET', key, lock, 'PX', ARGV[3])

    return set.err and set or ARGV[1] .. '10'
end

local life = redis.call('PTTL', key)

local function part(from, to)
    return string.sub(old, from, to) == string.sub(lock, from, to)
end

local function same_request()
    if not part(86, 101) then
        return false
    end

    if part(42, 45) then
        return part(54, 85)
    end

    return ARGV[5] == '1' or part(102, 109)
end

local function over(age)
    local grace = struct.unpack('>I8', old, 9)
    return life + age <= grace and grace <= 100 * 365 * 24 * 3600 * 1000
end

local function take(how, kind, waited)

    -- DEL first: at maxmemory it allows the script to write
    redis.call('DEL', key)
    redis.call('SET', key,
               string.sub(lock, 1, 5)
               .. string.char(bit.bor(string.byte(lock, 6), kind))
               .. waited .. string.sub(lock, 8), 'PX', ARGV[3])
    return ARGV[1] .. '1' .. how
end

if life >= 0 and #old >= 117 and string.sub(old, 1, 2) == 'id'
   and math.abs(string.byte(old, 3) - string.byte(lock, 3)) <= 1
then
    local state, reason, kind = string.byte(old, 4, 6)
    local waited = string.sub(old, 7, 7)
    local hold = kind % 2 == 1

    if (state == 1 or (state == 3 and reason == 1 and not hold))
       and part(9, 16) and life > tonumber(ARGV[3])
    then
        life = tonumber(ARGV[3])
        redis.call('PEXPIRE', key, life)
    end

    if state == 1 then

        -- this begin was sent before: its reply was lost; or it was without
        -- hold, since the request asked another store before it may run
        if part(25, 40) then
            return take('0', kind, waited)
        end

        -- released; others may be waiting already
        if string.sub(old, 25, 40) == string.rep('\0', 16) and over(0) then
            return take('0', 0, waited)
        end

        if not hold and over(0) and same_request() then

            -- this is an earlier holder's lock.  The server has lost the one
            -- that the request is waiting for; its holder may still be running
            if ARGV[6] == '3' then
                return ARGV[1] .. '3'
            end

            local labels = math.min(struct.unpack('>I4', old, 110), 395)

            return take('1' .. string.sub(old, 46, 53)
                        .. string.sub(old, 118, 117 + labels), 2, waited)
        end

        -- mark the record for the waiter now: the holder may release it
        -- next.  PEXPIRE is for maxmemory, see watch.lua
        if ARGV[6] ~= '0' and waited == '\0'
           and life > struct.unpack('>I8', old, 9)
        then
            redis.call('PEXPIRE', key, life)
            redis.pcall('SETRANGE', key, 6, '\1')
        end

    -- 3, 1: unusable, the outcome is unknown
    elseif state == 3 and reason == 1 and not hold then

        if over(0) and same_request() then
            return take('0', 2, '\0')
        end

    elseif (state == 2 or state == 3) and over(tonumber(ARGV[4])) then
        -- 6: deleted, see remove.lua
        return take(reason == 6 and '0' or '2' .. string.sub(old, 46, 53),
                    0, '\0')
    end
end

return { ARGV[1] .. '2' .. struct.pack('>i8', life), old }
