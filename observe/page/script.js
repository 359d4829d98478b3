"use strict";
// The timeline: rows of bins (how much of each bin is covered, 0 to 255), and above them the longest slices as they are.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const bins = bytes(data.bins), exact = new Float64Array(bytes(data.exact).buffer);
  const figure = document.getElementById("timeline"), canvas = figure.querySelector("canvas");
  const where = document.getElementById("where"), ink = canvas.getContext("2d");
  const HEIGHT = 18, BIN = data.end / data.count;
  let from = 0, to = data.end, chosen = -1, start = 0;  // start: where the names of the rows end
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const time = (ns) => ns >= 1e9 ? (ns / 1e9).toFixed(3) + " s" : ns >= 1e6 ? (ns / 1e6).toFixed(2) + " ms" : (ns / 1e3).toFixed(1) + " \u00b5s";
  const x = (ns) => start + (ns - from) / (to - from) * (canvas.width - start);

  function draw() {
    const scale = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * scale;
    start = Math.min(150, canvas.clientWidth / 3) * scale;
    canvas.height = (data.rows.length + 1) * HEIGHT * scale;
    ink.font = `${12 * scale}px system-ui, sans-serif`;
    data.rows.forEach((row, r) => {
      const top = r * HEIGHT * scale, tall = (HEIGHT - 3) * scale;
      ink.fillStyle = style("--" + row.colour);
      const first = Math.max(0, Math.floor(from / BIN)), last = Math.min(data.count, Math.ceil(to / BIN));
      const step = Math.max(1, Math.floor((last - first) / (canvas.width - start)));
      for (let b = first; b < last; b += step) {
        let most = 0;
        for (let k = b; k < Math.min(b + step, last); k++) most = Math.max(most, bins[r * data.count + k]);
        if (!most) continue;
        const left = Math.max(start, x(b * BIN));
        ink.globalAlpha = Math.max(0.15, most / 255);
        ink.fillRect(left, top, Math.max(1, x((b + step) * BIN) - left), tall);
      }
      ink.globalAlpha = 1;
      for (let i = 0; i < exact.length; i += 4) {
        if (exact[i] !== r || exact[i + 1] > to || exact[i + 2] < from) continue;
        const left = Math.max(start, x(exact[i + 1])), right = Math.min(canvas.width, x(exact[i + 2]));
        if (right - left < 3) continue;
        ink.fillRect(left, top, right - left, tall);
        if (row.striped) stripes(left, top, right - left, tall);
        if (i === chosen) { ink.strokeStyle = style("--ink"); ink.lineWidth = 2 * scale; ink.strokeRect(left, top, right - left, tall); }
      }
      ink.fillStyle = style("--paper"); ink.fillRect(0, top, start, HEIGHT * scale);
      ink.fillStyle = style("--ink"); ink.fillText(row.name.slice(0, 24), 4 * scale, top + 12 * scale, start - 8 * scale);
    });
    ink.fillStyle = style("--ink");
    const low = canvas.height - 5 * scale, words = time(to);
    ink.fillText(time(from), start, low);
    ink.fillText(words, canvas.width - ink.measureText(words).width - 4, low);
  }

  function stripes(left, top, wide, tall) {
    ink.save(); ink.beginPath(); ink.rect(left, top, wide, tall); ink.clip();
    ink.strokeStyle = style("--paper"); ink.lineWidth = 1; ink.beginPath();
    for (let a = left - tall; a < left + wide; a += 7) { ink.moveTo(a, top + tall); ink.lineTo(a + tall, top); }
    ink.stroke(); ink.restore();
  }

  function look(a, b) {
    const least = BIN / 64, span = Math.min(data.end, Math.max(least, b - a));
    from = Math.min(Math.max(0, a), data.end - span); to = from + span;
    draw();
  }

  function zoom(factor, at) { look(at - (at - from) * factor, at + (to - at) * factor); }

  function tell(i) {
    chosen = i;
    where.textContent = i < 0 ? "" : `${data.rows[exact[i]].name}: ${data.names[exact[i + 3]]}, at ${time(exact[i + 1])}, took ${time(exact[i + 2] - exact[i + 1])}`;
    draw();
  }

  function next(by) {
    const seen = [];
    for (let i = 0; i < exact.length; i += 4) if (exact[i + 2] >= from && exact[i + 1] <= to) seen.push(i);
    seen.sort((a, b) => exact[a + 1] - exact[b + 1]);
    if (seen.length) tell(seen[(seen.indexOf(chosen) + by + seen.length) % seen.length]);
  }

  const middle = () => (from + to) / 2, part = () => (to - from) / 4;
  const KEYS = {
    ArrowLeft: () => look(from - part(), to - part()), ArrowRight: () => look(from + part(), to + part()),
    ArrowUp: () => zoom(0.5, middle()), ArrowDown: () => zoom(2, middle()), "+": () => zoom(0.5, middle()),
    "-": () => zoom(2, middle()), Home: () => look(0, data.end), n: () => next(1), p: () => next(-1),
  };
  const under = (event) => {
    const box = canvas.getBoundingClientRect(), scale = canvas.width / box.width;
    return [from + ((event.clientX - box.left) * scale - start) / (canvas.width - start) * (to - from),
      Math.floor((event.clientY - box.top) / HEIGHT)];
  };
  canvas.addEventListener("keydown", (event) => {
    if (KEYS[event.key] && !event.ctrlKey && !event.metaKey) { KEYS[event.key](); event.preventDefault(); }
  });
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas) return;
    zoom(event.deltaY > 0 ? 1.25 : 0.8, under(event)[0]); event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("click", (event) => {
    const [at, row] = under(event);
    let best = -1;
    for (let i = 0; i < exact.length; i += 4)
      if (exact[i] === row && exact[i + 1] <= at && exact[i + 2] >= at) best = i;
    tell(best);
  });
  window.addEventListener("resize", draw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  figure.classList.add("live");
  draw();
})();
