# Chat rooms over oroshi push: the page, the login, and the hub that both stand on.
#
#     ruby examples/push-chat/chat.rb [PAGE-PORT [HUB-PORT]]
#
# It runs target/release/oroshi, or the one on the PATH; OROSHI names another.

require "cgi"
require "erb"
require "openssl"
require "securerandom"
require "socket"
require "tempfile"
require "tmpdir"

PAGE, HUB = [8080, 9180].zip(ARGV).map { |usual, given| Integer(given || usual) }
CLIENT = File.expand_path("../../clients/js/dist/index.js", __dir__)

# Only the user who runs this may publish here, and look: `oroshi push top --admin unix:PATH`.
ADMIN = File.join(Dir.mktmpdir("push-chat"), "admin.sock")
at_exit { FileUtils.rm_rf(File.dirname(ADMIN)) }

# Signs the cookies of a run.
SECRET = SecureRandom.hex(32)

# The configuration of the hub; docs/push.md has every key.
CONFIG = <<~TOML
  origins = "same-hostname"        # pages of other hosts may not connect

  [listen]
  public = ["127.0.0.1:#{HUB}"]
  admin = ["unix:#{ADMIN}"]

  [callbacks]
  connect = "http://127.0.0.1:#{PAGE}/connect"

  [[group]]
  pattern = "room:*"
  slow = "drop-oldest"             # who is too slow misses some, and is told how many
  subscribe = "users"
  publish = "users"
  see-history = "users"
  see-presence = "users"
  presence-events = true           # who comes and goes
  history-messages = 50
  history-time = "1h"
TOML

def answer(path, query, cookie, body)
  case path
  when "/"
    page = File.read("#{__dir__}/#{user(cookie) ? "room" : "login"}.html").sub("HUB_PORT", HUB.to_s)
    [200, { "Content-Type" => "text/html; charset=utf-8" }, page]
  when "/client.js" then [200, { "Content-Type" => "text/javascript" }, File.read(CLIENT)]
  when "/login" # Put your login here: this one lets anybody have any name.
    name = CGI.parse(body)["name"].first.to_s.strip
    return [303, { "Location" => "/?#{query}" }, ""] unless name.match?(/\A[\p{L}\p{N} ]{1,30}\z/)

    user = ERB::Util.url_encode(name)
    cookie = "chat=#{user}.#{sign(user)}; HttpOnly; SameSite=Lax; Path=/"
    [303, { "Location" => "/?#{query}", "Set-Cookie" => cookie }, ""]
  when "/connect" # The hub asks: may this client connect, and who is it? It passes the cookie on.
    user = user(cookie) or return [403, {}, "log in first"]
    [200, { "X-Kuiperbelt-Session" => SecureRandom.hex(16), "X-Oroshi-User" => user }, ""]
  else [404, {}, "there is nothing here"]
  end
end

# Returns the user of a cookie, if this program has signed it.
def user(cookie)
  user, signature = cookie.to_s[/(?:\A|; )chat=([^;]*)/, 1].to_s.split(".", 2)
  user if signature && OpenSSL.secure_compare(sign(user), signature)
end

def sign(user) = OpenSSL::HMAC.hexdigest("SHA256", SECRET, user)

# HTTP, as much of it as the hub and a browser need here: one request for each connection.
def serve(client)
  target = client.gets.to_s.split[1] or return
  lines = client.each_line(chomp: true).take_while { |line| !line.empty? }
  headers = lines.to_h { |line| line.split(/:\s*/, 2) }.transform_keys(&:downcase)
  body = client.read(headers["content-length"].to_i).force_encoding("UTF-8")
  path, query = target.split("?", 2)
  status, fields, text = answer(path, query, headers["cookie"], body)
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
  puts "open http://127.0.0.1:#{PAGE}/?room=lobby and http://localhost:#{PAGE}/?room=lobby, and log in with two names"
  Process.wait(hub)
end
exit($?.exitstatus || 1)
