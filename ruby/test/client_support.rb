# frozen_string_literal: true

require_relative "support"
require "openssl"
require "oroshi/client"

# Shared by the tests of Oroshi::Client: a server that runs a block, on a thread of the test's process.
module ClientSupport
  # A request as the server received it. answer: writes a whole response.
  Request = Struct.new(:socket, :method, :target, :headers, :body) do
    def answer(body = "", status: 200, **headers)
      lines = { "Content-Length" => body.bytesize }.merge(headers.transform_keys { |name| name.to_s.tr("_", "-") })
      head = lines.compact.map { |name, value| "#{name}: #{value}\r\n" }.join
      socket.write("HTTP/1.1 #{status} Whatever\r\n#{head}\r\n".b + body.b)
    end
  end

  # Serves each connection on a thread: the block receives its requests in turn, until it or the client closes the
  # socket.
  class Server
    attr_reader :requests, :connections

    def initialize(listener = Common.tcp_listener, &block)
      @listener = listener
      @block = block
      @lock = Mutex.new
      @requests = Queue.new # "METHOD target" of each that has come
      @connections = []
      @threads = [Thread.new { accept }]
    end

    def url(path = "/")
      @listener.is_a?(UNIXServer) ? "unix:#{@listener.path}:#{path}" : "http://127.0.0.1:#{port}#{path}"
    end

    def port
      @listener.addr[1]
    end

    def close
      @listener.close
      @lock.synchronize { @threads.dup }.each(&:kill).each(&:join)
      @connections.each(&:close)
    end

    private

    def accept
      loop do
        socket = @listener.accept
        @lock.synchronize do
          @connections << socket
          @threads << Thread.new { converse(socket) }
        end
      end
    rescue IOError, Errno::EBADF
      nil # closed
    end

    def converse(socket)
      socket.accept if socket.respond_to?(:accept) # a TLS handshake
      until socket.closed?
        request = read(socket) or break
        @requests << "#{request.method} #{request.target}"
        @block.call(request)
      end
    rescue SystemCallError, IOError, OpenSSL::SSL::SSLError
      nil # the client has gone
    ensure
      socket.close
    end

    def read(socket)
      method, target = socket.gets("\r\n")&.split
      return unless method

      headers = {}
      while (line = socket.gets("\r\n")) && line != "\r\n"
        name, value = line.chomp.split(": ", 2)
        headers[name.downcase] = value
      end
      Request.new(socket, method, target, headers, socket.read(headers["content-length"].to_i))
    end
  end

  # A test whose client and servers end with it.
  class Test < Support::Test
    # The number of the clients' native threads. One may end while they are counted.
    def native_threads
      Dir["/proc/self/task/*/comm"].count do |path|
        File.read(path).start_with?("oroshi-client")
      rescue Errno::ENOENT, Errno::ESRCH
        false
      end
    end

    def teardown
      @clients&.each(&:close)
      @http_servers&.each(&:close)
      super
    end

    # Answers every request with its target, unless there is a block.
    def server(listener = Common.tcp_listener, &block)
      block ||= ->(request) { request.answer(request.target) }
      Server.new(listener, &block).tap { |server| (@http_servers ||= []) << server }
    end

    def client(**options)
      Oroshi::Client.new(**options).tap { |client| (@clients ||= []) << client }
    end

    # Returns a port without a listener or connection.
    def closed_port
      tcp_listener.then { |listener| listener.addr[1].tap { listener.close } }
    end
  end
end
