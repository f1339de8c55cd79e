# frozen_string_literal: true

require_relative "ruby/lib/oroshi/version"

# It stands here, and not in ruby/, because the native parts are built from crates/ as well: the gem holds both, where
# they are here.
Gem::Specification.new do |spec|
  spec.name = "oroshi"
  spec.version = Oroshi::VERSION
  spec.summary = "A prefork Rack server with a native worker, and an event-driven HTTP client"
  spec.description = "Serves Rack 2.2 and 3 applications from several processes. Each worker parses requests, calls the " \
                     "application and writes answers on Ruby's main thread, in native code; kept connections and slow " \
                     "clients cost no worker. A successor of Rhebok, with its option names. Oroshi::Client sends thousands of " \
                     "requests at once, from threads, fibers or none of these."
  spec.authors = ["The authors of oroshi"]
  spec.licenses = %w[MIT Apache-2.0]
  # Where the project is at home, its Cargo.toml says. Until it does, `gem build` warns that there is no homepage.
  homepage = File.read(File.join(__dir__, "Cargo.toml"))[/^(?:homepage|repository) *= *"([^"]+)"/, 1]
  spec.homepage = homepage if homepage
  spec.metadata = { "rubygems_mfa_required" => "true" }

  spec.files = Dir.chdir(__dir__) do
    Dir["Cargo.toml", "LICENSE-*", "docs/{rack,client}.md", "crates/{http1,http2,words,net,core,multiplex,client}/{Cargo.toml,src/**/*.rs}",
        "ruby/README.md", "ruby/exe/*", "ruby/lib/**/*.rb", "ruby/ext/{Cargo.toml,Cargo.lock,native_makefile.rb}",
        "ruby/ext/{oroshi,client}/{Cargo.toml,extconf.rb,src/**/*.rs}"] +
      # The crates of others, where `make packages` put them: the released gem is built without a network.
      Dir.glob("ruby/ext/vendor/**/*", File::FNM_DOTMATCH).select { |path| File.file?(path) }.sort
  end
  spec.bindir = "ruby/exe"
  spec.executables = ["oroshi-rack"]
  spec.require_paths = ["ruby/lib"]
  spec.extensions = ["ruby/ext/oroshi/extconf.rb", "ruby/ext/client/extconf.rb"]

  spec.required_ruby_version = ">= 3.1"
  # With the native parts in it (`make packages` sets this), for one version of Ruby and one platform.
  if ENV["OROSHI_NATIVE_GEM"]
    spec.platform = Gem::Platform.new(ENV.fetch("OROSHI_NATIVE_GEM"))
    spec.extensions = []
    spec.files = spec.files.grep_v(%r{\A(?:Cargo|crates/|ruby/ext/)}) + Dir.glob("ruby/lib/oroshi/*.so", base: __dir__).sort
    spec.required_ruby_version = "~> #{RUBY_VERSION[/\d+\.\d+/]}.0"
  end
  spec.add_dependency "rack", ">= 2.2", "< 4"
end
