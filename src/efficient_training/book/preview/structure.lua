-- Callouts, tabsets and examples as HTML that works without script, and a refusal of what the subset leaves out.

local CALLOUTS = { note = "Note", tip = "Tip", warning = "Warning", important = "Important", caution = "Caution" }

local function problem(what) io.stderr:write("PROBLEM\t" .. what .. "\n") end

local function html(text) return pandoc.RawBlock("html", text) end

local function escape(text)
  return (text:gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

-- Headings inside a box are neither numbered nor in the table of contents.
local function quiet(blocks)
  return pandoc.Blocks(blocks):walk({
    Header = function(header)
      header.classes:extend({ "unnumbered", "unlisted" })
      return header
    end,
  })
end

local function callout(div, kind)
  local content = div.content
  local title = div.attributes.title and pandoc.utils.blocks_to_inlines(pandoc.read(div.attributes.title).blocks)
  if not title and content[1] and content[1].t == "Header" then title = content:remove(1).content end
  title = pandoc.Inlines(title or CALLOUTS[kind])
  local id = div.identifier ~= "" and (' id="%s"'):format(escape(div.identifier)) or ""
  local collapse = div.attributes.collapse
  local head, foot
  if collapse then
    local open = collapse == "false" and " open" or ""
    head = html(('<details class="callout callout-%s"%s%s><summary class="callout-title">'):format(kind, id, open))
    foot = html("</details>")
    head = { head, pandoc.Plain(title), html("</summary>") }
  else
    head = { html(('<aside class="callout callout-%s"%s><p class="callout-title">'):format(kind, id)),
      pandoc.Plain(title), html("</p>") }
    foot = html("</aside>")
  end
  local blocks = pandoc.List(head)
  blocks:insert(pandoc.Div(quiet(content), pandoc.Attr("", { "callout-body" })))
  blocks:insert(foot)
  return blocks
end

local tabsets = 0

-- Sections with a heading each; the page's script makes tabs of them, print and readers without script keep sections.
local function tabset(div)
  tabsets = tabsets + 1
  local blocks, tab, count = pandoc.List({ html('<div class="tabset">') }), nil, 0
  local function close()
    if tab then blocks:insert(pandoc.Div(quiet(tab), pandoc.Attr("", { "tab-body" }))) blocks:insert(html("</section>")) end
  end
  local level = div.content[1] and div.content[1].t == "Header" and div.content[1].level
  if not level then problem("a panel-tabset must begin with a heading for its first tab") end
  for _, block in ipairs(div.content) do
    if block.t == "Header" and block.level == level then
      close()
      count, tab = count + 1, pandoc.List()
      local id = ("tab-%d-%d"):format(tabsets, count)
      blocks:insert(html(('<section class="tab" id="%s"><p class="tab-title">'):format(id)))
      blocks:insert(pandoc.Plain(block.content))
      blocks:insert(html("</p>"))
    elseif tab then
      tab:insert(block)
    end
  end
  close()
  blocks:insert(html("</div>"))
  return blocks
end

local function div(element)
  for kind in pairs(CALLOUTS) do
    if element.classes:includes("callout-" .. kind) then return callout(element, kind) end
  end
  if element.classes:includes("panel-tabset") then return tabset(element) end
end

local function refuse(raw)
  if raw.format:match("^html") and raw.text:match("^%s*<!%-%-.*%-%->%s*$") then return {} end
  problem(("raw %s (%s) is outside the book's subset"):format(raw.format, raw.text:gsub("%s+", " "):sub(1, 60)))
end

local function image(element)
  if element.src:match("^%a[%w+.-]*:") or element.src:match("^//") then
    problem(("the picture %s is not a file of the book"):format(element.src))
  end
  local alt = element.attributes["fig-alt"]
  if alt then
    element.attributes["fig-alt"], element.attributes.alt = nil, alt
  end
  return element
end

return {
  { RawInline = refuse, RawBlock = refuse },
  { Div = div, Image = image },
}
