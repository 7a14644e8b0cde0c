"use strict";
/* The tree, opened a piece at a time: namespaces of a store, below each its nodes. */

const PIECE = 25;

async function ask(path, query) {
  const answer = await fetch(path + (query ? "?" + new URLSearchParams(query) : ""));
  const told = await answer.json();
  if (!answer.ok && !("state" in told)) throw new Error(told.error || `status ${answer.status}`);
  return told;
}

class TreeView {
  constructor(home, choice, again) {
    this.home = home;
    this.choice = choice;
    choice.addEventListener("change", () => this.open());
    again.addEventListener("click", () => this.open());
    this.stores = "";
  }

  /* Tells it which stores there are, by what they hold; the choice stays where it can. */
  offer(stores) {
    const names = stores.map((store) => [store.name, storeTitle(store)]);
    if (JSON.stringify(names) === this.stores) return;
    const before = this.choice.value, fresh = this.stores === "";
    this.stores = JSON.stringify(names);
    this.choice.replaceChildren(...names.map(([name, title]) => element("option", { value: name }, title)));
    if (names.some(([name]) => name === before)) this.choice.value = before;
    if (fresh || this.choice.value !== before) this.open();
  }

  async open() {
    if (!this.choice.value) {
      this.home.replaceChildren(element("p", { class: "empty" }, "no store is open"));
      return;
    }
    const list = element("ul", { role: "tree" });
    this.home.replaceChildren(list);
    await this.more(list, { store: this.choice.value }, (told) => told.namespaces.map((one) => this.namespace(one)));
    if (!list.childElementCount) {
      this.home.replaceChildren(element("p", { class: "empty" }, "no namespace yet"));
    }
  }

  /* Adds the next piece to a list, and a button where there is more. */
  async more(list, query, rows, after) {
    let told;
    try {
      told = await ask("/tree", { ...query, most: PIECE, ...(after ? { after } : {}) });
    } catch (error) {
      list.append(element("li", { class: "empty" }, `${error.message}; look again`));
      return;
    }
    list.append(...rows(told));
    if (told.next) {
      const button = element("button", { type: "button" }, `${PIECE} more`);
      const line = element("li", {}, button);
      button.addEventListener("click", () => { line.remove(); this.more(list, query, rows, told.next); });
      list.append(line);
    }
  }

  namespace(space) {
    const names = [["model", space.model], ["revision", space.revision], ["adapter", space.adapter], ["tenant", space.tenant]];
    const shown = names.filter((pair) => pair[1]).flatMap(([what, text]) => [element("span", { class: "dim" }, what), element("b", {}, text)]);
    const parts = shown.length ? shown : [element("b", {}, "unnamed")];
    return this.branch(parts, space.empty, space.root, space.root);
  }

  node(root, found) {
    const pages = found.pages === 1 ? `page ${countText(found.start)}` : `pages ${countText(found.start)}–${countText(found.start + found.pages - 1)}`;
    const parts = [element("code", {}, found.mark || "·"), element("span", { class: "dim" }, pages)];
    for (const [tier, count] of Object.entries(found.tiers)) {
      if (!count) continue;
      const text = found.pages === 1 ? tier : `${tier} ${countText(count)}`;
      parts.push(element("span", { class: `chip ${tierClass(tier)}` }, text));
    }
    if (found.pinned) parts.push(element("span", { class: "dim" }, "pinned"));
    if (found.children) {
      const many = found.children >= 1000 ? "1,000 or more" : countText(found.children);
      parts.push(element("span", { class: "dim" }, `${many} below`));
    }
    return this.branch(parts, !found.children, root, found.node);
  }

  branch(parts, leaf, root, node) {
    const line = element("div", { class: "node" }), item = element("li", { role: "treeitem" }, line);
    if (leaf) {
      line.append(element("span", { class: "leaf" }, "·"), ...parts);
      return item;
    }
    const button = element("button", { type: "button", "aria-expanded": "false", "aria-label": "open" }, "▸");
    line.append(button, ...parts);
    let list = null;
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") === "true";
      button.setAttribute("aria-expanded", String(!open));
      button.textContent = open ? "▸" : "▾";
      if (open) { list.remove(); list = null; return; }
      list = element("ul", { role: "group" });
      item.append(list);
      const query = { store: this.choice.value, root, node };
      this.more(list, query, (told) => told.nodes.map((found) => this.node(root, found)));
    });
    return item;
  }
}

function storeTitle(store) {
  const groups = Object.entries(store.groups).map(([name, bytes]) => `${name} ${bytesText(bytes)}`);
  return `${store.domain ? store.domain + " / " : ""}${store.name} (${groups.join(", ")})`;
}
