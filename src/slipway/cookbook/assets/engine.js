// The rule engine in the browser: the twin of generate.py and render.py, held to the same golden
// vectors. `data` is { recipe, engine, hardware, sealed } as site.py writes it; empty parts are left
// out. Pure functions; nothing here touches the page.
"use strict";

const cookbook = (() => {
  const FORMS = { shell: "Shell", docker: "docker run", compose: "Compose", python: "Python" };
  const AMD_DEVICES = ["/dev/kfd", "/dev/dri"];
  const list = (part) => part || [];
  const optionsOf = (value) => (typeof value === "string" ? [value] : value);
  const matches = (match, choices) =>
    Object.entries(match || {}).every(([id, value]) => optionsOf(value).includes(choices[id]));
  const flagName = (flag) => flag.split(" ", 1)[0];

  class ChoiceError extends Error {
    constructor(reasons, nearest) {
      super(reasons.join("; "));
      this.reasons = reasons;
      this.nearest = nearest || [];
    }
  }

  const layersOf = (recipe) => [...list(recipe.overlays), ...list(recipe.cards)];

  function allValues(data) {
    const several = data.recipe.cells.some((cell) => (cell.nodes || 1) > 1);
    const extra = several ? list(data.engine["multi-node-values"]) : [];
    return [...list(data.engine.values), ...extra, ...list(data.recipe.values)];
  }

  function valuesOf(data, cell) {
    const extra = (cell.nodes || 1) > 1 ? list(data.engine["multi-node-values"]) : [];
    return [...list(data.engine.values), ...extra, ...list(data.recipe.values)];
  }

  function complete(data, choices) {
    const full = {};
    const groups = [...data.recipe.dimensions, ...layersOf(data.recipe)];
    for (const group of [...groups, ...allValues(data)]) full[group.id] = group.default;
    for (const [id, chosen] of Object.entries(choices)) {
      if (!(id in full)) throw new ChoiceError([`${data.recipe.title} has no choice '${id}'`]);
      const group = groups.find((one) => one.id === id);
      if (group && !group.options.some((option) => option.id === chosen)) {
        const known = group.options.map((option) => option.id).join(", ");
        throw new ChoiceError([`${id} '${chosen}' is none of ${known}`]);
      }
      full[id] = chosen;
    }
    return full;
  }

  const cellFor = (recipe, choices) =>
    recipe.cells.find((cell) => matches(cell.match, choices)) || null;

  function whyNoCell(recipe, choices) {
    const rule = list(recipe.unavailable).find((one) => matches(one.when, choices));
    if (rule) return rule.because;
    const labels = recipe.dimensions.map(
      (one) => one.options.find((option) => option.id === choices[one.id]).label,
    );
    return `no recipe for ${labels.join(", ")}`;
  }

  function* combinations(dimensions, chosen = {}) {
    if (!dimensions.length) {
      yield chosen;
      return;
    }
    const [first, ...rest] = dimensions;
    for (const option of first.options) {
      yield* combinations(rest, { ...chosen, [first.id]: option.id });
    }
  }

  function nearest(recipe, choices, keep = "", limit = 3) {
    const ids = recipe.dimensions.map((one) => one.id);
    const ranked = [];
    for (const choice of combinations(recipe.dimensions)) {
      if (!cellFor(recipe, choice)) continue;
      const changed = ids.map((id) => choice[id] !== choices[id]);
      const key = [
        keep && changed[ids.indexOf(keep)],
        changed.filter(Boolean).length,
        ...changed,
        ranked.length,
      ].map(Number);
      ranked.push({ key, choice });
    }
    ranked.sort((a, b) => {
      const at = a.key.findIndex((part, index) => part !== b.key[index]);
      return at < 0 ? 0 : a.key[at] - b.key[at];
    });
    return ranked.slice(0, limit).map((one) => one.choice);
  }

  function blocked(option, choices, flags) {
    const names = new Set(flags.map(flagName));
    for (const rule of list(option.disable)) {
      if (matches(rule.when, choices) && list(rule.with).every((name) => names.has(name))) {
        return rule.because;
      }
    }
    return null;
  }

  function covers(pattern, flag) {
    const name = flagName(flag);
    return pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : name === pattern;
  }

  function apply(flags, option) {
    const kept = [];
    let place = -1;
    for (const flag of flags) {
      if (list(option.strip).some((pattern) => covers(pattern, flag))) {
        if (place < 0) place = kept.length;
      } else kept.push(flag);
    }
    if (place < 0) place = kept.length;
    return [...kept.slice(0, place), ...list(option.flags), ...kept.slice(place)];
  }

  function setEnv(env, entries) {
    for (const entry of list(entries)) {
      const at = entry.indexOf("=");
      env[entry.slice(0, at)] = entry.slice(at + 1);
    }
  }

  // For every layer, by id: the reason why an option cannot be chosen, or null.
  function availability(data, choices) {
    const full = complete(data, choices);
    const cell = cellFor(data.recipe, full);
    const found = {};
    let flags = cell ? list(cell.flags) : [];
    for (const layer of layersOf(data.recipe)) {
      found[layer.id] = {};
      for (const option of layer.options) {
        found[layer.id][option.id] = blocked(option, full, flags);
      }
      flags = apply(flags, layer.options.find((option) => option.id === full[layer.id]));
    }
    return found;
  }

  function compose(recipe, cell, choices) {
    const made = { flags: list(cell.flags), env: {}, reasons: [], works: {} };
    made.notes = [...list(cell.notes)];
    made.needs = [...list(cell.needs)];
    setEnv(made.env, cell.env);
    for (const layer of layersOf(recipe)) {
      const option = layer.options.find((one) => one.id === choices[layer.id]);
      const reason = blocked(option, choices, made.flags);
      if (reason !== null) {
        made.reasons.push(`${layer.title}, ${option.label}: ${reason}`);
        made.works[layer.id] = layer.default;
      }
      made.flags = apply(made.flags, option);
      setEnv(made.env, option.env);
      if (option.note) made.notes.push(option.note);
      made.needs.push(...list(option.needs));
    }
    return made;
  }

  function select(entries, choices) {
    let best = null;
    for (const entry of entries) {
      const size = Object.keys(entry.match || {}).length;
      if (matches(entry.match, choices) && (!best || size > best.size)) best = { entry, size };
    }
    return best.entry;
  }

  function release(text) {
    const found = /(?:^|[^0-9.])v?([0-9]+)\.([0-9]+)\.([0-9]+)(?:\.post([0-9]+))?(?![0-9])/.exec(text);
    return found && found.slice(1).map((part) => Number(part || 0));
  }

  function shortfall(image, need) {
    const tag = image.reference.split("@")[0].split("/").pop().split(":")[1] || "";
    if (need.version) {
      const has = release(tag) || release(image.version || "");
      const wants = release(need.version);
      if (!has) {
        return `${image.reference} states no version; ${need.version} is needed: ${need.because}`;
      }
      const at = has.findIndex((part, index) => part !== wants[index]);
      if (at >= 0 && has[at] < wants[at]) {
        const name = has.slice(0, 3).join(".") + (has[3] ? `.post${has[3]}` : "");
        return `${image.reference} is ${name}; ${need.version} is needed: ${need.because}`;
      }
    }
    if (need.build) {
      const date = (/(?:^|-)(20[0-9]{6})(?:-|$)/.exec(tag) || [])[1];
      if (!date) {
        return `${image.reference} states no date; ${need.build} is needed: ${need.because}`;
      }
      if (date < need.build) {
        return `${image.reference} is of ${date}; ${need.build} is needed: ${need.because}`;
      }
    }
    return null;
  }

  function fill(text, blanks) {
    let filled = text;
    for (const [id, value] of Object.entries(blanks)) {
      filled = filled.split(`{{${id}}}`).join(value);
    }
    return filled;
  }

  function wordsOf(flags, blanks) {
    return flags.flatMap((flag) => {
      const at = flag.indexOf(" ");
      const words = at < 0 ? [flag] : [flag.slice(0, at), flag.slice(at + 1)];
      return words.map((word) => fill(word, blanks));
    });
  }

  const byName = ([a], [b]) => (a < b ? -1 : a > b ? 1 : 0);

  function generate(data, choices) {
    const { recipe, engine } = data;
    const full = complete(data, choices);
    const cell = cellFor(recipe, full);
    if (!cell) throw new ChoiceError([whyNoCell(recipe, full)], nearest(recipe, full));
    const made = compose(recipe, cell, full);
    if (made.reasons.length) {
      const here = Object.fromEntries(recipe.dimensions.map((one) => [one.id, full[one.id]]));
      throw new ChoiceError(made.reasons, [{ ...here, ...made.works }]);
    }
    const image = select(recipe.images, full);
    const name = select(recipe.models, full);
    const filled = Object.fromEntries(valuesOf(data, cell).map((one) => [one.id, full[one.id]]));
    const model = fill(name.name, filled);
    const count = cell.nodes || 1;
    const nodes = [];
    for (let rank = 0; rank < count; rank += 1) {
      const blanks = { ...filled, nodes: String(count), rank: String(rank) };
      const inside = engine.network === "bridge" ? { ...blanks, host: "0.0.0.0" } : blanks;
      const several = count > 1 ? list(engine["multi-node"]) : [];
      const body = [...made.flags, ...several, ...engine.tail];
      const inContainer = fill(name["in-container"] || "", filled) || model;
      nodes.push({
        words: [...engine.entry, engine["model-flag"], model, ...wordsOf(body, blanks)],
        container_words: [
          ...engine["container-entry"], engine["model-flag"], inContainer, ...wordsOf(body, inside),
        ],
      });
    }
    const env = Object.entries(made.env).sort(byName);
    const key = JSON.stringify([image.reference, made.flags, env]);
    const gaps = made.needs.map((need) => shortfall(image, need)).filter((gap) => gap !== null);
    return {
      recipe: recipe.slug,
      choices: full,
      model,
      image: image.reference,
      env: env.map(([id, value]) => [id, fill(value, filled)]),
      nodes,
      mounts: [...list(engine.mounts), ...list(recipe.mounts)].map((one) => fill(one, filled)),
      companions: list(recipe.companions)
        .filter((extra) => matches(extra.when, full))
        .map((extra) => [extra.title, extra.words.map((word) => fill(word, filled))]),
      notes: made.notes,
      warnings: [...(image.floating ? [image.floating] : []), ...gaps],
      verified: list(data.sealed).find((seal) => seal.key === key) || null,
    };
  }

  const quote = (word) =>
    /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.split("'").join("'\"'\"'")}'`;

  function rows(words) {
    const lines = [[]];
    for (const word of words) {
      if (word.startsWith("--")) lines.push([word]);
      else lines[lines.length - 1].push(word);
    }
    return lines.filter((line) => line.length);
  }

  const quotedRows = (words) => rows(words).map((line) => line.map(quote).join(" "));
  const join = (lines) => lines.join(" \\\n  ");
  const shellWords = (words) => join(quotedRows(words));
  const text = (value) => JSON.stringify(value);
  const yaml = (value) => text(value.split("$").join("$$"));
  const service = (made, node) => made.recipe + (made.nodes.length > 1 ? `-node${node}` : "");
  const published = (made) => `${made.choices.host}:${made.choices.port}:${made.choices.port}`;

  function shell(data, made, node) {
    const env = made.env.map(([name, value]) => `${name}=${quote(value)}`);
    return join([...env, ...quotedRows(made.nodes[node].words)]);
  }

  function docker(data, made, node) {
    const { engine } = data;
    const maker = data.hardware[made.choices.hw].maker;
    const lines = ["docker run --rm", `--name ${service(made, node)}`];
    if (maker === "nvidia") lines.push("--gpus all");
    if (maker === "amd") {
      lines.push(...AMD_DEVICES.map((device) => `--device ${device}`));
      lines.push("--group-add video", "--security-opt seccomp=unconfined");
    }
    if (engine.network === "host") lines.push("--network host");
    else lines.push(`-p ${quote(published(made))}`);
    if (engine.ipc) lines.push(`--ipc ${engine.ipc}`);
    if (engine["shm-size"]) lines.push(`--shm-size ${engine["shm-size"]}`);
    lines.push(...made.mounts.map((mount) => `-v ${quote(mount)}`));
    lines.push(...list(engine["pass-env"]).map((name) => `-e ${quote(name)}`));
    lines.push(...made.env.map(([name, value]) => `-e ${quote(`${name}=${value}`)}`));
    lines.push(quote(made.image));
    return join([...lines, ...quotedRows(made.nodes[node].container_words)]);
  }

  function composeFile(data, made, node) {
    const { engine } = data;
    const maker = data.hardware[made.choices.hw].maker;
    const name = service(made, node);
    const passed = list(engine["pass-env"]);
    const lines = [`name: ${name}`, "services:", `  ${name}:`, `    image: ${yaml(made.image)}`];
    lines.push("    command:");
    lines.push(...made.nodes[node].container_words.map((word) => `      - ${yaml(word)}`));
    if (made.env.length || passed.length) {
      lines.push("    environment:", ...passed.map((one) => `      - ${yaml(one)}`));
      lines.push(...made.env.map(([key, value]) => `      - ${yaml(`${key}=${value}`)}`));
    }
    if (engine.network === "host") lines.push("    network_mode: host");
    else lines.push("    ports:", `      - ${yaml(published(made))}`);
    if (engine.ipc) lines.push(`    ipc: ${engine.ipc}`);
    if (engine["shm-size"]) lines.push(`    shm_size: ${engine["shm-size"]}`);
    if (made.mounts.length) {
      lines.push("    volumes:", ...made.mounts.map((mount) => `      - ${yaml(mount)}`));
    }
    if (maker === "amd") {
      lines.push("    devices:", ...AMD_DEVICES.map((device) => `      - ${device}:${device}`));
      lines.push("    group_add:", "      - video", "    security_opt:");
      lines.push("      - seccomp:unconfined");
    }
    if (maker === "nvidia") {
      lines.push("    deploy:", "      resources:", "        reservations:", "          devices:");
      lines.push("            - driver: nvidia", "              count: all");
      lines.push("              capabilities: [gpu]");
    }
    lines.push("    restart: unless-stopped");
    return lines.join("\n");
  }

  function python(data, made, node) {
    const lines = ["import os", "import subprocess", ""];
    if (made.env.length) {
      lines.push("env = os.environ | {");
      lines.push(...made.env.map(([name, value]) => `    ${text(name)}: ${text(value)},`), "}");
    } else lines.push("env = dict(os.environ)");
    lines.push("command = [");
    for (const line of rows(made.nodes[node].words)) {
      lines.push(`    ${line.map((word) => `${text(word)},`).join(" ")}`);
    }
    lines.push("]", "subprocess.run(command, env=env, check=True)");
    return lines.join("\n");
  }

  const WRITERS = { shell, docker, compose: composeFile, python };
  const render = (data, made, form, node = 0) => WRITERS[form](data, made, node);

  return {
    FORMS, ChoiceError, allValues, availability, cellFor, complete, generate, layersOf, matches,
    nearest, render, shellWords, valuesOf, whyNoCell,
  };
})();

if (typeof module === "object") module.exports = cookbook;
