# frozen_string_literal: true

require_relative "common"
require "fileutils"
require "io/wait"
require "rbconfig"
require "tmpdir"

# Shared by tests of whole servers: servers in their own processes, and a client that shows the bytes on the wire.
#
# Nothing here waits for a time to pass: tests wait for a server's output. The only limit, PATIENCE_S, makes a test fail
# instead of hang.
module Support
  PATIENCE_S = Common::PATIENCE_S
  ROOT = File.expand_path("..", __dir__)
  RUBY = [RbConfig.ruby, "-W:no-experimental", "-I", "#{ROOT}/lib"].freeze
  COMMAND = [*RUBY, "#{ROOT}/exe/oroshi-rack"].freeze

  # Answers with facts about the process.
  PLAIN_APP = <<~'APP'
    run lambda { |env|
      case env["PATH_INFO"]
      when "/pid" then [200, { "content-type" => "text/plain" }, [Process.pid.to_s]]
      when "/gate" # says that it is in, and waits to be let out
        require "socket"
        UNIXSocket.open(env["QUERY_STRING"], &:read)
        [200, { "content-type" => "text/plain" }, ["through the gate, #{Process.pid}"]]
      when "/sleep" then sleep
      when "/pause"
        sleep env["QUERY_STRING"].to_f
        [200, { "content-type" => "text/plain" }, ["awake"]]
      when "/env" then [200, { "content-type" => "text/plain" }, [ENV[env["QUERY_STRING"]].inspect]]
      else [200, { "content-type" => "text/plain" }, ["hello"]]
      end
    }
  APP

  # A test with its own folder, whose servers end with it.
  class Test < Minitest::Test
    include Common

    def setup
      @dir = Dir.mktmpdir("oroshi")
      @servers = []
    end

    def teardown
      @servers.each(&:finish)
      @servers.each { |server| warn("\n#{name}: the server said:\n#{server.said}") } unless passed? || skipped?
      FileUtils.rm_rf(@dir)
    end

    # Replaces the file whole: a server that watches it must not see it empty in between. (Nobody watches or loads the
    # new file by its first name.)
    def file(name, text)
      File.join(@dir, name).tap do |path|
        File.binwrite("#{path}.new", text)
        File.rename("#{path}.new", path)
      end
    end

    # Returns the path of the oroshi command, which cargo builds; skips the test without it.
    def oroshi_command(of)
      # `make test` puts the gem's target folder inside the workspace's.
      targets = [ENV["CARGO_TARGET_DIR"]&.then { |path| [path, File.dirname(path)] }, "#{ROOT}/../target"]
      folders = targets.flatten.compact.flat_map { |path| ["#{path}/debug", "#{path}/release"] }
      found = [ENV["OROSHI"], *folders.map { |folder| "#{folder}/oroshi" }].compact.find { |path| File.executable?(path) }
      found || leave_out(of, "there is no oroshi command; run: cargo build -p oroshi")
    end

    def socket_path
      File.join(@dir, "s")
    end

    # Starts `oroshi-rack` at a unix socket in the test's folder, and waits until all workers are ready. options: for
    # -O. config: text of a config file. ready: number of workers to wait for (0: none).
    def serve(app: PLAIN_APP, config: nil, env: {}, ready: nil, listen: true, **options)
      rackup_file = file("config.ru", app)
      options = { MaxWorkers: 1, Path: socket_path }.merge(options) if listen
      arguments = options.flat_map { |name, value| ["-O", value == true ? name.to_s : "#{name}=#{value}"] }
      arguments += ["-c", file("oroshi.rb", config)] if config
      start(*COMMAND, *arguments, rackup_file, env: env).tap do |server|
        (ready || options.fetch(:MaxWorkers, 1)).times { |n| server.wait_for(/worker \d+ .*: ready/, count: n + 1) }
      end
    end

    def start(*command, env: {}, **spawn_options)
      Server.new(command, env, { chdir: @dir }.merge(spawn_options)).tap { |server| @servers << server }
    end

    # Sends a request to the server at the unix socket.
    def get(path, **more)
      Client.unix(socket_path) { |client| client.get(path, **more) }
    end

    def post(path, body, **headers)
      Client.unix(socket_path) { |client| client.post(path, body, **headers) }
    end

    # Returns all statuses that four clients receive while the block runs; nil for a request without an answer. kept: on
    # a connection for as long as the server keeps it; otherwise each request has its own.
    def statuses_meanwhile(kept: false)
      over = false
      clients = Array.new(4) do
        Thread.new do
          statuses = []
          statuses |= kept ? statuses_of_a_connection { over } : [get("/pid")&.status] until over
          statuses
        end
      end
      yield
      over = true
      clients.flat_map(&:value).uniq
    ensure
      over = true
    end

    def statuses_of_a_connection
      Client.unix(socket_path) do |client|
        statuses = []
        loop do
          answer = client.get("/", Connection: nil)
          statuses |= [answer&.status]
          return statuses if yield || answer.nil? || answer.headers["connection"] == "close"
        end
      end
    end

    # A request under way in the app's /gate: `open` releases it, `answer` returns its answer.
    Gate = Struct.new(:client, :keeper) do
      def open
        keeper.close
      end

      def answer
        client.answer.tap { client.close }
      end
    end

    # Listens at a unix socket at which a process of the test stops: it connects, and reads until the test closes the
    # accepted connection.
    def door(name = "door")
      UNIXServer.new(File.join(@dir, name))
    end

    # Waits until a file has a line that matches.
    def wait_for_line(path, pattern)
      Common.wait_until("#{pattern} in #{path}") { File.exist?(path) && File.read(path).match?(pattern) }
    end

    def at_the_gate(name = "gate")
      door = door(name)
      client = Client.unix(socket_path)
      client.send_get("/gate?#{door.path}")
      keeper = Common.within("the request to reach the gate") { door.accept }
      door.close
      Gate.new(client, keeper)
    end
  end

  # A process with everything below it (in its own process group), and its standard output and error.
  class Server
    attr_reader :pid, :status

    def initialize(command, env, spawn_options)
      reader, writer = IO.pipe
      @pid = Process.spawn({ "RACK_ENV" => nil, "WEB_CONCURRENCY" => nil, "RAILS_MAX_THREADS" => nil, "PORT" => nil }.merge(env), *command,
                           in: File::NULL, out: writer, err: writer, pgroup: true, **spawn_options)
      writer.close
      at_exit { finish } # when the tests themselves are ended
      @said = +""
      @lock = Mutex.new
      @news = ConditionVariable.new
      @listener = Thread.new { listen(reader) }
    end

    # Waits until the output has matched `pattern` `count` times, and returns the last match.
    def wait_for(pattern, count: 1)
      limit = Process.clock_gettime(Process::CLOCK_MONOTONIC) + PATIENCE_S
      @lock.synchronize do
        loop do
          matches = @said.to_enum(:scan, pattern).map { Regexp.last_match }
          return matches[count - 1] if matches.size >= count

          left = limit - Process.clock_gettime(Process::CLOCK_MONOTONIC)
          raise "waited in vain for #{pattern.inspect} (#{count} times); it said:\n#{@said}" if left <= 0 || @ended

          @news.wait(@lock, left)
        end
      end
    end

    def said
      @lock.synchronize { @said.dup }
    end

    # Returns the pid of the last worker started in this slot.
    def worker(slot = 0, log: said)
      log.scan(/worker #{slot} \(pid (\d+)\): started/).last.first.to_i
    end

    def signal(name)
      Process.kill(name, @pid)
    end

    # Waits for the end of the process and of everything that shares its output; returns the Process::Status.
    def wait(alone: false)
      @status ||= Common.within("the end of #{@pid}") { Process.wait2(@pid).last }
      @listener.join(PATIENCE_S) unless alone
      @status
    end

    def stop(name = "TERM")
      signal(name)
      wait
    end

    # At the end of a test: kills everything that it started.
    def finish
      return if @finished

      @finished = true
      Process.kill("KILL", -@pid)
    rescue Errno::ESRCH
      nil
    ensure
      wait
    end

    private

    def listen(reader)
      loop do
        text = reader.readpartial(65_536)
        @lock.synchronize { @said << text and @news.broadcast }
      end
    rescue EOFError
      @lock.synchronize { @ended = true and @news.broadcast }
    ensure
      reader.close
    end
  end

  # One connection.
  class Client
    Answer = Struct.new(:status, :headers, :body)

    def self.unix(path, &block)
      with(Socket.unix(path), &block)
    end

    def self.tcp(host, port, &block)
      with(Socket.tcp(host, port), &block)
    end

    def self.with(socket)
      client = new(socket)
      return client unless block_given?

      begin
        yield client
      ensure
        client.close
      end
    end

    def initialize(socket)
      @socket = socket
    end

    def get(path, **headers)
      send_get(path, **headers)
      answer
    end

    # Sends one request with a body; the connection ends after it.
    def post(path, body, **headers)
      lines = { "Host" => "test", "Connection" => "close", "Content-Length" => body.bytesize }
              .merge(headers.transform_keys(&:to_s))
      write("POST #{path} HTTP/1.1\r\n#{lines.map { |name, value| "#{name}: #{value}\r\n" }.join}\r\n#{body}")
      answer
    end

    def send_get(path, **headers)
      lines = { "Host" => "test", "Connection" => "close" }.merge(headers.transform_keys(&:to_s))
      write("GET #{path} HTTP/1.1\r\n#{lines.compact.map { |name, value| "#{name}: #{value}\r\n" }.join}\r\n")
    end

    def write(text)
      @socket.write(text)
    end

    # Waits for readable bytes.
    def wait
      @socket.wait_readable
    end

    # Returns everything until the connection ends.
    def read_all
      Common.within("the end of a connection") { @socket.read }
    end

    # Returns one answer with Content-Length, or one that ends with the connection; nil if there is none.
    def answer
      Common.within("an answer") do
        status = @socket.gets("\r\n") or return nil
        headers = {}
        while (line = @socket.gets("\r\n")) && line != "\r\n"
          name, value = line.chomp.split(": ", 2)
          headers[name.downcase] = value
        end
        length = headers["content-length"]
        Answer.new(status.split[1].to_i, headers, length ? @socket.read(length.to_i) : @socket.read)
      end
    end

    def close
      @socket.close
    end
  end
end
