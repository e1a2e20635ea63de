"""The report's looks and its one script, both inlined into the page."""

STYLE = """
:root { color-scheme: light dark;
  --page: #f6f7f9; --card: #fff; --ink: #16191d; --soft: #667080; --line: #e2e6eb;
  --c0: #2563eb; --c1: #059669; --c2: #d97706; --c3: #7c3aed;
  --c4: #dc2626; --c5: #0891b2; --c6: #c026d3; --c7: #57534e; --good: #047857; --bad: #c2410c; }
@media (prefers-color-scheme: dark) { :root {
  --page: #111418; --card: #1a1f25; --ink: #e8ebef; --soft: #93a0b0; --line: #2c343d;
  --c0: #6ea8fe; --c1: #34d399; --c2: #fbbf24; --c3: #b79cfb;
  --c4: #f87171; --c5: #22d3ee; --c6: #e879f9; --c7: #a8a29e; --good: #34d399; --bad: #fb923c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1160px; margin: 0 auto; padding: 28px 20px 60px; }
header h1 { margin: 0; font-size: 26px; letter-spacing: -.01em; overflow-wrap: anywhere; }
header p { margin: 2px 0 0; color: var(--soft); overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 34px 0 12px; }
.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 22px; }
.tile, .chart, .card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.tile { flex: 1 1 104px; padding: 14px 16px; }
.tile span { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
.tile b { display: block; font-size: 25px; line-height: 1.25; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; }
.tile.main { flex: 2 1 280px; } .tile.good b { color: var(--good); } .tile.long b { font-size: 20px; }
.tile:not(.long) b { white-space: nowrap; }
.charts { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); }
.charts.small { grid-template-columns: repeat(auto-fill, minmax(min(100%, 310px), 1fr)); }
.chart { margin: 0; padding: 12px 14px 8px; position: relative; }
.chart svg { display: block; width: 100%; height: auto; overflow: visible; touch-action: pan-y; }
figcaption { display: flex; justify-content: space-between; font-size: 14px; }
.newest { font-variant-numeric: tabular-nums; color: var(--soft); }
.small .tick { font-size: 15px; }
.tick { fill: var(--soft); font-size: 11.5px; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--line); stroke-width: 1; }
.s0 { --c: var(--c0); } .s1 { --c: var(--c1); } .s2 { --c: var(--c2); } .s3 { --c: var(--c3); }
.s4 { --c: var(--c4); } .s5 { --c: var(--c5); } .s6 { --c: var(--c6); } .s7 { --c: var(--c7); }
.line { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; }
.raw { fill: none; stroke: var(--c); stroke-width: 1; opacity: .3; }
.small .line { stroke-width: 2.6; }
.band { fill: var(--c); opacity: .16; }
.dot { fill: var(--c); }
.mark { fill: var(--c); stroke: var(--card); stroke-width: 1.5; display: none; }
.cross { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 3 3; display: none; }
.line.seed { stroke-width: 1; opacity: .45; }
.line.faint, .key.faint::before { opacity: .5; } .line.dashed { stroke-dasharray: 6 5; stroke-width: 1.6; }
.key.dashed::before { background: repeating-linear-gradient(90deg, var(--c) 0 4px, transparent 4px 7px); }
.lead { fill: none; stroke: var(--soft); stroke-width: 1; stroke-dasharray: 1 3; opacity: .7; }
.badge { font-size: 12px; font-weight: 600; padding: 1px 8px; border-radius: 9px; margin-left: 6px;
  white-space: nowrap; color: var(--c); border: 1px solid; }
[data-alone] figcaption { flex-wrap: wrap; column-gap: 12px; } [data-alone] .legend { row-gap: 0; }
.success { --c: var(--good); } .failure { --c: var(--bad); }
.chart.success, .chart.failure { border-left: 4px solid var(--c); }
.legend { min-height: 4px; display: flex; gap: 16px; flex-wrap: wrap; font-size: 12.5px; color: var(--soft); }
.key::before { content: ""; display: inline-block; width: 14px; height: 3px; border-radius: 2px;
  background: var(--c); margin-right: 6px; vertical-align: middle; }
#tip { position: fixed; z-index: 9; pointer-events: none; display: none; background: var(--card);
  color: var(--ink); border: 1px solid var(--line); border-radius: 8px; padding: 6px 10px; font-size: 12.5px;
  white-space: nowrap; box-shadow: 0 4px 16px rgb(0 0 0 / .18); font-variant-numeric: tabular-nums; }
#tip div { display: flex; justify-content: space-between; gap: 14px; }
.scroll { overflow: auto; max-height: 420px; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 6px 14px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; position: sticky; top: 0; background: var(--card); }
th:first-child, td:first-child { text-align: left; }
tr:last-child td { border-bottom: 0; }
tr.best td { color: var(--good); font-weight: 600; }
.tight th, .tight td { padding: 6px 10px; } th small { opacity: .75; }
.meter { background: linear-gradient(90deg, hsl(var(--h) 65% 48% / .38) var(--p), transparent 0); }
.words { text-align: left; } .scroll.low { max-height: 424px; } th.words { text-align: left; }
.maps { display: flex; flex-wrap: wrap; gap: 10px 34px; padding: 14px 16px; align-items: flex-end; }
.maps figure { margin: 0; } .maps figcaption { margin-bottom: 6px; } .maps .legend { width: 0; min-width: 100%; }
.maps svg { display: block; max-width: 100%; } .table { fill: none; stroke: var(--line); }
circle.good { fill: var(--good); opacity: .55; } circle.bad { fill: var(--bad); opacity: .85; }
.failures { display: flex; flex-wrap: wrap; gap: 12px; } .failures .scroll { flex: 1 1 420px; }
.failures .maps { width: fit-content; max-width: 100%; }
.spot::before { content: ""; display: inline-block; width: 9px; height: 9px; border-radius: 5px;
  margin-right: 6px; }
.switch { float: right; font-weight: 400; } .switch button { border-radius: 7px 0 0 7px; }
.switch button + button { border-radius: 0 7px 7px 0; border-left: 0; }
.switch .on { background: var(--c0); border-color: var(--c0); color: var(--card); }
.spot.good::before { background: var(--good); } .spot.bad::before { background: var(--bad); }
.replays { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }
.bar { display: flex; justify-content: space-between; align-items: center; padding: 8px 14px; font-size: 14px; }
.about.success, .about.failure { color: var(--c); }
button { font: inherit; font-size: 13px; color: var(--ink); background: var(--page); cursor: pointer;
  border: 1px solid var(--line); border-radius: 7px; padding: 2px 10px; }
.note { color: var(--soft); padding: 14px 16px; }
.hint { color: var(--soft); margin: 8px 0 0; font-size: 13.5px; } .hint.above { margin: -8px 0 10px; }
details.card { margin-top: 12px; }
summary { cursor: pointer; padding: 10px 16px; font-weight: 500; }
details > .charts { padding: 0 12px 12px; }
pre { margin: 0; padding: 4px 16px 16px; overflow: auto;
  font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 22px; margin: 0; padding: 14px 16px;
  font-size: 14px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
iframe { display: block; width: 100%; height: 520px; border: 0; border-radius: 0 0 10px 10px; background: #fff; }
a { color: var(--c0); }
ul.warnings { margin: 0; padding: 12px 16px 12px 34px; } .warnings li { overflow-wrap: anywhere; }
.warnings li::marker { content: "⚠  "; color: var(--bad); }
.key.name { color: var(--ink); font-weight: 500; } .wraps td { white-space: normal; overflow-wrap: anywhere; }
"""

# One pointer moves the cross-hair of every chart to the same training step; the chart under it shows values.
SCRIPT = """
const tip = document.getElementById('tip');
const charts = [...document.querySelectorAll('.chart')].map(box => ({
  box, svg: box.querySelector('svg'), data: JSON.parse(box.querySelector('script').textContent) }));
const nearest = (steps, step) => {
  let a = 0, b = steps.length - 1;
  while (b - a > 1) { const m = (a + b) >> 1; if (steps[m] < step) a = m; else b = m; }
  return Math.abs(steps[a] - step) <= Math.abs(steps[b] - step) ? a : b;
};
const hide = () => {
  tip.style.display = 'none';
  document.querySelectorAll('.cross, .mark').forEach(e => { e.style.display = 'none'; });
};
const point = (chart, step) => chart.data.map((s, k) => {
  const i = nearest(s.step, step), mark = chart.svg.querySelectorAll('.mark')[k];
  mark.setAttribute('cx', s.x[i]); mark.setAttribute('cy', s.y[i]); mark.style.display = 'block';
  if (k === 0) {
    const cross = chart.svg.querySelector('.cross');
    cross.setAttribute('x1', s.x[i]); cross.setAttribute('x2', s.x[i]); cross.style.display = 'block';
  }
  return { name: s.name, step: s.step[i], text: s.text[i], colour: s.colour };
});
const row = (left, right, cls) => {
  const [line, a, b] = ['div', 'span', 'b'].map(tag => document.createElement(tag));
  a.textContent = left; a.className = cls; b.textContent = right; line.append(a, b); return line;
};
const clock = JSON.parse(document.getElementById('clock')?.textContent ?? '[]');
const between = (pairs, from, to, value) => {
  let i = 1;
  while (i < pairs.length - 1 && pairs[i][from] < value) i++;
  const [a, b] = [pairs[i - 1], pairs[i]];
  return a[to] + (value - a[from]) / (b[from] - a[from]) * (b[to] - a[to]);
};
const timeText = s => s < 60 ? s + ' s' : s < 3600 ? s / 60 + ' min' : s / 3600 + ' h';
const timeTicks = (low, high) => {
  const sizes = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
  const size = sizes.find(s => (high - low) / s <= 6) ?? 2592000, ticks = [];
  for (let t = Math.ceil(low / size) * size; t <= high; t += size) ticks.push(t);
  return ticks;
};
const overTime = chart => {
  const {x0, x1, left, right} = Object.fromEntries(Object.entries(chart.svg.dataset).map(([k, v]) => [k, +v]));
  const seconds = px => between(clock, 0, 1, x0 + (px - left) / (right - left) * (x1 - x0));
  const low = seconds(left), high = Math.max(seconds(right), low + 1e-6);
  const at = s => left + (s - low) / (high - low) * (right - left);
  return {move: px => Math.round(10 * at(seconds(px))) / 10, low, high, at};
};
const lay = (chart, time) => {
  const {svg} = chart, over = time ? overTime(chart) : null, move = over ? over.move : x => x;
  chart.first ??= { x: chart.data.map(s => s.x),
    paths: [...svg.querySelectorAll('.line,.raw,.band,.lead')].map(p => [p, p.getAttribute('d')]),
    dots: [...svg.querySelectorAll('.dot')].map(d => [d, +d.getAttribute('cx')]),
    words: [...svg.querySelectorAll('.lead + .tick')].map(t => [t, +t.getAttribute('x')]) };
  chart.data.forEach((s, k) => { s.x = chart.first.x[k].map(move); });
  for (const [path, d] of chart.first.paths)
    path.setAttribute('d', !time ? d : d.replace(/([ML])(-?[\\d.]+),/g, (_, c, x) => c + move(+x) + ','));
  for (const [dot, x] of chart.first.dots) dot.setAttribute('cx', move(x));
  for (const [word, x] of chart.first.words) word.setAttribute('x', move(x - 4) + 4);
  svg.querySelector('.xticks').style.display = time ? 'none' : '';
  svg.querySelector('.times')?.remove();
  if (!time) return;
  const group = svg.querySelector('.xticks').cloneNode(false);
  group.setAttribute('class', 'times'); group.style.display = '';
  for (const tick of timeTicks(over.low, over.high)) {
    const word = svg.querySelector('.tick').cloneNode(false);
    word.setAttribute('x', over.at(tick)); word.setAttribute('y', svg.dataset.ticks);
    word.setAttribute('text-anchor', 'middle'); word.textContent = timeText(tick); group.append(word);
  }
  svg.append(group);
};
for (const button of document.querySelectorAll('[data-axis]')) button.onclick = () => {
  for (const other of document.querySelectorAll('[data-axis]')) other.classList.toggle('on', other === button);
  for (const chart of charts) if (!('alone' in chart.box.dataset)) lay(chart, button.dataset.axis === 'time');
};
for (const button of document.querySelectorAll('.full'))
  button.onclick = () => button.closest('.replay').querySelector('iframe').requestFullscreen();
for (const chart of charts) {
  chart.svg.addEventListener('pointerleave', hide);
  chart.svg.addEventListener('pointermove', event => {
    const frame = chart.svg.getBoundingClientRect(), first = chart.data[0];
    const x = (event.clientX - frame.left) / frame.width * chart.svg.viewBox.baseVal.width;
    const step = first.step[nearest(first.x, x)];
    const shared = c => !('alone' in c.box.dataset);
    for (const other of charts) if (other !== chart && shared(chart) && shared(other)) point(other, step);
    const found = point(chart, step);
    const unit = chart.box.dataset.x ?? (shared(chart) ? document.body.dataset.x : 'step');
    tip.replaceChildren(row(unit, step.toLocaleString('en'), ''),
      ...found.map(f => row(f.name, f.text, 'key s' + f.colour)));
    tip.style.display = 'block';
    const fits = event.clientX + 16 + tip.offsetWidth < innerWidth;
    tip.style.left = event.clientX + (fits ? 16 : -16 - tip.offsetWidth) + 'px';
    tip.style.top = Math.max(8, event.clientY - tip.offsetHeight - 8) + 'px';
  });
}
"""
