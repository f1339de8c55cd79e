// Reads the hub's API every two seconds, and shows it. All texts are set as texts: names come from strangers.
'use strict'

const EVERY = 2000
const SAMPLES = 60
const get = (id) => document.getElementById(id)
const whole = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 })
const short = new Intl.NumberFormat('en-US', { maximumFractionDigits: 1 })

let token = sessionStorage.getItem('oroshi-push-token')
let before = null
let rates = []
let timer = null
// The number of the last update. The answers of an older one may come later, and are discarded.
let updates = 0

async function ask(path) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {}
  const answer = await fetch(path, { headers, cache: 'no-store', signal: AbortSignal.timeout(10000) })
  if (answer.status === 401) throw new Unauthorized()
  if (!answer.ok) throw new Error(`${path} answers ${answer.status}`)
  return answer.json()
}

class Unauthorized extends Error {}

async function refresh() {
  clearTimeout(timer)
  const number = ++updates
  try {
    const query = new URLSearchParams({ prefix: get('prefix').value, limit: '20' })
    const [status, slow, groups] = await Promise.all([ask('/status'), ask('/slow'), ask(`/groups?${query}`)])
    if (number !== updates) return
    get('login').hidden = true
    get('main').hidden = false
    show(status, performance.now())
    rows('slow', slow.sessions, 5, (of) => [of.key, of.transport, whole.format(of.queued_messages), bytes(of.queued_bytes), time(of.age_seconds)])
    rows('groups', groups.groups, 3, (of) => [of.group, whole.format(of.sessions), whole.format(of.subscribers)])
    get('more').textContent = groups.next === undefined ? '' : 'There are more: type the beginning of a name.'
  } catch (error) {
    if (number !== updates) return
    before = null
    get('state').className = 'state bad'
    if (error instanceof Unauthorized) {
      get('state').textContent = token ? 'wrong token' : 'token needed'
      sessionStorage.removeItem('oroshi-push-token')
      token = null
      get('main').hidden = true
      get('login').hidden = false
      return
    }
    get('state').textContent = 'no answer'
  }
  if (!document.hidden) timer = setTimeout(refresh, EVERY)
}

function show(status, now) {
  const seconds = before ? (now - before.now) / 1000 : 0
  // A hub that restarted counts from 0 again.
  const same = before !== null && before.status.node === status.node && seconds > 0
  const rate = (of) => (same ? Math.max(0, of(status) - of(before.status)) / seconds : null)
  const per = (of) => { const value = rate(of); return value === null ? '–' : short.format(value) }

  get('state').textContent = status.state
  get('state').className = status.state === 'serving' ? 'state' : 'state bad'
  get('node').textContent = `node ${status.node}, version ${status.version}, ${status.threads} ${status.threads === 1 ? 'thread' : 'threads'}`
  get('sessions').textContent = whole.format(status.sessions.current)
  get('most').textContent = `of at most ${whole.format(status.sessions.most)}; ${whole.format(status.sessions.connecting)} connecting`
  get('published').textContent = per((of) => of.published.messages)
  const publishedBytes = rate((of) => of.published.bytes)
  get('publishedBytes').textContent = publishedBytes === null ? '' : `${bytes(publishedBytes)} per second`
  const written = rate((of) => of.deliveries.written)
  get('written').textContent = written === null ? '–' : short.format(written)
  get('lost').textContent = `${per((of) => of.deliveries.dropped)} dropped, ${per((of) => of.deliveries.closed)} closed`
  get('queued').textContent = bytes(status.queues.bytes)
  get('queuedMost').textContent = `of at most ${bytes(status.queues.most_bytes)}`
  if (written !== null) {
    rates = [...rates, written].slice(-SAMPLES)
    chart()
  }
  rows('transports', Object.entries(status.sessions.by_transport), 3, ([name, count]) => [name, whole.format(count), whole.format(status.sessions.opened[name])])
  const ended = Object.entries(status.sessions.ended)
  rows('ended', ended, 3, ([name, count]) => {
    const value = rate((of) => of.sessions.ended[name])
    return [name, whole.format(count), value === null ? '–' : short.format(value * 60)]
  })
  const callbacks = Object.entries(status.callbacks).filter(([, of]) => of.accepted + of.refused + of.failed > 0)
  rows('callbacks', callbacks, 4, ([name, of]) => [name, whole.format(of.accepted), whole.format(of.refused), whole.format(of.failed)])
  const cluster = status.cluster
  const nodes = cluster
    ? [['connected to NATS', cluster.connected ? 'yes' : 'no'], ['other nodes', whole.format(cluster.nodes)], ['absent nodes', whole.format(cluster.absent)], ['missed requests', whole.format(cluster.missed)]]
    : []
  rows('cluster', nodes, 2, (row) => row, 'This hub is alone.')
  before = { status, now }
}

function chart() {
  const most = Math.max(1, ...rates)
  const step = 600 / (SAMPLES - 1)
  const first = SAMPLES - rates.length
  get('line').setAttribute('points', rates.map((rate, at) => `${((first + at) * step).toFixed(1)},${(78 - (rate / most) * 76).toFixed(1)}`).join(' '))
  get('chartFrom').textContent = 'two minutes ago'
  get('chartMost').textContent = `most ${short.format(most)}; now`
}

function rows(id, all, columns, cells, empty = 'none') {
  const made = all.map((of) => {
    const row = document.createElement('tr')
    for (const text of cells(of)) row.appendChild(document.createElement('td')).textContent = text
    return row
  })
  if (made.length === 0) {
    const cell = document.createElement('td')
    cell.colSpan = columns
    cell.className = 'empty'
    cell.textContent = empty
    const row = document.createElement('tr')
    row.append(cell)
    made.push(row)
  }
  get(id).replaceChildren(...made)
}

function bytes(count) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  let at = 0
  while (count >= 1024 && at < units.length - 1) {
    count /= 1024
    at += 1
  }
  return `${short.format(count)} ${units[at]}`
}

function time(seconds) {
  if (seconds < 60) return `${whole.format(seconds)} s`
  if (seconds < 3600) return `${whole.format(seconds / 60)} min`
  return seconds < 86400 ? `${short.format(seconds / 3600)} h` : `${short.format(seconds / 86400)} days`
}

get('login').addEventListener('submit', (event) => {
  event.preventDefault()
  token = get('token').value.trim()
  get('token').value = ''
  sessionStorage.setItem('oroshi-push-token', token)
  refresh()
})
get('prefix').addEventListener('input', refresh)
document.addEventListener('visibilitychange', () => { if (!document.hidden) refresh() })
refresh()
