# frozen_string_literal: true

require_relative "support"
require "oroshi/pid_file"

# Holders of a pid file. flock(2) belongs to the open file, so one process can play both parts.
class PidFileTest < Minitest::Test
  def setup
    @dir = Dir.mktmpdir("oroshi")
    @path = File.join(@dir, "pid")
  end

  def teardown
    FileUtils.rm_rf(@dir)
  end

  def test_one_at_a_time
    first = Oroshi::PidFile.new(@path)
    error = assert_raises(Oroshi::PidFile::Taken) { Oroshi::PidFile.new(@path) }
    assert_equal "#{@path}: the server with pid #{Process.pid} runs already; stop it, or give another PidFile",
                 error.message
    first.remove
    refute File.exist?(@path)
    Oroshi::PidFile.new(@path).remove
  end

  # The second opens the file when the first removes it: a lock on a removed file would exclude nobody.
  def test_removed_between_open_and_lock
    first = Oroshi::PidFile.new(@path)
    second = before_the_lock { first.remove }.call { Oroshi::PidFile.new(@path) }
    assert_equal "#{Process.pid}\n", File.read(@path)
    assert_raises(Oroshi::PidFile::Taken) { Oroshi::PidFile.new(@path) }
    second.remove
    refute File.exist?(@path)
  end

  def test_a_file_of_another_is_not_removed
    first = Oroshi::PidFile.new(@path)
    File.rename(@path, "#{@path}.old")
    File.write(@path, "another's\n")
    first.remove
    assert_equal "another's\n", File.read(@path)
  end

  # Runs code just before the next flock of another block.
  def before_the_lock(&interruption)
    trace = TracePoint.new(:c_call) do |point|
      next unless point.method_id == :flock

      trace.disable
      interruption.call
    end
    ->(&code) { trace.enable(target_thread: Thread.current, &code) }
  end
end
