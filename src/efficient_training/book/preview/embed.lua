-- Puts embedded notebook cells in place: the text divs that cells.py left behind become code, output and pictures.
-- Runs before the project's own filter, so that values and claims in captions are bound too.

local json = pandoc.json
local config = json.decode(io.open(os.getenv("PREVIEW_PAGE")):read("a"), false)

-- What a notebook may say in Markdown. Neither HTML, nor attributes, nor code fences with classes.
local OUTPUT = "markdown_strict-raw_html+pipe_tables+tex_math_dollars+strikeout+superscript+subscript+backtick_code_blocks"
  .. "+all_symbols_escapable"
local CAPTION = OUTPUT .. "+bracketed_spans+citations+smart"

local BOUND = { value = true, claim = true, given = true }

-- Pictures and links of an edition from elsewhere could lead, or fetch, anywhere.
local harmless = {
  Link = function(link) return link.content end,
  Image = function(image) return image.caption end,
  RawInline = function(raw) return pandoc.Code(raw.text) end,
  RawBlock = function(raw) return pandoc.CodeBlock(raw.text) end,
  Span = function(span)
    local kept = {}
    for _, key in ipairs({ "name", "fmt", "unit" }) do kept[key] = span.attributes[key] end
    return pandoc.Span(span.content, pandoc.Attr("", span.classes:filter(function(c) return BOUND[c] end), kept))
  end,
}

local function read(text, format)
  return pandoc.read(text, format).blocks:walk(harmless)
end

local function inlines(text)
  return pandoc.utils.blocks_to_inlines(read(text, CAPTION))
end

local function picture(output)
  local attributes = { alt = output.alt, width = tostring(output.width), height = tostring(output.height) }
  return pandoc.Plain({ pandoc.Image({}, output.src, "", pandoc.Attr("", {}, attributes)) })
end

local function blocks_of(output)
  if output.type == "image" then return { picture(output) } end
  if output.type == "markdown" then return read(output.text, OUTPUT) end
  return { pandoc.CodeBlock(output.text, pandoc.Attr("", { "output" })) }
end

local function cell(data)
  local shown = pandoc.List()
  for _, output in ipairs(data.outputs) do shown:extend(blocks_of(output)) end
  local kind = data.label:match("^(%a+)%-")
  if (kind == "fig" or kind == "tbl") and #shown > 0 then
    local caption = data.caption ~= "" and { pandoc.Plain(inlines(data.caption)) } or {}
    shown = pandoc.List({ pandoc.Figure(shown, { long = caption }, pandoc.Attr(data.label)) })
  end
  if data.code ~= "" then
    shown:insert(1, pandoc.CodeBlock(data.code, pandoc.Attr("", { "python", "cell-code" })))
  end
  return pandoc.Div(shown, pandoc.Attr("", { "cell" }, { ["data-label"] = data.label }))
end

-- Syntax that pandoc did not understand as such, and would print. (number.lua sees to the labels of equations.)
local function stray(element)
  local piece = element.text:match("{[.#]%a.*") or element.text:match("^:::+.*")
  if piece and not piece:match("^{#eq%-") then
    io.stderr:write("PROBLEM\t" .. piece .. " is printed as it stands; attributes follow a ], a heading or a :::\n")
  end
end

return { { Str = stray }, {
  Div = function(div)
    if div.classes:includes("preview-embed") then
      return cell(config.cells[tonumber(pandoc.utils.stringify(div)) + 1])
    end
  end,
} }
