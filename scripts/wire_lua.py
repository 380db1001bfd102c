"""The Wireshark dissector that generate_wire.py writes from wire.toml."""

from __future__ import annotations

from typing import Any

STRUCTS = ("header", "hello", "welcome", "challenge", "error")
VALUE_NAMES = {"message_type": "message_types", "reason": "error_reasons", "field": "config_fields"}
USAGE = """\
-- Wireshark and tshark show THC messages with it:
--   tshark -X lua_script:docs/wireshark/thc.lua -r capture.pcap
-- or copy it to ~/.local/lib/wireshark/plugins/. Display filter, for example: thc.message_type == 5 && thc.slot == 7
"""
ADD_FIELD = """\
local fields = {}
for _, flag in ipairs(flags) do table.insert(fields, flag) end

local layouts = {}
local function add(layout, name, bytes, field, extra)
  local entry = {offset = layout.bytes, bytes = bytes, field = field}
  for key, value in pairs(extra or {}) do entry[key] = value end
  table.insert(layout, entry)
  layout.by_name[name] = entry
  layout.bytes = layout.bytes + bytes
  table.insert(fields, field)
end
"""
# What does not depend on the fields. Everything above it in the file is written from wire.toml.
DISSECTOR = """\
local function read(buffer, name)
  local entry = layouts.header.by_name[name]
  return buffer(entry.offset, entry.bytes):uint()
end

local norm = ProtoField.float("thc.norm", "norm")
local codes = ProtoField.bytes("thc.codes", "codes", base.SPACE, "packed, most significant bit first")
local aggregate = ProtoField.bytes("thc.aggregate", "aggregate", base.SPACE, "sums of table values, big-endian")
local table_value = ProtoField.uint16("thc.hello.table_value", "table_value")
for _, field in ipairs({norm, codes, aggregate, table_value}) do table.insert(fields, field) end
thc.fields = fields

local bad_length = ProtoExpert.new("thc.bad_length", "Length does not match payload_count",
                                   expert.group.MALFORMED, expert.severity.ERROR)
local bad_version = ProtoExpert.new("thc.bad_version", "Unknown protocol version",
                                    expert.group.PROTOCOL, expert.severity.WARN)
local internal_set = ProtoExpert.new("thc.internal_set", "A switch's internal field is set outside the switch",
                                     expert.group.PROTOCOL, expert.severity.WARN)
thc.experts = {bad_length, bad_version, internal_set}

local function add_fields(layout, buffer, tree)
  for _, entry in ipairs(layout) do
    local bytes = buffer(entry.offset, entry.bytes)
    local item = tree:add(entry.field, bytes)
    for _, flag in ipairs(entry.flags or {}) do item:add(flag, bytes) end
    if entry.internal and bytes:uint() ~= 0 then item:add_proto_expert_info(internal_set) end
  end
end

local function payload_bytes(type_name, count, code_bits, value_bits)
  if type_name == "NORM" or type_name == "MAX_NORM" then return 4 * count end
  if type_name == "CODES" then return math.floor((count * code_bits + 7) / 8) end
  if type_name == "AGGREGATE" then return math.floor(count * value_bits / 8) end
  if type_name == "HELLO" then return layouts.hello.bytes + 2 * 2 ^ code_bits end
  if type_name == "WELCOME" then return layouts.welcome.bytes end
  if type_name == "CHALLENGE" then return layouts.challenge.bytes end
  if type_name == "ERROR" then return layouts.error.bytes end
  return 0
end

local function add_payload(type_name, payload, tree)
  if type_name == "NORM" or type_name == "MAX_NORM" then
    for offset = 0, payload:len() - 4, 4 do tree:add(norm, payload(offset, 4)) end
  elseif type_name == "CODES" then
    tree:add(codes, payload)
  elseif type_name == "AGGREGATE" then
    tree:add(aggregate, payload)
  elseif layouts[string.lower(type_name)] then
    local layout = layouts[string.lower(type_name)]
    add_fields(layout, payload, tree)
    for offset = layout.bytes, payload:len() - 2, 2 do tree:add(table_value, payload(offset, 2)) end
  end
end

local about_the_job = {HELLO = true, WELCOME = true, GOODBYE = true, CHALLENGE = true, PROBE = true, ALIVE = true}

local function describe(buffer, type_name, payload)
  local text = type_name .. " job " .. read(buffer, "job_id") .. " worker " .. read(buffer, "worker_id")
  if about_the_job[type_name] then return text end
  text = text .. " round " .. read(buffer, "round") .. " slot " .. read(buffer, "slot")
  if type_name == "ERROR" then
    local reason = payload(layouts.error.by_name.reason.offset, 2):uint()
    return text .. " " .. (error_reasons[reason] or reason)
  end
  text = text .. " partition " .. read(buffer, "partition") .. " chunk " .. read(buffer, "chunk")
  if read(buffer, "flags") % 2 == 1 then text = text .. " [retransmit]" end
  if read(buffer, "contributions") > 0 then
    text = text .. " of " .. read(buffer, "contributions") .. "/" .. read(buffer, "num_workers")
  end
  return text
end

function thc.dissector(buffer, info, tree)
  if buffer:len() < layouts.header.bytes then return 0 end
  info.cols.protocol = "THC"
  local subtree = tree:add(thc, buffer())
  add_fields(layouts.header, buffer, subtree)
  if read(buffer, "version") ~= VERSION then
    subtree:add_proto_expert_info(bad_version)
    return buffer:len()
  end
  local type_name = message_types[read(buffer, "message_type")] or "unknown message"
  local expected = payload_bytes(type_name, read(buffer, "payload_count"), read(buffer, "code_bits"),
                                 read(buffer, "value_bits"))
  if buffer:len() - layouts.header.bytes ~= expected then
    info.cols.info = type_name .. " [bad length]"
    subtree:add_proto_expert_info(bad_length)
    return buffer:len()
  end
  local payload = expected > 0 and buffer(layouts.header.bytes) or nil
  info.cols.info = describe(buffer, type_name, payload)
  if payload then add_payload(type_name, payload, subtree) end
  return buffer:len()
end

DissectorTable.get("udp.port"):add(UDP_PORT, thc)
"""


def proto_field(struct: str, field: dict[str, Any]) -> str:
    prefix = "thc" if struct == "header" else f"thc.{struct}"
    base = "base.HEX" if field["bits"] == 64 else "base.DEC"
    values = VALUE_NAMES.get(field["name"]) if struct in ("header", "error") else None
    return (
        f'ProtoField.uint{field["bits"]}("{prefix}.{field["name"]}", "{field["name"]}", {base}, {values or "nil"}, nil,'
        f'\n    "{field["doc"]}")'
    )


def layout(struct: str, wire: dict[str, Any]) -> list[str]:
    out = [f"layouts.{struct} = {{bytes = 0, by_name = {{}}}}"]
    for field in wire[struct]:
        extra = ", {internal = true}" if field.get("internal") else ""
        extra = ", {flags = flags}" if (struct, field["name"]) == ("header", "flags") else extra
        out.append(
            f'add(layouts.{struct}, "{field["name"]}", {field["bits"] // 8}, {proto_field(struct, field)}{extra})'
        )
    return out


def lua(wire: dict[str, Any], notice: str) -> str:
    """Return docs/wireshark/thc.lua."""
    out = [f"-- {notice}", *USAGE.splitlines(), "", 'local thc = Proto("thc", "Tensor Homomorphic Compression")', ""]
    out += [f"local VERSION = {wire['protocol']['version']}", f"local UDP_PORT = {wire['protocol']['udp_port']}", ""]
    for table in VALUE_NAMES.values():
        out.append(f"local {table} = {{")
        for name, entry in wire[table].items():
            shown = name.upper() if table == "message_types" else name
            out.append(f'  [{entry["value"]}] = "{shown}",')
        out += ["}", ""]
    out.append("local flags = {")
    for name, entry in wire["flags"].items():
        out.append(f'  ProtoField.bool("thc.flags.{name}", "{name}", 8, nil, {1 << entry["bit"]}, "{entry["doc"]}"),')
    out += ["}", "", *ADD_FIELD.splitlines(), ""]
    for struct in STRUCTS:
        out += [*layout(struct, wire), ""]
    return "\n".join(out) + "\n" + DISSECTOR
