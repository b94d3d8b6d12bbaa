'use strict';
// The page of `kubectl skerry ui`. It reads /api and changes nothing. Texts of the cluster and of
// devices become text nodes, never HTML; the Content-Security-Policy holds it to that.

const $ = id => document.getElementById(id);
const wait = ms => new Promise(done => setTimeout(done, ms));

// The token comes in the fragment, which browsers send to nobody, and leaves the address bar.
const token = (() => {
  const given = /^#token=([\w-]+)$/.exec(location.hash);
  if (given) {
    sessionStorage.setItem('token', given[1]);
    history.replaceState(null, '', location.pathname);
  }
  return sessionStorage.getItem('token') || '';
})();

let fleet = null; // until the first answer
let ahead = 0; // of the cluster's clock, in milliseconds
let opened = ''; // the device whose timeline is shown
let recorder = {name: '', records: [], note: ''};
let cluster = {name: '', entries: [], note: ''};

async function get(path) {
  const answer = await fetch(path, {headers: {Authorization: 'Bearer ' + token}, cache: 'no-store'});
  if (answer.status === 401) throw new Error('This page has no token: open the address that kubectl skerry ui printed.');
  const body = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw new Error(body.error);
  return body;
}

// ---- words ----

function age(time) {
  if (!time) return '-';
  return span(Date.now() + ahead - Date.parse(time));
}

function span(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 120) return s + 's';
  if (s < 7200) return Math.floor(s / 60) + 'm';
  if (s < 48 * 3600) return Math.floor(s / 3600) + 'h';
  return Math.floor(s / 86400) + 'd';
}

const problems = n => n.problems || [];
const site = n => n.pool || '(none)';
const left = n => n.certificateEnd ? span(Date.parse(n.certificateEnd) - Date.now() - ahead) : '-';
const operations = n => (n.operations || []).map(o => o.type + ' ' + o.state).join(', ') || '-';

function backlog(n) {
  if (n.link !== 'Up') return '?';
  return n.backlog ? n.backlog + ' (' + age(n.oldest) + ')' : '0';
}

// ---- tables ----

// A cell is a text, or {text, href, state, bad, wide}.
function fill(td, cell) {
  const c = typeof cell === 'object' ? cell : {text: cell};
  const text = String(c.text ?? '');
  let at = td;
  if (c.href) {
    at = td.firstElementChild || td.appendChild(document.createElement('a'));
    if (at.getAttribute('href') !== c.href) at.href = c.href;
  }
  if (at.textContent !== text) {
    at.textContent = text;
    td.title = text.length > 8 ? text : '';
  }
  set(td, 'state', c.state);
  set(td, 'bad', c.bad ? '' : undefined);
  if (c.wide) td.className = 'text';
}

function set(element, name, value) {
  if (value === undefined) delete element.dataset[name];
  else if (element.dataset[name] !== value) element.dataset[name] = value;
}

// Shows rows of [key, cells]. A row that is there is kept, so that focus, scroll position and
// whatever has not changed stay as they are.
function show(table, rows, none) {
  const body = $(table).tBodies[0];
  const columns = $(table).tHead.rows[0].cells.length;
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  const have = new Map([...body.rows].map(tr => [tr.dataset.key, tr]));
  const wanted = new Set(rows.map(([key]) => key));
  for (const [key, tr] of have) if (!wanted.has(key)) tr.remove();
  let next = body.firstElementChild;
  for (const [key, cells] of rows) {
    let tr = have.get(key);
    if (!tr) {
      tr = document.createElement('tr');
      tr.dataset.key = key;
      for (let i = 0; i < columns; i++) tr.appendChild(document.createElement('td'));
    }
    cells.forEach((cell, i) => fill(tr.cells[i], cell));
    if (next && tr === next.nextElementSibling) next.remove(); // it comes later: one move, not all others
    if (next && !next.isConnected) next = tr;
    if (tr === next) next = next.nextElementSibling;
    else body.insertBefore(tr, next);
  }
  if (!rows.length) {
    const td = body.appendChild(document.createElement('tr')).appendChild(document.createElement('td'));
    td.colSpan = columns;
    td.className = 'empty';
    td.textContent = none;
  }
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({preventScroll: true});
}

function deviceRow(n) {
  const first = problems(n)[0];
  const more = problems(n).length - 1;
  return [n.name, [
    {text: n.name, href: '#/device/' + encodeURIComponent(n.name)}, site(n), {text: n.link, state: n.link}, age(n.since), age(n.lastContact), backlog(n),
    n.version || '-', left(n), operations(n), n.running + '/' + n.pods, {text: first ? first.message + (more > 0 ? ' (+' + more + ')' : '') : '', bad: first},
  ]];
}

function siteRows() {
  const sites = new Map();
  for (const n of fleet.nodes) {
    const s = sites.get(site(n)) || {devices: 0, Up: 0, Down: 0, NoKubelet: 0, Never: 0, problems: 0};
    s.devices++;
    s[n.link]++;
    if (problems(n).length) s.problems++;
    sites.set(site(n), s);
  }
  const worst = [...sites].sort(([a, x], [b, y]) => y.Down - x.Down || y.problems - x.problems || a.localeCompare(b));
  return worst.map(([name, s]) => [name, [
    {text: name, href: '#/site/' + encodeURIComponent(name)}, s.devices, {text: s.Up, state: s.Up ? 'Up' : undefined}, {text: s.Down, state: s.Down ? 'Down' : undefined},
    s.NoKubelet, s.Never, {text: s.problems, bad: s.problems},
  ]]);
}

function matches(n, words) {
  const text = [n.name, site(n), n.link, n.version, ...problems(n).map(p => p.reason + ' ' + p.message)].join(' ').toLowerCase();
  return words.every(w => text.includes(w));
}

function render() {
  if (fleet) renderFleet();
  renderDevice();
}

function renderFleet() {
  const bad = fleet.nodes.filter(n => problems(n).length).length;
  const down = fleet.nodes.filter(n => n.link === 'Down').length;
  const text = fleet.summary + (bad ? '' : ': all is well');
  if ($('summary').textContent !== text) $('summary').textContent = text;
  document.title = (bad ? '(' + bad + ') ' : '') + 'Skerry' + (down ? ': ' + down + ' down' : '');
  const words = $('filter').value.toLowerCase().split(/\s+/).filter(w => w);
  show('devices', fleet.nodes.map(deviceRow), 'The cluster has no device.');
  const rows = $('devices').tBodies[0].rows;
  fleet.nodes.forEach((n, i) => { // a row that is hidden costs less than one that is made again
    const hidden = !matches(n, words) || $('problems').checked && !problems(n).length;
    if (rows[i].hidden !== hidden) rows[i].hidden = hidden;
  });
  show('sites', siteRows(), 'The cluster has no device.');
  show('vips', fleet.vips.map(v => [v.name, [v.address, v.pool, v.service, {text: v.holder || '-', bad: !v.holder}, v.ready, {text: v.problem, bad: true}]]), 'There is none.');
  show('routes', fleet.routes.map(r => [r.name, [r.name, r.subnet, r.gateway || '-', r.applied + '/' + r.desired, {text: r.failed, bad: r.failed}, {text: r.problem, bad: true}]]), 'There is none.');
  list('notes', fleet.notes);
}

function list(id, texts) {
  const ul = $(id);
  ul.hidden = !texts.length;
  if ([...ul.children].map(li => li.textContent).join('\n') === texts.join('\n')) return;
  ul.replaceChildren(...texts.map(t => Object.assign(document.createElement('li'), {textContent: t})));
}

// ---- one device ----

const device = name => fleet?.nodes.find(n => n.name === name);

function renderDevice() {
  $('device').hidden = !opened;
  if (!opened) return;
  $('device-title').textContent = opened;
  const n = device(opened);
  const facts = n ? [
    ['link', n.link + ' for ' + age(n.since) + (n.transport ? ' by ' + n.transport : '')], ['last contact', age(n.lastContact) + ' ago'], ['site', site(n)],
    ['backlog', backlog(n)], ['edgecore', n.version || '-'], ['kubelet', n.kubelet || '-'], ['certificate ends in', left(n)], ['cloudcore', n.cloudcore || '-'],
    ['node Ready', n.ready || '-'], ['pods', n.running + ' of ' + n.pods + ' run'],
  ] : [['device', fleet ? 'not in the cluster' : '…']];
  const dl = $('facts');
  while (dl.children.length > facts.length) dl.lastElementChild.remove();
  facts.forEach(([name, text], i) => {
    const div = dl.children[i] || dl.appendChild(document.createElement('div'));
    if (!div.firstElementChild) div.append(document.createElement('dt'), document.createElement('dd'));
    div.children[0].textContent = name;
    if (div.children[1].textContent !== text) div.children[1].textContent = text;
  });
  list('remedies', n ? [...problems(n).map(p => p.message + ' → ' + p.action), ...(n.notRunning || []).map(p => p.namespace + '/' + p.name + ': ' + p.reason + ' ' + (p.message || ''))] : []);
  const mine = x => x.name === opened;
  const entries = [...(mine(cluster) ? cluster.entries : []), ...(mine(recorder) ? recorder.records : [])];
  entries.sort((a, b) => Date.parse(b.time) - Date.parse(a.time));
  const keys = new Map();
  show('timeline', entries.map(e => {
    const key = [e.time, e.from, e.kind, e.object, e.reason].join('|');
    keys.set(key, (keys.get(key) || 0) + 1);
    return [key + keys.get(key), [new Date(e.time).toISOString().slice(0, 19) + 'Z', e.kind, e.object, e.reason, {text: e.message, wide: true}, e.from]];
  }), 'Nothing is known yet.');
  const notes = [mine(cluster) && cluster.note, mine(recorder) && recorder.note].filter(t => t).join(' · ');
  if ($('recorder').textContent !== notes) $('recorder').textContent = notes;
}

async function readCluster(name) {
  let now;
  try {
    const answer = await get('api/device/' + encodeURIComponent(name));
    now = {name, entries: answer.entries, note: (answer.notes || []).join(' · ')};
  } catch (e) {
    now = {name, entries: cluster.name === name ? cluster.entries : [], note: e.message};
  }
  if (opened !== name) return;
  cluster = now;
  renderDevice();
}

// The recorder is asked over the device's link, which may be thin: when the device is opened, and
// when somebody presses the button, never by itself.
async function readRecorder(name) {
  recorder = {name, records: recorder.name === name ? recorder.records : [], note: 'Asking the device for its recorder …'};
  renderDevice();
  let now;
  try {
    const answer = await get('api/recorder/' + encodeURIComponent(name));
    now = {name, records: answer.entries, note: 'The device answered at ' + new Date(Date.now() + ahead).toISOString().slice(11, 19) + 'Z.'};
  } catch (e) {
    now = {name, records: recorder.records, note: 'Its own recorder could not be asked: ' + e.message};
  }
  if (opened !== name) return;
  recorder = now;
  renderDevice();
}

function route() {
  const [, what, name] = /^#\/(device|site)\/([^/]+)$/.exec(location.hash) || [];
  const before = opened;
  opened = what === 'device' ? decodeURIComponent(name) : '';
  if (what === 'site') {
    $('filter').value = decodeURIComponent(name);
    history.replaceState(null, '', location.pathname);
  }
  render();
  if (opened && opened !== before) {
    $('device-title').focus();
    window.scrollTo(0, 0);
    readCluster(opened);
    readRecorder(opened);
  } else if (before && !opened) {
    const row = [...$('devices').tBodies[0].rows].find(tr => tr.dataset.key === before);
    row?.querySelector('a').focus();
  }
}

function close() {
  history.pushState(null, '', location.pathname);
  route();
}

// ---- keys ----

function onKey(e) {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  const typing = e.target === $('filter');
  if (e.key === '/' && !typing) {
    $('filter').focus();
    e.preventDefault();
  } else if (e.key === 'Escape') {
    if (opened) close();
    else if ($('filter').value || $('problems').checked) {
      $('search').reset();
      render();
    }
  } else if (e.key === 'ArrowDown' || e.key === 'ArrowUp') {
    const links = [...$('devices').querySelectorAll('tbody tr:not([hidden]) a')];
    const at = links.indexOf(document.activeElement);
    if (at < 0 && !typing && document.activeElement !== document.body) return;
    const to = e.key === 'ArrowDown' ? at + 1 : at - 1;
    if (to >= 0 && to < links.length) links[to].focus();
    else if (to < 0) $('filter').focus();
    e.preventDefault();
  }
}

// ---- the loop ----

async function follow() {
  let version = '';
  for (;;) {
    try {
      const answer = await get('api/fleet?after=' + version);
      if (answer) {
        version = answer.version;
        ahead = Date.parse(answer.at) - Date.now();
        if (Math.abs(ahead) < 2000) ahead = 0;
        const before = JSON.stringify(device(opened));
        fleet = answer.fleet;
        render();
        if (opened && before !== JSON.stringify(device(opened))) readCluster(opened);
      }
      $('alert').hidden = true;
    } catch (e) {
      $('alert').textContent = e instanceof TypeError ? 'kubectl skerry ui does not answer: is it still running? What is shown is ' + span(Date.now() - lastAnswer) + ' old.' : e.message;
      $('alert').hidden = false;
      await wait(2000);
      continue;
    }
    lastAnswer = Date.now();
    await wait(document.hidden ? 5000 : 250);
  }
}

let lastAnswer = Date.now();
$('filter').addEventListener('input', render);
$('problems').addEventListener('change', render);
$('search').addEventListener('submit', e => e.preventDefault());
$('close').addEventListener('click', close);
$('again').addEventListener('click', () => readRecorder(opened));
addEventListener('keydown', onKey);
addEventListener('hashchange', route);
addEventListener('popstate', route);
setInterval(render, 10000); // ages
route();
follow();
