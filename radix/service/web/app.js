"use strict";
/* Asks for the status every two seconds and draws it. */

const EVERY_MS = 2000;
const at = (id) => document.getElementById(id);
const tree = new TreeView(at("tree"), at("tree-store"), at("tree-again"));

/* Sums over all stores. Blocks and tokens are never added up: what was asked for is told by unit. */
function sums(status) {
  const found = { units: {}, tiers: {}, transfers: 0, nodes: 0, index: 0 };
  for (const store of status.stores) {
    const asked = found.units[store.asked.unit] = found.units[store.asked.unit] || { asked: 0, hits: 0, misses: {} };
    asked.asked += store.asked.asked;
    for (const count of Object.values(store.asked.hits)) asked.hits += count;
    for (const [why, count] of Object.entries(store.asked.misses)) asked.misses[why] = (asked.misses[why] || 0) + count;
    for (const tier of store.tiers) {
      const total = found.tiers[tier.name] = found.tiers[tier.name] || { used: 0, limit: 0, modes: new Set() };
      total.used += tier.used_bytes;
      total.limit += tier.limit_bytes;
      total.modes.add(tier.mode);
    }
    found.transfers += store.transfers_under_way;
    found.nodes += store.nodes;
    found.index += store.index_bytes;
  }
  return found;
}

function showHead(status) {
  at("state").dataset.state = status.state;
  at("state").querySelector("b").textContent = status.state;
  const facts = [["version", status.version], ["up", agoText(status.uptime_s)], ["process", String(status.pid)]];
  for (const [name, address] of Object.entries(status.addresses)) facts.push([name, address]);
  at("facts").replaceChildren(...facts.map(([name, text]) => element("div", {}, element("dt", {}, name), element("dd", {}, text))));
  document.title = `radix: ${status.state}`;
}

function showFigures(status, total, samples) {
  const figures = [];
  for (const [unit, asked] of Object.entries(total.units)) {
    figures.push([`hit ratio of ${unit}, last minute`, percentText(ratioOver(samples, unit, 60)), `since the start ${percentText(asked.asked ? asked.hits / asked.asked : null)}`]);
    figures.push([`${unit} asked for`, countText(asked.asked), `${countText(asked.hits)} found`]);
  }
  for (const [name, tier] of Object.entries(total.tiers)) {
    const modes = [...tier.modes].filter((mode) => mode !== "on");
    figures.push([`${name}${modes.length ? ": " + modes.join(", ") : ""}`, bytesText(tier.used), `of ${bytesText(tier.limit)}, ${percentText(tier.limit ? tier.used / tier.limit : null)}`]);
  }
  figures.push(["connections", countText(status.connections), `${countText(total.transfers)} transfers under way`]);
  figures.push(["index", bytesText(total.index), `${countText(total.nodes)} nodes`]);
  at("figures").replaceChildren(...figures.map(([name, big, small]) => element(
    "div", { class: "figure" }, element("span", {}, name), element("strong", {}, big), element("small", {}, small))));
}

/* What was asked for and found of a unit by a sample; nothing before its first store was opened. */
function askedIn(sample, unit) {
  return sample.asked[unit] || [0, 0];
}

function ratioOver(samples, unit, seconds) {
  if (samples.length < 2) return null;
  const last = samples[samples.length - 1];
  const before = askedIn(samples.find((sample) => sample.t >= last.t - seconds), unit);
  const now = askedIn(last, unit), asked = now[0] - before[0];
  return asked > 0 ? (now[1] - before[1]) / asked : null;
}

/* A box for each name in `home`, kept as long as the names stay. */
function boxes(home, names, title, empty) {
  if (home.dataset.names !== names.join()) {
    home.dataset.names = names.join();
    home.replaceChildren(...names.map((name) => element("div", { "data-name": name }, title(name), element("div", {}))));
    if (!names.length) home.replaceChildren(element("p", { class: "empty" }, empty));
  }
  return names.map((name) => home.querySelector(`[data-name="${CSS.escape(name)}"]`));
}

function showCharts(samples, total) {
  const tiers = Object.entries(total.tiers), units = Object.entries(total.units);
  boxes(at("tiers"), tiers.map(([name]) => name), (name) => element("h3", { class: tierClass(name) }, name, element("span", {})), "no store is open").forEach((box, number) => {
    const [name, tier] = tiers[number];
    box.querySelector("h3 span").textContent = `${bytesText(tier.used)} of ${bytesText(tier.limit)}`;
    const points = samples.map((sample) => [sample.t, sample.tiers[name] ? sample.tiers[name][0] : null]);
    lineChart(box.lastElementChild, points, tier.limit, bytesText, getComputedStyle(box.querySelector("h3")).color);
  });
  const heading = (unit) => units.length > 1 ? element("h3", {}, `of ${unit}`) : "";
  const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent");
  boxes(at("ratio"), units.map(([unit]) => unit), heading, "nothing yet").forEach((box, number) => {
    const unit = units[number][0];
    const ratios = samples.slice(1).map((sample, index) => {
      const back = askedIn(samples[Math.max(0, index - 4)], unit), now = askedIn(sample, unit);
      return [sample.t, now[0] > back[0] ? (now[1] - back[1]) / (now[0] - back[0]) : null];
    });
    lineChart(box.lastElementChild, ratios, 1, (value) => `${Math.round(100 * value)} %`, accent);
  });
  boxes(at("misses"), units.map(([unit]) => unit), heading, "none").forEach((box, number) => {
    const [unit, asked] = units[number];
    barChart(box.lastElementChild, asked.misses, unit);
  });
}

function showTables(status) {
  const tenants = status.tenants.map((tenant) => [
    tenant.name, tenant.domain, countText(tenant.connections), countText(tenant.leases),
    countText(tenant.asked.asked), percentText(tenant.asked.hit_ratio),
    tenant.used_bytes ? Object.entries(tenant.used_bytes).map(([tier, used]) => `${tier} ${bytesText(used)}`).join(", ") : "–",
    tenant.evicted_blocks ? countText(Object.values(tenant.evicted_blocks).reduce((sum, count) => sum + count, 0)) : "–",
    tenant.quota_bytes === null ? "none" : bytesText(tenant.quota_bytes),
    tenant.floor_bytes === null ? "none" : bytesText(tenant.floor_bytes), String(tenant.weight),
  ]);
  fillTable(at("tenants"), [["tenant"], ["domain"], ["connections", 1], ["leases", 1], ["asked", 1], ["hit", 1], ["holds"], ["evicted", 1], ["quota", 1], ["floor", 1], ["weight", 1]], tenants, "no tenants");
  const moving = [];
  for (const store of status.stores) {
    for (const job of store.transfers) {
      moving.push([store.name, String(job.number), `${job.source} → ${job.target}`, job.group, countText(job.blocks), job.age_s === null ? "–" : `${job.age_s.toFixed(2)} s`]);
    }
  }
  fillTable(at("transfers"), [["store"], ["number", 1], ["way"], ["group"], ["blocks", 1], ["age", 1]], moving, "nothing moves");
  const stores = status.stores.map((store) => [
    store.domain || "–", store.name, Object.entries(store.groups).map(([name, bytes]) => `${name} ${bytesText(bytes)}`).join(", "),
    ...[countText(store.namespaces), countText(store.nodes), countText(store.leases), bytesText(store.index_bytes)],
    countText(store.asked.asked), percentText(store.asked.hit_ratio),
  ]);
  fillTable(at("stores"), [["domain"], ["store"], ["groups"], ["namespaces", 1], ["nodes", 1], ["leases", 1], ["index", 1], ["asked", 1], ["hit", 1]], stores, "no store is open");
}

async function turn() {
  try {
    const [status, history] = await Promise.all([ask("/status"), ask("/history")]);
    const total = sums(status);
    showHead(status);
    showFigures(status, total, history.samples);
    showCharts(history.samples, total);
    showTables(status);
    tree.offer(status.stores);
    at("problem").hidden = true;
  } catch (error) {
    at("state").dataset.state = "unreachable";
    at("state").querySelector("b").textContent = "unreachable";
    at("problem").textContent = `The service does not answer (${error.message}). What stands below is older.`;
    at("problem").hidden = false;
  }
  setTimeout(turn, EVERY_MS);
}

turn();
