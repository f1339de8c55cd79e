# frozen_string_literal: true

require_relative "support"

# The gem as its users get it: built, installed into an empty folder, serving from there, and requesting from itself.
class PackageTest < Support::Test
  LIMIT_S = 20 * 60 # its native parts are compiled, on whatever machine this is

  def execute(command, folder, env = {})
    output = File.join(@dir, "output")
    pid = Process.spawn(env, *command, chdir: folder, out: output, err: output, in: File::NULL)
    Timeout.timeout(LIMIT_S) { Process.wait(pid) }
    assert $?.success?, "#{command.join(" ")}:\n#{File.read(output)}"
    File.read(output)
  end

  def test_the_built_gem_serves
    package = "#{@dir}/oroshi.gem"
    execute([Gem.ruby, "-S", "gem", "build", "--output", package, "oroshi.gemspec"], File.dirname(Support::ROOT))
    refute_includes execute([Gem.ruby, "-S", "gem", "specification", package, "files"], @dir), "native.so"

    home = "#{@dir}/home"
    # CARGO_TARGET_DIR reuses built registry crates; the gem's own are built.
    env = { "GEM_HOME" => home, "GEM_PATH" => [home, *Gem.path].join(":"), "RUBYLIB" => nil, "RUBYOPT" => nil }
    execute([Gem.ruby, "-S", "gem", "install", "--local", "--no-document", package], @dir, env)
    assert_empty Dir["#{home}/gems/oroshi-*/ruby/ext/**/target"]

    file("config.ru", Support::PLAIN_APP)
    [["#{home}/bin/oroshi-rack"], %w[-S rackup -s oroshi]].each_with_index do |command, n|
      path = "#{socket_path}#{n}"
      server = start(Gem.ruby, *command, "-O", "Path=#{path}", "-O", "MaxWorkers=1", env: env)
      server.wait_for(/: ready/)
      assert_equal "hello", Support::Client.unix(path) { |client| client.get("/").body }
      assert_match(%r{#{home}/}, File.read("/proc/#{server.pid}/maps"), "the native part is the installed one")
      assert_equal "hello\n#{home}\n", execute([Gem.ruby, "-roroshi", "-e", <<~'RUBY', "unix:#{path}:/", home], @dir, env)
        puts Oroshi::Client.new.get(ARGV[0]).text
        puts File.read("/proc/self/maps")[%r{#{ARGV[1]}(?=/.*/client_native\.so)}]
      RUBY
      assert_equal 0, server.stop.exitstatus
    end
  end
end
