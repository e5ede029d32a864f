// The deployment panel: reads the choices off the page's radio buttons, asks engine.js, shows the
// answer. The address keeps what differs from the defaults: `#?hw=b200&speculative=off`.
"use strict";

(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { recipe } = data;
  const panel = document.querySelector(".panel");
  const form = panel.querySelector(".choices");
  const output = panel.querySelector("#output code");
  const tabs = [...panel.querySelectorAll("[role=tab]")];
  const node = panel.querySelector(".node");
  const nodeSelect = node.querySelector("select");
  const notice = panel.querySelector(".notice");
  const status = panel.querySelector(".status");
  const layers = cookbook.layersOf(recipe);
  const groups = [...recipe.dimensions, ...layers];
  const fields = new Map(
    groups.map((group) => [group.id, form.querySelector(`fieldset[data-id="${group.id}"]`)]),
  );
  const defaults = cookbook.complete(data, {});
  let choices = { ...defaults };
  let shown = "shell";
  let later = 0;

  const labelOf = (group, id) => group.options.find((option) => option.id === id).label;

  // Moves to the nearest choices that have a command; says what was changed, and why.
  function settle(wanted, changed) {
    const moved = [];
    const settled = { ...wanted };
    if (!cookbook.cellFor(recipe, settled)) {
      const why = cookbook.whyNoCell(recipe, settled);
      const [best] = cookbook.nearest(recipe, settled, changed, 1);
      for (const dimension of recipe.dimensions) {
        if (best[dimension.id] !== settled[dimension.id]) {
          moved.push(`${dimension.title} is now ${labelOf(dimension, best[dimension.id])}`);
        }
      }
      Object.assign(settled, best);
      moved.push(why);
    }
    let open = cookbook.availability(data, settled);
    for (const layer of layers) {
      const reason = open[layer.id][settled[layer.id]];
      if (reason) {
        settled[layer.id] = layer.default;
        moved.push(`${layer.title} is now ${labelOf(layer, layer.default)}: ${reason}`);
        open = cookbook.availability(data, settled);
      }
    }
    return { settled, moved };
  }

  function showChoices() {
    const open = cookbook.availability(data, choices);
    for (const group of groups) {
      const reasons = new Set();
      for (const input of fields.get(group.id).querySelectorAll("input")) {
        input.checked = input.value === choices[group.id];
        if (open[group.id]) {
          const reason = open[group.id][input.value];
          input.disabled = reason !== null;
          if (reason) reasons.add(`${labelOf(group, input.value)}: ${reason}.`);
        } else {
          const tried = { ...choices, [group.id]: input.value };
          input.parentElement.classList.toggle("away", !cookbook.cellFor(recipe, tried));
        }
      }
      const line = fields.get(group.id).querySelector(".reason");
      line.hidden = !reasons.size;
      line.textContent = [...reasons].join(" ");
    }
  }

  function lines(list, texts) {
    list.replaceChildren(
      ...texts.map((one) => {
        const item = document.createElement("li");
        item.textContent = one;
        return item;
      }),
    );
  }

  // Flags in the accent's colour; everything else as it is.
  function paint(text) {
    const parts = text.split(/(^\s*(?:- ")?--[A-Za-z0-9-]+)/m);
    output.replaceChildren(
      ...parts.filter(Boolean).map((part) => {
        if (!/^\s*(?:- ")?--[A-Za-z]/.test(part)) return part;
        const span = document.createElement("span");
        span.className = "flag";
        span.textContent = part;
        return span;
      }),
    );
  }

  function showCompanions(made) {
    panel.querySelector(".companions").replaceChildren(
      ...made.companions.flatMap(([title, words]) => {
        const heading = document.createElement("h3");
        heading.textContent = title;
        const block = document.createElement("div");
        block.className = "code";
        const pre = document.createElement("pre");
        pre.tabIndex = 0;
        pre.textContent = cookbook.shellWords(words);
        block.append(pre);
        return [heading, block];
      }),
    );
  }

  function show() {
    showChoices();
    const made = cookbook.generate(data, choices);
    const count = made.nodes.length;
    node.hidden = count === 1;
    if (nodeSelect.options.length !== count) {
      nodeSelect.replaceChildren(...made.nodes.map((_, rank) => new Option(`${rank}`, `${rank}`)));
    }
    for (const tab of tabs) {
      const on = tab.dataset.form === shown;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
    }
    panel.querySelector("#output").setAttribute("aria-labelledby", `form-${shown}`);
    paint(cookbook.render(data, made, shown, Number(nodeSelect.value || 0)));
    status.classList.toggle("good", Boolean(made.verified));
    status.classList.toggle("plain", !made.verified);
    status.textContent = made.verified
      ? `Run by us on ${made.verified.date}, ${made.verified.hardware}. Record ${made.verified.hash}.`
      : "Not run by us in this configuration.";
    lines(panel.querySelector(".warnings"), made.warnings);
    lines(panel.querySelector(".notes"), made.notes);
    showCompanions(made);
    // Once for a burst of changes: browsers limit how often an address may change.
    clearTimeout(later);
    later = setTimeout(keepAddress, 0);
  }

  function keepAddress() {
    const kept = Object.entries(choices).filter(([id, value]) => value !== defaults[id]);
    if (shown !== "shell") kept.push(["as", shown]);
    const hash = kept.length ? `#?${new URLSearchParams(kept)}` : "";
    if (hash || location.hash.startsWith("#?")) {
      history.replaceState(null, "", hash || location.pathname + location.search);
    }
  }

  function fromAddress() {
    if (!location.hash.startsWith("#?")) return;
    const wanted = { ...defaults };
    for (const [id, value] of new URLSearchParams(location.hash.slice(2))) {
      const group = groups.find((one) => one.id === id);
      if (id === "as" && value in cookbook.FORMS) shown = value;
      else if (group ? group.options.some((option) => option.id === value) : id in defaults) {
        wanted[id] = value;
      }
    }
    const { settled, moved } = settle(wanted, "");
    choices = settled;
    say(moved);
    for (const value of cookbook.allValues(data)) form.elements[value.id].value = choices[value.id];
  }

  function say(moved) {
    notice.hidden = !moved.length;
    notice.textContent = moved.length ? `${moved.join(". ")}.` : "";
  }

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", (event) => {
    const { name, value } = event.target;
    if (!fields.has(name)) return;
    const { settled, moved } = settle({ ...choices, [name]: value }, name);
    choices = settled;
    say(moved);
    show();
  });
  form.addEventListener("input", (event) => {
    const { name, value } = event.target;
    if (fields.has(name) || !(name in defaults)) return;
    choices = { ...choices, [name]: value || defaults[name] };
    show();
  });
  nodeSelect.addEventListener("change", show);
  panel.querySelector(".tabs").addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (!tab) return;
    shown = tab.dataset.form;
    show();
  });
  panel.querySelector(".tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = tabs.findIndex((tab) => tab.dataset.form === shown);
    const next = tabs[(at + step + tabs.length) % tabs.length];
    shown = next.dataset.form;
    show();
    next.focus();
  });
  window.addEventListener("hashchange", () => {
    if (!location.hash.startsWith("#?")) return;
    fromAddress();
    show();
  });
  fromAddress();
  show();
})();
