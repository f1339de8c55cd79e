# frozen_string_literal: true

module Oroshi
  class Listeners
    # An address to listen on: a TCP host and port, a unix socket's path, or an abstract name.
    class Address
      # How long to ask at a socket's file whether a server listens. A local connect answers at once, or is queued.
      PATIENCE_S = 1

      # Returns the settings' addresses: Path and Listen; Host and Port only if neither is given.
      def self.of(settings)
        texts = [settings.path && unix_text(settings.path), *settings.listen].compact
        texts.empty? ? [new(host: settings.host, port: settings.port)] : texts.uniq.map { |text| parse(text) }
      end

      # Parses `8080`, `:8080`, `host:8080`, `[::1]:8080`, `/a/path`, `./a/path`, `unix:path`, `@name`, and Puma's
      # `tcp://` and `unix://`. nil for anything else.
      def self.parse(text)
        case text.sub(%r{\A(?:tcp:|(unix:))//}, "\\1")
        when /\A(?:unix:)?(?<path>@.+)/, %r{\A(?<path>\.{0,2}/.+)}, /\Aunix:(?<path>.+)/ then new(path: $~[:path])
        when /\A(?:(?<host>[^:\[\]\/]+|\[[:.%\w]+\])?:)?(?<port>\d{1,5})\z/
          host, port = $~[:host], $~[:port].to_i
          port <= 65_535 ? new(host: host ? host.delete("[]") : "0.0.0.0", port: port) : nil
        end
      end

      # Returns an Addrinfo's name for people.
      def self.name_of(address)
        if address.unix?
          # An abstract name begins with a NUL byte, which Addrinfo#unix_path does not survive everywhere.
          path = address.to_sockaddr.byteslice(2..)
          path.start_with?("\0") ? "unix:@#{path.byteslice(1..)}" : "unix:#{path[/\A[^\0]*/]}"
        else
          address.inspect_sockaddr
        end
      end

      # Where a path is expected, one without a slash is still a path.
      def self.unix_text(path)
        path.start_with?("@", "unix:") ? path : "unix:#{path}"
      end
      private_class_method :unix_text

      def initialize(host: nil, port: nil, path: nil)
        @host = host
        @port = port
        @path = path
      end

      # Opens the sockets of this address (a name may have several) and adds a Listener for each. Raises Error.
      def open(settings, listeners)
        if @path&.start_with?("@")
          listeners << open_unix("\0#{@path[1..]}", settings)
        elsif @path
          make_way
          listeners << open_file(settings)
        else
          open_tcp(settings, listeners)
        end
      rescue SystemCallError, SocketError => e
        raise Error, "cannot listen at #{self}: #{e.message}#{advice(e)}"
      end

      def to_s
        return "unix:#{@path}" if @path

        @host.include?(":") ? "[#{@host}]:#{@port}" : "#{@host}:#{@port}"
      end

      private

      def open_tcp(settings, listeners)
        port = @port
        skipped = nil
        opened = Addrinfo.getaddrinfo(@host, port, nil, :STREAM, nil, Socket::AI_PASSIVE).uniq(&:ip_address)
                         .filter_map do |found|
          listener = bind_tcp(Addrinfo.tcp(found.ip_address, port), settings)
          port = listener.io.local_address.ip_port # a free port, taken for the first, serves the others too
          listeners << listener
        rescue Errno::EADDRNOTAVAIL, Errno::EAFNOSUPPORT => e # `localhost` on a machine without IPv6
          skipped = e
          nil
        end
        raise skipped if opened.empty?
      end

      def bind_tcp(address, settings)
        finish(Socket.new(address.afamily, :STREAM), settings) do |socket|
          socket.setsockopt(:SOCKET, :REUSEADDR, true)
          socket.setsockopt(:SOCKET, :REUSEPORT, true) if settings.reuseport
          socket.setsockopt(:IPV6, :V6ONLY, true) if address.ipv6?
          socket.bind(address)
        end
      end

      def open_unix(path, settings)
        finish(Socket.new(:UNIX, :STREAM), settings) { |socket| socket.bind(Addrinfo.unix(path)) }
      end

      # The mode is set before clients can connect, which is only after listen(2).
      def open_file(settings)
        finish(Socket.new(:UNIX, :STREAM), settings, path: File.expand_path(@path)) do |socket|
          socket.bind(Addrinfo.unix(@path))
          File.chmod(settings.path_mode, @path)
        end
      end

      def finish(socket, settings, path: nil)
        yield socket
        socket.listen(settings.backlog)
        socket.nonblock = true
        Listener.new(socket, self.class.name_of(socket.local_address), path, path && File.lstat(path))
      rescue SystemCallError, ArgumentError => e
        socket.close
        raise e unless e.is_a?(ArgumentError) # a path that is too long

        raise Error, "cannot listen at #{self}: #{e.message}; choose a shorter path, or an abstract name such as @app"
      end

      # Removes a socket's file without a listening server. Anything else there stays, and is an error.
      def make_way
        return unless File.exist?(@path) || File.symlink?(@path)

        raise Error, "cannot listen at #{self}: there is a file that is no socket; remove it, or choose another path" \
          unless File.socket?(@path)
        raise Error, "cannot listen at #{self}: a process listens there already; stop it first, or choose another path" \
          if answered?

        File.unlink(@path)
      end

      def answered?
        Socket.new(:UNIX, :STREAM).tap do |socket|
          result = socket.connect_nonblock(Addrinfo.unix(@path), exception: false)
          socket.wait_writable(PATIENCE_S) if result == :wait_writable
        ensure
          socket.close
        end
        true
      rescue Errno::ECONNREFUSED, Errno::ENOENT
        false
      rescue Errno::EAGAIN # its queue is full
        true
      end

      def advice(error)
        case error
        when Errno::EADDRINUSE
          "; another process listens there: stop it, #{@path ? "or choose another name" : "choose another port, or let both set ReusePort"}"
        when Errno::EADDRNOTAVAIL then "; this machine has no such address: give one that it has, or 0.0.0.0 for all"
        when SocketError then "; give a name that this machine can look up, or an address, such as 127.0.0.1"
        when Errno::EACCES then @port&.between?(1, 1023) ? "; ports below 1024 are root's" : ""
        when Errno::ENOENT then "; its folder must exist"
        else ""
        end
      end
    end
  end
end
