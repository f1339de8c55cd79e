# The application of the peers' tests for Puma; app.go says what it does, but for trailers.

require 'digest'

LOG = File.open(ENV.fetch('PEER_LOG'), 'ab').tap { |file| file.sync = true }

def upgrade(io, key)
  accept = Digest::SHA1.base64digest("#{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11")
  io.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" \
           "Sec-WebSocket-Accept: #{accept}\r\n\r\n")
  loop { io.write(io.readpartial(4096)) }
rescue EOFError, SystemCallError
  # It has ended.
ensure
  io.close
end

run(lambda do |env|
  body = env['rack.input'].read
  read = "#{env['REQUEST_METHOD']} #{env['REQUEST_URI']} #{body.bytesize}"
  LOG.write("#{read}\n")
  key = env['HTTP_SEC_WEBSOCKET_KEY']
  if key && env['HTTP_UPGRADE']
    io = env['rack.hijack'].call
    Thread.new { upgrade(io, key) }
    next [200, {}, []]
  end
  [200, { 'X-Read' => read, 'Content-Type' => 'application/octet-stream', 'Content-Length' => body.bytesize.to_s }, [body]]
end)
