"""The Lua scripts of the sink: Redis runs each of them as a whole, or not at all.

The *state* of a sink is a hash: its `position`, the process that writes (`owner`), and the one
before it (`replaced`).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

from databus.client.sinks.ready.redis.commands import Command

# KEYS: state. ARGV: this process; `known` if databus has a position; `again` if a person wants
# this process to write although another one has replaced it.
TAKE_OVER = """
local held = redis.call('HMGET', KEYS[1], 'owner', 'replaced', 'position')
local owner, replaced, position = unpack(held)
if owner ~= ARGV[1] then
  if replaced == ARGV[1] and ARGV[3] ~= 'again' then return {'replaced', owner or ''} end
  if not owner and ARGV[2] == 'known' then return {'lost'} end
  redis.call('HSET', KEYS[1], 'owner', ARGV[1], 'replaced', owner or '')
end
return {'done', position or ''}
"""

# That no other process writes, and that Redis has what it said it has: after a restart, or on a
# replica that has become the master, it may not.
_GUARD = """
local owner, position = unpack(redis.call('HMGET', KEYS[1], 'owner', 'position'))
if not owner then return {'lost'} end
if owner ~= ARGV[1] then return {'replaced', owner} end
if (position or '') ~= ARGV[2] then return {'behind'} end
"""

# KEYS: state. ARGV: this process, the position that Redis has, the new one, commands.
# A command that fails would leave those before it done, so the types of keys are looked at first.
# What is refused otherwise, as when memory is full, is refused at the first command that adds.
WRITE = f"""
{_GUARD}
local commands, blob, at = {{}}, ARGV[4], 1
while at <= #blob do
  local count, command = 0, {{}}
  count, at = struct.unpack('>I4', blob, at)
  for i = 1, count do command[i], at = struct.unpack('>I4c0', blob, at) end
  commands[#commands + 1] = command
end
local types = {{HSET = 'hash', XADD = 'stream', RPUSH = 'list'}}
for i, command in ipairs(commands) do
  local wanted = types[command[1]]
  local found = wanted and redis.call('TYPE', command[2]).ok
  if wanted and found ~= wanted and found ~= 'none' then return {{'type', i, found}} end
end
for _, command in ipairs(commands) do redis.call(unpack(command)) end
redis.call('HSET', KEYS[1], 'position', ARGV[3])
return {{'done'}}
"""

# KEYS: state, index. ARGV: this process, the position that Redis has, how many.
REMOVE = f"""
{_GUARD}
local names = redis.call('ZRANGE', KEYS[2], 0, ARGV[3] - 1)
for _, name in ipairs(names) do redis.call('DEL', name) end
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, ARGV[3] - 1)
return {{'done', #names}}
"""


def packed(command: Command) -> bytes:
    """Return a command as `WRITE` reads it: the number of its arguments, and each with its length.

    As arguments of the script they would be limited to a million.
    """
    arguments = [_bytes(one) for one in command]
    return pack(">I", len(arguments)) + b"".join(pack(">I", len(one)) + one for one in arguments)


def shown(answer: Sequence[object], at: int) -> str:
    """Return a text of a script's answer."""
    found = answer[at]
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def _bytes(argument: bytes | str | int) -> bytes:
    return argument if isinstance(argument, bytes) else str(argument).encode()
