'use strict';
(() => {
  const $ = (id) => document.getElementById(id);

  // Every text comes in by textContent: names, log lines and errors are chosen by whoever runs a pod.
  const el = (tag, cls, ...parts) => {
    const e = document.createElement(tag);
    if (cls) e.className = cls;
    for (const p of parts) if (p !== null && p !== undefined && p !== '') e.append(p);
    return e;
  };
  const fill = (e, ...parts) => e.replaceChildren(...parts.filter((p) => p !== null && p !== undefined && p !== ''));

  // ---- What marks and bars are called, and what they look like. Shapes differ as well as colours.
  const MARKS = {
    error: { name: 'Error', plural: 'Errors', color: 'error', shape: 'cross', bad: 3 },
    oom: { name: 'OOM kill', plural: 'OOM kills', color: 'oom', shape: 'diamond', bad: 4 },
    unknown: { name: 'Unknown end', plural: 'Unknown ends', color: 'unknown', shape: 'question', bad: 3 },
    'not-made': { name: 'Not made', color: 'notmade', shape: 'up', bad: 3 },
    'probe-kill': { name: 'Probe kill', plural: 'Probe kills', color: 'probe', shape: 'down', bad: 2 },
    'oom-survived': { name: 'OOM survived', color: 'oom', shape: 'hollow', bad: 2 },
    'shim-lost': { name: 'Shim lost', color: 'error', shape: 'star', bad: 4 },
    stopped: { name: 'Stopped', color: 'stopped', shape: 'square', bad: 0 },
    completed: { name: 'Completed', color: 'completed', shape: 'ring', bad: 0 },
    exec: { name: 'Exec', plural: 'Execs', color: 'exec', shape: 'prompt', bad: 0 },
  };
  const NODE = {
    berth: { name: 'berth started', dash: [5, 4], letter: 'b' },
    'berth-killed': { name: 'berth was killed', dash: [5, 4], letter: 'B', bad: true },
    reboot: { name: 'Machine rebooted', dash: [], letter: 'R', bad: true },
    containerd: { name: 'containerd lost', dash: [2, 3], letter: 'c', bad: true },
    gap: { name: 'History lost', dash: [1, 4], letter: '!', bad: true },
  };
  const BARS = {
    sandbox: 'Pod sandbox', pull: 'Pull', create: 'Starts', run: 'Runs', release: 'Released', folded: 'Several attempts',
  };

  // ---- The data, as write.go packs them.
  const state = {
    rows: new Map(), node: [], away: [], missing: [], summary: [], folded: {}, live: null, host: '', from: 0, to: 0, last: 0, poll: 0,
    view: null, follow: true, shown: [], tops: [], height: 0, chosen: '', open: false, at: null, only: new Set(), pods: new Map(), held: new Map(),
    problem: '', why: {}, group: true, dense: false, groups: new Map(), opened: new Set(),
  };

  function unpack(d) {
    const W = d.words, B = d.base, at = (t) => (t === null ? null : B + t);
    for (const r of d.rows) {
      const row = {
        name: r.n, ns: r.ns, pod: r.n.slice(r.ns.length + 1), workload: r.w, uid: r.uid, containers: r.c, ids: r.ids,
        crashes: r.x || [], counts: r.k, folded: r.f, why: r.y, bars: [], marks: [], lines: [],
      };
      let t = B;
      for (let i = 0; i < r.b.length; i += 5) {
        t += r.b[i + 3];
        row.bars.push({ kind: W[r.b[i]], c: W[r.b[i + 1]], n: r.b[i + 2], from: t, len: r.b[i + 4] < 0 ? null : r.b[i + 4], held: false, note: '', count: 0 });
      }
      for (const [i, flags, note, count] of r.e || []) {
        const b = row.bars[i];
        b.held = (flags & 1) !== 0;
        if (flags & 2) { b.len = b.len === null ? null : b.len + (b.from - B); b.from = null; }
        b.note = W[note];
        b.count = count;
      }
      t = B;
      for (let i = 0; i < r.m.length; i += 5) {
        t += r.m[i + 3];
        row.marks.push({ of: row.name, kind: W[r.m[i]], c: W[r.m[i + 1]], n: r.m[i + 2], at: t, text: W[r.m[i + 4]] });
      }
      t = B;
      for (let i = 0; i < r.l.length; i += 7) {
        t += r.l[i];
        row.lines.push({ at: t, c: W[r.l[i + 1]], n: r.l[i + 2], what: W[r.l[i + 3]], detail: W[r.l[i + 4]], err: W[r.l[i + 5]], by: W[r.l[i + 6]] });
      }
      row.words = (r.n + ' ' + r.c.join(' ') + ' ' + r.uid).toLowerCase();
      row.bad = 0;
      row.lastBad = 0;
      for (const k in r.k) if (MARKS[k]) row.bad += MARKS[k].bad * r.k[k];
      for (const m of row.marks) if (MARKS[m.kind] && MARKS[m.kind].bad) row.lastBad = Math.max(row.lastBad, m.at);
      row.lanes = Math.max(1, Math.min(6, row.containers.length));
      state.rows.set(row.name, row);
    }
    if (!d.partial) {
      state.from = B;
      state.host = d.host;
      state.folded = d.folded || {};
    }
    state.to = B + d.span;
    state.node = d.node.map((n) => ({ kind: n[0], at: at(n[1]), text: n[2] }));
    state.away = d.away.map((a) => ({ from: at(a[0]), to: at(a[1]), text: a[2] }));
    state.missing = d.missing || [];
    state.summary = d.summary || [];
    state.why = d.why || {};
    state.last = d.last;
    state.poll = d.poll || state.poll;
    if (d.live) {
      state.live = d.live;
      state.pods = new Map((d.live.pods || []).map((p) => [p.row, p]));
      state.held = new Map();
      for (const h of d.live.held || []) {
        if (!h.row) continue;
        if (!state.held.has(h.row)) state.held.set(h.row, []);
        state.held.get(h.row).push(h);
      }
    }
  }

  // stuck says whether something of a row does not get on now.
  const stuck = (row) => row.group ? row.group.some(stuck) : (state.held.get(row.name) || []).some((h) => h.late) ||
    (!state.live && row.bars.some((b) => b.held && b.len === null)) ||
    row.bars.some((b) => b.kind === 'create' && b.held && b.len === null);

  // ---- Words.
  const two = (n) => String(n).padStart(2, '0');
  const clock = (t, ms) => {
    const d = new Date(t);
    return two(d.getHours()) + ':' + two(d.getMinutes()) + ':' + two(d.getSeconds()) + (ms ? '.' + String(d.getMilliseconds()).padStart(3, '0') : '');
  };
  const day = (t) => {
    const d = new Date(t);
    return d.getFullYear() + '-' + two(d.getMonth() + 1) + '-' + two(d.getDate());
  };
  const span = (ms) => {
    if (ms < 1000) return Math.round(ms) + ' ms';
    const s = ms / 1000;
    if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + ' s';
    if (s < 3600) return Math.floor(s / 60) + ' min' + (s < 600 && s % 60 >= 1 ? ' ' + Math.floor(s % 60) + ' s' : '');
    if (s < 172800) return Math.floor(s / 3600) + ' h' + (Math.floor(s / 60) % 60 ? ' ' + (Math.floor(s / 60) % 60) + ' min' : '');
    return Math.floor(s / 86400) + ' d ' + (Math.floor(s / 3600) % 24) + ' h';
  };
  const size = (n) => {
    if (n === undefined || n === null) return '\u2013';
    const u = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let i = 0;
    while (n >= 1024 && i < u.length - 1) { n /= 1024; i++; }
    return (i && n < 10 ? n.toFixed(1) : Math.round(n)) + ' ' + u[i];
  };
  const cores = (n) => (n === undefined || n === null ? '\u2013' : n >= 1e9 ? (n / 1e9).toFixed(2) : Math.round(n / 1e6) + 'm');
  const nameOf = (m, n) => (n === 1 ? m.name : m.plural || m.name);

  // ---- Colours come from the style sheet, so that there is one list of them.
  let color = {};
  function readColors() {
    const s = getComputedStyle(document.documentElement);
    color = {};
    for (const k of ['bg', 'panel', 'line', 'soft', 'text', 'dim', 'accent', 'chosen', 'hover', 'band', 'bandline', 'run', 'create', 'pull', 'release', 'held', 'folded', 'completed', 'error', 'oom', 'stopped', 'unknown', 'probe', 'exec', 'notmade', 'node', 'away']) {
      color[k] = s.getPropertyValue('--' + k).trim();
    }
  }

  function shape(g, kind, x, y, r) {
    const m = MARKS[kind];
    const c = color[m.color];
    g.save();
    g.lineJoin = 'round';
    const path = new Path2D();
    switch (m.shape) {
      case 'ring': case 'question': path.arc(x, y, r * 0.92, 0, 7); break;
      case 'diamond': case 'hollow': path.moveTo(x, y - r * 1.25); path.lineTo(x + r * 1.15, y); path.lineTo(x, y + r * 1.25); path.lineTo(x - r * 1.15, y); path.closePath(); break;
      case 'square': path.rect(x - r * 0.8, y - r * 0.8, r * 1.6, r * 1.6); break;
      case 'up': path.moveTo(x, y - r * 1.1); path.lineTo(x + r * 1.15, y + r * 0.9); path.lineTo(x - r * 1.15, y + r * 0.9); path.closePath(); break;
      case 'down': path.moveTo(x, y + r * 1.1); path.lineTo(x + r * 1.15, y - r * 0.9); path.lineTo(x - r * 1.15, y - r * 0.9); path.closePath(); break;
      case 'star':
        for (let i = 0; i < 10; i++) { const a = Math.PI * (i / 5 - 0.5), q = i % 2 ? r * 0.55 : r * 1.3; path.lineTo(x + q * Math.cos(a), y + q * Math.sin(a)); }
        path.closePath();
        break;
      case 'cross': path.moveTo(x - r * 0.85, y - r * 0.85); path.lineTo(x + r * 0.85, y + r * 0.85); path.moveTo(x + r * 0.85, y - r * 0.85); path.lineTo(x - r * 0.85, y + r * 0.85); break;
      case 'prompt': path.moveTo(x - r * 0.6, y - r); path.lineTo(x + r * 0.5, y); path.lineTo(x - r * 0.6, y + r); break;
    }
    const open = m.shape === 'cross' || m.shape === 'prompt';
    g.strokeStyle = color.panel; // a halo, so that a mark stands out of a bar
    g.lineWidth = open ? 5.5 : 3.5;
    g.stroke(path);
    if (open) { g.strokeStyle = c; g.lineWidth = 2.6; g.lineCap = 'round'; g.stroke(path); }
    else if (m.shape === 'ring' || m.shape === 'hollow' || m.shape === 'question') { g.fillStyle = color.panel; g.fill(path); g.strokeStyle = c; g.lineWidth = 2; g.stroke(path); }
    else { g.fillStyle = c; g.fill(path); }
    if (m.shape === 'question' || m.shape === 'up') {
      g.fillStyle = m.shape === 'up' ? color.panel : c;
      g.font = 'bold ' + Math.round(r * 1.65) + 'px sans-serif';
      g.textAlign = 'center';
      g.textBaseline = 'middle';
      g.fillText(m.shape === 'up' ? '!' : '?', x, y + (m.shape === 'up' ? 1 : 0.5));
    }
    g.restore();
  }

  const hatches = new Map();
  function hatch(g, c, gap) {
    const key = c + gap;
    if (!hatches.has(key)) {
      const t = document.createElement('canvas');
      t.width = t.height = gap;
      const x = t.getContext('2d');
      x.strokeStyle = c;
      x.lineWidth = 1.6;
      x.beginPath();
      for (const o of [-gap, 0, gap]) { x.moveTo(o - 1, gap + 1); x.lineTo(o + gap + 1, -1); }
      x.stroke();
      hatches.set(key, g.createPattern(t, 'repeat'));
    }
    return hatches.get(key);
  }

  // bar draws one bar of a kind into a rectangle.
  function bar(g, kind, held, x, y, w, h) {
    const w1 = Math.max(w, 1.5), round = Math.min(3, w1 / 2, h / 2);
    const box = (fillStyle) => { g.fillStyle = fillStyle; g.beginPath(); g.roundRect(x, y, w1, h, round); g.fill(); };
    switch (kind) {
      case 'run': box(color.run); break;
      case 'create':
        if (held) { box(color.band); box(hatch(g, color.held, 6)); } else box(color.create);
        break;
      case 'pull': box(held ? hatch(g, color.pull, 5) : color.pull); break;
      case 'release':
        if (held) { box(hatch(g, color.held, 6)); g.strokeStyle = color.held; g.lineWidth = 1; g.stroke(); } else box(hatch(g, color.release, 4));
        break;
      case 'folded': box(color.folded); box(hatch(g, color.panel, 8)); break;
    }
  }

  // ---- Which rows are shown, in which order.
  function match(row, ns, words) {
    if (ns && row.ns !== ns) return false;
    for (const k of state.only) {
      if (k === 'held' ? !stuck(row) : !row.counts[k]) return false;
    }
    for (const w of words) {
      if (row.words.includes(w)) continue;
      let found = false;
      for (const k in row.counts) if (MARKS[k] && (k + ' ' + MARKS[k].name.toLowerCase()).includes(w)) found = true;
      if (!found) found = row.crashes.some((c) => (c.reason + ' code ' + c.code + ' ' + (c.log || []).join(' ')).toLowerCase().includes(w)) ||
        row.marks.some((m) => m.text.toLowerCase().includes(w));
      if (!found) return false;
    }
    return true;
  }

  function choose() {
    const text = $('filter').value.trim().toLowerCase(), ns = $('namespace').value, by = $('order').value;
    const words = text.split(/\s+/).filter(Boolean);
    const use = (row, k) => row.group ? row.group.reduce((n, r) => n + use(r, k), 0) : (state.pods.get(row.name) || {})[k] || 0;
    const orders = {
      trouble: (x, y) => stuck(y) - stuck(x) || y.bad - x.bad,
      recent: (x, y) => y.lastBad - x.lastBad,
      name: () => 0,
      cpu: (x, y) => use(y, 'cpu_nanocores') - use(x, 'cpu_nanocores'),
      memory: (x, y) => use(y, 'memory_bytes') - use(x, 'memory_bytes'),
    };
    const order = (x, y) => orders[by](x, y) || (x.name < y.name ? -1 : 1);
    const found = [...state.rows.values()].filter((r) => match(r, ns, words)).sort(order);
    state.shown = state.group ? grouped(found).sort(order).flatMap((r) => r.group && state.opened.has(r.name) ? [r, ...r.group] : [r]) : found;
    state.tops = [];
    let top = 0;
    for (const r of state.shown) {
      r.h = state.dense ? Math.max(21, 8 + r.lanes * lane()) : Math.max(38, 14 + r.lanes * lane());
      state.tops.push(top);
      top += r.h;
    }
    document.body.classList.toggle('dense', state.dense);
    columns();
    state.height = top;
    $('inner').style.height = Math.max(top, 0) + 'px';
    $('empty').hidden = state.shown.length > 0;
    $('count').textContent = (found.length === state.rows.size ? '' : found.length + ' of ') + state.rows.size + (state.rows.size === 1 ? ' pod' : ' pods');
    overview = null;
    labelled = '';
    draw();
  }

  // grouped puts the rows of each workload with several pods into one. The bars and marks of all are in one lane.
  function grouped(rows) {
    const by = new Map(), before = state.groups;
    for (const r of rows) {
      const key = r.ns + '/' + r.workload + '/'; // which is the name of no pod
      if (by.has(key)) by.get(key).push(r); else by.set(key, [r]);
    }
    state.groups = new Map();
    const list = [];
    for (const [name, group] of by) {
      if (group.length === 1) { list.push(group[0]); continue; }
      let g = before.get(name);
      if (!g || g.group.length !== group.length || g.group.some((r, i) => r !== group[i])) {
        const r = group[0], sum = (k) => group.reduce((n, x) => n + (x.counts[k] || 0), 0);
        g = {
          name, group, ns: r.ns, pod: r.workload, workload: r.workload, containers: [], crashes: [], lanes: 1,
          bars: group.flatMap((x) => x.bars).sort((x, y) => x.from - y.from), marks: group.flatMap((x) => x.marks).sort((x, y) => x.at - y.at),
          counts: Object.fromEntries(Object.keys(MARKS).map((k) => [k, sum(k)]).filter(([, n]) => n)),
          bad: group.reduce((n, x) => n + x.bad, 0), lastBad: Math.max(...group.map((x) => x.lastBad)),
        };
      }
      state.groups.set(name, g);
      list.push(g);
    }
    return list;
  }
  const rowOf = (name) => state.rows.get(name) || state.groups.get(name);

  // rowAt returns the index of the row at a height.
  function rowAt(y) {
    let a = 0, b = state.tops.length;
    while (a < b) { const m = (a + b) >> 1; if (state.tops[m] <= y) a = m + 1; else b = m; }
    return y < state.height ? a - 1 : -1;
  }

  // ---- Time and pixels.
  const X = (t) => (t - state.view.from) / (state.view.to - state.view.from) * width;
  const T = (x) => state.view.from + x / width * (state.view.to - state.view.from);
  let width = 100, high = 100, queued = false, labelled = '', overview = null;
  const full = () => { const pad = (state.to - state.from) * 0.015; return { from: state.from - pad, to: state.to + pad }; };

  function show(from, to) {
    const all = full(), most = all.to - all.from;
    let w = Math.max(200, Math.min(most, to - from));
    if (to - from < 200 || to - from > most) { const mid = (from + to) / 2; from = mid - w / 2; }
    from = Math.max(all.from, Math.min(all.to - w, from));
    state.view = { from, to: from + w };
    state.follow = state.view.to >= all.to - w * 0.01;
    ranges();
    draw();
  }
  function zoom(factor, x) {
    const t = T(x === undefined ? width / 2 : x), v = state.view;
    show(t - (t - v.from) * factor, t + (v.to - t) * factor);
  }
  const pan = (part) => { const w = state.view.to - state.view.from; show(state.view.from + w * part, state.view.to + w * part); };

  const RANGES = [[15, '15 min'], [60, '1 h'], [360, '6 h'], [1440, '24 h']];
  function ranges() {
    const w = state.view.to - state.view.from, all = full();
    for (const b of $('ranges').children) {
      const min = Number(b.dataset.min);
      b.setAttribute('aria-pressed', String(min === 0 ? w >= (all.to - all.from) * 0.999 : Math.abs(w - min * 60000) < 1000));
    }
  }

  // ---- Drawing.
  function draw() {
    if (queued) return;
    queued = true;
    requestAnimationFrame(() => { queued = false; paint(); });
  }

  function fit(canvas, w, h) {
    const d = window.devicePixelRatio || 1;
    if (canvas.width !== Math.round(w * d) || canvas.height !== Math.round(h * d)) {
      canvas.width = Math.round(w * d);
      canvas.height = Math.round(h * d);
      canvas.style.width = w + 'px';
      canvas.style.height = h + 'px';
    }
    const g = canvas.getContext('2d');
    g.setTransform(d, 0, 0, d, 0, 0);
    g.clearRect(0, 0, w, h);
    return g;
  }

  const STEPS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((s) => s * 1000);
  function ticks() {
    const per = (state.view.to - state.view.from) / (width / 95);
    const step = STEPS.find((s) => s >= per) || 172800000;
    const zone = new Date(state.view.from).getTimezoneOffset() * 60000;
    const list = [];
    for (let t = Math.ceil((state.view.from - zone) / step) * step + zone; t < state.view.to; t += step) list.push(t);
    return { list, step };
  }

  function paint() {
    const scroll = $('scroll');
    const labels = $('labels').clientWidth;
    width = Math.max(60, scroll.clientWidth - labels - 1);
    high = scroll.clientHeight;
    const tk = ticks();
    paintAxis(tk);
    const g = fit($('chart'), width, high);
    const top = scroll.scrollTop;
    for (const a of state.away) {
      const x0 = X(a.from), x1 = X(a.to);
      if (x1 < 0 || x0 > width) continue;
      g.fillStyle = color.away;
      g.fillRect(x0, 0, Math.max(1.5, x1 - x0), high);
    }
    g.fillStyle = color.soft;
    for (const t of tk.list) g.fillRect(Math.round(X(t)), 0, 1, high);
    const now = X(state.to);
    if (now < width) { g.fillStyle = color.away; g.fillRect(now, 0, width - now, high); g.fillStyle = color.dim; g.fillRect(now, 0, 1, high); }
    let i = rowAt(top);
    if (i < 0) i = state.shown.length;
    for (; i < state.shown.length && state.tops[i] < top + high; i++) paintRow(g, state.shown[i], state.tops[i] - top);
    for (const n of state.node) {
      const x = X(n.at), k = NODE[n.kind];
      if (x < 0 || x > width || !k) continue;
      g.strokeStyle = k.bad ? color.error : color.node;
      g.globalAlpha = 0.75;
      g.lineWidth = n.kind === 'reboot' ? 2 : 1;
      g.setLineDash(k.dash);
      g.beginPath();
      g.moveTo(Math.round(x) + 0.5, 0);
      g.lineTo(Math.round(x) + 0.5, high);
      g.stroke();
      g.setLineDash([]);
      g.globalAlpha = 1;
    }
    paintLabels(top);
  }

  const lane = () => (state.dense ? 8 : 13), thick = () => lane() - (state.dense ? 2 : 4);
  const laneTop = (row, y) => y + Math.round((row.h - row.lanes * lane()) / 2) + (state.dense ? 1 : 2);
  const middle = (row, c, y) => (c === '' ? y + row.h / 2 : laneTop(row, y) + laneOf(row, c) * lane() + thick() / 2);
  const laneOf = (row, c) => Math.min(row.lanes - 1, Math.max(0, row.containers.indexOf(c)));
  function place(row, b, y) {
    const x0 = b.from === null ? -10 : X(b.from), x1 = b.len === null ? X(state.to) : (b.from === null ? X(state.from) : X(b.from)) + b.len / (state.view.to - state.view.from) * width;
    if (b.kind === 'sandbox') return [x0, x1, y + 3, row.h - 7];
    if (b.c === '' || b.kind === 'pull') return [x0, x1, b.kind === 'release' ? y + row.h - 7 : y + 3, 4];
    return [x0, x1, laneTop(row, y) + laneOf(row, b.c) * lane(), thick()];
  }

  function paintRow(g, row, y) {
    if (row.name === state.chosen) { g.fillStyle = color.chosen; g.globalAlpha = 0.55; g.fillRect(0, y, width, row.h - 1); g.globalAlpha = 1; }
    g.fillStyle = color.soft;
    g.fillRect(0, y + row.h - 1, width, 1);
    for (const b of row.bars) {
      if (b.kind !== 'sandbox') continue;
      const [x0, x1, top, h] = place(row, b, y);
      if (x1 < 0 || x0 > width) continue;
      const a = Math.max(-8, x0), z = Math.min(width + 8, x1);
      g.fillStyle = color.band;
      g.strokeStyle = color.bandline;
      g.lineWidth = 1;
      g.beginPath();
      g.roundRect(a + 0.5, top + 0.5, Math.max(2, z - a - 1), h, Math.min(5, Math.max(1, (z - a) / 2)));
      g.fill();
      g.stroke();
    }
    // What is narrower than a pixel is drawn once for each pixel and lane.
    const last = new Map();
    for (const order of ['folded', 'release', 'run', 'create', 'pull']) {
      for (const b of row.bars) {
        if (b.kind !== order) continue;
        const [x0, x1, top, h] = place(row, b, y);
        if (x1 < 0 || x0 > width) continue;
        if (x1 - x0 < 1) {
          const key = order + top, px = Math.round(x0);
          if (last.get(key) === px) continue;
          last.set(key, px);
        }
        const a = Math.max(-8, x0), z = Math.min(width + 8, x1);
        bar(g, b.kind, b.held, a, top, z - a, h);
        if (b.kind === 'folded' && z - a > 90 && !row.group && !state.dense) {
          const text = b.count + ' attempts: ' + b.note;
          g.font = '600 10px system-ui, sans-serif';
          const tw = g.measureText(text).width;
          g.fillStyle = color.panel;
          g.fillRect(a + 6, top, tw + 8, h);
          g.fillStyle = color.text;
          g.textBaseline = 'middle';
          g.textAlign = 'left';
          g.fillText(text, a + 10, top + h / 2 + 0.5);
        }
      }
    }
    // Marks that would cover each other: the worst is on top, and one is drawn for each few pixels.
    const kinds = Object.keys(MARKS).reverse();
    const drawn = new Map();
    for (const k of kinds) {
      for (const m of row.marks) {
        if (m.kind !== k) continue;
        const x = X(m.at);
        if (x < -8 || x > width + 8) continue;
        const cy = middle(row, m.c, y), key = k + cy;
        if (drawn.has(key) && x - drawn.get(key) < 8) continue;
        drawn.set(key, x);
        shape(g, k, x, cy, state.dense ? 3.7 : 4.6);
      }
    }
  }

  function paintAxis(tk) {
    const H = 74, strip = 34;
    const g = fit($('axis'), width, H);
    paintOverview(g, strip);
    g.font = '11px system-ui, "DejaVu Sans", sans-serif';
    g.textBaseline = 'alphabetic';
    let before = '';
    for (const t of tk.list) {
      const x = Math.round(X(t)), d = new Date(t);
      g.fillStyle = color.line;
      g.fillRect(x, H - 8, 1, 8);
      const fine = tk.step < 1000, text = tk.step >= 86400000 ? day(t).slice(5) : tk.step < 60000 ? clock(t, fine) : two(d.getHours()) + ':' + two(d.getMinutes());
      g.fillStyle = color.dim;
      g.textAlign = 'center';
      if (x > 22 && x < width - 22) g.fillText(text, x, H - 13);
      const today = day(t);
      if (today !== before && tk.step < 86400000) {
        if (x > 40 && x < width - 40) { g.fillStyle = color.text; g.font = '600 11px system-ui, "DejaVu Sans", sans-serif'; g.fillText(today, x, H - 26); g.font = '11px system-ui, "DejaVu Sans", sans-serif'; before = today; }
        else if (before === '') before = '';
      }
    }
    for (const n of state.node) {
      const x = X(n.at), k = NODE[n.kind];
      if (x < 0 || x > width || !k) continue;
      g.fillStyle = k.bad ? color.error : color.node;
      g.beginPath();
      g.roundRect(x - 6, H - 12, 13, 12, 3);
      g.fill();
      g.fillStyle = color.panel;
      g.font = 'bold 9px system-ui, sans-serif';
      g.textAlign = 'center';
      g.fillText(k.letter, x + 0.5, H - 3);
    }
  }

  // paintOverview draws how many of the ends of what is shown were bad, over the whole time.
  function paintOverview(g, h) {
    const all = full(), bins = Math.max(30, Math.floor(width / 5));
    if (!overview || overview.bins !== bins || overview.to !== all.to) {
      const list = Array.from({ length: bins }, () => ({}));
      let most = 0;
      const add = (kind, at, n) => {
        const b = list[Math.floor((at - all.from) / (all.to - all.from) * bins)];
        if (!b || !MARKS[kind] || !MARKS[kind].bad) return;
        b[kind] = (b[kind] || 0) + n;
        b.sum = (b.sum || 0) + n;
        most = Math.max(most, b.sum);
      };
      const bin = (all.to - all.from) / bins;
      for (const r of state.shown) {
        for (const m of r.marks) add(m.kind, m.at, 1);
        for (const b of r.bars) { // of what was folded the number is known, and is spread evenly
          if (b.kind !== 'folded' || b.len === null) continue;
          const parts = Math.max(1, Math.round(b.len / bin)), from = b.from === null ? state.from : b.from;
          for (const [, n, kind] of b.note.matchAll(/(\d+) ([a-z-]+)/g)) for (let i = 0; i < parts; i++) add(kind, from + (i + 0.5) * b.len / parts, n / parts);
        }
      }
      overview = { bins, list, most, to: all.to };
    }
    g.fillStyle = color.bg;
    g.fillRect(0, 0, width, h);
    const w = width / bins;
    overview.list.forEach((b, i) => {
      if (!b.sum) return;
      let y = h;
      for (const k in MARKS) {
        if (!b[k]) continue;
        const part = Math.max(2, (h - 6) * Math.sqrt(b.sum / overview.most) * b[k] / b.sum);
        g.fillStyle = color[MARKS[k].color];
        g.globalAlpha = 0.8;
        g.fillRect(i * w + 0.5, y - part, Math.max(1, w - 1), part);
        y -= part;
      }
    });
    g.globalAlpha = 1;
    const O = (t) => (t - all.from) / (all.to - all.from) * width;
    const x0 = O(state.view.from), x1 = O(state.view.to);
    if (x1 - x0 < width - 2) {
      g.fillStyle = color.away;
      g.fillRect(0, 0, x0, h);
      g.fillRect(x1, 0, width - x1, h);
      g.strokeStyle = color.accent;
      g.lineWidth = 1.5;
      g.strokeRect(x0 + 0.75, 0.75, Math.max(3, x1 - x0 - 1.5), h - 1.5);
    }
    g.fillStyle = color.line;
    g.fillRect(0, h, width, 1);
  }

  function summary(row) {
    const parts = [];
    for (const k in MARKS) if (row.counts[k] && MARKS[k].bad) parts.push(row.counts[k] + ' ' + nameOf(MARKS[k], row.counts[k]));
    return parts.join(', ');
  }

  // ---- The labels: the cells of a row, beside each other as far as there is room.
  const age = (ms) => { // in at most four letters
    const s = Math.max(0, ms) / 1000;
    return s < 60 ? Math.floor(s) + 's' : s < 3600 ? Math.floor(s / 60) + 'm' : s < 172800 ? Math.floor(s / 3600) + 'h' : Math.floor(s / 86400) + 'd';
  };
  const imageName = (image) => (image.startsWith('sha256:') ? image.slice(0, 19) : image.slice(image.lastIndexOf('/') + 1).replace(/@.*/, ''));
  const ended = (c) => (c.reason || 'exited') + (c.code === undefined || c.reason === 'Completed' ? '' : ' ' + c.code);
  const times = (n, word) => n + ' ' + word + (n === 1 ? '' : 's');

  // cells are what is said of a row: its state, how bad that is, restarts, age, address, image and use.
  function cells(row) {
    if (row.group) {
      const all = row.group.map(cells), ready = row.group.filter((r) => (state.pods.get(r.name) || {}).ready).length;
      const images = new Set(all.map((c) => c.image).filter(Boolean));
      return { state: stuck(row) ? 'waits' : summary(row) || all[0].state, bad: stuck(row) ? 'held' : row.bad ? 'bad' : '', restarts: all.reduce((n, c) => n + c.restarts, 0),
        age: '', ip: state.live ? ready + ' ready' : '', image: images.size === 1 ? [...images][0] : images.size ? images.size + ' images' : '', use: '' };
    }
    const p = state.pods.get(row.name), cts = (p && p.containers) || [];
    const out = { state: '', bad: '', restarts: cts.reduce((n, c) => n + c.restarts, 0), age: '', ip: '', image: [...new Set(cts.map((c) => imageName(c.image || '')))].join(', '), use: '' };
    const failed = cts.find((c) => c.state === 'exited' && c.code), last = row.marks.findLast((m) => ['completed', 'error', 'oom', 'stopped', 'unknown', 'not-made'].includes(m.kind));
    const crash = row.crashes.filter((c) => c.count > 1).sort((x, y) => y.count - x.count)[0], running = cts.filter((c) => c.state === 'running');
    if (stuck(row)) [out.state, out.bad] = ['waits', 'held'];
    else if (failed) [out.state, out.bad] = [ended(failed) + (crash ? ' \u00d7' + crash.count : ''), 'bad'];
    else if (crash && (!p || p.ready)) [out.state, out.bad] = [crash.reason + ' ' + crash.code + ' \u00d7' + crash.count, 'bad'];
    else if (p && p.ready) out.state = running.length ? 'running' + (cts.length > 1 ? ' ' + running.length + '/' + cts.length : '') : cts.length ? ended(cts[0]) : 'ready';
    else if (last) [out.state, out.bad] = [MARKS[last.kind].name, MARKS[last.kind].bad ? 'bad' : ''];
    else if (state.live) out.state = p ? 'stopped' : 'gone';
    if (p) {
      out.age = age(Date.parse(state.live.at) - Date.parse(p.created));
      out.ip = p.ip || '';
      if (running.length) out.use = cores(p.cpu_nanocores) + ' \u00b7 ' + size(p.memory_bytes);
    }
    return out;
  }

  // columns finds how wide each cell has to be, so that none is cut if there is room for all.
  function columns() {
    const g = $('axis').getContext('2d'), family = getComputedStyle(document.body).fontFamily, most = { name: 110, state: 60, second: 0, ip: 30, image: 40, use: 0 };
    const measure = (k, text, font) => { g.font = font + ' ' + family; most[k] = Math.max(most[k], Math.ceil(g.measureText(text).width) + 2); };
    for (const r of state.shown) {
      const c = cells(r);
      measure('name', (r.pod || r.name) + (r.group ? ' \u00d7' + r.group.length : ''), '600 13px');
      measure('state', c.state, '13px');
      measure('second', c.restarts ? times(c.restarts, 'restart') : '', '12px');
      measure('ip', c.ip, '12px');
      measure('image', c.image, '13px');
      measure('use', c.use, '12px');
    }
    const wide = innerWidth > 900, pair = (x, y) => (state.dense ? x + y + 10 : Math.max(x, y));
    const list = [pair(Math.min(most.state, 230), most.second), pair(30, most.ip), state.dense ? most.image : Math.max(most.image, most.use)];
    const rest = innerWidth * 0.62 - list[0] - list[1] - 70, style = document.documentElement.style;
    list[2] = Math.max(100, Math.min(list[2], rest - most.name));
    const name = Math.max(130, Math.min(most.name + (state.group ? 34 : 0), rest - list[2]));
    style.setProperty('--cells', list.map((n) => n + 'px').join(' '));
    style.setProperty('--labels', wide ? name + list[0] + list[1] + list[2] + 54 + 'px' : '150px');
  }

  function paintLabels(top) {
    let i = Math.max(0, rowAt(top) < 0 ? 0 : rowAt(top) - 4), j = i;
    while (j < state.shown.length && state.tops[j] < top + high + 160) j++;
    const key = i + ' ' + j + ' ' + state.chosen + ' ' + (state.live ? state.live.at : '');
    if (key === labelled) return;
    labelled = key;
    const made = [];
    for (; i < j; i++) {
      const r = state.shown[i], c = cells(r), within = state.group && i > 0 && !r.group && state.opened.has(r.ns + '/' + r.workload + '/') && state.groups.has(r.ns + '/' + r.workload + '/');
      const name = el('div', 'name', r.group ? el('span', 'open', state.opened.has(r.name) ? '\u25be' : '\u25b8') : null, el('span', 'pod', r.pod || r.name), r.group ? el('span', 'n', '\u00d7' + r.group.length) : null);
      const cell = (cls, ...text) => el('div', 'cell ' + cls, ...text.map((t) => el('span', '', t)));
      const e = el('div', 'label' + (within ? ' within' : ''), el('div', 'cell named', name, el('span', 'sub', r.ns)), cell('state ' + c.bad, c.state, c.restarts ? times(c.restarts, 'restart') : ''),
        cell('age', c.age, c.ip), cell('image', c.image, c.use));
      e.style.top = state.tops[i] + 'px';
      e.style.height = r.h + 'px';
      e.id = 'row' + i;
      e.title = r.ns + '/' + r.pod + (c.image ? '\n' + c.image : '');
      e.setAttribute('role', 'treeitem');
      e.setAttribute('aria-level', within ? '2' : '1');
      if (r.group) e.setAttribute('aria-expanded', String(state.opened.has(r.name)));
      e.setAttribute('aria-selected', String(r.name === state.chosen));
      e.setAttribute('aria-label', (r.group ? r.ns + '/' + r.pod + ', ' + times(r.group.length, 'pod') : r.name) + ', ' + [c.state, c.restarts ? times(c.restarts, 'restart') : '', summary(r)].filter(Boolean).join(', '));
      e.dataset.row = r.name;
      made.push(e);
    }
    $('labels').replaceChildren(...made);
    const n = state.shown.findIndex((r) => r.name === state.chosen);
    if (n >= 0) $('scroll').setAttribute('aria-activedescendant', 'row' + n);
    else $('scroll').removeAttribute('aria-activedescendant');
  }

  // ---- The node now, the legend, and what has to be said.
  function number(name, value, bad) {
    return el('div', bad ? 'bad' : '', el('dt', '', name), el('dd', '', value));
  }

  function paintTop() {
    document.title = 'berth ' + state.host;
    $('host').textContent = state.host;
    const l = state.live;
    if (l) {
      const down = (l.conditions || []).filter((c) => !c.ready), n = l.node, waits = (l.held || []).filter((h) => h.late).length;
      fill($('conditions'), ...(down.length ? down : (l.conditions || []).slice(0, 1)).map((c) => {
        const e = el('span', 'condition' + (c.ready ? '' : ' bad'), c.ready ? 'ready' : c.name.replace('Ready', '') + ' not ready');
        e.title = c.why || '';
        return e;
      }));
      const part = (free, total) => { const [x, y] = [size(total - free), size(total)]; return (x.split(' ')[1] === y.split(' ')[1] ? x.split(' ')[0] : x) + ' of ' + y; };
      const list = [number(state.poll ? 'Live' : 'As of', clock(Date.parse(l.at))), number('Pods', String(n.pods_ready)), number('Containers', String(n.containers_running)),
        number('Waits', String(waits), waits > 0), number('CPU', cores(n.pods_cpu_nanocores) + (n.cpus ? ' of ' + n.cpus : ''))];
      if (n.mem_total) list.push(number('Memory', part(n.mem_available, n.mem_total), n.mem_available < n.mem_total / 10));
      if (n.disk_total) list.push(number('Disk', part(n.disk_available || 0, n.disk_total), (n.disk_available || 0) < n.disk_total / 10));
      if (n.pressure) {
        const some = Object.entries(n.pressure).filter(([, v]) => v >= 5);
        const e = number('Pressure', some.map(([k, v]) => k + ' ' + Math.round(v) + '%').join(' ') || 'none', some.some(([, v]) => v >= 20));
        e.title = 'How much of the last minute something waited for it';
        list.push(e);
      }
      fill($('numbers'), ...list);
    }
    paintSummary();
    const notes = [];
    if (state.problem) notes.push(state.problem);
    notes.push(...state.missing);
    if (l) notes.push(...(l.missing || []), ...(l.warnings || []));
    const f = state.folded, left = [];
    if (f.entries) left.push(f.entries + ' entries');
    if (f.attempts) left.push(f.attempts + ' older attempts, drawn as one bar each container');
    if (f.rows) left.push(f.rows + ' pods with the least to tell');
    if (f.logs) left.push(f.logs + ' lines of logs');
    if (left.length) notes.push('So that this page stays small, these are left out: ' + left.join('; ') + '. `berth timeline POD` has all that the node keeps.');
    fill($('notices'), ...notes.map((n) => el('p', '', n)));
  }

  // paintSummary says in one line what there is, and below it the items of each. On a calm node the line is all.
  function paintSummary() {
    const d = $('summary'), today = day(state.from) === day(state.to);
    const some = state.summary.filter((c) => c.items.length);
    fill(d.firstElementChild, 'Since ' + (today ? '' : day(state.from) + ' ') + clock(state.from).slice(0, 5) + ': ', ...state.summary.flatMap((c, i) => [i ? ', ' : '', c.items.length ? el('b', '', c.said) : c.said]), '.');
    fill($('cards'), ...some.map((c) => {
      const list = el('ul', '', ...c.items.map((i) => {
        const b = el(state.rows.has(i.row) ? 'button' : 'div', 'item', i.at ? el('time', '', (day(Date.parse(i.at)) === day(state.to) ? '' : day(Date.parse(i.at)).slice(5) + ' ') + clock(Date.parse(i.at)).slice(0, 5)) : null, i.title ? el('b', '', i.title + ' ') : null, i.text);
        if (b.tagName === 'BUTTON') { b.type = 'button'; b.addEventListener('click', () => reveal(i.row, i.at ? { t: Date.parse(i.at), c: '', fresh: true } : null)); }
        return el('li', '', b);
      }));
      return el('section', 'card', el('h2', '', c.name + ' ', el('span', '', String(c.items.length))), list);
    }));
    d.classList.toggle('calm', !some.length);
  }

  // reveal opens a row wherever it is: in a group that is closed, or hidden by a filter.
  function reveal(name, at) {
    const row = state.rows.get(name);
    if (!row) return;
    state.opened.add(row.ns + '/' + row.workload + '/');
    choose();
    if (!state.shown.includes(row)) { $('filter').value = $('namespace').value = ''; state.only.clear(); paintLegend(); choose(); }
    pick(name, true, at);
  }

  function glyph(kind, isBar) {
    const c = el('canvas');
    const g = fit(c, isBar ? 20 : 15, 15);
    if (isBar) { if (kind === 'held') bar(g, 'release', true, 1, 3, 18, 9); else bar(g, kind, false, 1, 3, 18, 9); }
    else shape(g, kind, 7.5, 7.5, 4.8);
    c.setAttribute('aria-hidden', 'true');
    return c;
  }

  function paintLegend() {
    const total = {};
    let held = 0;
    for (const r of state.rows.values()) {
      for (const k in r.counts) total[k] = (total[k] || 0) + r.counts[k];
      if (stuck(r)) held++;
    }
    const chip = (k, picture, name, n) => {
      const b = el('button', n ? '' : 'none', picture, el('span', '', name), el('b', '', String(n)));
      b.type = 'button';
      b.dataset.kind = k;
      b.setAttribute('aria-pressed', String(state.only.has(k)));
      b.addEventListener('click', () => {
        if (!state.only.delete(k)) state.only.add(k);
        paintLegend();
        const again = [...$('legend').querySelectorAll('button')].find((x) => x.dataset.kind === k);
        if (again) again.focus();
        choose();
      });
      return b;
    };
    const list = [chip('held', glyph('held', true), 'Waits', held)];
    for (const k in MARKS) if (total[k] || state.only.has(k) || k === 'error' || k === 'oom') list.push(chip(k, glyph(k), MARKS[k].plural || MARKS[k].name, total[k] || 0));
    fill($('legend'), ...list);
  }

  function paintNamespaces() {
    const s = $('namespace'), was = s.value;
    const all = [...new Set([...state.rows.values()].map((r) => r.ns))].sort();
    fill(s, ...['', ...all].map((n) => { const o = el('option', '', n || 'All namespaces'); o.value = n; return o; }));
    s.value = all.includes(was) ? was : '';
  }

  // ---- The detail of a pod.
  const SHOWN = 250;
  let linesShown = SHOWN;
  function paintDetail() {
    const d = $('detail'), row = state.open ? state.rows.get(state.chosen) : null;
    d.hidden = !row;
    if (!row) { fill(d); return; }
    const keep = d.dataset.row === row.name ? d.scrollTop : 0;
    d.dataset.row = row.name;
    const close = el('button', '', '\u2715');
    close.type = 'button';
    close.setAttribute('aria-label', 'Close the details');
    close.addEventListener('click', () => shut());
    const use = state.pods.get(row.name), c = cells(row);
    const parts = [el('div', 'head', el('div', '', el('h2', '', row.pod || row.name), el('div', 'sub', [row.ns, c.ip, c.age && c.age + ' old', c.restarts && times(c.restarts, 'restart')].filter(Boolean).join(' \u00b7 '))), close)];
    const why = row.why || (state.why.row === row.name ? state.why.said : null);
    if (why && why.length) parts.push(el('div', 'box why', ...why.map((w, i) => el(i ? 'p' : 'h3', '', w))));
    const chips = [];
    for (const k in MARKS) if (row.counts[k]) chips.push(el('span', '', glyph(k), row.counts[k] + ' ' + nameOf(MARKS[k], row.counts[k])));
    if (chips.length) parts.push(el('div', 'chips', ...chips));
    const held = state.held.get(row.name) || [];
    const waits = row.bars.filter((b) => b.held && b.len === null && b.kind !== 'pull');
    if (held.length || (!state.live && waits.length) || waits.some((b) => b.kind === 'create')) {
      parts.push(el('h3', '', 'Under way'));
      for (const h of held) {
        parts.push(el('div', 'box' + (h.late ? ' warn' : ''), el('b', '', (h.container || 'sandbox') + ': '), h.text));
      }
      for (const b of waits) if (!state.live || b.kind === 'create') parts.push(el('div', 'box warn', el('b', '', (b.c || 'sandbox') + ': '), (b.kind === 'release' ? 'the release does not succeed: ' : '') + b.note));
    }
    if (use || row.containers.length) {
      parts.push(el('h3', '', 'Containers'));
      const now = new Map((use && use.containers || []).map((c) => [c.name, c]));
      for (const c of row.containers) {
        const n = now.get(c) || {}, id = n.id || row.ids[c], uses = n.state === 'running' ? [cores(n.cpu_nanocores) + ' CPU', size(n.memory_bytes) + (n.memory_limit_bytes ? ' of ' + size(n.memory_limit_bytes) : ''), size(n.disk_bytes) + ' on disk'] : [];
        parts.push(el('div', 'ct', el('div', '', el('b', '', c), ' ', el('span', n.code ? 'err' : '', n.state === 'exited' ? ended(n) : n.state || (state.live ? 'gone' : '')), n.restarts ? ', ' + times(n.restarts, 'restart') : '', ' ', n.id && state.poll ? logLink(n.id) : null),
          n.image ? el('div', 'sub', n.image) : null, uses.length ? el('div', 'sub', uses.join(' \u00b7 ')) : null, copied(id), n.id && !state.poll ? copied('berth logs -f ' + row.name + ' ' + c) : null));
      }
      parts.push(el('div', 'ct', el('div', 'sub', 'Pod sandbox'), copied((use && use.id) || row.ids['']), row.uid ? el('div', 'sub', 'UID') : null, copied(row.uid)));
    }
    for (const c of row.crashes) {
      const first = Date.parse(c.first), at = Date.parse(c.at);
      parts.push(el('h3', '', 'Last crash of ' + c.container));
      parts.push(el('div', '', el('b', '', c.reason + ', code ' + c.code), ' at ' + clock(at) +
        (c.count > 1 ? ', the ' + ordinal(c.count) + ' in a row since ' + day(first) + ' ' + clock(first) : ', the first in a row') + '.' +
        (c.memory ? ' It used ' + size(c.memory) + ' at most.' : '')));
      if (c.log && c.log.length) parts.push(el('pre', '', c.log.join('\n')));
    }
    parts.push(el('h3', '', 'What happened, newest first'));
    const lines = row.lines.slice().reverse();
    let from = 0, nearest = -1;
    if (state.at !== null) {
      let best = Infinity;
      lines.forEach((l, i) => { const q = Math.abs(l.at - state.at.t) + (state.at.c && l.c !== state.at.c ? 1e6 : 0); if (q < best) { best = q; nearest = i; } });
      from = Math.max(0, nearest - 20);
    }
    const list = el('ol', 'lines');
    let before = '';
    for (let i = from; i < lines.length && i < from + linesShown; i++) {
      const l = lines[i];
      if (day(l.at) !== before) { before = day(l.at); list.append(el('li', '', el('span', 'day', before))); }
      const when = el('time', '', clock(l.at));
      when.title = clock(l.at, true) + (l.by ? ', by ' + l.by : '');
      const body = el('div', '', l.c ? el('span', 'of', l.c) : null, l.what, l.detail ? el('div', 'more', l.detail) : null, l.err ? el('div', 'err', l.err) : null);
      list.append(el('li', i === nearest ? 'near' : '', when, body));
    }
    parts.push(list);
    if (from > 0 || lines.length > from + linesShown) {
      const more = el('button', '', 'Show ' + (lines.length - Math.min(lines.length - from, linesShown)) + ' more');
      more.type = 'button';
      more.addEventListener('click', () => { linesShown = 1e6; state.at = null; paintDetail(); });
      parts.push(more);
    }
    if (!lines.length) parts.push(el('p', 'sub', 'Nothing in this time; it goes on since before.'));
    if (row.folded.entries) parts.push(el('p', 'sub', row.folded.entries + ' entries of this pod are left out here.'));
    fill(d, ...parts);
    const near = d.querySelector('.near');
    if (near && state.at && state.at.fresh) { state.at.fresh = false; near.scrollIntoView({ block: 'center' }); } else d.scrollTop = keep;
  }
  // copied is an ID with a button that copies it.
  function copied(id) {
    if (!id) return null;
    const code = el('code', '', id), b = el('button', '', 'Copy');
    b.type = 'button';
    b.setAttribute('aria-label', 'Copy ' + id);
    b.addEventListener('click', () => {
      getSelection().selectAllChildren(code);
      b.textContent = document.execCommand('copy') ? 'Copied' : 'Selected';
    });
    return el('div', 'id', code, b);
  }
  // logLink leads to the live log.
  function logLink(id) {
    const a = el('a', '', 'live log');
    a.href = 'log?token=' + encodeURIComponent(token()) + '&id=' + encodeURIComponent(id);
    a.target = '_blank';
    a.rel = 'noreferrer noopener';
    return a;
  }
  const token = () => new URLSearchParams(location.search).get('token') || '';
  const ordinal = (n) => n + (n % 100 >= 11 && n % 100 <= 13 ? 'th' : ['th', 'st', 'nd', 'rd'][n % 10] || 'th');

  function pick(name, open, at) {
    const g = state.groups.get(name);
    if (g && open) {
      if (!state.opened.delete(name)) state.opened.add(name);
      choose();
    }
    open = open && !g;
    state.chosen = name;
    state.at = at || null;
    linesShown = SHOWN;
    if (open) state.open = true;
    labelled = '';
    paintDetail();
    if (open && state.poll && state.why.row !== name) ask();
    const i = state.shown.findIndex((r) => r.name === name);
    if (i >= 0) {
      const s = $('scroll'), top = state.tops[i], h = state.shown[i].h;
      if (top < s.scrollTop) s.scrollTop = top;
      else if (top + h > s.scrollTop + s.clientHeight) s.scrollTop = top + h - s.clientHeight;
    }
    draw();
  }
  function shut() {
    state.open = false;
    paintDetail();
    $('scroll').focus();
    draw();
  }

  // ---- The pointer.
  function hit(x, y) {
    const i = rowAt(y + $('scroll').scrollTop);
    if (i < 0) return null;
    const row = state.shown[i], top = state.tops[i] - $('scroll').scrollTop;
    let best = null, d = 9;
    for (const k in MARKS) {
      for (const m of row.marks) {
        if (m.kind !== k) continue;
        const q = Math.hypot(X(m.at) - x, middle(row, m.c, top) - y);
        if (q < d) { d = q; best = m; }
      }
    }
    if (best) return { row, mark: best };
    for (const order of ['pull', 'create', 'run', 'release', 'folded', 'sandbox']) {
      for (const b of row.bars) {
        if (b.kind !== order) continue;
        const [x0, x1, t, h] = place(row, b, top);
        if (x >= x0 - 2 && x <= Math.max(x1, x0 + 1.5) + 2 && y >= t - 1 && y <= t + h + 1) return { row, bar: b };
      }
    }
    return { row };
  }

  function tip(x, y, found) {
    const t = $('tip');
    let parts = null;
    if (found && found.mark) {
      const m = found.mark;
      parts = [el('b', '', MARKS[m.kind].name), found.row.group ? el('div', '', m.of) : null, el('div', '', (m.c ? m.c + ' (attempt ' + m.n + ') ' : '') + m.text), el('div', 'when', day(m.at) + ' ' + clock(m.at, true))];
    } else if (found && found.bar && found.bar.kind !== 'sandbox') {
      const b = found.bar, to = b.len === null ? state.to : (b.from === null ? state.from : b.from) + b.len;
      parts = [el('b', '', (b.c ? b.c + ' ' : '') + (b.kind === 'folded' ? '' : '(attempt ' + b.n + ') ') + BARS[b.kind].toLowerCase() + (b.held ? ', and does not get on' : '')), b.note ? el('div', '', (b.kind === 'folded' ? b.count + ' attempts: ' : '') + b.note) : null,
        el('div', 'when', (b.from === null ? 'since before' : clock(b.from, true)) + ', for ' + (b.from === null ? 'at least ' : '') + span(to - (b.from === null ? state.from : b.from)) + (b.len === null ? ' so far' : ''))];
    } else if (found && found.text) {
      parts = [el('b', '', found.title), el('div', '', found.text), el('div', 'when', found.when)];
    }
    t.hidden = !parts;
    if (!parts) return;
    fill(t, ...parts);
    const r = t.getBoundingClientRect();
    t.style.left = Math.max(4, Math.min(innerWidth - r.width - 6, x + 14)) + 'px';
    t.style.top = (y + 18 + r.height > innerHeight ? y - r.height - 10 : y + 18) + 'px';
  }

  function pointers() {
    const chart = $('chart'), axis = $('axis');
    let drag = null;
    const local = (e) => { const r = chart.getBoundingClientRect(); return [e.clientX - r.left, e.clientY - r.top]; };
    chart.addEventListener('pointerdown', (e) => {
      if (e.button !== 0) return;
      drag = { x: e.clientX, from: state.view.from, to: state.view.to, moved: false };
      chart.setPointerCapture(e.pointerId);
    });
    chart.addEventListener('pointermove', (e) => {
      const [x, y] = local(e);
      if (drag) {
        const dx = e.clientX - drag.x;
        if (Math.abs(dx) > 3) { drag.moved = true; chart.classList.add('drag'); tip(0, 0, null); }
        if (drag.moved) { const dt = dx / width * (drag.to - drag.from); show(drag.from - dt, drag.to - dt); }
        return;
      }
      const found = hit(x, y);
      chart.classList.toggle('hit', Boolean(found && (found.mark || found.bar)));
      tip(e.clientX, e.clientY, found);
    });
    chart.addEventListener('pointerup', (e) => {
      const was = drag;
      drag = null;
      chart.classList.remove('drag');
      if (!was || was.moved) return;
      const [x, y] = local(e), found = hit(x, y);
      $('scroll').focus({ preventScroll: true });
      if (!found) return;
      if (found.row.group && found.mark) { reveal(found.mark.of, { t: found.mark.at, c: found.mark.c, fresh: true }); return; }
      const at = found.mark ? { t: found.mark.at, c: found.mark.c, fresh: true } : found.bar ? { t: T(x), c: found.bar.c, fresh: true } : null;
      pick(found.row.name, true, at);
    });
    chart.addEventListener('pointercancel', () => { drag = null; chart.classList.remove('drag'); });
    chart.addEventListener('pointerleave', () => tip(0, 0, null));
    const wheel = (e, always) => {
      const sideways = Math.abs(e.deltaX) > Math.abs(e.deltaY) || e.shiftKey;
      if (!(e.ctrlKey || e.metaKey || always || sideways)) return;
      e.preventDefault();
      tip(0, 0, null);
      if (sideways && !e.ctrlKey) pan((e.deltaX || e.deltaY) / width);
      else zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY * 0.003))), local(e)[0]);
    };
    chart.addEventListener('wheel', (e) => wheel(e, false), { passive: false });
    axis.addEventListener('wheel', (e) => wheel(e, true), { passive: false });

    let strip = null;
    const move = (e) => {
      const r = axis.getBoundingClientRect(), all = full(), w = state.view.to - state.view.from;
      if (strip === 'overview') {
        const mid = all.from + (e.clientX - r.left) / width * (all.to - all.from);
        show(mid - w / 2, mid + w / 2);
      } else {
        const dt = (e.clientX - strip.x) / width * w;
        show(strip.from - dt, strip.from - dt + w);
      }
    };
    axis.addEventListener('pointerdown', (e) => {
      const r = axis.getBoundingClientRect();
      strip = e.clientY - r.top < 34 ? 'overview' : { x: e.clientX, from: state.view.from };
      axis.setPointerCapture(e.pointerId);
      if (strip === 'overview') move(e);
    });
    axis.addEventListener('pointermove', (e) => {
      if (strip) { move(e); return; }
      const x = local(e)[0];
      const n = state.node.find((k) => Math.abs(X(k.at) - x) < 7);
      tip(e.clientX, e.clientY, n && NODE[n.kind] ? { title: NODE[n.kind].name, text: n.text, when: day(n.at) + ' ' + clock(n.at, true) } : null);
    });
    axis.addEventListener('pointerup', () => { strip = null; });
    axis.addEventListener('pointercancel', () => { strip = null; });
    axis.addEventListener('pointerleave', () => tip(0, 0, null));
    $('labels').addEventListener('click', (e) => {
      const l = e.target.closest('.label');
      if (l) { $('scroll').focus({ preventScroll: true }); pick(l.dataset.row, true); }
    });
  }

  // ---- The keys.
  const KEYS = [
    [['\u2191', '\u2193'], 'the pod above or below'], [['Home', 'End'], 'the first or last pod'],
    [['Enter'], 'open the details of the pod, or a workload'], [['Esc'], 'close them, or empty the filter'],
    [['\u2190', '\u2192'], 'move in time'], [['+', '-', '0'], 'zoom in, out, and show all'],
    [['n', 'p'], 'the next or previous mark of the pod'],
    [['g'], 'one row for each workload, or for each pod'], [['d'], 'dense'], [['/'], 'filter'], [['t'], 'light or dark'], [['?'], 'this help'],
  ];
  function step(by) {
    if (!state.shown.length) return;
    const i = state.shown.findIndex((r) => r.name === state.chosen);
    const j = i < 0 ? (by > 0 ? 0 : state.shown.length - 1) : Math.max(0, Math.min(state.shown.length - 1, i + by));
    pick(state.shown[j].name, false);
  }
  function nextMark(by) {
    const row = rowOf(state.chosen);
    if (!row || !row.marks.length) return;
    const list = row.marks.slice().sort((x, y) => x.at - y.at), now = state.at ? state.at.t : by > 0 ? -Infinity : Infinity;
    const m = by > 0 ? list.find((k) => k.at > now) : list.reverse().find((k) => k.at < now);
    if (!m) return;
    const w = state.view.to - state.view.from;
    if (m.at < state.view.from || m.at > state.view.to) show(m.at - w / 2, m.at + w / 2);
    reveal(m.of, { t: m.at, c: m.c, fresh: true });
  }
  function keys() {
    document.addEventListener('keydown', (e) => {
      if (e.ctrlKey || e.metaKey || e.altKey) return;
      if ($('help').open) { if (e.key === 'Escape') $('help').close(); return; }
      const typing = e.target.closest && e.target.closest('input, select');
      if (e.key === 'Escape') {
        if (typing && $('filter').value) { $('filter').value = ''; choose(); }
        else if (typing) $('scroll').focus();
        else if (state.open) shut();
        return;
      }
      if (typing) {
        if (e.key === 'Enter' || (e.key === 'ArrowDown' && e.target === $('filter'))) { $('scroll').focus(); step(state.chosen ? 0 : 1); e.preventDefault(); }
        return;
      }
      const onButton = e.target.closest && e.target.closest('button');
      const inDetail = e.target.closest && e.target.closest('#detail');
      const run = {
        ArrowDown: () => step(1), ArrowUp: () => step(-1), Home: () => step(-1e9), End: () => step(1e9), PageDown: () => step(10), PageUp: () => step(-10),
        ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), '+': () => zoom(0.7), '=': () => zoom(0.7), '-': () => zoom(1 / 0.7),
        0: () => { const a = full(); show(a.from, a.to); },
        Enter: () => { if (state.chosen) { pick(state.chosen, true, state.at); if (state.rows.has(state.chosen)) $('detail').focus(); } },
        g: () => toggle('group'), d: () => toggle('dense'),
        n: () => nextMark(1), p: () => nextMark(-1), '/': () => $('filter').focus(), t: toggleTheme, '?': help,
      }[e.key];
      if (!run || (onButton && (e.key === 'Enter' || e.key === ' ')) || (inDetail && /^(Arrow(Up|Down)|Page|Home|End|Enter)/.test(e.key))) return;
      e.preventDefault();
      run();
    });
  }
  function help() { $('help').showModal(); }

  // ---- Light and dark.
  const dark = window.matchMedia('(prefers-color-scheme: dark)');
  let theme = null; // chosen by hand
  function paintTheme() {
    const on = theme === null ? dark.matches : theme === 'dark';
    document.documentElement.classList.toggle('dark', on);
    readColors();
    hatches.clear();
    paintLegend();
    paintDetail();
    draw();
  }
  function toggleTheme() {
    theme = document.documentElement.classList.contains('dark') ? 'light' : 'dark';
    paintTheme();
  }

  // toggle changes how rows are shown: grouped or not, dense or not.
  function toggle(what) {
    state[what] = !state[what];
    $(what).setAttribute('aria-pressed', String(state[what]));
    choose();
  }

  // ---- New data of a page that is live, one question at a time.
  let later = 0, asking = false;
  async function ask() {
    clearTimeout(later);
    if (asking) { later = setTimeout(ask, 50); return; }
    asking = true;
    let wait = state.poll;
    try {
      const why = state.open ? '&why=' + encodeURIComponent(state.chosen) : '';
      const r = await fetch('data.json?token=' + encodeURIComponent(token()) + '&after=' + state.last + why, { cache: 'no-store', credentials: 'omit' });
      if (!r.ok) throw new Error(String(r.status));
      const d = await r.json();
      const follow = state.follow, names = state.rows.size, before = state.to;
      state.problem = '';
      unpack(d);
      if (follow && state.view) {
        const moved = state.to - before, w = state.view.to - state.view.from, all = full();
        const whole = w >= (all.to - all.from - moved) * 0.98;
        state.view = whole ? all : { from: all.to - w, to: all.to };
      }
      if (state.rows.size !== names) paintNamespaces();
    } catch (err) {
      state.problem = 'berth ui does not answer any more; what is shown is as of ' + clock(state.live ? Date.parse(state.live.at) : state.to) + '.';
      wait = state.poll * 3;
    }
    paintTop();
    paintLegendQuietly();
    paintDetailQuietly();
    choose();
    asking = false;
    later = setTimeout(ask, wait);
  }
  // What has the focus is not taken away from under a person.
  const within = (e) => e.contains(document.activeElement) && document.activeElement !== e;
  function paintLegendQuietly() { if (!within($('legend'))) paintLegend(); }
  function paintDetailQuietly() { if (state.open && !within($('detail'))) paintDetail(); }

  function begin() {
    const began = performance.now();
    unpack(JSON.parse($('data').textContent));
    state.view = full();
    for (const [min, text] of [...RANGES.filter(([m]) => m * 60000 < (state.to - state.from) * 1.05), [0, 'All']]) {
      const b = el('button', '', text);
      b.type = 'button';
      b.dataset.min = String(min);
      b.addEventListener('click', () => { const a = full(); if (min) show(a.to - min * 60000, a.to); else show(a.from, a.to); });
      $('ranges').append(b);
    }
    fill($('keys'), ...KEYS.map(([k, what]) => el('tr', '', el('td', '', ...k.flatMap((x, i) => (i ? [' ', el('kbd', '', x)] : [el('kbd', '', x)]))), el('td', '', what))));
    fill($('bars'), ...['pull', 'create', 'run', 'release', 'held'].map((k) => el('span', '', glyph(k, true), BARS[k] || 'Waits, or is tried again')));
    for (const what of ['group', 'dense']) {
      $(what).setAttribute('aria-pressed', String(state[what]));
      $(what).addEventListener('click', () => toggle(what));
    }
    $('summary').open = innerWidth > 900;
    paintNamespaces();
    paintTop();
    paintTheme();
    ranges();
    choose();
    paint();
    $('filter').addEventListener('input', choose);
    $('namespace').addEventListener('change', choose);
    $('order').addEventListener('change', choose);
    $('in').addEventListener('click', () => zoom(0.6));
    $('out').addEventListener('click', () => zoom(1 / 0.6));
    $('theme').addEventListener('click', toggleTheme);
    $('helpButton').addEventListener('click', help);
    $('helpClose').addEventListener('click', () => $('help').close());
    $('scroll').addEventListener('scroll', () => { tip(0, 0, null); draw(); });
    dark.addEventListener('change', paintTheme);
    const narrow = window.matchMedia('(max-width: 900px)');
    narrow.addEventListener('change', choose);
    new ResizeObserver(() => { columns(); labelled = ''; draw(); }).observe($('scroll'));
    pointers();
    keys();
    let named = ''; // #NAMESPACE/POD opens a pod, for links
    try { named = decodeURIComponent(location.hash.slice(1)); } catch { /* it is no name */ }
    if (state.rows.has(named)) reveal(named);
    document.documentElement.dataset.ready = String(Math.round(performance.now() - began));
    if (state.poll && !state.open) later = setTimeout(ask, state.poll);
  }
  begin();
})();
