"""Visibility and keyboard access, measured in the page."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

_FAINT = """
() => {
  const parse = (text) => {
    const found = text.match(/[\\d.]+/g).map(Number);
    return { rgb: found.slice(0, 3), alpha: found.length > 3 ? found[3] : 1 };
  };
  const over = (top, below) => top.rgb.map((part, index) => part * top.alpha + below[index] * (1 - top.alpha));
  const ground = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const light = (rgb) => rgb.map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const seen = (node) => {
    const box = node.getBoundingClientRect();
    return box.width > 1 && box.height > 1 && node.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  };
  const faint = [];
  let looked = 0;
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (walker.currentNode.textContent.trim() === "" || !seen(node)) continue;
    looked += 1;
    const style = getComputedStyle(node);
    const below = ground(node);
    const ink = parse(node instanceof SVGElement ? style.fill : style.color);
    let opacity = 1;
    for (let at = node; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const shown = over({ rgb: ink.rgb, alpha: ink.alpha * opacity }, below);
    const [bright, dark] = [light(shown), light(below)].sort((one, other) => other - one);
    const contrast = (bright + 0.05) / (dark + 0.05);
    if (contrast < 4.5) faint.push(`${contrast.toFixed(2)}: ${walker.currentNode.textContent.trim().slice(0, 40)}`);
  }
  return { looked, faint: [...new Set(faint)] };
}
"""

_REACHABLE = """
() => {
  const found = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")]
    .filter((node) => node.checkVisibility() && !node.disabled && !(node.type === "radio" && !node.checked));
  found.forEach((node, index) => { node.dataset.stop = index; });
  return found.map((node) => `${node.tagName} ${node.id || node.getAttribute("href") || node.value || node.textContent.trim()}`);
}
"""

_FOLLOW_FOCUS = """
() => {
  if (window.focusedStops) return;
  window.focusedStops = [];
  document.addEventListener("focusin", ({ target }) => {
    const outlined = [target, target.nextElementSibling].filter(Boolean).some((each) => {
      const style = getComputedStyle(each);
      return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
    });
    if (target.dataset.stop) window.focusedStops.push([Number(target.dataset.stop), outlined]);
  });
}
"""


def faint_texts(page: Page) -> list[str]:
    """Texts whose contrast with their background is below 4.5 (WCAG 2.2, 1.4.3), with the contrast."""
    found: dict[str, Any] = page.evaluate(_FAINT)
    assert found["looked"] > 3
    faint: list[str] = found["faint"]
    return faint


def overflow(page: Page) -> int:
    """Pixels by which the page is wider than the window."""
    wider: int = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return wider


def walk_by_tab(page: Page) -> tuple[set[str], list[str]]:
    """Controls that the Tab key does not reach, and controls that do not show their focus."""
    names: list[str] = page.evaluate(_REACHABLE)
    page.evaluate(_FOLLOW_FOCUS)
    page.evaluate("() => { document.activeElement?.blur(); window.focusedStops.length = 0; }")
    outlines: dict[int, bool] = {}
    for _ in range(2):
        # The document itself is a stop, too.
        for _ in range(len(names) + 5):
            page.keyboard.press("Tab")
        for stop, outlined in page.evaluate("() => window.focusedStops"):
            outlines.setdefault(stop, outlined)
        if len(outlines) == len(names):
            break
    hidden = [names[stop] for stop, outlined in outlines.items() if not outlined]
    return {name for stop, name in enumerate(names) if stop not in outlines}, hidden


_BROKEN = """
(longest) => {
  const broken = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (node.parentElement.closest("svg, .unseen, .skip") || !node.parentElement.checkVisibility()) continue;
    for (const found of node.textContent.matchAll(/[^\\s-]+/g)) {
      if (found[0].length > longest) continue;
      const range = document.createRange();
      range.setStart(node, found.index);
      range.setEnd(node, found.index + found[0].length);
      const lines = new Set([...range.getClientRects()].filter((rect) => rect.width > 0).map((rect) => Math.round(rect.top)));
      if (lines.size > 1) broken.push(found[0]);
    }
  }
  return broken;
}
"""


def broken_words(page: Page, longest: int = 12) -> list[str]:
    """Words of at most ``longest`` characters that do not fit into one line; only longer ones may break."""
    broken: list[str] = page.evaluate(_BROKEN, longest)
    return broken


_APART = """
() => [...document.querySelectorAll("td:is(.good, .fair, .bad)")].filter((cell) => cell.checkVisibility()).map((cell) => {
  const mark = getComputedStyle(cell, "::before");
  if (mark.position !== "absolute") return 0;
  const line = document.createRange();
  line.selectNodeContents(cell);
  const { top, height } = line.getClientRects()[0];
  const down = [mark.top, mark.marginTop].map(parseFloat).reduce((sum, each) => sum + each, parseFloat(mark.height) / 2);
  const middle = cell.getBoundingClientRect().top + down;
  return Math.abs(middle - (top + height / 2));
})
"""


def marks_apart(page: Page) -> list[float]:
    """Pixels between the middle of each state's mark and the middle of its first line."""
    apart: list[float] = page.evaluate(_APART)
    return apart
