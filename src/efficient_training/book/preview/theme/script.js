// What a page does beyond being text: math, theme, tabs, copy buttons, notes, the chapter menu, the table of contents.
"use strict";

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
};

function drawMath() {
  if (!window.katex) return;
  for (const span of all("span.math")) {
    const displayMode = span.classList.contains("display");
    katex.render(span.textContent, span, { displayMode, throwOnError: false });
  }
}

function themeButton() {
  const root = document.documentElement;
  const button = document.querySelector("button.theme");
  const show = (theme) => {
    root.dataset.theme = theme;
    button.setAttribute("aria-pressed", String(theme === "dark"));
  };
  const stored = () => {
    try { return localStorage.getItem("theme"); } catch { return null; }
  };
  show(root.dataset.theme);
  button.addEventListener("click", () => {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", theme); } catch { /* the choice then lasts for this page */ }
    show(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => {
    if (!stored()) show(event.matches ? "dark" : "light");
  });
}

function chapterMenu() {
  const button = document.querySelector("button.menu");
  const menu = document.getElementById("chapters");
  const set = (open) => {
    menu.classList.toggle("open", open);
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", () => set(!menu.classList.contains("open")));
  document.addEventListener("click", (event) => {
    if (!menu.contains(event.target) && !button.contains(event.target)) set(false);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && menu.classList.contains("open")) {
      set(false);
      button.focus();
    }
  });
  menu.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
}

function tabs() {
  for (const set of all(".tabset")) {
    const panels = all(":scope > .tab", set);
    const list = make("div", "tabs");
    list.setAttribute("role", "tablist");
    const buttons = panels.map((panel) => {
      const button = make("button", "", panel.querySelector(".tab-title").textContent);
      Object.assign(button, { type: "button", id: `${panel.id}-button` });
      button.setAttribute("role", "tab");
      button.setAttribute("aria-controls", panel.id);
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", button.id);
      return button;
    });
    const select = (chosen) => {
      buttons.forEach((button, index) => {
        button.setAttribute("aria-selected", String(index === chosen));
        button.tabIndex = index === chosen ? 0 : -1;
        panels[index].style.display = index === chosen ? "" : "none";
      });
    };
    buttons.forEach((button, index) => {
      button.addEventListener("click", () => select(index));
      button.addEventListener("keydown", (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = (index + step + buttons.length) % buttons.length;
        select(next);
        buttons[next].focus();
        event.preventDefault();
      });
    });
    list.append(...buttons);
    set.prepend(list);
    set.classList.add("live");
    select(0);
  }
}

async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function copyButtons() {
  for (const pre of all("article pre:not(.output)")) {
    let box = pre.closest("div.sourceCode");
    if (!box) {
      box = make("div", "code-box");
      pre.replaceWith(box);
      box.append(pre);
    }
    const text = pre.textContent.replace(/\n$/, "");
    const button = make("button", "copy", "Copy");
    button.type = "button";
    button.setAttribute("aria-label", "Copy this code");
    button.addEventListener("click", async () => {
      try {
        await copyText(text);
        button.textContent = "Copied";
      } catch {
        button.textContent = "Not copied";
      }
      button.classList.add("done");
      setTimeout(() => {
        button.textContent = "Copy";
        button.classList.remove("done");
      }, 1500);
    });
    box.append(button);
  }
}

// One note for the whole page: where a value is from, what a claim rests on, a footnote, a cited work.
function notes() {
  const note = make("div", "note");
  Object.assign(note, { id: "note", hidden: true });
  note.setAttribute("role", "tooltip");
  document.body.append(note);
  let owner = null;
  let timer = 0;

  const content = (element) => {
    if (element.dataset.note) return [element.dataset.note];
    const target = document.getElementById(decodeURIComponent(element.hash.slice(1)));
    if (!target) return [];
    const copy = target.cloneNode(true);
    all(".footnote-back", copy).forEach((link) => link.remove());
    all("[id]", copy).forEach((child) => child.removeAttribute("id"));
    return [...copy.childNodes];
  };
  const hide = () => {
    clearTimeout(timer);
    owner?.removeAttribute("aria-describedby");
    owner = null;
    note.hidden = true;
  };
  const show = (element) => {
    clearTimeout(timer);
    if (owner === element) return;
    hide();
    note.replaceChildren(...content(element));
    if (!note.textContent.trim()) return;
    owner = element;
    element.setAttribute("aria-describedby", "note");
    note.hidden = false;
    const mark = element.getClientRects()[0];
    const left = Math.min(mark.left, document.documentElement.clientWidth - note.offsetWidth - 16);
    const above = mark.bottom + note.offsetHeight + 12 > innerHeight && mark.top > note.offsetHeight + 70;
    note.style.left = `${Math.max(16, left) + scrollX}px`;
    note.style.top = `${(above ? mark.top - note.offsetHeight - 6 : mark.bottom + 6) + scrollY}px`;
  };
  const later = () => {
    clearTimeout(timer);
    timer = setTimeout(hide, 250);
  };

  for (const element of all("[data-note], a.footnote-ref, .citation a[href^='#ref-']")) {
    element.removeAttribute("title");
    element.addEventListener("mouseenter", () => show(element));
    element.addEventListener("mouseleave", later);
    element.addEventListener("focus", () => show(element));
    element.addEventListener("blur", later);
    if (element.dataset.note) element.addEventListener("click", () => show(element));
  }
  note.addEventListener("mouseenter", () => clearTimeout(timer));
  note.addEventListener("mouseleave", later);
  document.addEventListener("keydown", (event) => event.key === "Escape" && hide());
  document.addEventListener("click", (event) => {
    if (owner && !owner.contains(event.target) && !note.contains(event.target)) hide();
  });
}

function headingLinks() {
  for (const heading of all("article :is(h2, h3, h4)[id]")) {
    const link = make("a", "anchor", "#");
    link.href = `#${heading.id}`;
    link.tabIndex = -1;
    link.setAttribute("aria-label", "Link to this section");
    heading.append(link);
  }
}

function followContents() {
  const links = new Map(all(".contents a").map((link) => [decodeURIComponent(link.hash.slice(1)), link]));
  const headings = all("article :is(h2, h3)[id]").filter((heading) => links.has(heading.id));
  const mark = () => {
    const passed = headings.filter((heading) => heading.getBoundingClientRect().top < 140);
    const here = passed.at(-1) ?? headings[0];
    links.forEach((link, id) => link.classList.toggle("here", id === here?.id));
  };
  let waiting = false;
  addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { mark(); waiting = false; });
  }, { passive: true });
  mark();
}

// What scrolls sideways must be within reach of the keyboard.
function scrollBoxes() {
  const update = () => {
    for (const box of all(".scroll, pre, .math.display")) {
      if (box.scrollWidth > box.clientWidth + 1) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
    }
  };
  addEventListener("resize", update);
  addEventListener("load", update);
  update();
}

function unfoldForPrint() {
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("article details:not([open])");
    folded.forEach((details) => { details.open = true; });
  });
  addEventListener("afterprint", () => folded.forEach((details) => { details.open = false; }));
}

drawMath();
themeButton();
chapterMenu();
tabs();
copyButtons();
notes();
headingLinks();
followContents();
scrollBoxes();
unfoldForPrint();
