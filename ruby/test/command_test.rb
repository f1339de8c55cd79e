# frozen_string_literal: true

require_relative "support"

# The commands: `oroshi-rack` and `rackup -s oroshi`.
class CommandTest < Support::Test
  # Returns the exit code and the output.
  def oroshi_rack(*arguments, **more)
    server = start(*Support::COMMAND, *arguments, **more)
    [server.wait.exitstatus, server.said]
  end

  def test_help
    code, said = oroshi_rack("--help")
    assert_equal 0, code
    assert_match(/\AUsage: oroshi-rack \[options\] \[config\.ru\]/, said)
    assert_match(/^    MaxWorkers +how many workers.* \(5\)$/, said)
    assert_match(/^Exit codes: 0 done, 1 failed, 2 wrong usage\.$/, said)
  end

  def test_version
    require "oroshi/version"
    require "rack"
    said = "oroshi-rack #{Oroshi::VERSION} (Ruby #{RUBY_VERSION}, Rack #{Rack.release})\n"
    assert_equal [0, said], oroshi_rack("--version")
  end

  def test_version_is_that_of_the_cargo_workspace
    require "oroshi/version"
    %w[../Cargo.toml ext/oroshi/Cargo.toml].each do |path|
      assert_equal Oroshi::VERSION, File.read(File.join(Support::ROOT, path))[/^version = "(.*)"$/, 1], path
    end
  end

  def test_wrong_options
    code, said = oroshi_rack("-O", "MaxWokers=3", "-p", "http")
    assert_equal 2, code
    assert_equal <<~SAID, said
      error: MaxWokers=3: no such option; did you mean MaxWorkers?
      error: Port=http: must be a whole number from 0 to 65535, for example -O Port=8080
        next: `oroshi-rack --help` lists the options; docs/rack.md explains them
    SAID
  end

  def test_wrong_usage
    assert_equal [2, "error: invalid option: --nonsense; `oroshi-rack --help` lists what there is\n"],
                 oroshi_rack("--nonsense")
    assert_equal [2, "error: too many arguments: b.ru; one config.ru is served\n"], oroshi_rack("a.ru", "b.ru")
    code, said = oroshi_rack
    assert_equal 2, code
    assert_match(%r{\Aerror: /.*/config\.ru is not there; name the application's config\.ru, or change into}, said)
  end

  def test_check
    file("config.ru", Support::PLAIN_APP)
    code, said = oroshi_rack("--check", "-w", "3", "-c", file("c.rb", "timeout '1m'"))
    assert_equal 0, code
    assert_match(/^MaxWorkers +3 \(command line\)$/, said)
    assert_match(/^Timeout +60 s \(.*c\.rb:1\)$/, said)
    assert_match(/^config\.ru is fine$/, said)
    assert_equal [1, "error: PidFile run/a.pid: No such file or directory; its folder must exist: mkdir -p run\n"],
                 oroshi_rack("--check", "-O", "PidFile=run/a.pid")
    refute File.exist?("run")
  end

  def test_an_application_that_is_none
    file("config.ru", "run 5")
    code, said = oroshi_rack("--check")
    assert_equal 1, code
    assert_match(/\Aerror: config\.ru: the application is 5, which has no method `call`; give `run` something that has/, said)
    assert_empty Dir.children(@dir) - %w[config.ru c.rb]

    file("config.ru", "raise 'broken'")
    code, said = oroshi_rack("--check")
    assert_equal 1, code
    assert_match(/config\.ru cannot be loaded: RuntimeError: broken/, said)
  end

  def test_environment_of_the_application
    app = 'run ->(_env) { [200, {}, [ENV["RACK_ENV"]]] }'
    serve(app: app)
    assert_equal "development", get("/").body
    { ["-E", "staging"] => "staging", [] => "production" }.each_with_index do |(arguments, name), n|
      path = "#{socket_path}#{n}"
      server = start(*Support::COMMAND, *arguments, "-w", "1", "-l", path, env: { "RACK_ENV" => "production" })
      server.wait_for(/: ready/)
      assert_equal name, Support::Client.unix(path) { |client| client.get("/").body }
    end
  end

  def test_no_middleware_is_added
    serve(app: 'run ->(_env) { [200, {}, [caller.grep_v(/oroshi/).join("\n")]] }')
    assert_empty get("/").body, "nobody stands between the server and the application"
  end

  def test_web_concurrency
    server = serve(listen: false, env: { "WEB_CONCURRENCY" => "2" }, ready: 0, config: "listen '#{socket_path}'")
    server.wait_for(/: ready/, count: 2)
    assert_match(/with 2 workers/, server.said)
  end

  def test_titles
    server = serve
    get("/")
    assert_equal "oroshi manager: unix:#{socket_path}", title(server.pid)
    assert_match(/\Aoroshi worker 0: /, title(server.worker))
  end

  def title(pid)
    File.read("/proc/#{pid}/cmdline").delete("\0").strip
  end

  # --- Ruby ---

  def test_serve_from_ruby
    server = start(*Support::RUBY, "-e", <<~RUBY)
      require "oroshi"
      exit Oroshi.serve(path: "#{socket_path}", max_workers: 1) { ->(_env) { [200, {}, ["from a block"]] } }
    RUBY
    server.wait_for(/: ready/)
    assert_equal "from a block", get("/").body
    assert_equal 0, server.stop.exitstatus
  end

  # --- rackup ---

  # Rack 3's rackup looks for rackup/handler/oroshi, and has its own registry, which this one replaces.
  def test_handler_of_rack_3
    Dir.mkdir("#{@dir}/rackup")
    file("rackup/handler.rb", "module Rackup; module Handler; def self.register(*names) = p(names); end; end")
    server = start(*Support::RUBY, "-I", @dir, "-e", 'require "rackup/handler/oroshi"')
    assert_equal 0, server.wait.exitstatus
    assert_equal "[:oroshi, Oroshi::RackHandler]\n", server.said
  end

  def rackup(*arguments, **more)
    begin
      program = Gem.bin_path("rack", "rackup")
    rescue Gem::Exception
      program = ENV["PATH"].split(":").map { |folder| File.join(folder, "rackup") }.find { |path| File.executable?(path) }
    end
    leave_out("rackup", "it is not installed (Debian: ruby-rack)") unless program
    file("config.ru", Support::PLAIN_APP) unless File.exist?(File.join(@dir, "config.ru"))
    start(*Support::RUBY, program, *arguments, **more)
  end

  def test_rackup
    server = rackup("-s", "oroshi", "-E", "production", "-O", "Path=#{socket_path}", "-O", "MaxWorkers=2", "-O", "OobGC")
    server.wait_for(/: ready/, count: 2)
    assert_equal "hello", get("/").body
    assert_equal 0, server.stop.exitstatus
  end

  def test_rackup_port_and_host
    server = rackup("-s", "oroshi", "-o", "127.0.0.1", "-p", "0", "-E", "none", "-O", "MaxWorkers=1")
    port = server.wait_for(/serving 127\.0\.0\.1:(\d+) /)[1].to_i
    assert_equal "hello", Support::Client.tcp("127.0.0.1", port) { |client| client.get("/").body }
    # Ctrl-C in a terminal also reaches the workers.
    Process.kill("INT", -server.pid)
    assert_equal 0, server.wait.exitstatus
  end

  # In development rackup adds Lint and others, which must find nothing.
  def test_rackup_in_development
    server = rackup("-s", "oroshi", "-O", "Path=#{socket_path}", "-O", "MaxWorkers=1")
    server.wait_for(/: ready/)
    assert_equal "hello", get("/").body
    server.stop
    assert_match(%r{"GET / HTTP/1\.1" 200 5 }, server.said, "the line of rackup's CommonLogger")
  end

  def test_rackup_with_wrong_options
    server = rackup("-s", "oroshi", "-O", "Prot=1")
    assert_equal 2, server.wait.exitstatus
    assert_match(/^error: Prot=1: no such option; did you mean Port\?$/, server.said)
  end

  # rackup removes its pid file in an at_exit block, which workers must not run.
  def test_rackup_pid_file
    path = File.join(@dir, "pid")
    server = rackup("-s", "oroshi", "-E", "none", "-P", path, "-O", "Path=#{socket_path}", "-O", "MaxWorkers=1",
                    "-O", "MaxRequestPerChild=1")
    server.wait_for(/: ready/)
    get("/")
    server.wait_for(/: ended$/)
    assert_equal server.pid.to_s, File.read(path)
    server.stop
    refute File.exist?(path)
  end

  def test_rackup_help_lists_the_options
    server = rackup("-s", "oroshi", "--help")
    server.wait
    assert_match(/Server-specific options for .*\n.*\n?.*-O Path=VALUE/m, server.said)
    assert_match(/-O WorkerTimeout=VALUE +how long the application may take/, server.said)
  end
end
