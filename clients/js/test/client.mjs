// A client that a test drives: it prints what happens as lines of JSON, and reads commands as lines of JSON.

import { createHmac } from 'node:crypto'
import { createInterface } from 'node:readline'

const { module, url, transports, secret, lifetime, timeout, longestPause } = JSON.parse(process.argv[2])
const { Push } = await import(module)

const print = (line) => console.log(JSON.stringify(line))
const part = (value) => Buffer.from(JSON.stringify(value)).toString('base64url')

/** Returns a token with HS256. */
function token() {
  print({ token: true })
  const exp = Math.floor(Date.now() / 1000) + lifetime
  const signed = `${part({ alg: 'HS256' })}.${part({ sub: 'ann', exp })}`
  return `${signed}.${createHmac('sha256', secret).update(signed).digest('base64url')}`
}

const push = new Push(url, {
  transports,
  timeout,
  longestPause,
  ...(secret && { token }),
  message: ({ text }) => print({ direct: text }),
  gap: (gap) => print({ gap }),
  state: (state, why) => print({ state, why, transport: push?.transport, user: push?.user }),
})

const answer = (promise) => promise.then((answer) => print({ answer: answer ?? null }), ({ error }) => print({ error }))

for await (const line of createInterface({ input: process.stdin })) {
  const { subscribe, options, unsubscribe, publish, presence, history, close } = JSON.parse(line)
  if (subscribe) {
    push.subscribe(subscribe, {
      ...options,
      message: ({ channel, text, base64, offset }) => print({ channel, text, base64, offset }),
      subscribed: (subscribed) => print({ subscribed }),
      ended: (ended) => print({ ended }),
      clients: ({ clients, list }) => print({ clients, list }),
      joined: (joined) => print({ joined }),
      left: (left) => print({ left }),
    })
  }
  if (unsubscribe) push.unsubscribe(unsubscribe)
  if (publish) answer(push.publish(publish[0], publish[1].bytes ? Uint8Array.from(publish[1].bytes) : publish[1]))
  if (presence) answer(push.presence(presence))
  if (history) answer(push.history(history))
  if (close) push.close()
}
