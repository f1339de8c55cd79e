# frozen_string_literal: true

# Shared by the tests of the native worker: a worker in a forked process, and a client that speaks bytes.

require_relative "common"
require "io/wait"
require "rack"
require "rack/lint"
require "time"
require "tmpdir"
require "uri"
require "fileutils"
require "oroshi/native"
require "oroshi/input"
require "oroshi/stream"

module NativeSupport
  include Common

  PATIENCE_S = Common::PATIENCE_S

  # An answer: status, headers (names in lower case, each with all its values), body, and the head as received.
  Answer = Struct.new(:status, :headers, :body, :head) do
    def [](name) = headers[name]&.join(", ")
  end

  # One client's connection.
  class Client
    attr_reader :socket

    def initialize(socket)
      @socket = socket
      @bytes = String.new(encoding: Encoding::BINARY)
    end

    def send(text)
      rest = text.b
      until rest.empty?
        sent = @socket.write_nonblock(rest, exception: false)
        if sent == :wait_writable
          @socket.wait_writable(PATIENCE_S) or raise "the server does not read"
        else
          rest = rest.byteslice(sent..)
        end
      end
      self
    rescue Errno::EPIPE, Errno::ECONNRESET
      self # what was answered can still be read
    end

    def half_close
      @socket.close_write
      self
    rescue Errno::ENOTCONN
      self
    end

    # Waits for bytes, and returns them; nil at the end.
    def more
      @socket.wait_readable(PATIENCE_S) or raise "no answer; so far: #{@bytes.inspect}"
      piece = @socket.read_nonblock(65_536)
      @bytes << piece
      piece
    rescue EOFError, Errno::ECONNRESET
      nil
    end

    def until_bytes(count)
      while @bytes.bytesize < count
        more or raise EOFError, "the connection ended after #{@bytes.inspect}"
      end
      @bytes.slice!(0, count)
    end

    def until_text(text)
      until (at = @bytes.index(text.b))
        more or raise EOFError, "the connection ended after #{@bytes.inspect}"
      end
      @bytes.slice!(0, at + text.bytesize)
    end

    # Returns everything up to the end of the connection.
    def rest
      nil while more
      @bytes.slice!(0..)
    end

    # Returns the next answer to a request of this method; interim ones (1xx) count as answers.
    def answer(method = "GET")
      head = until_text("\r\n\r\n")
      first, *lines = head.split("\r\n")
      raise "no status line: #{first.inspect}" unless first =~ %r{\AHTTP/1\.1 (\d{3}) [^\r\n]*\z}

      status = Regexp.last_match(1).to_i
      headers = lines.each_with_object({}) do |line, all|
        raise "no field: #{line.inspect}" unless line =~ /\A([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?(.*)\z/n

        (all[Regexp.last_match(1).downcase] ||= []) << Regexp.last_match(2)
      end
      Answer.new(status, headers, body_of(method, status, headers), head)
    end

    # Whether the server has closed, with nothing left to read.
    def closed?
      @bytes.empty? && more.nil?
    end

    def close = @socket.close

    private

    def body_of(method, status, headers)
      return "" if method == "HEAD" || status < 200 || [204, 304].include?(status)
      return chunks if headers["transfer-encoding"] == ["chunked"]
      return until_bytes(headers["content-length"].first.to_i) if headers["content-length"]

      rest
    end

    def chunks
      body = +"".b
      loop do
        size = until_text("\r\n")
        raise "no chunk size: #{size.inspect}" unless size =~ /\A\h+\r\n\z/

        size = size.to_i(16)
        body << until_bytes(size)
        raise "no end of chunk" unless until_bytes(2) == "\r\n"
        return body if size.zero?
      end
    end
  end

  # A worker in its own process.
  class Server
    attr_reader :pid, :scoreboard, :path, :port

    def initialize(app, settings, tcp: false, in_child: nil)
      @folder = Dir.mktmpdir("oroshi-test")
      @clients = []
      @errors = File.open("#{@folder}/errors", "w+")
      @errors.sync = true
      listen(tcp)
      @scoreboard = Oroshi::Native::Scoreboard.new(1, 0)
      @said, say = IO.pipe
      given = { rack_release: Rack.release, keep_alive_s: 30.0, timeout_s: 30.0, linger_s: 0.0, multiprocess: true, errors: @errors }
      @pid = fork { serve(app, given.merge(settings), say, in_child) }
      say.close
      @listener.close
    end

    def connect
      @clients << Client.new(@path ? UNIXSocket.new(@path) : TCPSocket.new("127.0.0.1", @port))
      @clients.last
    end

    # Sends one request on its own connection.
    def get(target = "/", headers = {}, method: "GET", body: nil)
      client = connect
      fields = { "Host" => "localhost", "Connection" => "close" }.merge(headers)
      fields["Content-Length"] ||= body.bytesize.to_s if body
      lines = fields.map { |name, value| "#{name}: #{value}\r\n" }.join
      client.send("#{method} #{target} HTTP/1.1\r\n#{lines}\r\n#{body}").answer(method)
    ensure
      client&.close
    end

    # Returns the worker's lines in rack.errors.
    def errors = File.read("#{@folder}/errors")

    def wait_for(what, &block) = Common.wait_until(what, &block)

    def signal(name) = Process.kill(name, @pid)

    # Stops it with this signal, unless nil, and waits: returns the result of `run`, or the exception's class and
    # message.
    def stop(signal = "INT")
      self.signal(signal) if signal
      ended
    end

    def ended
      Process.wait(@pid)
      @pid = nil
      @said.read
    end

    def memory_kb = File.read("/proc/#{@pid}/status")[/^VmRSS:\s+(\d+)/, 1].to_i

    def clean_up
      if @pid
        signal("KILL")
        Process.wait(@pid)
      end
      [@said, @errors, *@clients].each(&:close) # or the next test's worker inherits them
      FileUtils.rm_rf(@folder)
    end

    # OROSHI_GC_STRESS: runs the garbage collector at every allocation of a worker, in all tests; values that it does
    # not see die. 1: collects only young objects; 0: all, which takes ten times as long. Either needs
    # OROSHI_TEST_PATIENCE_S=600.
    STRESS = ENV.fetch("OROSHI_GC_STRESS", nil)

    private

    def listen(tcp)
      if tcp
        @listener = Common.tcp_listener
        @port = @listener.addr[1]
      else
        @path = "#{@folder}/socket"
        @listener = UNIXServer.new(@path)
      end
      @listener.listen(1024)
    end

    def serve(app, settings, say, in_child)
      app = app.call if app.arity.zero? # made here, where it is used
      worker = Oroshi::Native::Worker.new(app, listener_fds: [@listener.fileno], scoreboard: @scoreboard, slot: 0, settings: settings)
      trap("TERM") { worker.stop }
      trap("INT") { worker.stop_now }
      in_child&.call(worker)
      GC.stress = Integer(STRESS) if STRESS
      say.write(worker.run.inspect)
    rescue Exception => e # rubocop:disable Lint/RescueException
      say.write("#{e.class}: #{e.message}")
    ensure
      say.close
      exit!(0) # without the parent's at_exit, which would run its tests once more
    end
  end

  def setup
    @servers = []
    super
  end

  def teardown
    # Shows the worker's errors beside a failure.
    @servers.each { |server| warn("#{name}: #{server.errors.gsub(/^\tfrom .*\n/, "")}") unless server.errors.empty? } unless passed?
    @servers.each(&:clean_up)
    super
  end

  # Starts a worker with this application, wrapped in Rack::Lint unless `lint: false`.
  def serve(settings = {}, lint: true, tcp: false, in_child: nil, &app)
    app = Rack::Lint.new(app) if lint && !Server::STRESS # which would collect a thousand times for each request
    @servers << Server.new(app.respond_to?(:arity) ? app : ->(env) { app.call(env) }, settings, tcp: tcp, in_child: in_child)
    @servers.last
  end

  # An application that answers with this text, for tests of something else.
  HELLO = ->(_env) { [200, { "Content-Type" => "text/plain" }, ["Hello World"]] }

  def hello(settings = {}, **options) = serve(settings, **options, &HELLO)

  def request(target = "/", fields = "") = "GET #{target} HTTP/1.1\r\nHost: localhost\r\n#{fields}\r\n"
end
