/**
 * A client of `oroshi push` for browsers, Node 18 and later, Deno and Bun: channels over WebSocket, server-sent events
 * or polling. It reconnects by itself, recovers what was missed, and says so where that is not possible.
 */

/** A place in a channel with a history. */
export interface Position {
  epoch: string
  offset: number
}

/** A client as others see it. */
export interface Member {
  client: string
  user?: string
}

/** Who subscribes to a channel. */
export interface Present {
  /** How many clients. */
  clients: number
  /** The clients; absent if too many are there, or come and go: then the number alone is told. */
  list?: Member[]
}

/** A message of a channel, or to this session, its user or everybody. */
export interface Publication extends Partial<Position> {
  /** Absent unless it was published to a channel. */
  channel?: string
  /** The client that published it; absent if the backend did. */
  from?: Member
  /** The message as text; JSON too. */
  text?: string
  /** The message as base64, if it is bytes. */
  base64?: string
  /** The offset of the channel's message before it, if offsets do not grow by one. */
  prev?: number
}

/** What happened to a subscription. */
export interface Subscribed extends Partial<Position> {
  channel: string
  /**
   * Only after a reconnection, or with `since`: true if all missed messages follow; false if some may be lost, so that
   * the state must be read anew.
   */
  recovered?: boolean
  /** The channel keeps its newest value only. */
  latest?: boolean
  /** The hub sends what differs from the message before. */
  delta?: boolean
  /** Only if the subscription asks for it: who subscribes, this client included. */
  presence?: Present
}

/** The callbacks and options of a subscription. */
export interface SubscribeOptions {
  /** Called with each message, in order. */
  message?: (publication: Publication) => void
  /** Called when the hub has subscribed the client, at first and after each reconnection. */
  subscribed?: (subscribed: Subscribed) => void
  /** Called when the subscription has ended for good: `forbidden`, or another error of the hub. */
  ended?: (error: string) => void
  /** Recover from here. */
  since?: Position
  /** The channel keeps its newest value only: holes between positions mean nothing. Hubs say so themselves. */
  latest?: boolean
  /** Let the hub send what differs from the message before, if the channel has that. `message` gets whole texts. */
  delta?: boolean
  /** Be told who comes and goes. The rule of the channel must have `presence-events`. */
  presence?: boolean
  /** Called with who is there, in place of all that was told before: at first, after each reconnection, and later. */
  clients?: (present: Present) => void
  /** Called with another client that has come. */
  joined?: (member: Member) => void
  /** Called with another client that has gone. */
  left?: (member: Member) => void
}

export type Transport = 'websocket' | 'sse' | 'poll'

export type State = 'connecting' | 'connected' | 'waiting' | 'closed'

/** The options of a client. */
export interface Options {
  /** A token (JWT), or a function that gets one. It is called again before a token ends, and after a refusal. */
  token?: string | (() => string | Promise<string>)
  /** The transports to try, in this order. All three unless given. */
  transports?: Transport[]
  /** Send cookies to a hub of another origin. */
  credentials?: boolean
  /** The longest time to wait for a connection or an answer, milliseconds: 10,000 unless given. */
  timeout?: number
  /** The longest pause between two attempts, milliseconds: 30,000 unless given. */
  longestPause?: number
  /** Called with messages that come without a channel. */
  message?: (publication: Publication) => void
  /** Called when messages are missing, of channels that the hub does not name; null: an unknown number. */
  gap?: (lost: number | null) => void
  /** Called when the state changes. `why` says why the client is not connected. */
  state?: (state: State, why?: string) => void
}

/** An error of the hub: `forbidden`, `too-fast`, ...; or `disconnected`, `timeout`. */
export class PushError extends Error {
  constructor(
    readonly error: string,
    message: string,
  ) {
    super(message)
  }
}

type Frame = Record<string, any>
type Channel = SubscribeOptions & { place?: Position; sent?: boolean; asked?: boolean; named?: boolean; base?: number; text?: string }
type Delta = { base?: number; delta?: (number | string)[] }

/** A connection of some transport. */
interface Link {
  send(frame: Frame): void
  close(): void
}

/** Why a connection ended. */
interface End {
  why: string
  /** The hub's hint when to come back, milliseconds. */
  retry?: number
  /** The token is refused or has ended. */
  token?: boolean
  /** The connection never opened. */
  failed?: boolean
}

interface Events {
  open(): void
  frame(frame: Frame): void
  alive(): void
  end(end: End): void
}

/** The `id` of the command with the token, which is a WebSocket's first frame. */
const TOKEN_ID = 1

const ALL: Transport[] = ['websocket', 'sse', 'poll']

/** A client of a hub. It connects when it is made, and stays connected until `close`. */
export class Push {
  /** What the client is doing. */
  state: State = 'connecting'
  /** The transport in use. */
  transport?: Transport
  /** The name by which other clients know this one, while it is connected. */
  client?: string
  /** The user of the token, if it has one. */
  user?: string

  #url: string
  #options: Options
  #channels = new Map<string, Channel>()
  #waiting = new Map<number, [(answer: any) => void, (error: PushError) => void, ReturnType<typeof setTimeout>, string?]>()
  #link?: Link
  #at = 0
  #id = TOKEN_ID
  #attempts = 0
  #refusals = 0
  #heard = 0
  #session = 0
  #timer?: ReturnType<typeof setTimeout>
  #refresh?: ReturnType<typeof setTimeout>
  #online = () => {
    if (this.state === 'waiting') this.#connect()
  }

  /** @param url The hub's `/connect`, with http(s) or ws(s). */
  constructor(url: string, options: Options = {}) {
    this.#url = url.replace(/^ws/, 'http')
    this.#options = options
    ;(globalThis as any).addEventListener?.('online', this.#online)
    // Not at once: callbacks may name the client that is being made.
    queueMicrotask(() => this.state !== 'closed' && this.#connect())
  }

  /** Subscribes to a channel, or to all with a prefix (`news:*`). It stays subscribed through reconnections. */
  subscribe(channel: string, options: SubscribeOptions | ((publication: Publication) => void)): void {
    const given = typeof options === 'function' ? { message: options } : options
    if (this.#channels.has(channel)) throw new PushError('already-subscribed', channel)
    const entry: Channel = { ...given }
    if (given.since) entry.place = given.since
    this.#channels.set(channel, entry)
    this.#enter(channel)
  }

  /** Ends a subscription. */
  unsubscribe(channel: string): void {
    const entry = this.#channels.get(channel)
    this.#channels.delete(channel)
    if (entry?.sent) this.#link?.send({ unsubscribe: { channel } })
  }

  /** Publishes a text, bytes, or anything else as JSON. It rejects if the message is not in the hub's queues. */
  async publish(channel: string, data: unknown): Promise<void> {
    const publish: Frame = { channel }
    if (typeof data === 'string') publish.text = data
    else if (data instanceof Uint8Array) publish.base64 = btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(''))
    else publish.json = data
    await this.#ask({ publish })
  }

  /** Returns who subscribes to a channel: how many, and at most 1,000 of them. */
  presence(channel: string): Promise<{ clients: number; list: Member[] }> {
    return this.#ask({ presence: { channel } })
  }

  /** Returns the newest messages of a channel, oldest first. */
  history(channel: string, limit?: number): Promise<Partial<Position> & { messages: Publication[] }> {
    return this.#ask({ history: { channel, limit } })
  }

  /** Disconnects for good. */
  close(): void {
    ;(globalThis as any).removeEventListener?.('online', this.#online)
    this.#drop('closed')
    this.#set('closed')
  }

  #set(state: State, why?: string): void {
    this.state = state
    this.#options.state?.(state, why)
  }

  /** Forgets the connection. Answers that have not come never will. */
  #drop(why: string): void {
    this.#session++
    clearTimeout(this.#timer)
    clearTimeout(this.#refresh)
    const link = this.#link
    this.#link = undefined
    link?.close()
    for (const [, reject, timer] of this.#waiting.values()) {
      clearTimeout(timer)
      reject(new PushError('disconnected', why))
    }
    this.#waiting.clear()
    for (const entry of this.#channels.values()) entry.sent = entry.asked = false
  }

  async #connect(): Promise<void> {
    const session = ++this.#session
    clearTimeout(this.#timer)
    this.#set('connecting')
    let { token } = this.#options
    try {
      if (typeof token === 'function') token = await token()
    } catch (error) {
      if (session === this.#session) this.#ended({ why: `no token: ${error}` })
      return
    }
    if (session !== this.#session) return
    const transports = this.#options.transports ?? ALL
    const transport = transports[this.#at % transports.length]
    let opened = false
    let first: Frame | undefined
    const mine = (act: (argument: any) => void) => (argument?: any) => {
      if (session === this.#session) act(argument)
    }
    const events: Events = {
      open: mine(() => (opened = true)),
      alive: mine(() => (this.#heard = Date.now())),
      frame: mine((frame: Frame) => {
        this.#heard = Date.now()
        if (frame.session && frame.client) {
          first = frame
          // Where tokens are optional, the hub greets first and looks at the token then.
          if (!token || transport !== 'websocket' || frame.expires_in !== undefined) this.#opened(frame, transport)
        } else if (first && frame.id === TOKEN_ID) {
          if (frame.error) events.end({ why: frame.message, token: true })
          else if (this.state !== 'connected') this.#opened({ ...first, ...frame.token }, transport)
        } else {
          this.#frame(frame)
        }
      }),
      end: mine((end: End) => this.#ended({ ...end, failed: !opened && !end.token && end.retry === undefined })),
    }
    this.#timer = setTimeout(() => events.end({ why: 'timeout' }), this.#options.timeout ?? 10000)
    const open = transport === 'websocket' ? overWebSocket : transport === 'sse' ? overEvents : overPolls
    try {
      this.#link = open(this.#url, token, events, this.#options)
    } catch (error) {
      events.end({ why: String(error) })
    }
  }

  #opened(frame: Frame, transport: Transport): void {
    clearTimeout(this.#timer)
    this.#attempts = this.#refusals = 0
    this.transport = transport
    this.client = frame.client
    this.user = frame.user
    this.#expires(frame.expires_in)
    this.#set('connected')
    for (const channel of this.#channels.keys()) this.#enter(channel)
    this.#watch()
  }

  /** Notices a connection that is dead: the hub says something at least every half minute, or answers a ping. */
  #watch(): void {
    const wait = 25000 + Math.random() * 5000
    this.#timer = setTimeout(() => {
      if (Date.now() - this.#heard > 24000 && this.transport === 'websocket') {
        this.#ask({ ping: {} }).catch((error) => error.error === 'timeout' && this.#ended({ why: 'no answer to a ping' }))
      } else if (Date.now() - this.#heard > 120000) {
        return this.#ended({ why: 'silence' })
      }
      this.#watch()
    }, wait)
  }

  #ended(end: End): void {
    this.#drop(end.why)
    this.client = undefined
    const { transports = ALL, longestPause = 30000, token } = this.#options
    // A refused token is replaced at once, but not again and again.
    if (end.token && typeof token === 'function' && this.#refusals++ < 1) {
      this.#connect()
      return
    }
    // Another transport is tried at once, until all have failed.
    if (end.failed) {
      this.#at++
      if (this.#at % transports.length !== 0) {
        this.#connect()
        return
      }
    }
    const most = Math.min(longestPause, 500 * 2 ** Math.min(this.#attempts++, 16))
    const pause = end.retry ?? most / 2 + (Math.random() * most) / 2
    this.#timer = setTimeout(() => this.#connect(), pause)
    this.#set('waiting', end.why)
  }

  /** Gets another token before this one ends. */
  #expires(seconds?: number): void {
    const { token } = this.#options
    if (seconds === undefined || typeof token !== 'function') return
    const session = this.#session
    // The hub counts whole seconds.
    const soon = Math.min(Math.max(seconds - 1, 0.5) * (700 + Math.random() * 200), 2 ** 31 - 1)
    this.#refresh = setTimeout(async () => {
      try {
        const answer = await this.#ask({ token: await token() })
        this.#expires(answer.expires_in)
      } catch {
        // The hub ends the session in time, and the next one begins with another token.
        if (session === this.#session) this.#expires(Math.max(seconds / 8, 1))
      }
    }, soon)
  }

  #enter(channel: string): void {
    const entry = this.#channels.get(channel)
    if (!entry || entry.sent || this.state !== 'connected') return
    entry.sent = entry.asked = true
    const { place: since, delta, presence } = entry
    entry.text = undefined
    this.#ask({ subscribe: { channel, since, delta, presence } }, channel).catch((error: PushError) => {
      if (this.#channels.get(channel) !== entry || error.error === 'disconnected') return
      entry.sent = entry.asked = false
      // Its `unsubscribe` was refused.
      const again = error.error === 'already-subscribed'
      if (again) this.#link?.send({ unsubscribe: { channel } })
      if (again || /^(busy|too-fast|timeout|too-many-channels)$/.test(error.error)) {
        setTimeout(() => this.#enter(channel), 1000 + Math.random() * 1000)
      } else {
        this.#channels.delete(channel)
        entry.ended?.(error.error)
      }
    })
  }

  #ask(command: Frame, channel?: string): Promise<any> {
    return new Promise((resolve, reject) => {
      if (this.state !== 'connected' || !this.#link) return reject(new PushError('disconnected', this.state))
      const id = ++this.#id
      const timer = setTimeout(() => {
        this.#waiting.delete(id)
        reject(new PushError('timeout', 'the hub does not answer'))
      }, this.#options.timeout ?? 10000)
      this.#waiting.set(id, [resolve, reject, timer, channel])
      this.#link.send({ id, ...command })
    })
  }

  #frame(frame: Frame): void {
    // Before the answer's promise, so that the position is known when the next frame comes.
    if (frame.subscribed) this.#subscribed(frame.subscribed)
    if (frame.id) {
      const waiting = this.#waiting.get(frame.id)
      if (!waiting) return
      this.#waiting.delete(frame.id)
      clearTimeout(waiting[2])
      if (frame.error) waiting[1](new PushError(frame.error, frame.message))
      else waiting[0](Object.values(frame).find((value) => typeof value === 'object'))
    } else if (frame.unsubscribed) {
      const entry = this.#channels.get(frame.channel)
      this.#channels.delete(frame.channel)
      entry?.ended?.(frame.unsubscribed)
    } else if ('gap' in frame) {
      this.#options.gap?.(frame.gap)
    } else if (frame.joined || frame.left || 'clients' in frame) {
      const entry = this.#channels.get(frame.channel)
      if (frame.joined) entry?.joined?.(frame.joined)
      else if (frame.left) entry?.left?.(frame.left)
      else entry?.clients?.(frame as Present)
    } else if (frame.channel) {
      this.#publication(frame as Publication & Delta & { channel: string })
    } else if ('text' in frame || 'base64' in frame) {
      this.#options.message?.(frame)
    }
  }

  #subscribed(answer: Subscribed): void {
    const entry = this.#channels.get(answer.channel)
    if (!entry) return
    entry.sent = true
    entry.asked = false
    entry.latest ||= answer.latest
    // If it has recovered, the messages that follow begin behind the old position.
    entry.named = !!answer.epoch && !(answer.recovered && entry.place)
    if (entry.named) entry.place = { epoch: answer.epoch!, offset: answer.offset! }
    entry.subscribed?.(answer)
    if (answer.presence) entry.clients?.(answer.presence)
  }

  #publication({ base, delta, ...publication }: Publication & Delta & { channel: string }): void {
    const { channel, epoch, offset, prev } = publication
    const isPattern = (name: string) => name.endsWith('*') && channel.startsWith(name.slice(0, -1))
    const entry = this.#channels.get(channel)
    if (entry && epoch && offset) {
      const { place, named } = entry
      entry.named = false
      const passed = place?.epoch === epoch && offset <= place.offset
      // The answer that names a position is followed by the newest value, which stands there or before.
      if (passed && !(named && entry.latest)) return
      const lost = place && !entry.latest && (place.epoch !== epoch || (prev ?? offset - 1) > place.offset)
      if (lost || (delta && (entry.text === undefined || entry.base !== base))) {
        // Something was lost on the way: begin again where it is known.
        if (!entry.sent || entry.asked) return
        this.#link?.send({ unsubscribe: { channel } })
        entry.sent = false
        this.#enter(channel)
        return
      }
      if (!passed) entry.place = { epoch, offset }
      if (delta) publication.text = applied(entry.text!, delta)
      if (entry.delta) {
        entry.base = offset
        entry.text = publication.text
      }
    }
    if (!('text' in publication) && !('base64' in publication)) return
    if (entry) entry.message?.(publication)
    else for (const [name, pattern] of this.#channels) if (isPattern(name)) pattern.message?.(publication)
  }
}

/** Builds a text: numbers copy from the old one or pass over it, strings are inserted. */
function applied(old: string, steps: (number | string)[]): string {
  let at = 0
  return steps
    .map((step) => {
      if (typeof step === 'string') return step
      const from = at
      at += Math.abs(step)
      return step > 0 ? old.slice(from, at) : ''
    })
    .join('')
}

function address(url: string, query: Record<string, string>): string {
  return url + (url.includes('?') ? '&' : '?') + new URLSearchParams(query)
}

/** Returns the path of `name` beside that of `/connect`. */
function beside(url: string, name: string): string {
  return url.replace(/\/[^/?]*(\?.*)?$/, '/' + name)
}

function overWebSocket(url: string, token: string | undefined, events: Events): Link {
  const socket = new WebSocket(url.replace(/^http/, 'ws'), ['oroshi.v1'])
  socket.onopen = () => {
    events.open()
    if (token) socket.send(JSON.stringify({ id: TOKEN_ID, token }))
  }
  socket.onmessage = (event) => events.frame(JSON.parse(event.data))
  socket.onclose = ({ code, reason }) => {
    const hint = /in (\d+) ms/.exec(reason)
    events.end({ why: `${code} ${reason}`, token: code === 4002, ...(hint && { retry: +hint[1] }) })
  }
  return {
    send: (frame) => socket.send(JSON.stringify(frame)),
    close: () => socket.close(),
  }
}

/**
 * Asks again after the time that the hub names, if it carried nothing out: it has too much to do, or does not reach the
 * node that has the session.
 */
async function patiently(ask: () => Promise<Response>): Promise<Response> {
  for (let left = 10; ; left--) {
    const answer = await ask()
    const after = answer.headers.get('Retry-After')
    if (answer.status !== 503 || after === null || !left) return answer
    await new Promise((resolve) => setTimeout(resolve, +after * (1000 + Math.random() * 500)))
  }
}

/** A link whose commands are requests. Commands of one moment go together, and one request is under way at a time. */
function commands(url: string, request: RequestInit, events: Events, abort: AbortController) {
  let target: string | undefined
  let queue: Frame[] = []
  let busy = false
  const flush = async () => {
    if (busy || !target || !queue.length) return
    busy = true
    const sent = queue.splice(0, 100)
    try {
      const post = { ...request, headers: {}, method: 'POST', body: JSON.stringify(sent) }
      const answer = await patiently(() => fetch(target!, post))
      if (!answer.ok) return events.end({ why: `${answer.status} to commands` })
      // An answer to `subscribe` comes as a frame, before the messages that were missed.
      for (const frame of await answer.json()) {
        if (frame && !frame.subscribed) events.frame(frame)
      }
    } catch (error) {
      return events.end({ why: String(error) })
    }
    busy = false
    flush()
  }
  return {
    opened(frame: Frame) {
      target = address(beside(url, 'command'), { session: frame.session, token: frame.token })
      flush()
    },
    link: {
      send(frame: Frame) {
        queue.push(frame)
        Promise.resolve().then(flush)
      },
      close: () => abort.abort(),
    },
  }
}

/** Prepares requests of one connection. */
function requests(token: string | undefined, options: Options): [RequestInit, AbortController] {
  const abort = new AbortController()
  const headers: Record<string, string> = token ? { Authorization: `Bearer ${token}` } : {}
  return [{ headers, signal: abort.signal, credentials: options.credentials ? 'include' : 'same-origin', cache: 'no-store' }, abort]
}

async function refused(answer: Response): Promise<End> {
  const after = answer.headers.get('Retry-After')
  const body = await answer.text()
  return { why: `${answer.status} ${body}`, token: answer.status === 401, ...(after && { retry: +after * 1000 }) }
}

function overEvents(url: string, token: string | undefined, events: Events, options: Options): Link {
  const [request, abort] = requests(token, options)
  const { opened, link } = commands(url, request, events, abort)
  const read = async (): Promise<End> => {
    const answer = await fetch(address(url, { transport: 'sse', protocol: 'oroshi.v1' }), request)
    if (!answer.ok) return refused(answer)
    events.open()
    const reader = answer.body!.pipeThrough(new TextDecoderStream() as any).getReader()
    let text = ''
    let retry: number | undefined
    for (;;) {
      const { value, done } = await reader.read()
      if (done) return { why: 'the stream ended', ...(retry !== undefined && { retry }) }
      events.alive()
      text += value
      const all = text.split('\n\n')
      text = all.pop()!
      for (const event of all) {
        const lines = event.split('\n')
        const hint = lines.find((line) => line.startsWith('retry: '))
        if (hint) retry = +hint.slice(7)
        const data = lines.filter((line) => line.startsWith('data: ')).map((line) => line.slice(6))
        if (!data.length) continue
        const frame = JSON.parse(data.join('\n'))
        if (frame.client && frame.session) opened(frame)
        events.frame(frame)
      }
    }
  }
  read().then(events.end, (error) => events.end({ why: String(error) }))
  return link
}

function overPolls(url: string, token: string | undefined, events: Events, options: Options): Link {
  const [request, abort] = requests(token, options)
  const { opened, link } = commands(url, request, events, abort)
  const read = async (): Promise<End> => {
    const answer = await fetch(address(url, { transport: 'poll', protocol: 'oroshi.v1' }), request)
    if (!answer.ok) return refused(answer)
    events.open()
    const first = await answer.json()
    opened(first)
    events.frame(first)
    let after: number = first.next
    for (;;) {
      const query = { session: first.session, token: first.token, after: String(after) }
      // The same `after`: what the hub has handed out already comes again.
      const batch = await patiently(() => fetch(address(beside(url, 'poll'), query), { ...request, headers: {} }))
      if (!batch.ok) return { why: `${batch.status} to a poll` }
      const { messages, next } = await batch.json()
      events.alive()
      after = next
      messages.forEach(events.frame)
    }
  }
  read().then(events.end, (error) => events.end({ why: String(error) }))
  return link
}
