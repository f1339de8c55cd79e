# frozen_string_literal: true

require_relative "support"
require "oroshi/settings"
require "oroshi/listeners"

# docs/rack.md is true.
class DocsTest < Support::Test
  DOCS = File.read(File.join(Support::ROOT, "../docs/rack.md"), encoding: "UTF-8")

  def self.row(option)
    default = option.hook? ? "none" : Oroshi::Settings.show(option, option.default)
    "| `#{option.flag}` | `#{option.name}` | #{option.doc} | #{default} |"
  end

  def test_options
    table = DOCS[/^## Options$.*?^\|---\|---\|---\|---\|\n(.*?)\n\n/m, 1]
    assert_equal Oroshi::Settings::OPTIONS.map { |option| DocsTest.row(option) }, table.lines(chomp: true)
  end

  # Every option in the tables for users of other servers exists.
  def test_options_of_the_tables_for_others
    named = DOCS[/^## Coming from Unicorn.*^## Who/m].scan(/^\|[^|]*(?:\\\|[^|]*)*\| (.*) \|$/).flatten
                                                   .flat_map { |cell| cell.scan(/`([a-z_]+)[ `]/).flatten }
    assert_includes named, "max_workers"
    unknown = named.uniq.reject { |name| Oroshi::Settings.option(name) } - %w[oroshi timeout proxy_http_version keepalive]
    assert_empty unknown
  end

  def test_options_of_rhebok
    rows = DOCS[/^\| option \| here \|\n.*?\n\n/m].scan(/^\| (`.*?) \|/).flatten.flat_map { |cell| cell.scan(/`(\w+)`/).flatten }
    assert_equal 18, rows.uniq.size, "all of Rhebok's"
    assert_empty(rows.reject { |name| Oroshi::Settings.option(name)&.flag == name })
  end

  def test_config_file
    path = file("oroshi.rb", DOCS[%r{^# config/oroshi\.rb\n.*?(?=^```)}m])
    settings = Oroshi::Settings.build({ ConfigFile: path }, env: {})
    assert_equal ["127.0.0.1:8080", "/run/app.sock"], settings.listen
    assert_equal [4, 30], [settings.max_workers, settings.worker_timeout]
  end

  # The example's application and settings.
  def test_the_example
    folder = File.join(Support::ROOT, "../examples/rack")
    checked = start(*Support::COMMAND, "--check", chdir: folder)
    assert_equal 0, checked.wait.exitstatus, checked.said
    assert_match(%r{^ConfigFile +config/oroshi\.rb}, checked.said)
    assert_match(/^MaxMemoryPerChild +419430400 /, checked.said)
  end

  def test_wrong_options
    said = DOCS[/^\$ (oroshi-rack -O MaxWokers.*?)\n(.*?)^```/m, 2]
    server = start(*Support::COMMAND, "-O", "MaxWokers=3", "-p", "http")
    server.wait
    assert_equal said, server.said
  end

  # The page's block for nginx, with paths replaced.
  def test_nginx
    nginx = [*ENV["PATH"].split(":"), "/usr/sbin"].map { |folder| "#{folder}/nginx" }.find { |path| File.executable?(path) }
    leave_out("the gem behind nginx", "nginx is not installed (Debian: nginx-light)") unless nginx
    server = serve(app: <<~'APP', LogFormat: "common", MaxWorkers: 1)
      run ->(env) { [200, {}, [env.values_at("HTTP_HOST", "HTTP_X_FORWARDED_PROTO", "SERVER_PROTOCOL").join(" ")]] }
    APP
    block = DOCS[/^```nginx\n(.*?)^```/m, 1].sub("/run/app/app.sock", socket_path)
                                              .sub("listen 80;", "listen unix:#{@dir}/front;")
    conf = file("nginx.conf", <<~CONF)
      daemon off; master_process off; pid #{@dir}/nginx.pid; error_log stderr notice;
      events {}
      http { access_log off; client_body_temp_path #{@dir}; proxy_temp_path #{@dir}; fastcgi_temp_path #{@dir};
             uwsgi_temp_path #{@dir}; scgi_temp_path #{@dir};
      #{block}}
    CONF
    front = start(nginx, "-e", "stderr", "-p", @dir, "-c", conf)
    front.wait_for(/start worker process|using the "epoll" event method/)
    wait_until("nginx") { File.socket?("#{@dir}/front") }
    3.times do
      assert_equal "test http HTTP/1.1", Support::Client.unix("#{@dir}/front") { |client| client.get("/").body }
    end
    server.stop
    assert_equal 3, server.said.scan(%r{"GET / HTTP/1\.1" 200}).size
  end
end
