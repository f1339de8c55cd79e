# Chat rooms over oroshi push: the page, the backend, and the hub that both stand on.
#
#     ruby examples/push-chat/chat.rb [PAGE-PORT [HUB-PORT [ADMIN-PORT]]]
#
# It runs target/release/oroshi, or the one on the PATH; OROSHI names another.

require "cgi"
require "json"
require "net/http"
require "securerandom"
require "socket"
require "tempfile"

PAGE, HUB, ADMIN = [8080, 9180, 9181].zip(ARGV).map { |usual, given| Integer(given || usual) }

# What whoever publishes has to show: other programs of this machine reach the hub's port, too. The hub has it from the environment.
TOKEN = ENV["PUSH_TOKEN"] ||= SecureRandom.hex(32)

# What the hub is told; docs/push.md has every key.
CONFIG = <<~TOML
  origins = "same-hostname"        # pages of other hosts may not connect

  [listen]
  public = ["127.0.0.1:#{HUB}"]    # for browsers
  admin = ["127.0.0.1:#{ADMIN}"]   # for this program

  [auth]
  token-env = "PUSH_TOKEN"

  [callbacks]
  connect = "http://127.0.0.1:#{PAGE}/connect"
  establish = "http://127.0.0.1:#{PAGE}/establish"
  receive = "http://127.0.0.1:#{PAGE}/receive"
  close = "http://127.0.0.1:#{PAGE}/close"

  [[group]]
  pattern = "room:*"
  slow = "drop-oldest"             # who is too slow misses some, and is told how many
TOML

# The backend. It remembers nobody: a session's key is ROOM/NAME/RANDOM, and its room is a group.

def answer(path, query, headers, body)
  session = headers["x-kuiperbelt-session"]
  case path
  when "/"
    page = File.read("#{__dir__}/index.html").sub("HUB_PORT", HUB.to_s)
    return [200, { "Content-Type" => "text/html; charset=utf-8" }, page]
  when "/connect" # May this client come in, and as whom?
    room, name = %w[room name].map { |field| CGI.escape(query[field].first.to_s[0, 40]) }
    return [403, {}, "a room and a name are needed"] if room.empty? || name.empty?

    return [200, { "X-Kuiperbelt-Session" => "#{room}/#{name}/#{SecureRandom.hex(8)}", "X-Oroshi-Groups" => "room:#{room}" }, ""]
  when "/establish" then publish(session, event: "has come")
  when "/close" then publish(session, event: "has gone")
  when "/receive" # The hub tries again what fails. A message keeps its id then, and pages show it once.
    published = publish(session, text: body, id: headers["x-oroshi-message"])
    return [503, {}, ""] unless published
  else return [404, {}, "there is nothing here"]
  end
  [200, {}, ""]
end

# Publishes to the room of a session, and prints the receipt: what became of it. False if the hub did not take it.
def publish(session, **message)
  room, name = session.split("/")
  envelope = { groups: ["room:#{room}"], json: { name: CGI.unescape(name), **message } }
  fields = { "Content-Type" => "application/json", "Authorization" => "Bearer #{TOKEN}" }
  receipt = Net::HTTP.post(URI("http://127.0.0.1:#{ADMIN}/publish"), envelope.to_json, fields)
  puts receipt.body
  receipt.code == "200"
rescue SystemCallError => e # While the hub ends it takes no more.
  warn "not published: #{e.message}"
  false
end

# HTTP, as much of it as the hub and a browser need here: one request for each connection.
def serve(client)
  target = client.gets.to_s.split[1] or return
  lines = client.each_line(chomp: true).take_while { |line| !line.empty? }
  headers = lines.to_h { |line| line.split(/:\s*/, 2) }.transform_keys(&:downcase)
  body = client.read(headers["content-length"].to_i).force_encoding("UTF-8")
  path, query = target.split("?", 2)
  status, fields, text = answer(path, CGI.parse(query.to_s), headers, body)
  fields = { "Content-Length" => text.bytesize, "Connection" => "close", **fields }
  client.write("HTTP/1.1 #{status} \r\n", fields.map { |field| "#{field.join(': ')}\r\n" }.join, "\r\n", text)
ensure
  client.close
end

$stdout.sync = true
server = TCPServer.new("127.0.0.1", PAGE)
built = File.expand_path("../../target/release/oroshi", __dir__)
oroshi = ENV.fetch("OROSHI") { File.executable?(built) ? built : "oroshi" }
Tempfile.create(["push-chat", ".toml"]) do |file|
  file.write(CONFIG)
  file.flush
  hub = Process.spawn(oroshi, "push", "--config", file.path)
  trap("TERM") { Process.kill("TERM", hub) }
  trap("INT") {} # The terminal tells the hub, too; told twice, it would not take its time.
  Thread.new { loop { Thread.new(server.accept) { |client| serve(client) } } }
  puts "open http://127.0.0.1:#{PAGE}/?room=lobby in two windows"
  Process.wait(hub)
end
exit($?.exitstatus || 1)
