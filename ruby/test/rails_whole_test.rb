# frozen_string_literal: true

require_relative "database"
require "digest"
require "json"
require "securerandom"

# A Rails application with Active Record on a real MariaDB, uploads, streams and Action Cable, under load, while its
# workers are reforked, reloaded and crash.
class RailsWholeTest < Support::Test
  APP = <<~'APP'
    require "rails"
    require "active_record/railtie"
    require "action_controller/railtie"
    require "action_cable/engine"
    require "digest"

    class App < Rails::Application
      config.root = __dir__
      config.eager_load = true
      config.consider_all_requests_local = false
      config.secret_key_base = "x" * 64
      config.hosts.clear
      config.logger = Logger.new($stderr)
      config.log_level = :error
      config.action_cable.mount_path = "/cable"
      config.action_cable.disable_request_forgery_protection = true
      routes.append do
        post "/entries", to: "entries#create"
        get "/entries/:token", to: "entries#show"
        post "/uploads", to: "uploads#create"
        get "/stream", to: "streams#show"
        get "/crash", to: "crashes#show"
      end
    end

    class Entry < ActiveRecord::Base; end

    class EntriesController < ActionController::Base
      def create
        Entry.transaction { Entry.create!(token: params[:token], content: params[:content]) }
        render plain: params[:token], status: :created
      end

      def show = render(plain: Entry.find_by!(token: params[:token]).content)
    end

    class UploadsController < ActionController::Base
      def create = render(plain: Digest::SHA256.hexdigest(params[:file].read))
    end

    class StreamsController < ActionController::Base
      include ActionController::Live

      def show
        response.headers["Content-Type"] = "text/plain"
        response.headers["Last-Modified"] = Time.now.httpdate # or Rack::ETag waits for the end
        20.times { |n| response.stream.write("#{params[:token]} #{n} #{"s" * 1000}\n") }
      ensure
        response.stream.close
      end
    end

    class CrashesController < ActionController::Base
      def show = Process.kill(:SEGV, Process.pid) && sleep
    end

    class EchoChannel < ActionCable::Channel::Base
      def echo(data) = transmit({ "token" => data["token"], "pid" => Process.pid })
    end

    App.initialize!
    run App
  APP

  # What clients have seen: work that was confirmed, answers that were none, answers that were wrong.
  Seen = Struct.new(:confirmed, :lost, :wrong) do
    def self.none = new([], [], [])

    def +(other) = Seen.new(confirmed + other.confirmed, lost + other.lost, wrong + other.wrong)
  end

  # A client of Action Cable: the part of WebSocket (RFC 6455) and of its protocol that an echo needs.
  class Cable
    IDENTIFIER = JSON.generate(channel: "EchoChannel")

    def initialize(path)
      @socket = UNIXSocket.new(path)
      @socket.write("GET /cable HTTP/1.1\r\nHost: test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" \
                    "Sec-WebSocket-Key: #{SecureRandom.base64(16)}\r\nSec-WebSocket-Version: 13\r\n" \
                    "Sec-WebSocket-Protocol: actioncable-v1-json\r\n\r\n")
      line = @socket.gets("\r\n") or raise EOFError
      raise "not upgraded: #{line}" unless line.start_with?("HTTP/1.1 101 ")

      nil until [nil, "\r\n"].include?(@socket.gets("\r\n"))
      command("subscribe")
      message { |it| it["type"] == "confirm_subscription" }
    rescue StandardError
      @socket&.close
      raise
    end

    # Returns the token that the channel sends back, and the process that did.
    def echo(token)
      command("message", data: JSON.generate(action: "echo", token: token))
      message { |it| it["message"].is_a?(Hash) }["message"].values_at("token", "pid")
    end

    def close = @socket.close

    private

    def command(name, **more)
      text = JSON.generate({ command: name, identifier: IDENTIFIER, **more })
      mask = SecureRandom.bytes(4)
      masked = text.bytes.each_with_index.map { |byte, at| byte ^ mask.getbyte(at % 4) }.pack("C*")
      @socket.write([0x81, 0x80 | 126, text.bytesize].pack("CCn") + mask + masked)
    end

    def message
      loop do
        kind, length = exactly(2).unpack("CC")
        length = exactly(2).unpack1("n") if length == 126
        text = exactly(length)
        raise EOFError if kind & 0x0f == 8

        return JSON.parse(text) if kind & 0x0f == 1 && yield(JSON.parse(text))
      end
    end

    def exactly(count)
      bytes = @socket.read(count)
      raise EOFError unless bytes&.bytesize == count

      bytes
    end
  end

  def setup
    super
    missing = { "mysql2" => "ruby-mysql2", "active_record" => "ruby-activerecord", "action_cable" => "ruby-actioncable",
                "rails" => "ruby-railties" }.find { |library, _| !installed?(library) }
    leave_out("a Rails application", "#{missing[0]} is not installed (Debian: #{missing[1]})") if missing
    unless %w[mariadbd mariadb].all? { |program| installed_program?(program) }
      leave_out("a Rails application", "MariaDB is not installed (Debian: mariadb-server)")
    end
    Support::Database.start
    Support::Database.execute("CREATE OR REPLACE DATABASE whole; CREATE TABLE whole.entries " \
                              "(id BIGINT PRIMARY KEY AUTO_INCREMENT, token VARCHAR(64) UNIQUE, content TEXT)")
  end

  # In another process: Rails changes classes of Ruby's own, which other tests use.
  def installed?(library) = system(Support::RUBY.first, "-r#{library}", "-e", "1", err: File::NULL)

  def installed_program?(program)
    [*ENV["PATH"].split(":"), "/usr/sbin"].any? { |folder| File.executable?("#{folder}/#{program}") }
  end

  def test_nothing_is_lost_and_nothing_is_wrong
    FileUtils.mkdir_p("#{@dir}/config")
    file("config/cable.yml", "production:\n  adapter: async\n")
    server = serve(
      app: APP, MaxWorkers: 3, ReforkAfter: "60", MaxRequestPerChild: 0,
      env: { "RAILS_ENV" => "production", "RACK_ENV" => "production",
             "DATABASE_URL" => "mysql2://root@localhost/whole?socket=#{Support::Database.start}/mariadb.sock" }
    )
    @over = false
    clients = [false, true].flat_map { |kept| 2.times.map { |n| Thread.new { load("#{kept}-#{n}", kept) } } }
    cables = 2.times.map { |n| Thread.new { cable_load("cable-#{n}") } }
    refork_reload_and_crash(server)
    @over = true
    seen = clients.map(&:value).sum(Seen.none)
    echoes = cables.map(&:value).sum(Seen.none)
    assert_equal [[], []], [seen.lost, seen.wrong]
    assert_empty echoes.wrong
    # The clients have met several generations of workers.
    assert_operator echoes.confirmed.map(&:last).uniq.size, :>=, 2
    assert_operator seen.confirmed.size, :>=, 20
    assert_equal seen.confirmed.sort, entries.sort, "each confirmed entry is there once, with its content"
    assert_equal 0, server.stop.exitstatus
    refute_match(/^[EF], \[|a defect of the server/, server.said, "errors of Rails, or of the server")
  ensure
    @over = true
    [*clients, *cables].each(&:join)
  end

  # Each step has work before and behind it.
  def refork_reload_and_crash(server)
    server.wait_for(/worker \d \(pid \d+\): forks the next workers/)
    server.wait_for(/: ended$/, count: 3)
    server.signal("HUP")
    server.wait_for(/the application is loaded again/)
    server.wait_for(/: ended$/, count: 5)
    before = server.said.scan(/worker \d .*: ready/).size
    # The crashed worker's own request is the only one that gets no answer.
    assert_nil(Support::Client.unix(socket_path) { |client| client.get("/crash") })
    server.wait_for(/worker \d .*: ready/, count: before + 1)
  end

  def entries
    Support::Database.execute("SELECT token, SHA2(content, 256) FROM whole.entries").lines(chomp: true).map { |line| line.tr("\t", " ") }
  end

  # Works in turn on entries, uploads and streams until the test is over. kept: on a connection for as long as the
  # server keeps it.
  def load(name, kept)
    seen = Seen.none
    number = 0
    until @over
      Support::Client.unix(socket_path) do |client|
        loop do
          answer = work(client, "#{name}-#{number += 1}", kept, seen)
          break if @over || !kept || answer.nil? || answer.headers["connection"] == "close"
        end
      end
    end
    seen
  rescue SystemCallError => e
    Seen.new(seen.confirmed, seen.lost + ["#{name}-#{number}: #{e.message}"], seen.wrong)
  end

  def work(client, token, kept, seen)
    content = SecureRandom.hex(rand(1..300))
    digest = Digest::SHA256.hexdigest(content)
    connection = { Connection: kept ? "keep-alive" : "close" }
    kind = kept ? token.hash % 2 : token.hash % 3 # a stream's end is the connection's here, or in chunks
    answer, wanted =
      case kind
      when 0
        form = { "Content-Type": "application/x-www-form-urlencoded" }
        [client.post("/entries", "token=#{token}&content=#{content}", **form, **connection), [201, token]]
      when 1
        body = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n#{content}\r\n--x--\r\n"
        type = { "Content-Type": "multipart/form-data; boundary=x" }
        [client.post("/uploads", body, **type, **connection), [200, digest]]
      else
        client.write("GET /stream?token=#{token} HTTP/1.0\r\nHost: test\r\n\r\n")
        [client.answer, [200, Array.new(20) { |n| "#{token} #{n} #{"s" * 1000}\n" }.join]]
      end
    return seen.lost << token && nil if answer.nil?

    if [answer.status, answer.body] == wanted
      seen.confirmed << "#{token} #{digest}" if kind.zero?
    else
      seen.wrong << [token, answer.status, answer.body[0, 200]]
    end
    answer
  end

  # Echoes messages until the test is over. A worker that ends closes its cables, and the client connects again, as
  # Action Cable's own client does; the message that was under way is sent again.
  def cable_load(name)
    seen = Seen.none
    number = 0
    until @over
      begin
        cable = Cable.new(socket_path)
        until @over
          token = "#{name}-#{number + 1}"
          back, pid = Common.within("an echo") { cable.echo(token) }
          back == token ? seen.confirmed << [token, pid] : seen.wrong << [token, back]
          number += 1
        end
      rescue EOFError, Errno::EPIPE, Errno::ECONNRESET
        nil
      ensure
        cable&.close
      end
    end
    seen
  end
end
