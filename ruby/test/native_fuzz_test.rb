# frozen_string_literal: true

require_relative "native_support"
require_relative "conformance_table"

# Random bytes: the worker survives them, and its memory does not grow.
#
#     OROSHI_FUZZ_S=120   duration in seconds (10)
#     OROSHI_FUZZ_SEED=7  another run (1); a failure names its seed
class NativeFuzzTest < Minitest::Test
  include NativeSupport

  SECONDS = Float(ENV.fetch("OROSHI_FUZZ_S", 10))
  SEED = Integer(ENV.fetch("OROSHI_FUZZ_SEED", 1))
  # A leak grows in every stretch; variations of the heap do not.
  STRETCHES = 5
  SLACK_KB = 512

  # Answers in every form, by path.
  ANY = lambda do |env|
    case env["PATH_INFO"].sum % 8
    when 0 then [200, {}, [env["rack.input"].read.to_s.bytesize.to_s]]
    when 1 then [200, {}, Enumerator.new { |pieces| 3.times { |n| pieces << "piece #{n}" } }]
    when 2 then [204, {}, []]
    when 3 then [200, { "Set-Cookie" => "a=1\nb=2" }, ["x" * 100_000]]
    when 4 then raise "as asked"
    when 5 then [200, { "X-Bad" => "a\r\nb" }, ["never sent"]]
    when 6 then [200, { "Content-Length" => "5" }, [env["rack.input"].gets.to_s.b, "too much or too little"]]
    else [302, { "Location" => "/#{env['QUERY_STRING'].size}" }, [env["HTTP_HOST"].to_s]]
    end
  end

  # A path that ANY answers with the length of the body.
  LENGTH = ("a".."z").map { |letter| "/#{letter}" }.find { |path| (path.sum % 8).zero? }

  def test_nothing_that_comes_over_the_wire_stops_the_worker
    server = serve({ max_body: 65_536, errors: File.open(File::NULL, "w") }, lint: false, &ANY)
    fuzzer = Fuzzer.new(server, SEED)
    rounds = 0
    go_on = lambda do |count|
      fuzzer.rounds(count)
      rounds += count
      assert_equal "0", server.get(LENGTH).body, "after #{rounds} rounds of seed #{SEED}"
    end
    100.times { go_on.call(50) }
    memory_kb = Array.new(STRETCHES) do
      over = now + (SECONDS / STRETCHES)
      go_on.call(50) while now < over
      fuzzer.let_go
      server.memory_kb
    end
    grown = memory_kb.each_cons(2).map { |before, after| after - before }
    assert_operator grown.min, :<, SLACK_KB, "KiB more after each stretch of #{rounds} rounds of seed #{SEED}: #{memory_kb}"
    assert_equal ":stopped", server.stop
  end

  private

  def now = Process.clock_gettime(Process::CLOCK_MONOTONIC)

  # Sends near-HTTP in pieces over several connections at once, and leaves them in every way.
  class Fuzzer
    OPEN = 40

    def initialize(server, seed)
      @server = server
      @random = Random.new(seed)
      @known = ConformanceTable.cases.map(&:bytes)
      @open = []
    end

    def rounds(count)
      count.times do
        @open << @server.connect if (@open.size < OPEN && @random.rand(3).zero?) || @open.empty?
        client = @open.sample(random: @random)
        client.send(piece)
        read(client) if @random.rand(2).zero?
        leave(client) if @random.rand(4).zero?
      rescue SystemCallError, IOError
        @open.delete(client)
        client.close
      end
    end

    def let_go
      @open.each(&:close)
      @open.clear
    end

    private

    def piece
      bytes = Array.new(@random.rand(1..3)) { @random.rand(3).zero? ? plain : @known.sample(random: @random) }.join.b
      @random.rand(0..3).times { mutate(bytes) }
      @random.rand(3).zero? ? bytes.byteslice(0, @random.rand(bytes.bytesize + 1)) : bytes
    end

    def plain
      body = "b" * @random.rand(0..3000)
      "POST /#{('a'..'z').to_a.sample(random: @random)} HTTP/1.1\r\nHost: a\r\nContent-Length: #{body.bytesize}\r\n\r\n#{body}"
    end

    def mutate(bytes)
      return if bytes.empty?

      at = @random.rand(bytes.bytesize)
      case @random.rand(4)
      when 0 then bytes.setbyte(at, @random.rand(256))
      when 1 then bytes.insert(at, [0, 10, 13, 32, 58, 255].sample(random: @random).chr.b * @random.rand(1..20))
      when 2 then bytes.slice!(at, @random.rand(1..20))
      else bytes.insert(at, bytes.byteslice(@random.rand(bytes.bytesize), @random.rand(1..200)))
      end
    end

    # Returns the bytes that have arrived, if any.
    def read(client) = client.socket.read_nonblock(65_536, exception: false)

    def leave(client)
      @open.delete(client)
      case @random.rand(3)
      when 0 then client.half_close
      when 1 then client.socket.setsockopt(Socket::SOL_SOCKET, Socket::SO_LINGER, [1, 0].pack("ii"))
      end
      client.close
    end
  end
end
