# frozen_string_literal: true

require_relative "support"

# Real frameworks.
class AppsTest < Support::Test
  def library(name)
    require name
  rescue LoadError
    leave_out(name, "it is not installed (Debian: #{{ "sinatra" => "ruby-sinatra", "rails" => "ruby-railties" }[name]})")
  end

  def test_sinatra_under_lint
    library("sinatra/base")
    serve(app: <<~'APP')
      require "sinatra/base"
      class App < Sinatra::Base
        set :environment, :production
        enable :sessions
        set :session_secret, "x" * 64
        get("/") { "hello from #{self.class.superclass}" }
        get("/count") { (session[:count] = session[:count].to_i + 1).to_s }
        post("/form") { params["a"].to_s * 2 }
        get("/stream") { stream { |out| 3.times { |n| out << "line #{n}\n" } } }
        get("/fail") { raise "oh" }
        get("/redirect") { redirect "/" }
      end
      use Rack::Lint
      run App
    APP
    assert_equal "hello from Sinatra::Base", get("/").body
    first = get("/count")
    assert_equal "1", first.body
    assert_equal "2", get("/count", Cookie: first.headers["set-cookie"][/\A[^;]+/]).body
    assert_match(/line 0\n.*line 1\n.*line 2\n/m, get("/stream").body)
    assert_equal 500, get("/fail").status
    assert_equal 404, get("/nowhere").status
    assert_equal "http://test/", get("/redirect").headers["location"]
    answer = post("/form", "a=%C3%A9", "Content-Type": "application/x-www-form-urlencoded")
    assert_equal "éé".b, answer.body
  end

  def test_rails
    library("rails")
    library("action_controller/railtie")
    serve(env: { "RAILS_ENV" => "production" }, app: <<~'APP')
      require "rails"
      require "action_controller/railtie"
      class App < Rails::Application
        config.eager_load = true
        config.consider_all_requests_local = false
        config.secret_key_base = "x" * 64
        config.hosts.clear
        config.logger = Logger.new($stderr, level: Logger::ERROR)
        routes.append do
          root to: "pages#home"
          get "/json", to: "pages#json"
          post "/upload", to: "pages#upload"
          get "/file", to: "pages#file"
        end
      end
      class PagesController < ActionController::Base
        def home = render(plain: "hello from Rails, #{request.host}")
        def json = render(json: { query: params[:q], ip: request.remote_ip })
        def upload = render(plain: params[:file].read.bytesize.to_s)
        def file = send_file(__FILE__, type: "text/plain")
      end
      App.initialize!
      run App
    APP
    assert_equal "hello from Rails, test", get("/").body
    assert_match(/"query":"a b"/, get("/json?q=a%20b").body)
    assert_equal 404, get("/nowhere").status
    assert_equal File.read(File.join(@dir, "config.ru")), get("/file").body
    part = "--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n#{"y" * 2_000_000}\r\n--x--\r\n"
    answer = post("/upload", part, "Content-Type": "multipart/form-data; boundary=x")
    assert_equal "2000000", answer.body
  end

  def test_rails_server
    library("rails")
    file("config.ru", "Rails.application.initialize!\n#{Support::PLAIN_APP}")
    file("application.rb", <<~'RUBY')
      class OfTest < Rails::Application
        config.root = __dir__
        config.eager_load = false
        config.secret_key_base = "x" * 32
      end
    RUBY
    file("server.rb", <<~'RUBY')
      require "rails"
      require "rails/command"
      APP_PATH = "#{__dir__}/application"
      Rails::Command.invoke(:server, ARGV)
    RUBY
    server = start(*Support::RUBY, "#{@dir}/server.rb", "-u", "oroshi", "-p", "0", "-b", "127.0.0.1")
    port = server.wait_for(/serving 127\.0\.0\.1:(\d+) with 1 workers/)[1].to_i
    server.wait_for(/: ready/)
    assert_match(/=> Booting Oroshi$/, server.said)
    assert_equal "hello", Support::Client.tcp("127.0.0.1", port) { |client| client.get("/").body }
    server.stop
  end

  # Every rule for env and answers, as Rack's own checker sees it.
  def test_lint
    server = serve(app: <<~'APP')
      use Rack::Lint
      run lambda { |env|
        body = env["rack.input"].read
        env["rack.input"].rewind if env["rack.input"].respond_to?(:rewind)
        case env["PATH_INFO"]
        when "/none" then [204, {}, []]
        when "/each" then [200, { "content-type" => "text/plain" }, Enumerator.new { |out| out << "a" << "b" }]
        else [200, { "content-type" => "text/plain", "content-length" => body.bytesize.to_s }, [body]]
        end
      }
    APP
    ["GET /", "GET /?query", "GET /none", "GET /each", "HEAD /", "DELETE /", "OPTIONS *",
     "GET http://test:81/abs"].each do |line|
      Support::Client.unix(socket_path) do |client|
        client.write("#{line} HTTP/1.1\r\nHost: test:81\r\nConnection: close\r\nX-A: 1\r\nX-A: 2\r\nCookie: a=1\r\n\r\n")
        assert_match(/\AHTTP\/1\.1 20[04] /, client.read_all, line)
      end
    end
    Support::Client.unix(socket_path) do |client|
      client.write("POST / HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n")
      client.write("5\r\nhello\r\n0\r\n\r\n")
      assert_match(/\r\n\r\nhello\z/, client.read_all)
    end
    server.stop
    refute_match(/LintError/, server.said)
  end
end
