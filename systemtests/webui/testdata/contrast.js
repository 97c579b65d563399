// Lists texts with a contrast of less than 4.5 : 1, and controls without a name.
(() => {
  const context = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const known = new Map();
  const paint = (colour) => {
    context.clearRect(0, 0, 1, 1);
    context.fillStyle = colour;
    context.fillRect(0, 0, 1, 1);
    return [...context.getImageData(0, 0, 1, 1).data];
  };
  const rgba = (colour) => {
    if (!known.has(colour)) known.set(colour, paint(colour));
    return known.get(colour);
  };
  const linear = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const background = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = rgba(getComputedStyle(e).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  const problems = [];
  for (const e of document.querySelectorAll('body *')) {
    const text = [...e.childNodes].filter((n) => n.nodeType === 3).map((n) => n.data.trim()).join('');
    if (!text || !e.getClientRects().length) continue;
    if (e.closest('svg, .unseen, :disabled, .cell.none, option, noscript')) continue;
    const a = luminance(rgba(getComputedStyle(e).color)), b = luminance(background(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) problems.push(`${ratio.toFixed(2)}: ${text.slice(0, 40)}`);
  }
  for (const e of document.querySelectorAll('button, a, input, textarea, [role=button], [role=gridcell]')) {
    if (e.getAttribute('aria-label') || e.innerText?.trim() || e.labels?.length) continue;
    problems.push(`no name: ${e.outerHTML.slice(0, 80)}`);
  }
  return problems;
})()
