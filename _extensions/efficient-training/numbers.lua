-- Numbers as the book prints them: units converted, digits chosen, a typographic minus and power of ten.
--
-- A format is the subset of Python's that makes sense in prose: `d` `,d` `.2f` `,.2f` `.3g` `.2e` `.1%` `,.1%`.
-- Symbols stand close to the number (2.50×, 25%), names of units after a no-break space (1,280 KiB).

local numbers = {}

local NBSP, MINUS, TIMES = "\u{a0}", "\u{2212}", "\u{d7}"
local CLOSE = { [TIMES] = true, ["%"] = true }

-- The Lua format, whether to group digits, and the conversion letter; nil where `fmt` is no such format.
local function parse(fmt)
  if fmt == "d" or fmt == ",d" then
    return "%.0f", fmt == ",d", "d"
  end
  local comma, digits, letter = fmt:match("^(,?)%.(%d%d?)([fge%%])$")
  if not digits or (comma == "," and (letter == "g" or letter == "e")) then
    return nil
  end
  return "%." .. digits .. (letter == "%" and "f" or letter), comma == ",", letter
end

local function is_whole(value)
  return value == math.floor(value) and math.abs(value) < 2 ^ 63
end

-- Whole numbers in full, others with three significant digits; a ratio always with its digits.
local function default_format(value, unit)
  local size = math.abs(value)
  if is_whole(value) and unit.dimension ~= "ratio" then return ",d" end
  if size ~= 0 and (size < 1e-3 or size >= 1e9) then return ".2e" end
  if size >= 100 then return ",.0f" end
  if size >= 10 then return ".1f" end
  if size >= 1 then return ".2f" end
  return size >= 0.1 and ".3f" or size >= 0.01 and ".4f" or ".5f"
end

local function group(text)
  local sign, whole, rest = text:match("^(-?)(%d+)(.*)$")
  whole = whole:reverse():gsub("(%d%d%d)", "%1,"):reverse():gsub("^,", "")
  return sign .. whole .. rest
end

-- `value` of `from` in `to`; unit tables of units.json. Equal units leave the value untouched.
local function convert(value, from, to)
  if from == to then return value end
  return value * from.factor / to.factor
end

local function label_for(unit, digits)
  local label = unit.label
  if digits == "1" then
    label = label:gsub("^(%a%a+)s$", "%1"):gsub("^bytes per", "byte per")
  end
  return label
end

-- Print `value`, a number of unit `unit_name`, by `fmt` in the unit `wanted` ("-": bare; nil: its own).
-- Returns {digits, exponent, label}, all text; or nil and what is wrong, in words for the author.
function numbers.format(value, unit_name, fmt, wanted, units)
  local unit = units[unit_name]
  if not unit then return nil, "the record has an unknown unit " .. unit_name end
  local target = unit
  if wanted and wanted ~= "-" then
    target = units[wanted]
    if not target then return nil, "unknown unit " .. wanted end
    if target.dimension ~= unit.dimension then
      return nil, ("cannot show %s (%s) as %s (%s)"):format(unit_name, unit.dimension, wanted, target.dimension)
    end
  end
  local number = convert(value, unit, target)
  local pattern, grouped, letter = parse(fmt or default_format(number, target))
  if not pattern then return nil, "bad fmt " .. fmt .. ", use one like ,d .2f ,.1f .3g .2e .1%" end
  if letter == "d" and not is_whole(number) then
    return nil, ("fmt %s needs a whole number, the value is %.6g; use .1f or another"):format(fmt, number)
  end
  local label = wanted == "-" and "" or nil
  if letter == "%" then
    if target.dimension == "share" then
      number = convert(value, unit, units.percent)
    elseif target.dimension == "ratio" or target.dimension == "plain number" then
      number = number * 100
    else
      return nil, "fmt " .. fmt .. " needs a fraction or a ratio, the record is in " .. unit_name
    end
    label = "%"
  end
  local text = pattern:format(number)
  if not text:find("[1-9]") then text = text:gsub("^-", "") end
  local digits, sign, exponent = text:match("^(.-)e([+-])0*(%d+)$")
  digits = digits or text
  if exponent == "0" then
    digits, exponent = number == 0 and "0" or digits, nil
  end
  if grouped then digits = group(digits) end
  return {
    digits = digits:gsub("^-", MINUS),
    exponent = exponent and (sign == "-" and MINUS or "") .. exponent,
    label = label or label_for(target, digits),
  }
end

-- Between the number and the unit's label.
local function gap(label)
  return (label == "" or CLOSE[label]) and "" or NBSP
end

-- The printed number as pandoc inlines.
function numbers.inlines(printed)
  local after = gap(printed.label) .. printed.label
  if not printed.exponent then
    return pandoc.List({ pandoc.Str(printed.digits .. after) })
  end
  return pandoc.List({
    pandoc.Str(printed.digits .. NBSP .. TIMES .. NBSP .. "10"),
    pandoc.Superscript({ pandoc.Str(printed.exponent) }),
    pandoc.Str(after),
  })
end

-- A record's value in full, for the note that tells where it is from.
function numbers.in_full(value, unit_name, units)
  local text = is_whole(value) and group(("%.0f"):format(value)) or ("%.10g"):format(value)
  local label = units[unit_name] and label_for(units[unit_name], text) or unit_name
  return text .. gap(label) .. label
end

return numbers
