// Theme, menu, copy buttons and search. Everything lies beside the page, so that it works from a
// file and offline; the search index is a script for the same reason.
"use strict";

(() => {
  document.documentElement.classList.add("js");
  const stored = (() => {
    try {
      return localStorage.getItem("theme");
    } catch {
      return null; // storage is forbidden: the system's theme counts
    }
  })();
  if (stored) document.documentElement.dataset.theme = stored;

  function themes() {
    const button = document.querySelector(".theme");
    button.hidden = false;
    button.addEventListener("click", () => {
      const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
      const now = document.documentElement.dataset.theme || dark;
      const next = now === "dark" ? "light" : "dark";
      document.documentElement.dataset.theme = next;
      try {
        localStorage.setItem("theme", next);
      } catch {
        // kept for this page only
      }
    });
  }

  // The list of pages is open beside the text, and closed above it where the window is narrow.
  function menu() {
    const narrow = matchMedia("(max-width: 62rem)");
    const details = document.querySelector(".menu");
    const follow = () => {
      details.open = !narrow.matches;
    };
    narrow.addEventListener("change", follow);
    follow();
  }

  function copyButtons() {
    for (const block of document.querySelectorAll(".code")) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.addEventListener("click", async () => {
        const done = await copy(block.querySelector("pre").textContent);
        button.textContent = done ? "Copied" : "Press Ctrl+C";
        button.classList.toggle("done", done);
        setTimeout(() => {
          button.textContent = "Copy";
          button.classList.remove("done");
        }, 1600);
      });
      (block.id === "output" ? document.querySelector(".bar") : block).append(button);
    }
  }

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  function loadIndex(root) {
    return new Promise((resolve) => {
      if (window.slipwayIndex) return resolve(window.slipwayIndex);
      const script = document.createElement("script");
      script.src = `${root}search-index.js`;
      script.addEventListener("load", () => resolve(window.slipwayIndex || []));
      script.addEventListener("error", () => resolve([]));
      document.head.append(script);
    });
  }

  // Every term must be found; where it is found decides the order.
  function find(index, query) {
    const terms = query.toLowerCase().split(/\s+/).filter(Boolean);
    if (!terms.length) return [];
    const hits = [];
    for (const entry of index) {
      const places = [entry.h.toLowerCase(), entry.t.toLowerCase(), entry.x.toLowerCase()];
      let score = 0;
      for (const term of terms) {
        const found = places.findIndex((place) => place.includes(term));
        if (found < 0) {
          score = 0;
          break;
        }
        score += [8, 4, 1][found] + (places[0].startsWith(term) ? 4 : 0);
      }
      if (score) hits.push({ entry, score: score - (entry.u.includes("#") ? 0.5 : 0) });
    }
    return hits.sort((a, b) => b.score - a.score).slice(0, 12).map((hit) => hit.entry);
  }

  function search() {
    const root = document.body.dataset.root;
    const input = document.getElementById("search");
    const results = document.getElementById("results");
    let chosen = -1;
    const items = () => [...results.children];
    const show = (open) => {
      results.hidden = !open;
      input.setAttribute("aria-expanded", String(open));
      if (!open) input.removeAttribute("aria-activedescendant");
    };
    const mark = (at) => {
      chosen = at;
      items().forEach((item, index) => item.setAttribute("aria-selected", String(index === at)));
      const item = items()[at];
      if (!item) return;
      input.setAttribute("aria-activedescendant", item.id);
      item.scrollIntoView({ block: "nearest" });
    };
    const update = async () => {
      const index = await loadIndex(root);
      const found = find(index, input.value);
      results.replaceChildren(
        ...found.map((entry, number) => {
          const item = document.createElement("li");
          item.id = `result-${number}`;
          item.setAttribute("role", "option");
          item.dataset.href = root + entry.u;
          const title = document.createElement("strong");
          title.textContent = entry.h || entry.t;
          const text = document.createElement("span");
          text.textContent = entry.h === entry.t ? entry.x : `${entry.t} · ${entry.x}`;
          item.append(title, text);
          return item;
        }),
      );
      show(found.length > 0);
      mark(found.length ? 0 : -1);
    };
    const open = (item) => {
      if (item) location.href = item.dataset.href;
      show(false);
    };
    input.addEventListener("focus", () => loadIndex(root));
    input.addEventListener("input", update);
    input.addEventListener("keydown", (event) => {
      const count = items().length;
      if (event.key === "ArrowDown" && count) mark((chosen + 1) % count);
      else if (event.key === "ArrowUp" && count) mark((chosen + count - 1) % count);
      else if (event.key === "Enter") open(items()[chosen]);
      else if (event.key === "Escape") {
        input.value = "";
        show(false);
        input.blur();
      } else return;
      event.preventDefault();
    });
    results.addEventListener("mousedown", (event) => {
      event.preventDefault();
      open(event.target.closest("li"));
    });
    input.addEventListener("blur", () => show(false));
    document.addEventListener("keydown", (event) => {
      const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
      if (event.key === "/" && !typing) {
        event.preventDefault();
        input.focus();
      }
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    themes();
    menu();
    copyButtons();
    search();
  });
})();
